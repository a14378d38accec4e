"""The image of the product, built from its own Dockerfile; made again only when something that goes into it changed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.images import BASE

if TYPE_CHECKING:
    from docker import DockerClient

ROOT = Path(__file__).parents[2]
REPOSITORY = "keystone-test-action"
_BUILD = ROOT / "tests" / "images" / "build-action"
_OLD = 3600.0
"""Seconds after which no other test run still uses an image of sources that have changed since."""


@pytest.fixture(scope="session")
def action_base(image: Callable[[str], str]) -> str:
    """KEYSTONE_TEST_BASE, or an image of Debian's own packages, made once for this engine."""
    return os.environ.get("KEYSTONE_TEST_BASE") or image(BASE)


@pytest.fixture(scope="session")
def action_image(engine: DockerClient, action_base: str) -> str:
    """The tag of the image of these sources."""
    tag = f"{REPOSITORY}:{_digest(str(engine.images.get(action_base).id))}"
    if not engine.images.list(filters={"reference": tag}):
        built = subprocess.run(
            [str(_BUILD), action_base, tag], capture_output=True, text=True, timeout=1200, check=False
        )
        assert built.returncode == 0, (built.stdout + built.stderr)[-3000:]
        _forget_old(engine, tag)
    return tag


_PATIENT = """\
import re
from pathlib import Path

for name, count in {"system/signals": 5, "runner/shared_services": 3}.items():
    path = Path("/opt/keystone/lib/keystone_action", name + ".py")
    limit = r"^(_?[A-Z]+_SECONDS = )([0-9.]+)$"
    text, found = re.subn(limit, lambda limit: limit[1] + str(float(limit[2]) * 12), path.read_text(), flags=re.M)
    assert found == count, f"{name} has {found} limits"
    path.write_text(text)
"""


@pytest.fixture(scope="session")
def patient_image(engine: DockerClient, action_image: str) -> str:
    """The same with twelve times the seconds from a signal to its end: what an engine that has other work to do would
    not remove in time is not what is asked."""
    tag = f"{action_image}-patient"
    if not engine.images.list(filters={"reference": tag}):
        lines = [f"FROM {action_image}", f"RUN {json.dumps(['/opt/keystone/bin/python', '-c', _PATIENT])}"]
        engine.images.build(fileobj=io.BytesIO("\n".join(lines).encode()), tag=tag, rm=True)
    return tag


def _digest(base: str) -> str:
    digest = hashlib.sha256(base.encode())
    for path in sorted(_sources()):
        content = path.read_bytes()
        digest.update(f"\n{path.relative_to(ROOT)} {path.stat().st_mode} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    ignored = (ROOT / ".dockerignore").read_text("utf-8")
    for name in ("Dockerfile", *(line[1:] for line in ignored.splitlines() if line.startswith("!"))):
        part = ROOT / name
        inside = part.rglob("*") if part.is_dir() else [part]
        yield from (path for path in inside if path.is_file() and path.suffix not in {".pyc", ".cache"})


def _forget_old(engine: DockerClient, current: str) -> None:
    from docker.errors import APIError

    for found in engine.images.list(REPOSITORY):
        made = datetime.fromisoformat(str(found.attrs["Created"])[:19] + "+00:00").timestamp()
        if current not in found.tags and made < time.time() - _OLD:
            for tag in found.tags:
                # A container that still runs on it keeps it.
                with contextlib.suppress(APIError):
                    engine.images.remove(tag)
