"""Runs of tests that a command starts, however it does: each takes a key of ours, and leaves a report of what became of
its tests. A key that was taken, without a report, is a run that did not come to its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from keystone_action.files.paths import PathProblem, read_inside
from keystone_action.invariants.tests.graded_copy import GradedCopy
from keystone_action.invariants.tests.junit import BadReport, CaseCounts

_KEY_BYTES, _KEYS = 32, 1024


@dataclass(frozen=True, slots=True)
class Runs:
    """What the runs of a command came to. runner: the name of what ran the tests. seen: how many runs there were.
    unfinished: those that did not come to the end of their tests. counts: the tests of all others."""

    runner: str
    seen: int = 0
    unfinished: int = 0
    counts: CaseCounts = field(default_factory=CaseCounts)

    def problem(self, *, expected: bool = False) -> str:
        """Why the command has not run its tests, the end of a sentence; empty when nothing says so. expected: there
        has to be a run."""
        if self.unfinished:
            which = "a run" if self.unfinished == 1 else f"{self.unfinished} runs"
            return f"{which} of {self.runner} did not come to the end of its tests"
        return f"no run of {self.runner} was seen" if expected and not self.seen else ""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that runs on one copy may take."""

    copy: GradedCopy
    runner: str
    keys: bytes
    path: str
    """The file of keys, as code in the sandbox names it."""

    @classmethod
    def lay_out(cls, copy: GradedCopy, runner: str) -> Keys:
        """Put keys into the copy. runner: the test runner that takes them. Blocks."""
        keys = secrets.token_bytes(_KEY_BYTES * _KEYS)
        return cls(copy, runner, keys, copy.write(runner, keys))

    def runs(self, read: Callable[[GradedCopy, str, bytes], CaseCounts]) -> Runs:
        """What became of the runs. read: the tests that a report tells of, by its path in the workspace and its run's
        key; raises BadReport. Blocks."""
        file = f"{self.copy.private}/{self.runner}"
        try:
            left = read_inside(self.copy.sandbox.workspace, file, limit=len(self.keys))
        except PathProblem:
            left = b""
        seen, unfinished, counts = 0, 0, CaseCounts()
        for number in range(_KEYS):
            block = slice(number * _KEY_BYTES, (number + 1) * _KEY_BYTES)
            if left[block] == self.keys[block]:
                continue
            seen += 1
            try:
                counts += read(self.copy, f"{file}-{number}", self.keys[block])
            except BadReport:
                unfinished += 1
        return Runs(self.runner, seen, unfinished, counts)
