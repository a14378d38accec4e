"""Real git repositories: an origin with a base commit, and checkouts of a change as actions/checkout makes them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{role}_NAME": "Ada" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "ada@example.com" for role in ("AUTHOR", "COMMITTER")},
}


def git(directory: Path, *words: str) -> str:
    """What git printed. Raises CalledProcessError."""
    command = ["git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *words]
    done = subprocess.run(command, cwd=directory, env=_ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(directory: Path, files: Mapping[str, str | None]) -> None:
    """Write files, remove those that are None."""
    for name, text in files.items():
        path = directory / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def commit(directory: Path, files: Mapping[str, str | None], message: str = "a change") -> str:
    """Commit files and return the sha."""
    write(directory, files)
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "--allow-empty", "-m", message)
    return git(directory, "rev-parse", "HEAD")


@dataclass(frozen=True)
class Change:
    """A change on top of a base commit. origin: the bare repository; base, head: commits."""

    origin: Path
    base: str
    head: str

    def check_out(self, directory: Path, *, depth: int | None = None) -> Path:
        """The head in a directory that is there already, with the whole history or so much of it."""
        shallow = [f"--depth={depth}"] if depth is not None else []
        git(directory, "init", "-q", "-b", "work", "--template=")
        git(directory, "remote", "add", "origin", self.origin.as_uri())
        refs = ["+refs/heads/topic:refs/remotes/origin/topic"]
        if depth is None:
            refs.append("+refs/heads/main:refs/remotes/origin/main")
        git(directory, "fetch", "-q", *shallow, "origin", *refs)
        git(directory, "checkout", "-q", "-b", "topic", "refs/remotes/origin/topic")
        return directory


def make_change(place: Path, base: Mapping[str, str], change: Mapping[str, str | None]) -> Change:
    """An origin below `place` with `main` at the base and `topic` at the change; the test's own."""
    kept, first, last = _made(tuple(base.items()), tuple(change.items()))
    shutil.copytree(Path(kept.name) / "origin.git", place / "origin.git")
    return Change(place / "origin.git", first, last)


@functools.cache
def _made(
    base: tuple[tuple[str, str], ...], change: tuple[tuple[str, str | None], ...]
) -> tuple[tempfile.TemporaryDirectory[str], str, str]:
    """A directory with such an origin, and its commits: git takes long to make what many tests begin with."""
    kept = tempfile.TemporaryDirectory(prefix="keystone-origin-")
    place = Path(kept.name)
    work, origin = place / "work", place / "origin.git"
    work.mkdir()
    git(work, "init", "-q", "-b", "main", "--template=")
    first = commit(work, dict(base), "base")
    git(work, "checkout", "-q", "-b", "topic")
    last = commit(work, dict(change))
    git(place, "clone", "-q", "--bare", "--template=", str(work), str(origin))
    git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
    shutil.rmtree(work)
    return kept, first, last
