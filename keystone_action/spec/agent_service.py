"""Which of a spec's services its agent is, and what can't be seen of one that is none of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from keystone_action.spec.expressions import ExpressionError, Reference, parse_expression
from keystone_action.spec.models.agents import HTTP_DATA, HttpAgent

if TYPE_CHECKING:
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.spec import Spec


def agent_service(spec: Spec, agent: AgentBase, params: Mapping[str, Any]) -> str | None:
    """The container of `services` that an agent of the type `http` is, by its URL; None for any other agent. params:
    the cell's parameters, as far as they are known."""
    containers = {service.name for service in spec.services if service.kind == "container"}
    return next((name for name in _services(spec, agent, params) if name in containers), None)


def is_elsewhere(spec: Spec, agent: AgentBase) -> bool:
    """Whether an agent of the type `http` is neither a service of ours nor a model behind the gateway, so that what it
    does is seen by nobody. One whose place is a parameter is taken for one."""
    if not isinstance(agent, HttpAgent):
        return False
    ours = {service.name for service in spec.services if service.kind != "external"}
    return not any(name in ours or name == "gateway" for name in _services(spec, agent, {}))


def _services(spec: Spec, agent: AgentBase, params: Mapping[str, Any]) -> Iterator[str]:
    """What its URL may mean, with services in the place of hosts that they stand in for."""
    overrides = spec.network.dns_overrides
    return (overrides.get(name, name) for name in _named(agent, params))


def _named(agent: AgentBase, params: Mapping[str, Any]) -> Iterator[str]:
    """The services that its URL may mean, `gateway` for the gateway."""
    if not isinstance(agent, HttpAgent):
        return
    with contextlib.suppress(ExpressionError):
        text = ""
        for piece in parse_expression(agent.url, HTTP_DATA):
            parts = piece.parts if isinstance(piece, Reference) else ()
            if parts[:1] == ("services",) and len(parts) > 1:
                yield parts[1]
            elif parts[:1] == ("gateway",):
                yield "gateway"
            text += piece if isinstance(piece, str) else str(params.get(parts[-1], "")) if parts[0] == "params" else ""
        with contextlib.suppress(ValueError):
            yield (urlsplit(text).hostname or "").lower()
