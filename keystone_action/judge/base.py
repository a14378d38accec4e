"""What a check asks of a judge and what it gets; the clients behind it live in this room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """One thing to judge.

    models: as the spec names them (aliases unresolved); more than one is a jury whose mean counts. judged: the
    untrusted text, fenced by the judge. judged_size: how many bytes there are in all, where that is only the first of
    them; else 0. remarks: sentences of ours about it. template: replaces the whole prompt when given
    (`prompt_template`). samples: answers asked of each model; the mean counts. timeout: seconds for everything.
    """

    criteria: str
    judged: str
    judged_size: int = 0
    remarks: tuple[str, ...] = ()
    task: str = ""
    models: tuple[str, ...] = ("judge-fast",)
    rubric: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    temperature: float = 0.0
    samples: int = 1
    timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class JudgeCost:
    """What judging cost. input_tokens: without those of a cache. cost_usd: None where a model has no price;
    unpriced: those that have none."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = 0.0
    requests: int = 0
    cached: int = 0
    unpriced: tuple[str, ...] = ()

    @property
    def amounts(self) -> dict[str, float | None]:
        """The numbers, by name; None = unknown."""
        return {name: value for name, value in asdict(self).items() if name != "unpriced"}


@dataclass(frozen=True, slots=True)
class Opinion:
    """One answer of one model."""

    model: str
    score: float
    reason: str
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the jury found: the mean score in [0, 1], each opinion, and what it cost. notes: sentences that belong to
    the result (a juror that had no key, material that was cut)."""

    score: float
    reason: str
    opinions: tuple[Opinion, ...]
    usage: JudgeCost = field(default_factory=JudgeCost)
    notes: tuple[str, ...] = ()


class JudgeUnavailable(Exception):  # noqa: N818 - an outcome: the check skips
    """No key (or no package) for this model: the check is skipped, and the sentence says what to set."""


class JudgeFailed(Exception):  # noqa: N818 - an outcome: the check is in error
    """The judge broke: refusal, unreadable answers after all retries, time-out, service down. usage: what it cost
    all the same."""

    def __init__(self, message: str, *, usage: JudgeCost | None = None) -> None:
        super().__init__(message)
        self.usage = usage or JudgeCost()


class Judge(Protocol):
    """The run's judge."""

    async def require(self, models: tuple[str, ...]) -> None:
        """Raises JudgeUnavailable when none of the models can be asked, JudgeFailed when one is set up wrongly."""

    async def judge(self, request: JudgeRequest) -> Judgement:
        """Raises JudgeUnavailable or JudgeFailed."""
