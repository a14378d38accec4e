"""Copies of folders that stand for the originals in another place, under another owner; or none, where they could not.

What can't be moved in this way: sockets, devices, files of several names, extended attributes, set-user-id bits; what
git keeps, since its index knows files by inode; and whatever names the old place.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from keystone_action.files.copying import copy_entries
from keystone_action.files.descent import walk_down
from keystone_action.files.ownership import give_to_owner
from keystone_action.files.removal import remove_tree

_SPECIAL_BITS = 0o7000
_MAY_NAME_PLACES = (".pyc", ".log")
"""Python corrects the path in compiled code when it is loaded; no program goes by its logs."""
_ATTRIBUTES = ("user.", "system.posix_acl")
_GIT = ".git"

GitState = frozenset[tuple[str, int, int, int]]


def git_state(folders: Collection[Path]) -> GitState:
    """Differs when anything in a `.git` of these folders was changed since. Raises OSError."""
    found = set()
    for top in folders:
        for directory, _, entries in walk_down(top):
            inside = _GIT in directory.split("/")
            for entry in entries:
                if inside or entry.name == _GIT:
                    status = entry.stat(follow_symlinks=False)
                    path = f"{top}/{directory}/{entry.name}"
                    found.add((path, status.st_ino, status.st_size, status.st_ctime_ns))
    return frozenset(found)


def copy_exactly(folders: Sequence[Path], to: Path, *, names: Collection[bytes]) -> tuple[int, ...] | None:
    """Copy what is in these folders to `to`/0, `to`/1 and so on; nothing runs in them meanwhile.

    names: of the place and the owner that a copy must not name. Returns the modes of the folders; None where what
    is in them would be something else in another place. Raises OSError.
    """
    needle = re.compile(b"|".join(map(re.escape, names)))
    if not all(_is_movable(folder, needle) for folder in folders):
        return None
    for number, folder in enumerate(folders):
        copy = to / str(number)
        copy.mkdir(mode=0o700)
        copy_all(folder, copy)
    return tuple(stat.S_IMODE(folder.lstat().st_mode) for folder in folders)


def put_copies(source: Path, modes: Sequence[int], folders: Sequence[Path]) -> None:
    """Put what `copy_exactly` copied into other folders, in the place of what is in them, for the owner of the first.
    Raises OSError."""
    for number, (folder, mode) in enumerate(zip(folders, modes, strict=True)):
        with os.scandir(folder) as entries:
            found = [Path(entry.path) for entry in entries]
        for path in found:
            remove_tree(path)
        copy_all(source / str(number), folder)
        folder.chmod(mode)
        give_to_owner(folders[0], folder)


def copy_all(source: Path, target: Path) -> None:
    """Copy what is in a folder to another one. Raises OSError, also for what can't be copied."""
    copied = copy_entries(source, target)
    if left_out := (*copied.special, *copied.unreadable):
        raise OSError(errno.EACCES, "a file that can't be copied", str(source / left_out[0]))


def _is_movable(top: Path, needle: re.Pattern[bytes]) -> bool:
    return all(_is_movable_entry(entry, folder, needle) for _, folder, entries in walk_down(top) for entry in entries)


def _is_movable_entry(entry: os.DirEntry[str], folder: int, needle: re.Pattern[bytes]) -> bool:
    status = entry.stat(follow_symlinks=False)
    mode = status.st_mode
    if needle.search(os.fsencode(entry.name)):
        return False
    if stat.S_ISLNK(mode):
        return needle.search(os.fsencode(os.readlink(entry.name, dir_fd=folder))) is None
    if mode & _SPECIAL_BITS or _has_attributes(entry.name, folder):
        return False
    if stat.S_ISREG(mode):
        if status.st_nlink > 1:
            return False
        return entry.name.endswith(_MAY_NAME_PLACES) or not holds(entry.name, needle, folder)
    return stat.S_ISDIR(mode)


def _has_attributes(name: str, folder: int) -> bool:
    with contextlib.suppress(OSError):  # a file system without them
        found = os.listxattr(f"/proc/self/fd/{folder}/{name}", follow_symlinks=False)
        return any(attribute.startswith(_ATTRIBUTES) for attribute in found)
    return False


def holds(name: str, needle: re.Pattern[bytes], folder: int | None = None) -> bool:
    """Whether this is in the bytes of a regular file. Raises OSError."""
    with _bytes_of(name, folder) as content:
        return content is not None and needle.search(content) is not None


@contextlib.contextmanager
def _bytes_of(name: str, folder: int | None) -> Iterator[mmap.mmap | None]:
    """None for an empty file."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not os.fstat(descriptor).st_size:
            yield None
            return
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            yield content
    finally:
        os.close(descriptor)
