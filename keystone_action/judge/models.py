"""Names of models: aliases, providers, and which models take a temperature."""

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
class Model:
    """A model that a client can be asked for."""

    provider: Provider
    name: str

    @property
    def takes_temperature(self) -> bool:
        """False for one that is known to answer 400 to any, by a dated id (`claude-haiku-5-5-20260801`) too."""
        return re.sub(r"-\d{8}$", "", self.name) not in _NO_TEMPERATURE


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
