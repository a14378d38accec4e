"""Folders that somebody hostile may have filled: given to a user, taken back, removed, and held by nobody any more.

A descriptor reaches another process through a socket, and neither modes nor Landlock hold off who has it. The kernel
tells whether a file is open for writing anywhere, mapped, or on its way through a socket: it then refuses a lease for
reading. On overlay file systems it grants one for a file that is only mapped, so each file system is tried first; where
the kernel does not tell, files are replaced by copies, which nobody has open.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from keystone_action.errors import raise_unless_agent
from keystone_action.files.copies import copy_content, copy_entries
from keystone_action.files.descent import Descent, open_tree, walk_down
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.processes import system_v
from keystone_action.sandbox.processes.credentials import User

QUEUES = "/dev/mqueue"
SHARED_MEMORY = ("/dev/shm", QUEUES)  # noqa: S108 - cleaned up, not used
SHARED = (*SHARED_MEMORY, "/tmp", "/var/tmp")  # noqa: S108
_TICKS_NS = 100_000_000


def give(tree: Path, uid: int, *more: Path) -> None:
    """Make a user (and its group) the owner of everything in the tree, and in more of them. Links are never followed.

    A file with several names is given only if all of them lie in these trees: else the agent could have had one of ours
    given to itself by linking it here. Raises OSError.
    """
    names: dict[tuple[int, int], list[tuple[Descent, str, str]]] = {}
    counts: dict[tuple[int, int], int] = {}
    with contextlib.ExitStack() as stack:
        for each in (tree, *more):
            root, descent = stack.enter_context(open_tree(each))
            _own(".", root, os.fstat(root), uid)
            for directory, name, status in _give_below(descent, uid):
                key = (status.st_dev, status.st_ino)
                names.setdefault(key, []).append((descent, directory, name))
                counts[key] = status.st_nlink
        for key, places in names.items():
            if len(places) == counts[key]:
                descent, directory, name = places[0]
                fd = descent.open(directory)
                try:
                    _own(name, fd, os.stat(name, dir_fd=fd, follow_symlinks=False), uid)
                finally:
                    os.close(fd)


def _give_below(descent: Descent, uid: int) -> Iterator[tuple[str, str, os.stat_result]]:
    """Give away what is in a tree; yields what is left to do: files of several names."""
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        for path, name, status in _give_entries(descent, directory, uid):
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            else:
                yield directory, name, status


def _give_entries(descent: Descent, directory: str, uid: int) -> list[tuple[str, str, os.stat_result]]:
    """Give away what is in one directory; returns what is left to do: its directories, and files of several names."""
    left = []
    with descent.listing(directory) as (folder, entries):
        for path, entry in entries:
            status = entry.stat(follow_symlinks=False)
            several = not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1
            if several or stat.S_ISDIR(status.st_mode):
                left.append((path, entry.name, status))
            if not several:
                _own(entry.name, folder, status, uid)
    return left


def _own(name: str, directory: int, status: os.stat_result, uid: int) -> None:
    if (status.st_uid, status.st_gid) != (uid, uid):
        os.chown(name, uid, uid, dir_fd=directory, follow_symlinks=False)


def admit_only(uid: int, area: Path) -> None:
    """Let this user alone, besides us, enter a directory of ours, whatever modes it gives to what is its own in there:
    nobody else reaches a socket there, over which open files could be handed on. Raises OSError."""
    os.chown(area, -1, uid)
    area.chmod(0o710)


def admit_nobody(area: Path) -> None:
    """Close it to the user that it was open to, whose number others get. It may be gone."""
    with contextlib.suppress(OSError):
        os.chown(area, -1, os.getegid())


def take_back(directory: Path, uid: int) -> None:
    """Close a workspace to the user it was given to: a later sandbox may get the same one."""
    with contextlib.suppress(OSError):
        status = directory.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == uid:
            os.chown(directory, os.geteuid(), os.getegid(), follow_symlinks=False)


def copy_wanted(tree: Path, destination: Path, wanted: Callable[[str, int | None], bool]) -> tuple[str, ...]:
    """Copy the folders and regular files of a tree that are wanted, no links. Returns and raises as `Home.copy`: a tree
    that is missing, closed or a link is for its agent to answer for, not for this machine."""

    def leave_out(path: str, status: os.stat_result) -> bool:
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder and not stat.S_ISREG(status.st_mode):
            return True
        return not wanted(path, None if is_folder else status.st_size)

    try:
        with open_tree(tree) as (_, descent):
            os.close(descent.open(""))  # one that may be listed and not searched can be opened only once
    except OSError as error:
        raise_unless_agent(error, "copying what the agent left")
        return ("",)
    return tuple(copy_entries(tree, destination, leave_out=leave_out).unreadable)


def remove_if_empty(directory: Path) -> bool:
    """Whether it is gone now."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def stamps(places: tuple[str, ...]) -> dict[str, int]:
    """When the names in these places last changed, which proves later that nothing was made there since. Left out
    where that is so short ago that a further change may have the same time: kernels take that of the last tick."""
    found = {}
    now = time.time_ns()
    for place in places:
        with contextlib.suppress(OSError):
            changed = os.stat(place).st_ctime_ns  # noqa: PTH116 - asked for every cell
            if changed < now - _TICKS_NS:
                found[place] = changed
    return found


def remove_shared(user: User, places: tuple[str, ...], before: Mapping[str, int] | None = None) -> None:
    """Remove what a user left in places that all users share, and its System V objects. before: `stamps` of when it
    had nothing there."""
    unchanged = before.items() & stamps(places).items() if before else set()
    known = {place for place, _ in unchanged}
    for place in (one for one in places if one not in known):
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if _is_of(entry, user):
                    remove_tree(Path(entry.path))
    system_v.remove_objects(user)


def has_shared(user: User, places: tuple[str, ...]) -> bool:
    """Whether there is something that `remove_shared` would remove."""
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            if any(_is_of(entry, user) for entry in entries):
                return True
    return any(user.uid in (one.maker, one.owner) for one in system_v.system_v_objects())


def _is_of(entry: os.DirEntry[str], user: User) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == user.uid
    except OSError:
        return False


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
