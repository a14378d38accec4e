"""What the benchmarks on a container engine share: whether there is one, and what a run left on it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import DockerClient

ROOT = Path(__file__).parents[1]
BASE = "keystone-test-base:bookworm"
"""Debian's own packages; `make test` makes it, as it makes the stand-ins of official images."""
LABEL = "keystone.run=bench"
_PATIENCE = 600
"""Seconds: a slow disk takes minutes to remove an image."""
_TAG = "keystone-bench-action:latest"


class Missing(Exception):  # noqa: N818 - no defect: it is said, and the benchmark left out
    """What a benchmark needs is not here."""


def client(*images: str) -> DockerClient:
    """A client of an engine that has these images. Raises Missing."""
    import docker

    try:
        found = docker.from_env(timeout=_PATIENCE)
        for image in images:
            found.images.get(image)
    except docker.errors.DockerException as error:
        raise Missing(" ".join(str(error).split())) from error
    return found


def action_image(engine: DockerClient) -> str:
    """The tag of the action's image of these sources, built on BASE; what has not changed is in the engine's cache.
    Raises Missing."""
    from docker.errors import APIError

    before = {str(image.id) for image in engine.images.list(_TAG)}
    build = [str(ROOT / "tests" / "images" / "build-action"), BASE, _TAG]
    try:
        built = subprocess.run(build, capture_output=True, text=True, timeout=1200, check=False)
    except subprocess.TimeoutExpired as error:
        raise Missing("the image was not built within 20 minutes") from error
    if built.returncode:
        raise Missing(f"the image can't be built: {' '.join(built.stderr.split())[-300:]}")
    for old in before - {str(engine.images.get(_TAG).id)}:
        # Another tag may hold it, or a container.
        with contextlib.suppress(APIError):
            engine.images.remove(old)
    return _TAG


def docker(words: Sequence[str]) -> str:
    """What the client of the command line prints. Raises CalledProcessError."""
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


def left(run_id: str) -> list[str]:
    """Containers, networks and volumes of a run that are still on the engine."""
    label = f"label=keystone.run={run_id}"
    asked = (
        ["ps", "--all", "--quiet", "--no-trunc"],
        ["network", "ls", "--quiet"],
        ["volume", "ls", "--quiet"],
    )
    return [line for words in asked for line in docker([*words, "--filter", label]).split()]
