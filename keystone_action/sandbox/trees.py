"""Directory trees that somebody hostile may have filled: give them to a user, take them back, remove them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

SHARED_MEMORY = ("/dev/shm",)  # noqa: S108 - cleaned up, not used
SHARED = (*SHARED_MEMORY, "/dev/mqueue", "/tmp", "/var/tmp")  # noqa: S108
_SYSTEM_V = "/proc/sysvipc"


def give(tree: Path, uid: int) -> None:
    """Make a user (and its group) the owner of everything in the tree. Links are never followed.

    A file with several names is given only if all of them lie in the tree: else the agent could have had one of ours
    given to itself by linking it here. Raises OSError.
    """
    names: dict[tuple[int, int], list[str]] = {}
    counts: dict[tuple[int, int], int] = {}
    _own(str(tree), os.lstat(tree), uid)
    waiting = [str(tree)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
                elif status.st_nlink > 1:
                    key = (status.st_dev, status.st_ino)
                    names.setdefault(key, []).append(entry.path)
                    counts[key] = status.st_nlink
                    continue
                _own(entry.path, status, uid)
    for key, paths in names.items():
        if len(paths) == counts[key]:
            _own(paths[0], os.lstat(paths[0]), uid)


def _own(path: str, status: os.stat_result, uid: int) -> None:
    if (status.st_uid, status.st_gid) != (uid, uid):
        os.chown(path, uid, uid, follow_symlinks=False)


def is_empty(directory: Path) -> bool:
    """Raises OSError."""
    with os.scandir(directory) as entries:
        return next(entries, None) is None


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


def remove(tree: Path) -> None:
    """Remove a tree whatever is in it: closed directories, thousands of levels. Never raises; never follows links."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(tree)
    if os.path.lexists(tree):
        # rm and chmod walk by descriptors, so neither modes nor depth stop them.
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            with contextlib.suppress(OSError):
                subprocess.run([*command, "--", str(tree)], stderr=subprocess.DEVNULL, check=False)


def remove_shared(uid: int, places: tuple[str, ...]) -> None:
    """Remove what a user left in places that all users share, and its System V objects."""
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid != uid:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        remove(Path(entry.path))
                    else:
                        os.unlink(entry.path)  # noqa: PTH108
    _remove_system_v(uid)


def _remove_system_v(uid: int) -> None:
    """System V shared memory, semaphores and message queues: nothing but their owner's number ties them to anyone."""
    for kind, option in (("shm", "-m"), ("sem", "-s"), ("msg", "-q")):
        try:
            with open(f"{_SYSTEM_V}/{kind}") as table:  # noqa: PTH123
                header = table.readline().split()
                rows = [dict(zip(header, line.split(), strict=False)) for line in table]
        except OSError:
            continue
        for row in rows:
            if row.get("uid") == str(uid):
                with contextlib.suppress(OSError):
                    identifier = row.get(f"{kind}id") or row.get("msqid") or ""
                    subprocess.run(["ipcrm", option, identifier], stderr=subprocess.DEVNULL, check=False)
