"""The files of an author's directory that is read whole before the agent runs (`expect_dir`, hidden tests)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from keystone_action.spec.walking import walk

MAX_FILES = 10_000
MAX_BYTES = 256 << 20
"""Of one directory, all its files together: they are kept in memory while the run lasts."""


def files_below(directory: Path) -> tuple[str, ...]:
    """The paths of its files, sorted, relative and with `/`; a link to a file inside counts as that file.

    Raises ValueError with a sentence without its subject for what must not be read (a link that leads out or nowhere,
    a FIFO, a file that is closed to us), for more than is kept, and for a directory without any file.
    """
    root = directory.resolve()
    found: list[str] = []
    size = 0
    for folder, folders, names in walk(root, _raise_unlisted):
        for name in (*folders, *names):
            path = Path(folder) / name
            if name in folders and not path.is_symlink():
                continue
            relative = path.relative_to(root).as_posix()
            size += _size(root, path, relative)
            found.append(relative)
            if len(found) > MAX_FILES or size > MAX_BYTES:
                raise ValueError(f"holds more than {MAX_FILES:,} files or {MAX_BYTES:,} bytes")
    if not found:
        raise ValueError("has no files in it")
    return tuple(sorted(found))


def read_below(directory: Path) -> dict[str, bytes]:
    """The bytes of each file of `files_below`. Raises as it does."""
    try:
        return {name: (directory / name).read_bytes() for name in files_below(directory)}
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror}") from error


def _size(root: Path, path: Path, relative: str) -> int:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):
        raise ValueError(f"holds {relative!r}, a link that leads nowhere") from None
    if not real.is_relative_to(root):
        raise ValueError(f"holds {relative!r}, a link that leads out of it")
    if not stat.S_ISREG(status.st_mode):
        kind = "a link to a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ValueError(f"holds {relative!r}, {kind}")
    if not os.access(real, os.R_OK):
        raise ValueError(f"holds {relative!r}, which can't be read")
    return status.st_size


def _raise_unlisted(error: OSError) -> None:
    raise ValueError(f"can't be listed: {error.strerror}") from error
