"""Names of models: aliases, providers, prices, and which models take a temperature. One table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from keystone_action.judge.base import JudgeFailed

Provider = Literal["anthropic", "openai"]

FAST = "judge-fast"
STRONG = "judge-strong"
ALIASES: Mapping[str, str] = {"paragon-fast": FAST, "paragon-max": STRONG}
"""The original's names (spec 1.7) → ours."""
DEFAULTS: Mapping[str, str] = {FAST: "claude-haiku-5-5", STRONG: "claude-opus-5-5"}
VARIABLES: Mapping[str, str] = {FAST: "KEYSTONE_JUDGE_FAST", STRONG: "KEYSTONE_JUDGE_STRONG"}


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens; `long_*` for a whole request whose input is above `long_above` tokens."""

    input: float
    output: float
    long_above: int | None = None
    long_input: float = 0.0
    long_output: float = 0.0

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """The cost of one request in US dollars."""
        if self.long_above is not None and input_tokens > self.long_above:
            return (input_tokens * self.long_input + output_tokens * self.long_output) / 1e6
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class Known:
    """What we know of a model without asking. temperature: False = it answers 400 to any."""

    price: Price | None = None
    temperature: bool = True


# List prices and sampling rules of the provider's model pages, November 2026. A model that isn't here still works:
# its cost is unknown (None), and a 400 that names the temperature is answered by leaving it out.
KNOWN: Mapping[str, Known] = {
    "claude-haiku-5-5": Known(Price(0.10, 0.50, 100_000, 0.50, 2.50), temperature=False),
    "claude-sonnet-5-5": Known(Price(2, 10), temperature=False),
    "claude-opus-5-5": Known(Price(4, 20), temperature=False),
    "claude-fable-5-1": Known(Price(10, 50), temperature=False),
    "claude-opus-5": Known(Price(5, 25), temperature=False),
    "claude-opus-4-8": Known(Price(5, 25), temperature=False),
    "claude-opus-4-7": Known(Price(5, 25), temperature=False),
    "claude-opus-4-6": Known(Price(5, 25)),
    "claude-opus-4-5": Known(Price(5, 25)),
    "claude-sonnet-4-6": Known(Price(3, 15)),
    "claude-sonnet-4-5": Known(Price(3, 15)),
    "claude-haiku-4-5": Known(Price(1, 5)),
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a client can be asked for."""

    provider: Provider
    name: str

    @property
    def known(self) -> Known:
        """Our table's entry, also for a dated id (`claude-haiku-4-5-20251001`); an empty one when there is none."""
        return KNOWN.get(re.sub(r"-\d{8}$", "", self.name), Known())


def is_alias(name: str) -> bool:
    """Whether a name is set by input or environment rather than being a model's own."""
    return name in ALIASES or name in DEFAULTS


def parse_model(name: str) -> Model:
    """`provider:model`, or a name whose family is known. Raises ValueError with a sentence."""
    provider, colon, rest = name.partition(":")
    if provider in ("anthropic", "openai") and colon:
        if not rest.strip():
            raise ValueError(f"expected a model after {provider}:, found {name!r}")
        return Model("anthropic" if provider == "anthropic" else "openai", rest.strip())
    if re.match(r"claude-", name):
        return Model("anthropic", name)
    if re.match(r"(gpt-|o\d|chatgpt-)", name):
        return Model("openai", name)
    raise ValueError(
        f"can't tell whose model {name!r} is; expected judge-fast, judge-strong, claude-…, gpt-…, "
        "anthropic:<model> or openai:<model> (any OpenAI-compatible server, by OPENAI_BASE_URL)"
    )


def resolve(name: str, *, environ: Mapping[str, str], fast: str | None, strong: str | None) -> Model:
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
