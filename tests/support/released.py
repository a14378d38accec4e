"""Released versions of the tools whose files Keystone reads, each in an environment of its own.

They come from PyPI, at the versions and with the hashes of tests/differential/requirements-*.txt, into the user's cache
directory; once they are there, no network is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from support.command_line import ROOT

EXPECTED = "KEYSTONE_EXPECT_PYPI"
CACHE = Path(os.environ.get("XDGCACHE_HOME") or Path.home() / ".cache") / "keystone-tests"


def missing(reason: str) -> NoReturn:
    """Skip the test for lack of `reason`; fail it where the packages were promised (KEYSTONE_EXPECT_PYPI=1), as in
    CI."""
    if os.environ.get(EXPECTED) == "1":
        pytest.fail(f"{reason}, and {EXPECTED}=1 says that it must be there", pytrace=False)
    pytest.skip(reason)


def released(tool: str) -> Path:
    """The directory of a tool's programs (`bin`), installed when it is not there yet."""
    requirements = ROOT / "tests" / "differential" / f"requirements-{tool}.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    place = CACHE / f"{tool}-{key}"
    with locked(tool):
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            _install(place, requirements, tool)
            (place / "complete").touch()
    return place / "bin"


@contextmanager
def locked(tool: str) -> Iterator[None]:
    """Workers of one test run wait for each other."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{tool}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(place: Path, requirements: Path, tool: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        missing("uv is not there: run tools/bootstrap")
    packages = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", requirements]
    for words in (["venv", "--python", sys.executable, place], ["pip", "install", "--python", place, *packages]):
        done = subprocess.run([uv, "--quiet", *words], capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            missing(f"the released {tool} can't be had from PyPI ({''.join(last)})")
