"""Opening below a directory that is open, by one system call that no link leads out of."""

from __future__ import annotations

import errno
import os

_PATH_CHUNK = 3000


def open_directory(root_fd: int, relative: str, flags: int = os.O_RDONLY) -> int:
    """A directory found by walking our own listing: no link on the way is followed, depth is not limited by PATH_MAX.

    relative: POSIX path below root_fd, "" for itself. Raises OSError.
    """
    flags |= os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(".", flags, dir_fd=root_fd)
    for chunk in _chunks(relative):
        try:
            deeper = _open_without_links(fd, chunk, flags)
        finally:
            os.close(fd)
        fd = deeper
    return fd


def _open_without_links(fd: int, chunk: list[str], flags: int) -> int:
    from keystone_action.files.openat2 import BENEATH, NO_SYMLINKS, openat2

    try:
        return openat2(fd, os.fsencode("/".join(chunk)), flags, BENEATH | NO_SYMLINKS)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EPERM}:
            raise
    here = os.dup(fd)
    for part in chunk:
        try:
            deeper = os.open(part, flags, dir_fd=here)
        finally:
            os.close(here)
        here = deeper
    return here


def _chunks(relative: str) -> list[list[str]]:
    chunks: list[list[str]] = []
    length = _PATH_CHUNK
    for part in relative.split("/") if relative else []:
        size = len(os.fsencode(part)) + 1
        if length + size > _PATH_CHUNK:
            chunks.append([])
            length = 0
        chunks[-1].append(part)
        length += size
    return chunks
