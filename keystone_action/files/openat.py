"""Opening below a directory that is open, by one system call that no link leads out of."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

BENEATH, NO_MAGIC_LINKS, NO_SYMLINKS = 0x08, 0x02, 0x04
_OPENAT2 = 437
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


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


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
