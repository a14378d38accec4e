"""The gateway as one cell has it: addresses for its agent, and what came of it once the agent has ended."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from keystone_action.gateway.addresses import ModelAddress, agent_variables, provider_of_api
from keystone_action.gateway.application import Settings
from keystone_action.gateway.configuration import Configuration
from keystone_action.gateway.ledger import Ledger
from keystone_action.gateway.relay import Source
from keystone_action.gateway.server import Gateways, OpenGateway
from keystone_action.pricing import Purse

SETTLE_SECONDS = 62.0
"""A little longer than an answer is read to its end whose client has left."""
AFTER_LIMIT_SECONDS = 5.0
"""For answers under way when an agent's time is up: a provider that stalls is not to cost more than that."""
_KEY_BYTES = 24


@dataclass(frozen=True, slots=True)
class CellGateway:
    """addresses: by the names of providers. real_keys: what stands behind the worthless one."""

    addresses: Mapping[str, ModelAddress]
    ledger: Ledger
    configuration: Configuration
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
    configuration: Configuration,
    *,
    address: str = "127.0.0.1",
    admits: Callable[[str], bool] = lambda _peer: True,
    on_spent: Callable[[], None] = lambda: None,
    on_hopeless: Callable[[], None] = lambda: None,
    purse: Purse | None = None,
    look_through: Callable[[str, bytes], None] | None = None,
    source: Callable[[Source], Source] = lambda providers: providers,
) -> CellGateway:
    """address: where the cell's agent reaches us. admits: whether a peer's address is one of the cell's. on_spent:
    called, in the gateway's thread, with each request that a spent budget refuses. on_hopeless: likewise, once an
    upstream was given up. purse: of the job.
    look_through: see `Settings`. source: where answers come from, made of the providers. Raises ServiceError."""
    ledger, key = configuration.ledger(purse), f"keystone-{secrets.token_hex(_KEY_BYTES)}"
    settings = Settings(
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
