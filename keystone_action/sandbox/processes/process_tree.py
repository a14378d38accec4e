"""The descendants of a process as /proc shows them, what they use, and their end, however fast they fork.

Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from keystone_action.sandbox.processes.credentials import User, acting_for

PAGE = os.sysconf("SC_PAGE_SIZE")
_PASSES = 20
T = TypeVar("T")


class TooFast(Exception):  # noqa: N818 - an outcome
    """A process begins threads, and ends them, faster than they can be looked at."""


class Process(NamedTuple):
    """A line of /proc/<pid>/stat: a process, by its first thread."""

    pid: int
    state: str
    parent: int
    group: int
    threads: int
    rss: int
    """In bytes; 0 when the first thread has ended."""

    @property
    def first_thread_runs(self) -> bool:
        return self.state not in "ZX"

    @property
    def alive(self) -> bool:
        """Whether it is more than an entry that waits to be reaped: other threads may go on without the first one."""
        return self.first_thread_runs or self.threads > 1


def read_proc(path: str) -> str | None:
    """A file of /proc, None when the process is gone (or hidden)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while piece := os.read(descriptor, 65536):
                pieces.append(piece)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return b"".join(pieces).decode("utf-8", "replace")


def process(pid: int) -> Process | None:
    """The process, None when there is none of that number. By the number of a thread: as if that were its first one."""
    text = read_proc(f"/proc/{pid}/stat")
    if not text:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[17]), int(fields[21]) * PAGE)


def read_of(found: Process, read: Callable[[int], T | None]) -> T | None:
    """What `read` gets from /proc by the number of a process; None when it gets nothing, or the process has ended.

    /proc shows memory and files of a process whose first thread has ended by the numbers of others only; what one of
    them shows counts if it was there all the while. Raises TooFast when none ever is.
    """
    if found.first_thread_runs:
        return read(found.pid)
    known: set[int] = set()
    passes_with_new = 0
    for _ in range(_PASSES):
        threads = _threads(found.pid)
        passes_with_new += bool(known) and not known.issuperset(threads)
        known.update(threads)
        for thread in threads:
            content = read(thread)
            after = process(thread)
            if after is not None and after.first_thread_runs and after.rss:  # its memory is the first that it gives up
                return content
    if passes_with_new > _PASSES / 2:
        raise TooFast
    return None  # its last threads are ending


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - called often, on few entries
    except OSError:
        return []


def _children_by_threads(pid: int) -> list[int]:
    """From /proc/<pid>/task/*/children: each thread lists the processes it forked."""
    found: list[int] = []
    for thread in _threads(pid):
        text = read_proc(f"/proc/{pid}/task/{thread}/children")
        found.extend(map(int, (text or "").split()))
    return found


def _children_by_parents() -> Callable[[int], list[int]]:
    """The same from every process's parent, for kernels without CONFIG_PROC_CHILDREN."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (found := process(int(name))):
            children.setdefault(found.parent, []).append(int(name))
    return lambda pid: children.get(pid, [])


HAS_CHILDREN_FILES = Path(f"/proc/self/task/{os.getpid()}/children").exists()


def owner(pid: int) -> int | None:
    """The user it runs as."""
    text = read_proc(f"/proc/{pid}/status") or ""
    for line in text.splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return None


def count_of_user(uid: int) -> int:
    """How many processes and threads a user has on this machine."""
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid and (found := process(int(entry.name))):
                    count += found.threads
    return count


def child_lister() -> Callable[[int], list[int]]:
    """A function from a process to its children, those included that wait to be reaped. Use it at once: without the
    kernel's help it is a picture of the moment."""
    if not HAS_CHILDREN_FILES:
        return _children_by_parents()
    by_parents = functools.cache(_children_by_parents)

    def list_children(pid: int) -> list[int]:
        found = process(pid)
        if found is None or found.first_thread_runs:
            return _children_by_threads(pid)
        # A thread hands its children to the first one when it ends, or else to any: then they may be with each in turn.
        return by_parents()(pid)

    return list_children


def children(pid: int) -> list[int]:
    """Its own children, those included that wait to be reaped."""
    return child_lister()(pid)


def descendants(root: int, without: frozenset[int] = frozenset()) -> Iterator[int]:
    """Every process below `root`, but for the trees of `without`, found as it is asked for: among processes that fork
    fast there may be no end of them, and some may be missed."""
    list_children = child_lister()
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        for child in list_children(waiting.pop()):
            if child not in seen and child not in without:
                seen.add(child)
                waiting.append(child)
                yield child


def resident_memory(pid: int) -> tuple[int, int] | None:
    """(bytes, the part of them that is shared memory): pages shared by n processes count in each."""
    sizes = _sizes(f"/proc/{pid}/status")
    return (sizes["VmRSS"], sizes.get("RssShmem", 0)) if "VmRSS" in sizes else None


def proportional_memory(pid: int) -> tuple[int, int] | None:
    """(PSS, the part of it that is shared memory) in bytes: pages shared by n processes count 1/n in each."""
    sizes = _sizes(f"/proc/{pid}/smaps_rollup")
    return (sizes.get("Pss", 0), sizes.get("Pss_Shmem", 0)) if sizes else None


def _sizes(path: str) -> dict[str, int]:
    """The lines `name: number kB` of a file of /proc, in bytes."""
    lines = (line.partition(":") for line in (read_proc(path) or "").splitlines() if line.endswith(" kB"))
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in lines}


def unlinked_files(pid: int) -> dict[tuple[int, int], int] | None:
    """(device, inode) -> bytes of the regular files without a name that this process holds open, memfds included. None
    when they can't be listed."""
    found: dict[tuple[int, int], int] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except OSError:
        return None
    for name in names:
        try:
            status = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116
        except OSError:
            continue
        if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return found


_PAUSE = 0.02
DEADLINE = 10.0
"""Seconds after which a process that won't go (stuck in the kernel) is reported instead of waited for."""

_TREE_PASSES_BEFORE_ALL = 5


def _kill_tree(root: int, spare: frozenset[int]) -> None:
    """Kill every process below `root`, by their process groups: one call ends a group, however fast it forks.

    Every command starts in a session of its own, and a process can only join groups of its own session: so the groups
    found below `root` hold nobody else. A number counts only if its parent is known too: it may have been recycled.
    """
    list_children = child_lister()
    family = {root}
    killed = {0, os.getpgid(root)}
    waiting = [root]
    while waiting:
        for pid in list_children(waiting.pop()):
            if pid in spare or pid in family or pid == os.getpid():
                continue
            found = process(pid)
            if found is None or found.parent not in family:
                continue
            family.add(pid)
            waiting.append(pid)
            if found.group not in killed:
                killed.add(found.group)
                with contextlib.suppress(OSError):  # it ended by itself, or is not ours to signal
                    os.killpg(found.group, signal.SIGKILL)


def _kill_everything() -> None:
    # One system call, atomic against fork: the kernel walks all processes under the lock that fork needs.
    with contextlib.suppress(OSError):  # nobody is left
        os.kill(-1, signal.SIGKILL)


def end_descendants(
    reap: Callable[[], bool], user: User | None, wakeup: int, *, spare: frozenset[int] = frozenset()
) -> bool:
    """Kill and reap all descendants of this process; it must be their subreaper.

    reap: waits for processes that have ended and says whether no child is left (beside `spare`). wakeup: a descriptor
    that gets readable when a child ends. Returns False if some were still there after DEADLINE seconds.

    Without descendants left, there can be none elsewhere: an orphan becomes a child of its nearest subreaper.
    Neither processes nor threads are made here, and what the machine refuses is tried again.
    """
    root = os.getpid()
    start = time.monotonic()
    passes = 0
    while not reap():
        if time.monotonic() - start > DEADLINE:
            return False
        with contextlib.suppress(OSError):  # no memory or descriptor for it: the next pass may have more luck
            if user is None:
                _kill_tree(root, spare)
            else:
                with acting_for(user):
                    # By tree first: another command of the same sandbox may be running.
                    _kill_tree(root, spare) if passes < _TREE_PASSES_BEFORE_ALL else _kill_everything()
        passes += 1
        if not reap():
            select.select([wakeup], [], [], min(0.05, 0.001 * passes))
            drain(wakeup)
    return True


def drain(descriptor: int) -> None:
    """Empty a non-blocking pipe."""
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def succeeds(action: Callable[[], bool], patience: float) -> bool:
    """What `action` returns in a process of its own, which has it all to itself; False where it raises. patience:
    seconds for which a process that the machine refuses is tried again. Raises OSError when it has none."""
    given_up = time.monotonic() + patience
    while True:
        try:
            pid = os.fork()
        except OSError:
            if time.monotonic() > given_up:
                raise
            time.sleep(_PAUSE)
        else:
            break
    if pid == 0:
        code = 1
        try:
            code = 0 if action() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0
