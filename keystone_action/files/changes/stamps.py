"""Whether a file system stamps every change of a file's content, also one that goes through a mapped page.

tmpfs does not: its files keep their times when a mapped page is written. So an unchanged stamp proves an unchanged file
only on file systems that are known for it, and that are seen to do it here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

_KNOWN = {0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x794C7630: "overlay"}
"""By the kernel's magic numbers. ext2 has that of ext4, and an overlay can lie on any other: the trial tells."""
_SECOND = 10**9
_FIRST_OF_1970 = (_SECOND, _SECOND)

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_tried: dict[tuple[int, int], bool] = {}
"""By device and kind: one trial of each is enough."""


def stamps_every_change(directory: int) -> bool:
    """Whether files of this open directory's file system get new times, finer than a second, with every change."""
    kind = _kind(directory)
    if kind not in _KNOWN:
        return False
    key = (os.fstat(directory).st_dev, kind)
    if key not in _tried:
        _tried[key] = _trial(directory)
    return _tried[key]


def _kind(directory: int) -> int | None:
    if _libc is None:
        return None
    buffer = (ctypes.c_long * 32)()  # larger than any struct statfs; its first member is the kind
    if _libc.fstatfs(directory, ctypes.byref(buffer)) != 0:
        return None
    return int(buffer[0]) & 0xFFFFFFFF


def _trial(directory: int) -> bool:
    """Write a mapped page of a file without a name, and look at its times. A failure is no proof."""
    try:
        file = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError:
        return False
    try:
        os.write(file, bytes(mmap.PAGESIZE))
        with mmap.mmap(file, mmap.PAGESIZE) as page, open("/dev/zero", "rb", buffering=0) as zeros:  # noqa: PTH123
            page[0]  # a page that was read before can be written without a fault, where nothing asks for one
            os.utime(file, ns=_FIRST_OF_1970)
            # By a system call: where the disk is full a store of our own would end this process with SIGBUS.
            zeros.readinto(page)
        status = os.fstat(file)
    except OSError:
        return False
    finally:
        os.close(file)
    is_stamped = status.st_mtime_ns > _SECOND
    return is_stamped and all(stamp % _SECOND for stamp in (status.st_mtime_ns, status.st_ctime_ns))
