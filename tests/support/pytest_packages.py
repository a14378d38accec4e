"""pytest for the python3 of sandboxes, which may have none: pure Python, whatever its version."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

_PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")


@contextmanager
def pytest_for_sandboxes() -> Iterator[Path]:
    """A directory for PYTHONPATH with this environment's pytest, which the sandbox's python3 has not; readable for the
    users of sandboxes."""
    with tempfile.TemporaryDirectory(prefix="keystone-pytest-") as name:
        place = Path(name)
        for package in _PACKAGES:
            found = find_spec(package)
            assert found is not None
            assert found.origin is not None
            if Path(found.origin).name != "__init__.py":
                shutil.copy(found.origin, place)
                continue
            shutil.copytree(Path(found.origin).parent, place / package, ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([sys.executable, "-m", "compileall", "-q", name], check=False)
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", name], check=True)
        yield place


@pytest.fixture(scope="session")
def packages() -> Iterator[Path]:
    """One directory for all tests, which only read it."""
    with pytest_for_sandboxes() as place:
        yield place
