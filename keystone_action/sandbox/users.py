"""Numeric users that belong to one sandbox at a time, on this machine, beside anything else that runs on it.

A user is leased by a lock on one byte of a file that all runs share. The lock belongs to the open file, which every
supervisor of the sandbox holds too: it is free again only when all are gone, however they went. The byte itself says
whether the user may have left something in places that all users share: it is set from the lease to its release, so
one that is set and not locked is of a run that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keystone_action.errors import SandboxError
from keystone_action.sandbox import trees
from keystone_action.sandbox.processes.credentials import User
from keystone_action.sandbox.processes.process_tree import process

_HIGH = (1_900_000_000, 500_000)
_LOW = (61_200, 1_500)
_FILE = "keystone-action-users.lock"
_USED, _CLEAN = b"\1", b"\0"


class Lease:
    """A user of one's own, until release(). guard: a second one that nothing runs as."""

    def __init__(self, users: Users, offset: int, lock: int) -> None:
        self.user = User(users.first + offset, users.first + users.count + offset)
        self.lock = lock
        self._offset = offset
        _mark(lock, offset, _USED)

    @property
    def uid(self) -> int:
        return self.user.uid

    @property
    def guard(self) -> int:
        return self.user.guard

    def release(self) -> None:
        """Give it back, with nothing left that was its own. Twice does no harm."""
        if self.lock >= 0:
            _mark(self.lock, self._offset, _CLEAN)
            os.close(self.lock)
            self.lock = -1

    def abandon(self) -> None:
        """Let others have it who clean up after its last owner."""
        os.close(self.lock)
        self.lock = -1


def user_numbers() -> range:
    """The users that sandboxes may run as."""
    # Where user numbers are mapped (a user namespace), only those below 65,536 tend to exist.
    first, count = _HIGH if _is_mapped(sum(_HIGH) + _HIGH[1]) else _LOW
    return range(first, first + count)


class Users:
    """Hands out users; knows which are taken by the machine."""

    def __init__(self) -> None:
        self.numbers = user_numbers()
        self.first, self.count = self.numbers.start, len(self.numbers)
        known, (running, ended) = {entry.pw_uid for entry in pwd.getpwall()}, _users_of_processes()
        self._running_users = known | running
        # A process that has ended counts against its user's limit until its parent asks, which process 1 of a container
        # may never do.
        self._machine_users = self._running_users | ended
        self._next = os.getpid() * 7919 % self.count

    def lease(self) -> Lease:
        """A user that nobody else has, not the one given back last: its files may be around. Raises SandboxError."""
        lock = _open_lock_file()
        for _ in range(self.count):
            offset = self._next
            self._next = (offset + 1) % self.count
            if self.first + offset in self._machine_users or os.pread(lock, 1, offset) == _USED:
                continue
            if _try_lock(lock, offset):
                return Lease(self, offset, lock)
        os.close(lock)
        raise SandboxError(
            f"no free user between {self.first} and {self.first + self.count}: all are leased by running sandboxes"
        )

    def leases_left_behind(self) -> Iterator[Lease]:
        """The users of sandboxes that were killed with all that would have cleaned up after them; to be released.
        Raises SandboxError."""
        lock = _open_lock_file()
        try:
            marks = os.pread(lock, self.count, 0)
        finally:
            os.close(lock)
        for offset in (match.start() for match in re.finditer(_USED, marks)):
            if self.first + offset not in self._running_users:
                lock = _open_lock_file()
                if _try_lock(lock, offset):
                    yield Lease(self, offset, lock)
                else:
                    os.close(lock)


def remove_left_behind(users: Users, *, dry_run: bool = False) -> int:
    """Remove what users of killed sandboxes left where all users may write: shared memory, message queues, System V
    objects, files. Returns how many such users there were. dry_run: nothing is removed. Raises SandboxError."""
    found = 0
    for lease in users.leases_left_behind():
        found += 1
        if dry_run:
            lease.abandon()
            continue
        trees.remove_shared(lease.user, trees.SHARED)
        lease.release()
    return found


def _is_mapped(uid: int) -> bool:
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    return any(int(start) <= uid < int(start) + int(count) for start, _, count in map(str.split, lines))


def _users_of_processes() -> tuple[set[int], set[int]]:
    """Those of processes that run, and those of processes that have ended and are still listed."""
    running: set[int] = set()
    ended: set[int] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                uid = entry.stat().st_uid
                if uid not in running and (found := process(int(entry.name))):
                    (running if found.alive else ended).add(uid)
    return running, ended


def _open_lock_file() -> int:
    """In a place that only root can write to, or else one that only root owns."""
    for directory in (Path("/run/lock"), Path("/run"), Path(tempfile.gettempdir())):
        path = directory / _FILE
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return descriptor
        os.close(descriptor)
    raise SandboxError(
        "no place for the file that leases users to sandboxes",
        help=f"make /run or {tempfile.gettempdir()} writable for root",
    )


def _mark(descriptor: int, offset: int, mark: bytes) -> None:
    with contextlib.suppress(OSError):  # no space left: what a killed run leaves then stays
        os.pwrite(descriptor, mark, offset)


def _try_lock(descriptor: int, offset: int) -> bool:
    # struct flock: type, whence, start, length, pid (0 for locks that belong to the open file)
    request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise SandboxError(f"can't lock the file that leases users to sandboxes: {error.strerror}") from error
    return True
