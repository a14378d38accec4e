"""The gateway of one cell: from a spec's `gateway` and our own environment to addresses for the agent, and what came of
it once the agent has ended."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from keystone_action.errors import SecretError
from keystone_action.gateway.application import GatewaySettings
from keystone_action.gateway.ledger import BudgetLimits, Ledger
from keystone_action.gateway.relay import AnswerSource
from keystone_action.gateway.server import Gateways, OpenGateway
from keystone_action.gateway.upstreams import (
    DEFAULT_BASES,
    VARIABLES,
    ModelAddress,
    Upstream,
    agent_variables,
    provider_of_api,
)
from keystone_action.pricing import Price, Purse
from keystone_action.spec.models.gateway import Gateway, ModelProvider


@dataclass(frozen=True, slots=True)
class GatewayConfiguration:
    """Where a cell's requests go, with which keys, and what is allowed."""

    gateway: Gateway
    upstreams: Mapping[str, Upstream]
    """By the names of providers."""
    missing_keys: Mapping[str, str]
    """The sentence for an agent that asks a provider without a key, by the name of the provider."""
    deny_provider_tools: bool
    """What `provider_tools` comes to."""
    no_secrets_reason: str = ""
    """Why this run gets no secrets; empty where it does."""

    def key_error(self, sentence: str) -> SecretError:
        """For a provider that was asked and has no key."""
        return SecretError(sentence, help=" ".join(_advice(self.gateway, self.missing_keys, self.no_secrets_reason)))

    @property
    def apis(self) -> dict[str, str]:
        """Of each provider."""
        return {name: upstream.api for name, upstream in self.upstreams.items()}

    @property
    def real_keys(self) -> tuple[str, ...]:
        """Those that no agent may ever see."""
        return tuple(dict.fromkeys(upstream.key for upstream in self.upstreams.values() if upstream.key))

    def ledger(self, purse: Purse | None = None) -> Ledger:
        """A new one, with the limits of the spec. purse: of the job."""
        budget, prices = self.gateway.budget, self.gateway.prices
        limits = BudgetLimits(budget.max_cost_usd, budget.max_tokens, budget.max_requests, budget.max_tool_calls)
        known = {glob: Price(one.input, one.output, one.cache_read, one.cache_write) for glob, one in prices.items()}
        return Ledger(limits, known, self.gateway.models or (), purse)


def configure(
    gateway: Gateway,
    environ: Mapping[str, str],
    *,
    denied_egress: bool,
    needed: Collection[str] = (),
    no_secrets_reason: str = "",
) -> GatewayConfiguration:
    """gateway: interpolated. environ: our own environment. needed: names of providers without which the agent can't do;
    those that the spec names are needed as well, and in a replay no key is. no_secrets_reason: why this run gets no
    secrets, empty otherwise.

    Raises SecretError for the keys of needed providers that are missing.
    """
    upstreams: dict[str, Upstream] = {}
    missing: dict[str, str] = {}
    for provider in gateway.providers:
        upstream, problem = _upstream(provider, environ)
        upstreams[upstream.name] = upstream
        if problem and gateway.mode != "replay":
            missing[upstream.name] = problem
    named = gateway.provider_names if "providers" in gateway.model_fields_set else ()
    lacking = [name for name in upstreams if name in missing and name in {*named, *needed}]
    if lacking:
        advice = list(_advice(gateway, lacking, no_secrets_reason))
        raise SecretError("; ".join(missing[name] for name in lacking), help=" ".join(advice))
    tools = gateway.provider_tools or ("deny" if denied_egress else "allow")
    return GatewayConfiguration(gateway, upstreams, missing, tools == "deny", no_secrets_reason)


def keys_of_environment(gateway: Gateway, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The keys in our environment that a gateway uses. (Keys of the spec's own are among its secrets.)"""
    found = (_upstream(one, environ)[0].key for one in gateway.providers if isinstance(one, str) or one.key is None)
    return tuple(filter(None, found))


def _upstream(provider: str | ModelProvider, environ: Mapping[str, str]) -> tuple[Upstream, str]:
    """It, and why it has no key although it needs one."""
    given = ModelProvider(name=provider, api=provider) if isinstance(provider, str) else provider  # type: ignore[arg-type]
    variable, base_variable = VARIABLES[given.api]
    base = given.base_url or environ.get(base_variable, "").strip() or DEFAULT_BASES[given.api]
    if given.key is not None:
        key, problem = given.key.strip(), f"the key of the provider {given.name} is empty"
    elif given.base_url is not None:
        # What stands in our environment is for the provider itself, not for a host that a spec names.
        return Upstream(given.name, given.api, base), ""
    else:
        key = environ.get(variable, "").strip()
        problem = f"there is no key for the provider {given.name}: {variable} is not set"
    return Upstream(given.name, given.api, base, key, "" if given.key is not None else variable), "" if key else problem


def _advice(gateway: Gateway, lacking: Collection[str], no_secrets_reason: str) -> Iterator[str]:
    if no_secrets_reason:
        yield f"{no_secrets_reason.rstrip('.')}. A run with `--gateway replay` needs none."
        return
    apis = {one if isinstance(one, str) else one.api for one in gateway.providers if _name_of(one) in lacking}
    names = " and ".join(VARIABLES[api][0] for api in VARIABLES if api in apis)
    yield f"Set {names} (in a workflow: under `env:` of the step), or name only the providers that are used."


def _name_of(provider: str | ModelProvider) -> str:
    return provider if isinstance(provider, str) else provider.name


SETTLE_SECONDS = 62.0
"""A little longer than an answer is read to its end whose client has left."""
AFTER_LIMIT_SECONDS = 5.0
"""For answers under way when an agent's time is up: a provider that stalls is not to cost more than that."""
_KEY_BYTES = 24


@dataclass(frozen=True, slots=True)
class CellGateway:
    """The gateway of one cell, while its agent runs and after that."""

    addresses: Mapping[str, ModelAddress]
    """Where the agent reaches each provider, by its name."""
    ledger: Ledger
    configuration: GatewayConfiguration
    _gateways: Gateways = field(repr=False)
    _opened: OpenGateway = field(repr=False)

    @property
    def variables(self) -> dict[str, str]:
        """What an agent's programs look for."""
        return agent_variables(self.addresses, self.configuration.apis)

    @property
    def addresses_of_apis(self) -> dict[str, ModelAddress]:
        """By the names of APIs, for agents that know only these."""
        apis = self.configuration.apis
        named = {api: provider_of_api(api, apis) for api in apis.values()}
        return {api: self.addresses[name] for api, name in named.items() if name is not None}

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._opened.port

    @property
    def defects(self) -> tuple[str, ...]:
        """What went wrong in our own code, for this cell or for all of them."""
        return (*self._opened.defects, *self._gateways.defects)

    def without_keys(self, variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Variables in which a provider's real key is the cell's own, and the names of those that were changed."""
        real = set(self.configuration.real_keys)
        key = next(iter(self.addresses.values())).key
        changed = tuple(name for name, value in variables.items() if value.strip() in real)
        return {**variables, **dict.fromkeys(changed, key)}, changed

    async def settle(self, left: float = SETTLE_SECONDS) -> None:
        """The agent has ended. Answers under way are read to their end; then nobody is answered any more. left: seconds
        of the agent's time."""
        deadline = time.monotonic() + min(SETTLE_SECONDS, left + AFTER_LIMIT_SECONDS)
        while self.ledger.under_way and time.monotonic() < deadline:  # noqa: ASYNC110 - another thread's work
            await asyncio.sleep(0.01)
        await self.close()

    async def close(self) -> None:
        """Answer nobody any more. Twice does no harm."""
        await self._gateways.close(self._opened)


async def open_gateway(
    gateways: Gateways,
    configuration: GatewayConfiguration,
    *,
    address: str = "127.0.0.1",
    admits: Callable[[str], bool] = lambda _peer: True,
    on_spent: Callable[[], None] = lambda: None,
    on_hopeless: Callable[[], None] = lambda: None,
    purse: Purse | None = None,
    look_through: Callable[[str, bytes], None] | None = None,
    source: Callable[[AnswerSource], AnswerSource] = lambda providers: providers,
) -> CellGateway:
    """address: where the cell's agent reaches us. admits: whether a peer's address is one of the cell's. on_spent:
    called, in the gateway's thread, with each request that a spent budget refuses. on_hopeless: likewise, once an
    upstream was given up. purse: of the job.
    look_through: see `GatewaySettings`. source: where answers come from, made of the providers. Raises ServiceError."""
    ledger, key = configuration.ledger(purse), f"keystone-{secrets.token_hex(_KEY_BYTES)}"
    settings = GatewaySettings(
        key=key,
        upstreams=configuration.upstreams,
        ledger=ledger,
        deny_tools_of_provider=configuration.deny_provider_tools,
        missing_key=configuration.missing_keys,
        admits=admits,
        on_spent=on_spent,
        on_hopeless=on_hopeless,
        look_through=look_through,
        source=source,
    )
    opened = await gateways.open(settings, address)
    root = f"http://{opened.address}:{opened.port}"
    versions = {name: "/v1" if api == "openai" else "" for name, api in configuration.apis.items()}
    addresses = {name: ModelAddress(f"{root}/{name}{version}", key) for name, version in versions.items()}
    return CellGateway(addresses, ledger, configuration, gateways, opened)
