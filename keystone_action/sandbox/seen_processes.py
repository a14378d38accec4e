"""The processes of a command as they are seen: the first for sure, its descendants when a look finds them.

What begins and ends between two looks leaves nothing. Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TypedDict

from keystone_action.sandbox.processes import process_tree

PAUSE = 0.02
"""Seconds between two looks."""
_MOST = 5_000
"""Processes of a command that are kept."""
_ARGUMENTS = 2_000
"""Characters of one's arguments."""
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class SeenProcess(TypedDict):
    """One process, from one program's start in it to the next's. pid: its number. started, ended: seconds since 1970;
    ended None where that was not seen. status: as of `waitpid`, None where it was not ours to wait for. is_first: the
    command itself."""

    pid: int
    argv: list[str]
    started: float
    ended: float | None
    status: int | None
    is_first: bool


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
            argv = _arguments(process_tree.read_text(f"/proc/{pid}/cmdline") or "")
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
        text = process_tree.read_text(f"/proc/{pid}/stat")
        if not text:
            return None
        fields = text[text.rindex(")") + 2 :].split()
        return self._boot + int(fields[19]) * _TICK


def _arguments(text: str) -> list[str]:
    return text[:_ARGUMENTS].rstrip("\0").split("\0") if text else []
