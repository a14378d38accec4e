"""Small file systems of a test's own, where this machine lets us mount any."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.docker_engine import missing


def need_mounts(*unshare: str) -> None:
    """Skip the test where nothing can be mounted; where an engine was promised, that is a failure.

    unshare: the command that the test mounts with, if any."""
    if said := _refusal(unshare):
        missing(f"this machine lets us mount no file system ({said})")


@functools.cache
def _refusal(unshare: tuple[str, ...]) -> str:
    """Why not; empty when it has just been done."""
    with tempfile.TemporaryDirectory(prefix="mount-") as place:
        words = [*unshare, "sh", "-c", 'mount -t tmpfs tmpfs "$0" && umount "$0"', place]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    said = done.stderr.strip().partition("\n")[0]
    return (said or f"exit code {done.returncode}") if done.returncode else ""


@contextlib.contextmanager
def small_disk(place: Path, size: str, mode: str = "711") -> Iterator[None]:
    """A file system of this size at a place; needs root."""
    need_mounts()
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode={mode}", "tmpfs", place], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True, timeout=30)
