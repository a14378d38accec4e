"""The jobs of one workflow run that write one comment: what each has come to, so that none hides a worse one.

What is read here comes from a comment, and so from anybody who may edit it: digests, numbers and letters, no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from keystone_action.scoring.results import Verdict

MAX_JOBS = 64
"""Jobs that are remembered, the worst of them."""
WORST_FIRST: tuple[Verdict, ...] = ("error", "fail", "flaky", "pass")
_LETTERS: Mapping[str, Verdict] = {verdict[0] if verdict != "flaky" else "y": verdict for verdict in WORST_FIRST}
_LETTER_OF = {verdict: letter for letter, verdict in _LETTERS.items()}
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
        ended = {name: [attempt, _LETTER_OF[verdict]] for name, (attempt, verdict) in kept}
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


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """None where there is none."""
    return min(verdicts, key=WORST_FIRST.index, default=None)


def is_worse(one: Verdict | None, other: Verdict) -> bool:
    """Whether one verdict is worse than another; none never is."""
    return one is not None and WORST_FIRST.index(one) < WORST_FIRST.index(other)


def letter_of(verdict: Verdict) -> str:
    """A verdict as one letter."""
    return _LETTER_OF[verdict]


def verdict_of(letter: str) -> Verdict:
    """Raises KeyError for another letter."""
    return _LETTERS[letter]


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _read_job_end(name: object, value: Any) -> tuple[int, Verdict]:
    attempt, letter = value
    if not _fits(_NAME, name) or type(attempt) is not int or not 0 < attempt < 10**6:
        raise ValueError("no job")
    return attempt, verdict_of(letter)
