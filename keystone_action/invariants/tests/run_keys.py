"""Runs of tests that a command starts, however it does: each takes a key of ours, and leaves a report of what became of
its tests. A key that was taken, without a report, is a run that did not come to its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from keystone_action.files.paths import PathProblem, name_paths, read_inside
from keystone_action.invariants.tests.graded_copy import GradedCopy
from keystone_action.invariants.tests.junit import BadReport, CaseCounts
from keystone_action.invariants.tests.signed_report import OtherCode

_KEY_BYTES, _KEYS = 32, 1024


@dataclass(frozen=True, slots=True)
class Runs:
    """What the runs of a command came to. runner: the name of what ran the tests. seen: how many runs there were.
    unfinished: those that did not come to the end of their tests. counts: the tests of all others. other_code: injected
    files for which other code was collected."""

    runner: str
    seen: int = 0
    unfinished: int = 0
    counts: CaseCounts = field(default_factory=CaseCounts)
    other_code: tuple[str, ...] = ()

    def problem(self, *, expected: bool = False) -> str:
        """Why the command has not run its tests, the end of a sentence; empty when nothing says so. expected: there
        has to be a run."""
        if self.other_code:
            return f"{self.runner} collected other code than that of the injected {name_paths(self.other_code)}"
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
        paths: list[str] = []
        for number in range(_KEYS):
            block = slice(number * _KEY_BYTES, (number + 1) * _KEY_BYTES)
            if left[block] == self.keys[block]:
                continue
            seen += 1
            try:
                counts += read(self.copy, f"{file}-{number}", self.keys[block])
            except OtherCode as other:
                paths += other.paths
            except BadReport:
                unfinished += 1
        return Runs(self.runner, seen, unfinished, counts, tuple(dict.fromkeys(paths)))
