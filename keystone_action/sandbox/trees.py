"""Directory trees that somebody hostile may have filled: give them to a user, take them back, remove them."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from keystone_action.files.descent import Descent, open_tree
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
    system_v.remove(user)


def has_shared(user: User, places: tuple[str, ...]) -> bool:
    """Whether there is something that `remove_shared` would remove."""
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            if any(_is_of(entry, user) for entry in entries):
                return True
    return any(user.uid in (one.maker, one.owner) for one in system_v.objects())


def _is_of(entry: os.DirEntry[str], user: User) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == user.uid
    except OSError:
        return False
