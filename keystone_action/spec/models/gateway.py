"""`gateway`: what the agent says to models goes through us (spec.md 1.10)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from keystone_action.spec.models.base import PlainText, RegexPattern, StrictModel
from keystone_action.spec.models.shapes import TextOrMapping, text_like

ModelApi = Literal["anthropic", "openai", "gemini"]
MODEL_APIS: tuple[ModelApi, ...] = ("anthropic", "openai", "gemini")
ProviderName = Annotated[
    str,
    text_like(r"^[a-z0-9]+(-[a-z0-9]+)*$", "kebab-case: a-z, 0-9 and single dashes", max_length=64),
    PlainText(),
]
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Amount = Annotated[int, Field(ge=0)]


class ModelProvider(StrictModel):
    """A provider of models by a name of its own. base_url: as clients of that API are given it (for openai with /v1),
    None = the API's own host. key: for it alone; None = with a base_url none is sent, else that of our environment."""

    name: ProviderName
    api: ModelApi
    base_url: (
        Annotated[
            str,
            text_like(r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", "an http(s) URL without user, password, query or fragment"),
        ]
        | None
    ) = None
    key: str | None = None


class ModelBudget(StrictModel):
    """What one cell may use: US dollars, tokens of all kinds, requests, calls of tools. None = no limit."""

    max_cost_usd: Dollars | None = None
    max_tokens: Amount | None = None
    max_requests: Amount | None = None
    max_tool_calls: Amount | None = None


class ModelPrice(StrictModel):
    """US dollars per million tokens; cache_read and cache_write None = as input."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None


def _default_providers() -> list[ModelApi | ModelProvider]:
    return list(MODEL_APIS)


class Gateway(StrictModel):
    """What is let through, and what it may cost. models: globs of names, None = any. prices: by globs of model names,
    for models that the price list lacks. provider_tools: tools that the provider itself runs; None = `deny` where
    `network.egress` is, else `allow`."""

    providers: Annotated[list[TextOrMapping[ModelApi, ModelProvider]], Field(min_length=1)] = Field(
        default_factory=_default_providers
    )
    mode: Literal["live", "record", "replay"] = "live"
    recordings: Annotated[str, PlainText()] | None = None
    match: Literal["content", "turn"] = "content"
    ignore: list[Annotated[str, RegexPattern()]] = Field(default_factory=list)
    budget: ModelBudget = Field(default_factory=ModelBudget.model_construct)
    models: Annotated[list[Annotated[str, Field(min_length=1), PlainText()]], Field(min_length=1)] | None = None
    prices: dict[Annotated[str, Field(min_length=1)], ModelPrice] = Field(default_factory=dict)
    provider_tools: Literal["allow", "deny"] | None = None

    @property
    def apis(self) -> dict[str, str]:
        """Of each provider, by its name."""
        pairs = ((one, one) if isinstance(one, str) else (one.name, one.api) for one in self.providers)
        return dict(pairs)

    @property
    def provider_names(self) -> tuple[str, ...]:
        """In the order of the spec."""
        return tuple(one if isinstance(one, str) else one.name for one in self.providers)
