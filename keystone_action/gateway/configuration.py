"""From the `gateway` of a spec and our own environment to where requests go, with which keys, and at what cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from keystone_action.errors import SecretError
from keystone_action.gateway.ledger import Ledger, Limits
from keystone_action.gateway.upstreams import DEFAULT_BASES, VARIABLES, Upstream
from keystone_action.pricing import Price, Purse
from keystone_action.spec.models.gateway import Gateway, ModelProvider


@dataclass(frozen=True, slots=True)
class Configuration:
    """Of one cell. upstreams: by the names of providers. missing_keys: by name, the sentence for an agent that asks a
    provider for which there is no key. deny_provider_tools: what `provider_tools` comes to."""

    gateway: Gateway
    upstreams: Mapping[str, Upstream]
    missing_keys: Mapping[str, str]
    deny_provider_tools: bool
    no_secrets_reason: str = ""

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
        limits = Limits(budget.max_cost_usd, budget.max_tokens, budget.max_requests, budget.max_tool_calls)
        known = {glob: Price(one.input, one.output, one.cache_read, one.cache_write) for glob, one in prices.items()}
        return Ledger(limits, known, self.gateway.models or (), purse)


def configure(
    gateway: Gateway,
    environ: Mapping[str, str],
    *,
    denied_egress: bool,
    needed: Collection[str] = (),
    no_secrets_reason: str = "",
) -> Configuration:
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
    return Configuration(gateway, upstreams, missing, tools == "deny", no_secrets_reason)


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
