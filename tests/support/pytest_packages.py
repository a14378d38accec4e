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
from support.command_line import ENVIRONMENT

_PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
_LEXERS = {"__init__.py", "_mapping.py", "diff.py", "python.py"}
"""Of the hundreds of languages that pygments colours, what pytest needs. Tests copy the packages for each cell."""


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
            shutil.copytree(Path(found.origin).parent, place / package, ignore=_not_needed)
        # Copies have other times than what was compiled.
        compiled = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", name]
        subprocess.run([shutil.which("python3", path=ENVIRONMENT["PATH"]) or sys.executable, *compiled], check=False)
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", name], check=True)
        yield place


def _not_needed(directory: str, names: list[str]) -> set[str]:
    return {"__pycache__", *(set(names) - _LEXERS if Path(directory).name == "lexers" else ())}


@pytest.fixture(scope="session")
def packages() -> Iterator[Path]:
    """One directory for all tests, which only read it."""
    with pytest_for_sandboxes() as place:
        yield place
