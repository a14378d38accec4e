"""What another process can still write of a tree whose own processes have all ended.

A descriptor reaches another process through a socket, and neither modes nor Landlock hold off who has it. The kernel
tells whether a file is open for writing anywhere, mapped, or on its way through a socket: it then refuses a lease for
reading. It takes that for overlay file systems back as soon as the file is only mapped, so each file system is tried
first; where it does not tell, files are replaced by copies, which nobody has open.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from keystone_action.errors import raise_unless_agent
from keystone_action.files.copying import copy_content
from keystone_action.files.descent import walk_down

_PATIENCE = 2.0
"""Seconds within which the kernel closes what killed processes had open: some of it, it closes after their end."""
_PAUSE = 0.01
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWNER = 0o700
_SHARED = mmap.MAP_SHARED
_tried: dict[int, bool] = {}
"""By device: one trial of each is enough."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def find_held_file(tree: Path, *, renews: bool) -> str:
    """The path of a file in a tree that some process can still write, empty when there is none; symbolic links are not
    followed. renews: replace all files by copies where the kernel does not tell. Folders that can't be opened are left
    out: nothing in them can be judged. Blocks. Raises OSError."""
    try:
        root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:  # gone, or closed by the agent
        raise_unless_agent(error, "looking for open files in the workspace")
        return ""
    try:
        told = _tells(root)
    finally:
        os.close(root)
    if not told and not renews:
        return ""
    if not told:
        _renew_all(tree)
        return ""
    for relative, folder, entries in walk_down(tree, lambda _: None):
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and not _is_free(entry.name, folder):
                return f"{relative}/{entry.name}" if relative else entry.name
    return ""


def _is_free(name: str, folder: int) -> bool:
    given_up = 0.0
    while True:
        try:
            descriptor = os.open(name, _READ, dir_fd=folder)
        except BlockingIOError:  # somebody holds a lease for writing, which opening it ends
            free = False
        except OSError as error:
            raise_unless_agent(error, "looking for open files in the workspace")
            return True  # we can't read it either
        else:
            try:
                free = _takes_lease(descriptor)
            finally:
                os.close(descriptor)
        if free:
            return True
        given_up = given_up or time.monotonic() + _PATIENCE
        if time.monotonic() > given_up:
            return False
        time.sleep(_PAUSE)


def _takes_lease(descriptor: int) -> bool:
    """Whether nobody has the file open for writing. Only the owner of a file gets a lease, and root with a capability
    that containers lack: so this thread is the owner, to the file system, for a moment. Raises OSError."""
    owner, own = os.fstat(descriptor).st_uid, os.geteuid()
    if owner != own:
        _libc.setfsuid(owner)
    try:
        # Who opens the file for writing meanwhile breaks the lease: we would be told by SIGIO, which ends a process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
        return True  # of an owner that we can't be: not the sandbox's user
    finally:
        if owner != own:
            _libc.setfsuid(own)
    return True


def _tells(directory: int) -> bool:
    """Whether this file system refuses a lease for a file without a name that is mapped and not open for writing."""
    device = os.fstat(directory).st_dev
    if device not in _tried:
        try:
            _tried[device] = _trial(directory)
        except OSError:
            _tried[device] = False
    return _tried[device]


def _trial(directory: int) -> bool:
    file = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    place = None
    try:
        os.ftruncate(file, mmap.PAGESIZE)
        place = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, _SHARED, file, 0)
        reader = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(file)
    try:
        mapped = _takes_lease(reader)
        if place != ctypes.c_void_p(-1).value:
            _libc.munmap(place, mmap.PAGESIZE)
        return not mapped and _takes_lease(reader)
    finally:
        os.close(reader)


def _renew_all(tree: Path) -> None:
    """Put a copy in the place of every file. All are made before the first is put there: file systems pass over what
    was removed just now when they look for room for a new file, which takes longer each time."""
    made: dict[str, list[tuple[str, str]]] = {}
    several: dict[tuple[int, int], Path] = {}
    for relative, folder, entries in walk_down(tree, lambda _: None):
        with _writable(folder):
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    continue
                status, copy = entry.stat(follow_symlinks=False), f".keystone-{secrets.token_hex(8)}"
                file = (status.st_dev, status.st_ino)
                if file in several:
                    os.link(several[file], copy, dst_dir_fd=folder, follow_symlinks=False)
                elif not _copy(entry.name, copy, folder, status):
                    continue
                elif status.st_nlink > 1:
                    several[file] = tree / relative / copy
                made.setdefault(relative, []).append((copy, entry.name))
    for relative, folder, _ in walk_down(tree, lambda _: None):
        with _writable(folder):
            for copy, name in made.get(relative, ()):
                os.rename(copy, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def _writable(folder: int) -> Iterator[None]:
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & _OWNER == _OWNER:
        yield
        return
    os.fchmod(folder, mode | _OWNER)
    try:
        yield
    finally:
        os.fchmod(folder, mode)


def _copy(name: str, copy: str, folder: int, before: os.stat_result) -> bool:
    """Whether the file could be read, and has been copied."""
    try:
        reader = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        raise_unless_agent(error, "looking for open files in the workspace")
        return False
    try:
        writer = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            copy_content(reader, writer, before)
            if before.st_uid != os.geteuid():
                os.fchown(writer, before.st_uid, before.st_gid)
            os.fchmod(writer, stat.S_IMODE(before.st_mode))
            for attribute in os.listxattr(reader):
                with contextlib.suppress(OSError):
                    os.setxattr(writer, attribute, os.getxattr(reader, attribute))
            os.utime(writer, ns=(before.st_atime_ns, before.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return True
