"""What a check asks of a judge and what it gets, and the names of models: aliases, providers, and who takes a
temperature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """One thing to judge."""

    criteria: str
    judged: str
    """The untrusted text. The judge fences it."""
    judged_size: int = 0
    """How many bytes there are in all, where `judged` is only the first of them; else 0."""
    remarks: tuple[str, ...] = ()
    """Sentences of ours on what is judged."""
    task: str = ""
    models: tuple[str, ...] = ("judge-fast",)
    """As the spec names them, aliases unresolved. Several are a jury, whose mean counts."""
    rubric: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    """Replaces the whole prompt when given (`prompt_template`)."""
    temperature: float = 0.0
    samples: int = 1
    """How many answers each model is asked for; their mean counts."""
    timeout: float = 120.0
    """Seconds for everything."""


@dataclass(frozen=True, slots=True)
class JudgeCost:
    """What judging cost."""

    input_tokens: int = 0
    """Without those of a cache."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = 0.0
    """None where a model has no price."""
    requests: int = 0
    cached: int = 0
    unpriced: tuple[str, ...] = ()
    """Models that have none."""

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
    """What the jury found."""

    score: float
    """The mean, in [0, 1]."""
    reason: str
    opinions: tuple[Opinion, ...]
    usage: JudgeCost = field(default_factory=JudgeCost)
    notes: tuple[str, ...] = ()
    """Sentences for the result: a juror that had no key, material that was cut."""


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


JudgeProvider = Literal["anthropic", "openai"]

FAST = "judge-fast"
STRONG = "judge-strong"
ALIASES: Mapping[str, str] = {"paragon-fast": FAST, "paragon-max": STRONG}
"""The original's names (spec 1.7) → ours."""
DEFAULTS: Mapping[str, str] = {FAST: "claude-haiku-5-5", STRONG: "claude-opus-5-5"}
VARIABLES: Mapping[str, str] = {FAST: "KEYSTONE_JUDGE_FAST", STRONG: "KEYSTONE_JUDGE_STRONG"}


# The provider's model pages, November 2026. A 400 of any other model that names the temperature is answered by leaving
# it out.
_NO_TEMPERATURE = {
    "claude-haiku-5-5",
    "claude-sonnet-5-5",
    "claude-opus-5-5",
    "claude-fable-5-1",
    "claude-opus-5",
    "claude-opus-4-8",
    "claude-opus-4-7",
}


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A model that a client can be asked for."""

    provider: JudgeProvider
    name: str

    @property
    def takes_temperature(self) -> bool:
        """False for one that is known to answer 400 to any, by a dated id (`claude-haiku-5-5-20260801`) too."""
        return re.sub(r"-\d{8}$", "", self.name) not in _NO_TEMPERATURE


def is_alias(name: str) -> bool:
    """Whether a name is set by input or environment rather than being a model's own."""
    return name in ALIASES or name in DEFAULTS


def parse_model(name: str) -> JudgeModel:
    """`provider:model`, or a name whose family is known. Raises ValueError with a sentence."""
    provider, colon, rest = name.partition(":")
    if provider in ("anthropic", "openai") and colon:
        if not rest.strip():
            raise ValueError(f"expected a model after {provider}:, found {name!r}")
        return JudgeModel("anthropic" if provider == "anthropic" else "openai", rest.strip())
    if re.match(r"claude-", name):
        return JudgeModel("anthropic", name)
    if re.match(r"(gpt-|o\d|chatgpt-)", name):
        return JudgeModel("openai", name)
    raise ValueError(
        f"can't tell whose model {name!r} is; expected judge-fast, judge-strong, claude-…, gpt-…, "
        "anthropic:<model> or openai:<model> (any OpenAI-compatible server, by OPENAI_BASE_URL)"
    )


def resolve(name: str, *, environ: Mapping[str, str], fast: str | None, strong: str | None) -> JudgeModel:
    """The model behind a name of the spec: aliases by argument (an input), then environment, then default.
    Raises JudgeFailed."""
    given = {FAST: fast, STRONG: strong}
    current = name
    for _ in range(4):  # judge-fast may be set to judge-strong, but not to itself
        current = ALIASES.get(current, current)
        if current not in DEFAULTS:
            break
        current = (given[current] or environ.get(VARIABLES[current]) or DEFAULTS[current]).strip()
    if is_alias(current):
        raise JudgeFailed(f"{name} is set to {current}, which leads back to an alias; set it to a model's name")
    try:
        return parse_model(current)
    except ValueError as problem:
        where = "" if current == name else f"{name}: "
        raise JudgeFailed(f"{where}{problem}") from None
