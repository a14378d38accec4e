"""How a case names repositories and commits."""

from __future__ import annotations

import re
from pathlib import Path

_OWNER_AND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
_SCP_LIKE = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:.+")
_COMMIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")


def location(repository: str, directory: Path) -> str | None:
    """The URL of a repository: one as it is, a path that begins with `/`, `./` or `../` (relative to directory), or
    `owner/name` on GitHub. None for anything else."""
    if repository.startswith(("/", "./", "../")):
        return (directory / repository).resolve().as_uri()
    if "://" in repository or _SCP_LIKE.fullmatch(repository):
        return repository if not repository.startswith("-") else None
    return f"https://github.com/{repository}.git" if _OWNER_AND_NAME.fullmatch(repository) else None


def is_commit(text: str) -> bool:
    """Whether git can be asked for it without taking it for something else."""
    return _COMMIT.fullmatch(text) is not None and ".." not in text


def shown_url(url: str) -> str:
    """A URL for messages: without the user and password that it may hold."""
    return re.sub(r"(://)[^/?#\s]*@", r"\1", url)
