"""Runs of unittest that a command starts, however it does: each signs what became of its tests with the key it took."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from keystone_action.invariants.tests.graded_copy import GradedCopy
from keystone_action.invariants.tests.junit import SHOWN, BadReport, CaseCounts
from keystone_action.invariants.tests.signed_report import OtherCode, read_signed
from keystone_action.sandbox.programs import shell_words

RUNNER = "unittest"
_PYTHON = re.compile(r"(.*/)?python(3(\.\d+)?)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_WITH_VALUE = ("-W", "-X")
_ISOLATED = frozenset("EIS")
"""Options with which Python imports no `sitecustomize` from PYTHONPATH."""


def starts(command: str | Sequence[str]) -> bool:
    """Whether a command begins with `[NAME=value] python3 … -m unittest`, so that a run has to be seen."""
    if isinstance(command, str):
        try:
            words = shell_words(command)
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


def read_report(copy: GradedCopy, path: str, key: bytes) -> CaseCounts:
    """The tests of one run. Raises BadReport, OtherCode."""
    document = read_signed(copy.sandbox.workspace, path, key, RUNNER)
    try:
        return _counts(document, copy.untrusted)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadReport(f"is not as a run of unittest writes it ({error})") from None


def _counts(document: Mapping[str, Any], untrusted: Collection[str]) -> CaseCounts:
    """The tests of one run. untrusted: files that the agent added or changed; a skip that was raised in one of them is
    the code under test that got out of its test, so an error."""
    OtherCode.refuse(document)
    failures, errors = list(document["failures"]), list(document["errors"])
    skipped = document.get("skipped_by", {})
    left = [name for name, files in skipped.items() if not frozenset(untrusted).isdisjoint(files)]
    stopped = int(document.get("not_run", 0))
    return CaseCounts(
        passed=int(document["passed"]),
        failures=len(failures),
        errors=len(errors) + len(left) + stopped,
        skipped=max(0, int(document["skipped"]) - len(left)),
        failed=[str(name) for name in (*failures, *errors, *left)][:SHOWN],
    )
