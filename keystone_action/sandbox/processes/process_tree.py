"""Reading /proc: who descends from a process, and what they use.

Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One line of /proc/<pid>/stat. pid: a number that /proc tells about it by. rss in bytes."""

    pid: int
    state: str
    parent: int
    group: int
    threads: int
    rss: int

    @property
    def alive(self) -> bool:
        """Whether it is more than an entry that waits to be reaped."""
        return self.state not in "ZX"


def read_text(path: str) -> str | None:
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
    """The process, None when there is none of that number.

    Its first thread may have ended while others run: then it is told by one of those, for without them /proc shows
    neither its memory nor its files."""
    found = _thread(pid)
    if found is None or found.alive or found.threads == 1:
        return found
    return next((thread for thread in map(_thread, _threads(pid)) if thread is not None and thread.alive), found)


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - called often, on few entries
    except OSError:
        return []


def _thread(pid: int) -> Process | None:
    text = read_text(f"/proc/{pid}/stat")
    if not text:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[17]), int(fields[21]) * PAGE)


def _children_by_threads(pid: int) -> list[int]:
    """From /proc/<pid>/task/*/children: each thread lists the processes it forked."""
    found: list[int] = []
    for thread in _threads(pid):
        text = read_text(f"/proc/{pid}/task/{thread}/children")
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
    text = read_text(f"/proc/{pid}/status") or ""
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
    return _children_by_threads if HAS_CHILDREN_FILES else _children_by_parents()


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


def proportional_memory(pid: int) -> tuple[int, int] | None:
    """(PSS, the part of it that is shared memory) in bytes: pages shared by n processes count 1/n in each."""
    text = read_text(f"/proc/{pid}/smaps_rollup")
    if not text:
        return None
    values = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return values.get("Pss", 0), values.get("Pss_Shmem", 0)


def unlinked_files(pid: int) -> dict[tuple[int, int], int]:
    """(device, inode) -> bytes of the regular files without a name that this process holds open, memfds included."""
    found: dict[tuple[int, int], int] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except OSError:
        return found
    for name in names:
        try:
            status = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116
        except OSError:
            continue
        if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return found
