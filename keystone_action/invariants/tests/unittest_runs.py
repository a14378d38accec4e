"""Runs of unittest that a command starts, however it does: each takes a key of ours, and signs with it what became of
its tests. A key that was taken and did not sign is a run that did not come to its end."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keystone_action.files.paths import PathProblem, read_inside
from keystone_action.invariants.tests.graded_copy import GradedCopy
from keystone_action.invariants.tests.junit import SHOWN, BadReport, Counts
from keystone_action.invariants.tests.signed_report import read_signed

_KEY_BYTES, _KEYS = 32, 1024
_FILE = "unittest"
_PYTHON = re.compile(r"(.*/)?python(3(\.\d+)?)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_WITH_VALUE = ("-W", "-X")
_ISOLATED = frozenset("EIS")
"""Options with which Python imports no `sitecustomize` from PYTHONPATH."""


def starts(command: str | Sequence[str]) -> bool:
    """Whether a command begins with `[NAME=value] python3 … -m unittest`, so that a run has to be seen."""
    if isinstance(command, str):
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            words = list(lexer)
        except ValueError:
            return False
        while words and _ASSIGNMENT.fullmatch(words[0]):
            del words[0]
    else:
        words = list(command)
    if not words or not _PYTHON.fullmatch(words[0]):
        return False
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "") == "unittest"
        if word == "-munittest":
            return True
        isolated = _ISOLATED & set(word) and not word.startswith(_WITH_VALUE)
        if isolated or word == "-c" or not word.startswith("-"):
            return False
        if word in _WITH_VALUE:
            next(rest, "")
    return False


@dataclass(frozen=True, slots=True)
class Runs:
    """What the runs of a command came to. seen: how many there were. unfinished: those that did not come to the end of
    their tests. counts: the tests of all others."""

    seen: int = 0
    unfinished: int = 0
    counts: Counts = field(default_factory=Counts)

    def problem(self, *, expected: bool) -> str:
        """Why the command has not run its tests, the end of a sentence; empty when nothing says so. expected: there
        has to be a run."""
        if self.unfinished:
            which = "a run" if self.unfinished == 1 else f"{self.unfinished} runs"
            return f"{which} of unittest did not come to the end of its tests"
        return "no run of unittest was seen" if expected and not self.seen else ""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that runs on one copy may take."""

    copy: GradedCopy
    keys: bytes
    path: str
    """The file of keys, as code in the sandbox names it."""

    @classmethod
    def lay_out(cls, copy: GradedCopy) -> Keys:
        """Put keys into the copy. Blocks."""
        keys = secrets.token_bytes(_KEY_BYTES * _KEYS)
        return cls(copy, keys, copy.write(_FILE, keys))

    def runs(self) -> Runs:
        """What became of the runs. Blocks."""
        workspace, private = self.copy.sandbox.workspace, self.copy.private
        try:
            left = read_inside(workspace, f"{private}/{_FILE}", limit=len(self.keys))
        except PathProblem:
            left = b""
        seen, unfinished, counts = 0, 0, Counts()
        for number in range(_KEYS):
            block = slice(number * _KEY_BYTES, (number + 1) * _KEY_BYTES)
            if left[block] == self.keys[block]:
                continue
            seen += 1
            try:
                path = f"{private}/{_FILE}-{number}"
                counts += _counts(read_signed(workspace, path, self.keys[block], "unittest"), self.copy.untrusted)
            except (BadReport, ValueError, KeyError, TypeError, AttributeError):
                unfinished += 1
        return Runs(seen, unfinished, counts)


def _counts(document: Mapping[str, Any], untrusted: Collection[str]) -> Counts:
    """The tests of one run. untrusted: files that the agent added or changed; a skip that was raised in one of them is
    the code under test that got out of its test, so an error."""
    failures, errors = list(document["failures"]), list(document["errors"])
    skipped = document.get("skipped_by", {})
    left = [name for name, files in skipped.items() if not frozenset(untrusted).isdisjoint(files)]
    stopped = int(document.get("not_run", 0))
    return Counts(
        passed=int(document["passed"]),
        failures=len(failures),
        errors=len(errors) + len(left) + stopped,
        skipped=max(0, int(document["skipped"]) - len(left)),
        failed=[str(name) for name in (*failures, *errors, *left)][:SHOWN],
    )
