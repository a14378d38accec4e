"""What a comment remembers: its last result and the jobs that write it, in hidden lines that the next comment reads.

Anybody who may edit the comment can have written what is read there. So it is checked and bounded, it holds digests of
checks, numbers and letters, never text, and the present result tells which checks the digests are. Hidden lines are
HTML comments, which GitHub does not show. A comment is known by its very last line, so that the same line in the midst
of somebody's text means nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from keystone_action.report.sentences.view import invariant_rows
from keystone_action.scoring.fields import Verdict
from keystone_action.scoring.results import CheckStatus, RunResult

MAX_JOBS = 64
"""Jobs that are remembered, the worst of them."""
WORST_FIRST: tuple[Verdict, ...] = ("error", "fail", "flaky", "pass")
_VERDICTS: Mapping[str, Verdict] = {verdict[0] if verdict != "flaky" else "y": verdict for verdict in WORST_FIRST}
_VERDICT_LETTERS = {verdict: letter for letter, verdict in _VERDICTS.items()}
_RUN = re.compile(r"[0-9]{1,20}")
_NAME = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Job:
    """A step of a job. run: id of the workflow run, empty if unknown. attempt: from 1. name: a digest that stays the
    same when the job is run again."""

    run: str = ""
    attempt: int = 1
    name: str = ""


@dataclass(frozen=True, slots=True)
class Jobs:
    """What jobs of one workflow run have come to. shown: the name of the job whose result the comment shows. ended: the
    attempt and the verdict of each job, by its name."""

    run: str = ""
    shown: str = ""
    ended: Mapping[str, tuple[int, Verdict]] = field(default_factory=dict)

    def with_result(self, job: Job, verdict: Verdict) -> Jobs:
        """With a job's newest result, which the comment shows. Jobs of other runs are forgotten."""
        ended = {**self.others(job), job.name: (job.attempt, verdict)}
        return Jobs(job.run, job.name, ended) if job.run else Jobs()

    def showing(self, name: str) -> Jobs:
        """The same where the comment shows another of the jobs."""
        return replace(self, shown=name)

    def others(self, job: Job) -> dict[str, tuple[int, Verdict]]:
        """What the other jobs of a job's run have come to."""
        if not job.run or self.run != job.run:
            return {}
        return {name: ended for name, ended in self.ended.items() if name != job.name}

    def document(self) -> dict[str, Any]:
        """As JSON; empty when nothing is known."""
        if not self.run:
            return {}
        kept = sorted(self.ended.items(), key=lambda one: WORST_FIRST.index(one[1][1]))[:MAX_JOBS]
        ended = {name: [attempt, _VERDICT_LETTERS[verdict]] for name, (attempt, verdict) in kept}
        return {"run": self.run, "shown": self.shown, "jobs": ended}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Jobs:
        """None at all for what `document` would not have made."""
        run, shown, ended = (document.get(name) for name in ("run", "shown", "jobs"))
        if not _fits(_RUN, run) or not _fits(_NAME, shown) or not isinstance(ended, dict) or len(ended) > MAX_JOBS:
            return cls()
        try:
            found = {name: _read_job_end(name, value) for name, value in ended.items()}
        except (ValueError, TypeError, KeyError):
            return cls()
        return cls(str(run), str(shown), found)


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict | None:
    """None where there is none."""
    return min(verdicts, key=WORST_FIRST.index, default=None)


def is_worse_verdict(one: Verdict | None, other: Verdict) -> bool:
    """Whether one verdict is worse than another; none never is."""
    return one is not None and WORST_FIRST.index(one) < WORST_FIRST.index(other)


def letter_of(verdict: Verdict) -> str:
    """A verdict as one letter."""
    return _VERDICT_LETTERS[verdict]


def verdict_of_letter(letter: str) -> Verdict:
    """Raises KeyError for another letter."""
    return _VERDICTS[letter]


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _read_job_end(name: object, value: Any) -> tuple[int, Verdict]:
    attempt, letter = value
    if not _fits(_NAME, name) or type(attempt) is not int or not 0 < attempt < 10**6:
        raise ValueError("no job")
    return attempt, verdict_of_letter(letter)


MAX_REMEMBERED = 14_000
"""Characters of what a comment remembers."""
_REMEMBERED = re.compile(rf"<!-- keystone-action remembers: ([A-Za-z0-9+/=]{{1,{MAX_REMEMBERED}}}) -->\Z")


@dataclass(frozen=True, slots=True)
class Marker:
    """Tells the comment of one key. line: the last of such a comment."""

    line: str

    @classmethod
    def of_key(cls, key: str) -> Marker:
        """key: the input comment-key. Only its digest is written, since it may hold anything."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return cls(f"<!-- keystone-action comment: {digest} -->")

    def is_in(self, body: str) -> bool:
        """Whether a comment has this key; its author does not matter."""
        return _lines(body).endswith(f"\n{self.line}")

    def memory(self, body: str) -> str:
        """What a comment of this key remembers, in base64; empty for nothing."""
        if not self.is_in(body):
            return ""
        found = _REMEMBERED.search(_lines(body).removesuffix(f"\n{self.line}"))
        return found[1] if found else ""

    def text(self, body: str) -> str:
        """What people see of a comment of this key."""
        lines = _lines(body).removesuffix(f"\n{self.line}")
        return _REMEMBERED.sub("", lines).rstrip()

    def sign(self, text: str, remembered: str = "") -> str:
        """The text as the comment of this key. remembered: base64, at most MAX_REMEMBERED characters."""
        lines = [without_hidden(text).rstrip(), ""]
        if remembered:
            lines.append(f"<!-- keystone-action remembers: {remembered} -->")
        return "\n".join([*lines, self.line]) + "\n"

    def size(self, remembered: str = "") -> int:
        """Characters that `sign` adds at most."""
        return len(self.sign("", remembered)) + 2


def without_hidden(text: str) -> str:
    """text with the beginning of every HTML comment shown instead: in a code span or a block it would be harmless on
    the page, but not to a program that looks for a marker."""
    # What a template gives knows that it is markup, and would escape what is put into it.
    return str(text).replace("<!--", "<!- -")


def _lines(body: str) -> str:
    return body.replace("\r\n", "\n").rstrip()


MAX_CHECKS = 400
"""Checks that are remembered; of more, only verdict and composite."""
_VERSION = 1
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DIGEST = re.compile(r"[A-Za-z0-9+/]{12}")
_LETTERS: Mapping[CheckStatus, str] = {"pass": "p", "fail": "f", "skip": "s", "error": "e"}
_STATUSES: Mapping[str, CheckStatus] = {letter: status for status, letter in _LETTERS.items()}
_BAD: frozenset[CheckStatus] = frozenset({"fail", "error"})


@dataclass(frozen=True, slots=True)
class LastResult:
    """A result in short. composite: from 0 to 1. sha: the commit, empty if unknown. checks: digest → status; None when
    there were too many."""

    verdict: Verdict
    composite: float | None
    sha: str = ""
    checks: Mapping[str, CheckStatus] | None = None

    @classmethod
    def of(cls, run: RunResult, sha: str) -> LastResult:
        """sha: the commit that people see, not that of a merge which GitHub made."""
        checks = {_digest(spec, name): status for spec, name, status in _checks(run)}
        known = _SHA.fullmatch(sha)
        return cls(run.verdict, run.composite, sha if known else "", checks if len(checks) <= MAX_CHECKS else None)

    def encode(self, *, commit: str = "", jobs: Jobs | None = None) -> str:
        """As base64, which can't end an HTML comment. commit: that the comment is of, where it is not this result's.
        jobs: those that write the comment."""
        checks = None if self.checks is None else {key: _LETTERS[status] for key, status in self.checks.items()}
        document = {"verdict": self.verdict, "composite": self.composite, "sha": self.sha, "checks": checks}
        more = {"commit": commit} if _SHA.fullmatch(commit) else {}
        return _encode({**document, **more, **(Jobs() if jobs is None else jobs).document()})

    @classmethod
    def decode(cls, text: str) -> LastResult | None:
        """None for what `encode` would not have written."""
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


def encode_commit(commit: str, jobs: Jobs | None = None) -> str:
    """What a comment without a result remembers; empty for no full commit id."""
    more = (Jobs() if jobs is None else jobs).document()
    return _encode({"commit": commit, **more}) if _SHA.fullmatch(commit) else ""


@dataclass(frozen=True, slots=True)
class Previous:
    """A comment of ours that is there. text: what people see of it. result: the last that it remembers. commit: that it
    is of, empty if unknown. jobs: those that have written it."""

    text: str
    result: LastResult | None = None
    commit: str = ""
    jobs: Jobs = field(default_factory=Jobs)

    @classmethod
    def read(cls, body: str, marker: Marker) -> Previous:
        """body: a comment's of this marker."""
        memory = marker.memory(body)
        document = _decode(memory)
        try:
            commit = _sha(document.get("commit") or document.get("sha"))
        except ValueError:
            commit = ""
        return cls(marker.text(body), LastResult.decode(memory), commit, Jobs.read(document))

    def verdict_on(self, commit: str) -> Verdict | None:
        """The verdict that the comment shows of a commit; None where it shows none of that one."""
        known = self.result is not None and commit and self.commit == self.result.sha == commit
        return self.result.verdict if self.result is not None and known else None

    def remembering(self, jobs: Jobs) -> str:
        """The same memory with other jobs, as base64."""
        if self.result is None:
            return encode_commit(self.commit, jobs)
        return self.result.encode(commit=self.commit, jobs=jobs)


@dataclass(frozen=True, slots=True)
class CheckChanges:
    """From what a comment remembers to a result. before: what it remembers. fixed, broken, skipped (and it was not),
    applied (and it was skipped), new: names of checks, with their spec where there are several. gone: how many checks
    there are no more."""

    before: LastResult
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


def changes_since(before: LastResult | None, run: RunResult) -> CheckChanges | None:
    """None when there is nothing to compare with."""
    if before is None:
        return None
    if before.checks is None:
        return CheckChanges(before)
    found: dict[str, list[str]] = {"fixed": [], "broken": [], "skipped": [], "applied": [], "new": []}
    seen = set()
    for spec, name, status in _checks(run):
        digest = _digest(spec, name)
        seen.add(digest)
        label = f"{spec} › {name}" if len(run.specs) > 1 else name
        if what := _what_became(before.checks.get(digest), status):
            found[what].append(label)
    gone = len(before.checks.keys() - seen)
    return CheckChanges(before, gone=gone, **{what: tuple(names) for what, names in found.items()})


def _what_became(was: CheckStatus | None, now: CheckStatus) -> str:
    """Which field of `CheckChanges` a check belongs to; empty where nothing changed."""
    if was is None:
        return "new"
    if now in _BAD:
        return "" if was in _BAD else "broken"
    if now == "skip":
        return "" if was == "skip" else "skipped"
    return {"pass": "", "skip": "applied"}.get(was, "fixed")


def _checks(run: RunResult) -> Iterator[tuple[str, str, CheckStatus]]:
    """Spec, name and worst status of every check."""
    for spec in run.specs:
        for row in invariant_rows(spec.cells):
            status: CheckStatus = _one_of(row.status, get_args(CheckStatus))
            yield spec.id, row.name, status


def _encode(document: Mapping[str, Any]) -> str:
    text = json.dumps({"v": _VERSION, **document}, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> Mapping[str, Any]:
    """Empty for anything but a document of ours."""
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


def _read_checks(value: Any) -> Mapping[str, CheckStatus] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MAX_CHECKS:
        raise ValueError("no checks")
    if not all(_DIGEST.fullmatch(key) for key in value):
        raise ValueError("no digests")
    return {key: _STATUSES[_one_of(letter, tuple(_STATUSES))] for key, letter in value.items()}
