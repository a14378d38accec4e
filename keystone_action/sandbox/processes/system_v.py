"""System V shared memory, semaphores and message queues: nothing but the numbers of users ties them to anyone.

Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Collection, Iterator
from typing import NamedTuple

from keystone_action.sandbox.processes import process_tree
from keystone_action.sandbox.processes.credentials import User, acting_for

_TABLES = "/proc/sysvipc"
_KINDS = ("shm", "sem", "msg")
_REMOVE = 0
_libc = ctypes.CDLL(None, use_errno=True)


class SystemVObject(NamedTuple):
    """One shared memory segment, set of semaphores or message queue."""

    kind: str
    """`shm`, `sem` or `msg`."""
    identifier: int
    maker: int
    owner: int
    """The user that it was given to, who may differ from its maker."""
    mode: int
    size: int
    """Bytes of memory that it takes."""


def system_v_objects(*kinds: str) -> Iterator[SystemVObject]:
    """Those of this machine (or container), of some kinds or of all."""
    for kind in kinds or _KINDS:
        for row in _rows(kind):
            identifier = row["msqid" if kind == "msg" else f"{kind}id"]
            size = row.get("rss", 0) + row.get("swap", 0)
            yield SystemVObject(kind, identifier, row["cuid"], row["uid"], row["perms"], size)


def _rows(kind: str) -> list[dict[str, int]]:
    try:
        with open(f"{_TABLES}/{kind}") as table:  # noqa: PTH123
            header = table.readline().split()
            return [dict(zip(header, map(int, _decimal(line)), strict=False)) for line in table]
    except (OSError, ValueError):
        return []


def _decimal(line: str) -> list[str]:
    words = line.split()
    words[2] = str(int(words[2], 8))  # the mode
    return words


def memory_of(uid: int) -> int:
    """Bytes of shared memory that a user made, attached by a process or not."""
    return sum(each.size for each in system_v_objects("shm") if uid in (each.maker, each.owner))


def count_open_to_all(besides: range) -> int:
    """How many objects every user of this machine may use, those besides that these users made."""
    return sum(
        1 for each in system_v_objects() if each.mode & (stat.S_IROTH | stat.S_IWOTH) and each.maker not in besides
    )


def remove_objects(user: User) -> None:
    """Remove what a user made or was given. As that user: root may only with a capability that containers lack."""
    if not any(str(user.uid) in (process_tree.read_proc(f"{_TABLES}/{kind}") or "") for kind in _KINDS):
        return  # as of nearly every user: not worth a look at each row
    found = [each for each in system_v_objects() if user.uid in (each.maker, each.owner)]
    if not found:
        return
    with contextlib.suppress(OSError), acting_for(user):
        for each in found:
            if each.kind == "sem":
                _libc.semctl(each.identifier, 0, _REMOVE, 0)
            else:
                getattr(_libc, f"{each.kind}ctl")(each.identifier, _REMOVE, None)


def remove_made_by(makers: Collection[int], user: User | None) -> None:
    """Remove the shared memory that these processes made, which have ended by now, where nothing is attached to it.
    user: whose it was, None for our own. (A database server that is killed leaves such a segment.)"""
    left = [row["shmid"] for row in _rows("shm") if row["cpid"] in makers and not row["nattch"]]
    if not left:
        return
    with contextlib.suppress(OSError), acting_for(user) if user is not None else contextlib.nullcontext():
        for identifier in left:
            _libc.shmctl(identifier, _REMOVE, None)


def remove_of_server(data: str) -> None:
    """Remove the shared memory of a PostgreSQL server that was killed with all that watched it, by what stands in its
    data directory. Nothing of one that still runs."""
    words = (process_tree.read_proc(f"{data}/postmaster.pid") or "").split(maxsplit=1)
    if not words or not words[0].isdecimal() or process_tree.process(int(words[0])) is not None:
        return
    with contextlib.suppress(OSError):
        owner = os.lstat(data).st_uid
        remove_made_by({int(words[0])}, User(owner, guard=0) if owner != os.geteuid() else None)
