"""Opening what lies below a folder that an agent may have filled: no link is followed, no FIFO waited for.

A tree of any depth is walked at the price of its size: each folder is opened from one above that is still open. One
system call (`openat2` of Linux 5.6, by `ctypes`) opens a path that no link may lead out of; older kernels get one
`openat` for each part of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from keystone_action.errors import UsageError

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


_STEP = 64
_KEPT_AT_MOST = 200


class Descent:
    """Opens the directories of one tree, found by walking our own listing depth first. `with` it.

    From the root alone, a chain of n directories would cost n²/2 steps: an agent makes 5,000 levels in a second. Every
    64th level of the current branch stays open, so a tree of ordinary depth costs nothing more.
    """

    def __init__(self, root_fd: int) -> None:
        """root_fd stays the caller's."""
        self._kept: list[tuple[str, int]] = [("", root_fd)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while len(self._kept) > 1:
            os.close(self._kept.pop()[1])

    @contextmanager
    def listing(self, relative: str) -> Iterator[tuple[int, Iterator[tuple[str, os.DirEntry[str]]]]]:
        """A directory as a descriptor, and what is in it, each entry with its path. Nothing of it is held: an agent can
        make a directory of millions. Raises OSError, also from the entries."""
        folder = self.open(relative)
        try:
            with os.scandir(folder) as entries:
                prefix = f"{relative}/" if relative else ""
                yield folder, ((prefix + entry.name, entry) for entry in entries)
        finally:
            os.close(folder)

    def open(self, relative: str) -> int:
        """As `open_directory`: the caller closes it. Raises OSError."""
        while not relative.startswith(self._kept[-1][0]):
            os.close(self._kept.pop()[1])
        above, fd = self._kept[-1]
        opened = open_directory(fd, relative[len(above) :])
        if relative.count("/") % _STEP == _STEP - 1 and len(self._kept) < _KEPT_AT_MOST:
            self._kept.append((f"{relative}/", os.dup(opened)))
        return opened


@contextmanager
def open_tree(tree: Path) -> Iterator[tuple[int, Descent]]:
    """The root of a tree as a descriptor, and the descent from it. A root that is a link is refused. Raises OSError."""
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with Descent(root) as descent:
            yield root, descent
    finally:
        os.close(root)


def walk_down(
    tree: Path, unreadable: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, int, list[os.DirEntry[str]]]]:
    """Each directory of a tree, from the top: its path relative to that, a descriptor that stays open until the next
    step, and what is in it. Links are not followed.

    unreadable: called for a directory that can't be opened, which is then left out. Raises OSError.
    """
    with open_tree(tree) as (_, descent):
        waiting = [""]
        while waiting:
            directory = waiting.pop()
            try:
                folder = descent.open(directory)
            except OSError as error:
                if unreadable is None:
                    raise
                unreadable(error)
                continue
            try:
                with os.scandir(folder) as scan:
                    entries = list(scan)
                prefix = f"{directory}/" if directory else ""
                waiting += [f"{prefix}{one.name}" for one in entries if one.is_dir(follow_symlinks=False)]
                yield directory, folder, entries
            finally:
                os.close(folder)


def is_empty(directory: Path) -> bool:
    """Raises OSError."""
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def is_small(tree: Path, *, most_entries: int, most_bytes: int = sys.maxsize) -> bool:
    """Whether a tree has no more than so many entries and bytes, found out by looking at no more than that many. False
    where it can't be listed. Nobody else may change the tree meanwhile."""
    waiting, entries, size = [os.fspath(tree)], 0, 0
    try:
        while waiting:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    entries += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
                    if entries > most_entries or size > most_bytes:
                        return False
    except OSError:
        return False
    return True


BENEATH, NO_MAGIC_LINKS, NO_SYMLINKS = 0x08, 0x02, 0x04
_OPENAT2 = 437
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(directory: int, path: bytes, flags: int, resolve: int) -> int:
    """The system call of Linux 5.6, to open what is there. Raises OSError; ENOSYS where there is none."""
    if _libc is None or b"\0" in path:
        raise OSError(errno.ENOSYS if _libc is None else errno.EINVAL, "openat2")
    how = _OpenHow(flags, 0, resolve)
    while True:
        fd = int(_libc.syscall(_OPENAT2, directory, path, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def open_plain(path: Path, limit: int, access: int = os.O_RDONLY, *, advice: str = "") -> int:
    """A descriptor of a regular file of at most `limit` bytes that is not a link. advice: the help of an error about a
    file of another kind.

    Raises OSError (FileNotFoundError where there is nothing), UsageError for what is not such a file, or too large.
    """
    descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is not a regular file", help=advice)
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
