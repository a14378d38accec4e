"""Peers at a pinned version, each in an environment of its own that later runs find again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_INSTALL_SECONDS = 1_800


def _cache(requirement: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "keystone-bench" / requirement.replace("/", "+")


def python_program(requirement: str, name: str) -> Path:
    """A program of a Python package. Raises OSError or subprocess.SubprocessError when it can't be installed."""
    cache = _cache(requirement)
    program = cache / "bin" / name
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", cache], check=True)
        subprocess.run([cache / "bin" / "pip", "install", "-q", requirement], check=True, timeout=_INSTALL_SECONDS)
    return program


def node_program(package: str, name: str) -> Path:
    """A program of an npm package. Raises OSError or subprocess.SubprocessError when it can't be installed."""
    cache = _cache(package)
    program = cache / "node_modules" / ".bin" / name
    if not program.exists():
        if shutil.which("npm") is None:
            raise OSError("npm is not installed")
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "package.json").write_text("{}\n")  # without one npm looks for it in the folders above
        words = ["npm", "install", "--no-audit", "--no-fund", package]
        subprocess.run(words, cwd=cache, check=True, timeout=_INSTALL_SECONDS, capture_output=True)
    return program
