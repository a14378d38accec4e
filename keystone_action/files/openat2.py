"""The system call `openat2` of Linux 5.6, called by `ctypes`: loaded when something is opened, since
`ctypes` costs 5 ms."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

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
