"""The images of tests/images, made when a test asks for one. Their names are those of the images they stand in for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.docker_engine import missing

BASE = "keystone-test-base:bookworm"
PYTHON = "python:3.12-slim"
POSTGRES = "postgres:16"
MARIADB = "mariadb:11"
MYSQL = "mysql:9"
NO_SHELL = "keystone-test-no-shell:1"
EXITS_AT_ONCE = "keystone-test-exits:1"
MEMORY_HOG = "keystone-test-memory-hog:1"

_BUILD = Path(__file__).parents[1] / "images" / "build-all"
_SOMETHING_IS_MISSING = 2


@pytest.fixture(scope="session")
def image(engine: object) -> Callable[[str], str]:
    """A function that makes sure that the image is there, and gives its name back."""
    ready: set[str] = set()

    def get(name: str) -> str:
        if name not in ready:
            made = subprocess.run([_BUILD, name], capture_output=True, text=True, timeout=1200, check=False)
            if made.returncode == _SOMETHING_IS_MISSING:
                missing(made.stderr.strip().splitlines()[-1])
            assert made.returncode == 0, made.stderr[-3000:]
            ready.add(name)
        return name

    return get
