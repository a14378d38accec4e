"""What changed since the last comment: it remembers its result in a hidden line, which the next one reads.

What is read there is data of whoever could edit the comment: checked, bounded, and never shown but as one of our own
words or a number. So it holds digests of checks, not their names; the present result tells which checks they are.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from keystone_action.report.comment_marker import MAX_REMEMBERED
from keystone_action.report.view import invariant_rows
from keystone_action.scoring.results import RunResult, Status, Verdict

MAX_CHECKS = 400
"""Checks that are remembered; of more, only verdict and composite."""
_VERSION = 1
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DIGEST = re.compile(r"[A-Za-z0-9+/]{12}")
_LETTERS: Mapping[Status, str] = {"pass": "p", "fail": "f", "skip": "s", "error": "e"}
_STATUSES: Mapping[str, Status] = {letter: status for status, letter in _LETTERS.items()}
_BAD: frozenset[Status] = frozenset({"fail", "error"})


@dataclass(frozen=True, slots=True)
class Remembered:
    """A result in short. composite: from 0 to 1. sha: the commit, empty if unknown. checks: digest → status; None when
    there were too many."""

    verdict: Verdict
    composite: float | None
    sha: str = ""
    checks: Mapping[str, Status] | None = None

    @classmethod
    def of(cls, run: RunResult, sha: str) -> Remembered:
        """sha: the commit that people see, not that of a merge which GitHub made."""
        checks = {_digest(spec, name): status for spec, name, status in _checks(run)}
        known = _SHA.fullmatch(sha)
        return cls(run.verdict, run.composite, sha if known else "", checks if len(checks) <= MAX_CHECKS else None)

    def encode(self, *, commit: str = "") -> str:
        """As base64, which can't end an HTML comment. commit: that the comment is of, where it is not this result's."""
        checks = None if self.checks is None else {key: _LETTERS[status] for key, status in self.checks.items()}
        document = {"verdict": self.verdict, "composite": self.composite, "sha": self.sha, "checks": checks}
        return _encode({**document, **({"commit": commit} if _SHA.fullmatch(commit) else {})})

    @classmethod
    def decode(cls, text: str) -> Remembered | None:
        """None for whatever `encode` would not have written."""
        document = _decode(text)
        try:
            return cls(
                _one_of(document.get("verdict"), get_args(Verdict)),
                _fraction(document.get("composite")),
                _sha(document.get("sha")),
                _read_checks(document.get("checks")),
            )
        except ValueError:
            return None


def encode_commit(commit: str) -> str:
    """What a comment without a result remembers; empty for no full commit id."""
    return _encode({"commit": commit}) if _SHA.fullmatch(commit) else ""


def decode_commit(text: str) -> str:
    """The commit that a comment is of, by what it remembers; empty where that is not known."""
    document = _decode(text)
    try:
        return _sha(document.get("commit") or document.get("sha"))
    except ValueError:
        return ""


@dataclass(frozen=True, slots=True)
class Changes:
    """From what a comment remembers to a result. before: what it remembers. fixed, broken, skipped (and it was not),
    applied (and it was skipped), new: names of checks, with their spec where there are several. gone: how many checks
    there are no more."""

    before: Remembered
    fixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    gone: int = 0

    @property
    def moved(self) -> bool:
        """Whether any check changed."""
        return bool(self.fixed or self.broken or self.skipped or self.applied or self.new or self.gone)


def changes_since(before: Remembered | None, run: RunResult) -> Changes | None:
    """None when there is nothing to compare with."""
    if before is None:
        return None
    if before.checks is None:
        return Changes(before)
    found: dict[str, list[str]] = {"fixed": [], "broken": [], "skipped": [], "applied": [], "new": []}
    seen = set()
    for spec, name, status in _checks(run):
        digest = _digest(spec, name)
        seen.add(digest)
        label = f"{spec} › {name}" if len(run.specs) > 1 else name
        if what := _what_became(before.checks.get(digest), status):
            found[what].append(label)
    gone = len(before.checks.keys() - seen)
    return Changes(before, gone=gone, **{what: tuple(names) for what, names in found.items()})


def _what_became(was: Status | None, now: Status) -> str:
    """Which field of `Changes` a check belongs to; empty where nothing changed."""
    if was is None:
        return "new"
    if now in _BAD:
        return "" if was in _BAD else "broken"
    if now == "skip":
        return "" if was == "skip" else "skipped"
    return {"pass": "", "skip": "applied"}.get(was, "fixed")


def _checks(run: RunResult) -> Iterator[tuple[str, str, Status]]:
    """Spec, name and worst status of every check."""
    for spec in run.specs:
        for row in invariant_rows(spec.cells):
            status: Status = _one_of(row.status, get_args(Status))
            yield spec.id, row.name, status


def _encode(document: Mapping[str, Any]) -> str:
    text = json.dumps({"v": _VERSION, **document}, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> Mapping[str, Any]:
    """Empty for what is no document of ours."""
    if not text or len(text) > MAX_REMEMBERED:
        return {}
    try:
        document = json.loads(base64.b64decode(text, validate=True))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and document.get("v") == _VERSION else {}


def _digest(spec: str, name: str) -> str:
    text = json.dumps([spec, name]).encode()
    return base64.b64encode(hashlib.sha256(text).digest()[:9]).decode()


def _one_of(value: Any, allowed: tuple[Any, ...]) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError("not one of ours")
    return value


def _fraction(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise ValueError("no composite")
    return float(value)


def _sha(value: Any) -> str:
    if not isinstance(value, str) or (value and not _SHA.fullmatch(value)):
        raise ValueError("no commit")
    return value


def _read_checks(value: Any) -> Mapping[str, Status] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MAX_CHECKS:
        raise ValueError("no checks")
    if not all(_DIGEST.fullmatch(key) for key in value):
        raise ValueError("no digests")
    return {key: _STATUSES[_one_of(letter, tuple(_STATUSES))] for key, letter in value.items()}
