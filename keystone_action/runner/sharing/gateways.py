"""The model gateways of a run: started with the first cell that has one, stopped with the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keystone_action.gateway.server import Gateways
    from keystone_action.options.model import Options
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.gateway import Gateway
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.plan import Cell


class LazyGateways:
    """See the module."""

    def __init__(self) -> None:
        self._gateways: Gateways | None = None

    def started(self) -> Gateways:
        """Those of this run, serving. Raises ServiceError."""
        if self._gateways is None:
            from keystone_action.gateway.server import Gateways

            made = Gateways()
            made.start()
            self._gateways = made
        return self._gateways

    async def close(self) -> None:
        """End all of them."""
        if self._gateways is not None:
            await anyio.to_thread.run_sync(self._gateways.stop)


def gateway_of(spec: Spec, agent: AgentBase, options: Options) -> Gateway | None:
    """The gateway of cells with this agent: as the spec asks for it, else as the call does; None where none does, or
    the spec switches it off. An option of the call replaces its mode."""
    asked = spec.gateway_for(agent)
    if asked is None and (spec.gateway == "off" or not options.needs_gateway):
        return None
    from keystone_action.spec.models.gateway import Gateway

    asked = asked or Gateway()
    return asked if options.running.gateway is None else asked.model_copy(update={"mode": options.running.gateway})


def provider_keys(cells: Iterable[Cell], options: Options) -> tuple[str, ...]:
    """The keys of our environment that stand behind the gateways of cells: masked like secrets."""
    found = {
        (cell.loaded.spec.id, cell.agent_type): gateway_of(cell.loaded.spec, cell.agent, options) for cell in cells
    }
    keys: dict[str, None] = {}
    for gateway in found.values():
        if gateway is not None:
            from keystone_action.gateway.cell import keys_of_environment

            keys |= dict.fromkeys(keys_of_environment(gateway, options.caller.environ))
    return tuple(keys)
