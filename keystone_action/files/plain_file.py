"""Reading a file that somebody else may have put there: no link is followed, no FIFO waited for, nothing too large."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from keystone_action.errors import UsageError


def open_plain(path: Path, limit: int, access: int = os.O_RDONLY, *, advice: str = "") -> int:
    """A descriptor of a regular file of at most `limit` bytes that is not a link. advice: the help of an error about a
    file of another kind.

    Raises OSError (FileNotFoundError where there is nothing), UsageError for what is no such file or too large.
    """
    descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is no regular file", help=advice)
    raise _too_large(path, status.st_size, limit)


def read_plain(path: Path, limit: int) -> bytes:
    """All of such a file, also when it grows meanwhile. Raises as `open_plain` does."""
    with os.fdopen(open_plain(path, limit), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise _too_large(path, len(content), limit)
    return content


def _too_large(path: Path, size: int, limit: int) -> UsageError:
    return UsageError(f"{path} has {size:,} bytes; at most {limit:,} are read")
