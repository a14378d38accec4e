"""`gateway`: what the agent says to models goes through us (spec.md 1.10)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from keystone_action.spec.models.fields import PlainText, RegexPattern, StrictModel, TextOrMapping, text_like

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
    """A provider of models under a name of its own: anything that speaks one of the three APIs."""

    name: ProviderName
    """The name in `{{ gateway.NAME.url }}` and `{{ gateway.NAME.key }}`, which give the agent its address and its key.

    Example: `router`
    """
    api: ModelApi
    """Which API it speaks.

    Example: `openai`
    """
    base_url: (
        Annotated[
            str,
            text_like(r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", "an http(s) URL without user, password, query or fragment"),
        ]
        | None
    ) = None
    """The address of the API, as its clients are given it: for `openai` with `/v1`, for `anthropic` without, for
    `gemini` without a version. Without it, the API's own host.

    Example: `https://openrouter.ai/api/v1`
    """
    key: str | None = None
    """The real key, as an expression. The agent never gets it. Without it, a provider with a `base_url` is sent no
    key, and any other one that of Keystone's environment.

    Example: `"{{ secrets.ROUTER_KEY }}"`
    """


class ModelBudget(StrictModel):
    """What one cell may use. The request that comes when a limit is reached is refused; ten seconds later the agent is
    ended, and what it did is graded. Up to 32 requests of a cell can be under way at that moment; only those exceed
    a limit.
    """

    max_cost_usd: Dollars | None = None
    """US dollars. A model without a price is refused under this limit; `prices` gives it one.

    Example: `0.5`
    """
    max_tokens: Amount | None = None
    """Tokens of all kinds together: input, output, read from a cache and written to one.

    Example: `200000`
    """
    max_requests: Amount | None = None
    """Requests to models. Each try of a request that failed counts.

    Example: `40`
    """
    max_tool_calls: Amount | None = None
    """Calls of tools that models answered with.

    Example: `60`
    """


class ModelPrice(StrictModel):
    """US dollars per million tokens."""

    input: Dollars
    """Of input that was neither read from a cache nor written to one.

    Example: `0.5`
    """
    output: Dollars
    """Of output, reasoning included.

    Example: `2.0`
    """
    cache_read: Dollars | None = None
    """Of input that was read from a cache. Without it, as for `input`.

    Example: `0.05`
    """
    cache_write: Dollars | None = None
    """Of input that was written to a cache. Without it, as for `input`.

    Example: `0.6`
    """


def _default_providers() -> list[ModelApi | ModelProvider]:
    return list(MODEL_APIS)


class Gateway(StrictModel):
    """The model gateway. What the agent says to a model goes through Keystone: the agent gets a worthless key and an
    address, and Keystone puts the real key in, counts what is used, and sees which tools the model asked for.
    """

    providers: Annotated[list[TextOrMapping[ModelApi, ModelProvider]], Field(min_length=1)] = Field(
        default_factory=_default_providers
    )
    """Which providers the agent can reach: `anthropic`, `openai` and `gemini` with their keys from Keystone's own
    environment, and others as mappings.

    Example: `[anthropic]`
    Example: `[openai, {name: router, api: openai, base_url: "https://openrouter.ai/api/v1"}]`
    """
    mode: Literal["live", "record", "replay"] = "live"
    """`live`: requests go to the provider. `record`: so they do, and the answers are kept in files. `replay`: answers
    come from these files, without a provider, a key or costs; a request that was not recorded is an error.
    `--gateway` and the input `gateway` replace it.

    Example: `replay`
    """
    recordings: Annotated[str, PlainText()] | None = None
    """The folder of the recordings, below the spec's, meant to be committed. Without it, `recordings/<id of the
    spec>`. The agent can't see it.

    Example: `recordings/fix-tests`
    """
    match: Literal["content", "turn"] = "content"
    """How a replay finds the answer to a request. `content`: by what the request says. `turn`: by its place in the
    conversation, for prompts and tools that have changed since; the result is then marked as stale.

    Example: `turn`
    """
    ignore: list[Annotated[str, RegexPattern()]] = Field(default_factory=list)
    """Regular expressions. What they match in requests counts as equal, when a replay looks for an answer by
    `content`.

    Example: `["build [0-9]+"]`
    """
    budget: ModelBudget = Field(default_factory=ModelBudget.model_construct)
    """What one cell may use. Without limits, anything.

    Example: `{max_cost_usd: 0.5, max_requests: 40}`
    """
    models: Annotated[list[Annotated[str, Field(min_length=1), PlainText()]], Field(min_length=1)] | None = None
    """Globs of the names of models that are let through. Without it, any. A request for another model is refused.

    Example: `["claude-*"]`
    """
    prices: dict[Annotated[str, Field(min_length=1)], ModelPrice] = Field(default_factory=dict)
    """Prices of models that the price list lacks, by globs of their names. They win over the list.

    Example: `{"our-model-*": {input: 0.5, output: 2.0}}`
    """
    provider_tools: Literal["allow", "deny"] | None = None
    """Whether tools that the provider itself runs (web search, code execution, MCP servers) are let through. They
    carry data past the egress policy. Without it: `deny` where `network.egress.default` is `deny`, else `allow`.

    Example: `deny`
    """

    @property
    def apis(self) -> dict[str, str]:
        """Of each provider, by its name."""
        pairs = ((one, one) if isinstance(one, str) else (one.name, one.api) for one in self.providers)
        return dict(pairs)

    @property
    def provider_names(self) -> tuple[str, ...]:
        """In the order of the spec."""
        return tuple(one if isinstance(one, str) else one.name for one in self.providers)
