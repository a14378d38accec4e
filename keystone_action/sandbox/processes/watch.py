"""What the processes of a command use (memory, processes, disk), and which they were, looked at now and then.

Nothing here enforces: the supervisor ends the command when `ProcessWatch.look` returns a sentence. A process that
begins and ends between two looks is not seen. Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from typing import TypedDict

from keystone_action.files.disk_usage import DEEPEST, TooDeep, human, tree_size
from keystone_action.sandbox.processes import process_tree, system_v
from keystone_action.sandbox.processes.credentials import User, acting_for
from keystone_action.sandbox.processes.wire import CommandRequest

FIRST_LOOK = 0.1
"""Seconds before the first look: what is over sooner pays nothing."""

_CALM, _ALERT = 0.1, 0.02
_WALK_SLICE = 0.02
_WALK_PAUSE = 0.3
_WALK_SHARE = 10  # walking takes at most one part in this many of the time
_MOST_LOOKED_AT = 10_000
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - read only


class ProcessWatch:
    """Watches the descendants of this process by the limits of one request."""

    def __init__(self, request: CommandRequest, user: User | None) -> None:
        self._memory = request["memory"]
        self._pids = request["pids"]
        self._disk = request["disk"]
        self._roots = request["disk_roots"]
        self._user = user
        self._walk: Iterator[int | None] | None = None
        self._walk_took = 0.0
        self._next_walk = 0.0
        self._devices: set[int] = set()
        self.interval = _CALM
        self.active = not self._memory == self._pids == self._disk == None  # noqa: E711 - all three

    def look(self) -> str | None:
        """The sentence for the limit that is exceeded, None while all is well. Sets `interval`, in seconds."""
        self.interval = _CALM
        processes = []
        count = 0
        for pid in itertools.islice(process_tree.descendants(os.getpid()), _MOST_LOOKED_AT):
            found = process_tree.process(pid)
            if found is None or not found.alive:
                continue
            processes.append(found)
            count += found.threads
            if sentence := self.judge_processes(count):
                return sentence  # counting on would only give a bomb time to grow
        try:
            return self._look_at_memory(processes) or self._look_at_disk(processes)
        except process_tree.TooFast:
            return "processes: one without its first thread begins and ends others too fast to be watched"

    def judge_processes(self, count: int) -> str | None:
        """The sentence if so many processes (and threads) are too many."""
        if self._pids is not None and count > self._pids:
            return f"processes: at least {count} running, {self._pids} allowed"
        return None

    def _look_at_memory(self, processes: list[process_tree.Process]) -> str | None:
        if self._memory is None:
            return None
        resident = sum(found.rss or _resident_memory(found) for found in processes)
        files = self._files_in_memory(processes)
        if resident + files > self._memory / 2:
            self.interval = _ALERT
        if resident + files <= self._memory:
            return None
        # Pages that several processes share were counted in each: look closer before anyone is killed for it.
        used = self._exact_memory(processes, files)
        if used > self._memory:
            return f"memory: {human(used)} used, {human(self._memory)} allowed"
        return None

    def _exact_memory(self, processes: list[process_tree.Process], files: int) -> int:
        with self._as_user():
            shares = [process_tree.read_of(found, _share_of_memory) or (0, 0) for found in processes]
        mapped = sum(shared for _, shared in shares)
        return sum(total for total, _ in shares) - mapped + max(mapped, files)

    def _files_in_memory(self, processes: list[process_tree.Process]) -> int:
        """memfds, files in /dev/shm and System V segments: memory that no process need have mapped."""
        unlinked = self._unlinked_bytes(processes)
        size = sum(count for (device, _), count in unlinked.items() if device not in self._disk_devices())
        if self._user is not None:
            with contextlib.suppress(OSError), os.scandir(_SHARED_MEMORY) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        size += status.st_blocks * 512 if status.st_uid == self._user.uid else 0
            size += system_v.memory_of(self._user.uid)
        return size

    def _unlinked_bytes(self, processes: list[process_tree.Process]) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        with self._as_user():
            for each in processes:
                found.update(process_tree.read_of(each, process_tree.unlinked_files) or {})
        return found

    def _disk_devices(self) -> set[int]:
        if not self._devices:
            for root in self._roots:
                with contextlib.suppress(OSError):
                    self._devices.add(os.lstat(root).st_dev)
        return self._devices

    def _look_at_disk(self, processes: list[process_tree.Process]) -> str | None:
        if self._disk is None or time.monotonic() < self._next_walk:
            return None
        try:
            size = self._walk_on()
        except TooDeep:
            return self._too_deep()
        if size is None:
            return None
        unlinked = self._unlinked_bytes(processes)
        return self._judge_disk(size + sum(n for (device, _), n in unlinked.items() if device in self._disk_devices()))

    def _walk_on(self) -> int | None:
        """One slice of the walk; the size when it is complete."""
        start = time.monotonic()
        self._walk = self._walk or tree_size(self._roots)
        size = None
        for size in self._walk:
            if size is not None or time.monotonic() - start > _WALK_SLICE:
                break
        self._walk_took += time.monotonic() - start
        if size is not None:
            self._walk = None
            self._next_walk = time.monotonic() + max(_WALK_PAUSE, self._walk_took * _WALK_SHARE)
            self._walk_took = 0.0
        return size

    def final_look_at_disk(self) -> str | None:
        """The same at once and to the end, when the command ended as one does that may write no further."""
        try:
            return self._judge_disk(next(size for size in tree_size(self._roots) if size is not None))
        except TooDeep:
            return self._too_deep()

    def _judge_disk(self, used: int) -> str | None:
        # The kernel stops a single file exactly at the limit, so reaching it is exceeding it.
        if self._disk is not None and used >= self._disk:
            return f"disk: {human(used)} used, {human(self._disk)} allowed"
        return None

    @staticmethod
    def _too_deep() -> str:
        return f"disk: directories nested more than {DEEPEST} deep can't be watched"

    def _as_user(self) -> contextlib.AbstractContextManager[None]:
        """What /proc tells only to the same user (or to CAP_SYS_PTRACE, which containers lack)."""
        return contextlib.nullcontext() if self._user is None else acting_for(self._user)


def _resident_memory(found: process_tree.Process) -> int:
    return (process_tree.read_of(found, process_tree.resident_memory) or (0, 0))[0]


def _share_of_memory(pid: int) -> tuple[int, int] | None:
    # A process can hide with how many others it shares pages (`PR_SET_DUMPABLE`): then all of them count.
    return process_tree.proportional_memory(pid) or process_tree.resident_memory(pid)


PAUSE = 0.02
"""Seconds between two looks."""
_MOST = 5_000
"""Processes of a command that are kept."""
_ARGUMENTS = 2_000
"""Characters of one's arguments."""
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class SeenProcess(TypedDict):
    """One process, from one program's start in it to the next's."""

    pid: int
    argv: list[str]
    started: float
    """Seconds since 1970."""
    ended: float | None
    """Seconds since 1970; None where that was not seen."""
    status: int | None
    """As of `waitpid`; None where it was not ours to wait for."""
    is_first: bool
    """Whether it is the command itself."""


class SeenProcesses:
    """Those of one command, from `start` on."""

    def __init__(self) -> None:
        self.found: list[SeenProcess] = []
        self.left_out = 0
        self._first: SeenProcess | None = None
        self._alive: dict[int, SeenProcess] = {}
        self._boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def start(self, pid: int, argv: list[str]) -> None:
        """The command itself began."""
        self._first = self._add(pid, argv, time.time(), is_first=True)

    def look(self) -> None:
        """Find those that are there now."""
        now, there = time.time(), set()
        for pid in itertools.islice(process_tree.descendants(os.getpid()), _MOST):
            began = self._began(pid)
            argv = _arguments(process_tree.read_proc(f"/proc/{pid}/cmdline") or "")
            if began is None:
                continue
            there.add(pid)
            if not argv:  # it has ended and waits for its parent, or begins another program
                continue
            known = self._alive.get(pid)
            if known is None or argv != known["argv"]:
                self._end(pid, now, None)
                self._add(pid, argv, began if known is None else now)
        for pid in self._alive.keys() - there:
            self._end(pid, now, None)

    def reaped(self, pid: int, status: int) -> None:
        """One that we waited for has ended."""
        now = time.time()
        self._end(pid, now, status)
        if self._first is not None and pid == self._first["pid"]:
            self._first["ended"], self._first["status"] = now, status

    def _add(self, pid: int, argv: list[str], started: float, *, is_first: bool = False) -> SeenProcess | None:
        if len(self.found) >= _MOST:
            self.left_out += 1
            return None
        seen = SeenProcess(pid=pid, argv=argv, started=started, ended=None, status=None, is_first=is_first)
        self._alive[pid] = seen
        self.found.append(seen)
        return seen

    def _end(self, pid: int, when: float, status: int | None) -> None:
        seen = self._alive.pop(pid, None)
        if seen is not None:
            seen["ended"], seen["status"] = when, status

    def _began(self, pid: int) -> float | None:
        text = process_tree.read_proc(f"/proc/{pid}/stat")
        if not text:
            return None
        fields = text[text.rindex(")") + 2 :].split()
        return self._boot + int(fields[19]) * _TICK


def _arguments(text: str) -> list[str]:
    return text[:_ARGUMENTS].rstrip("\0").split("\0") if text else []
