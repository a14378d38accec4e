"""How much space trees take on the disk, and sizes in words. Only the standard library: supervisors import this."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

DEEPEST = 500


def human(count: float) -> str:
    """Bytes for people: 2.1 GiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


class TooDeep(Exception):  # noqa: N818 - a finding, not an error
    """Directories nested so deeply that what lies in them can't be measured: nobody needs that to work."""


def tree_size(roots: list[str]) -> Iterator[int | None]:
    """The space below `roots` in bytes, as blocks on disk, links not followed and hard links counted once.

    A generator, so that a large tree doesn't keep the supervisor from its work: yields None wherever it can pause,
    and the size at the end. Raises TooDeep.
    """
    total = 0
    seen: set[tuple[int, int]] = set()
    waiting = [(root, 0) for root in roots]
    while waiting:
        directory, depth = waiting.pop()
        yield None
        if depth > DEEPEST:
            raise TooDeep
        with _unless_too_long(), os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number % 256 == 255:
                    yield None
                with _unless_too_long():
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append((entry.path, depth + 1))
                    elif status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in seen:
                            continue
                        seen.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
    yield total


@contextlib.contextmanager
def _unless_too_long() -> Iterator[None]:
    """What is gone meanwhile counts for nothing; what no path can reach is TooDeep."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise TooDeep from None
