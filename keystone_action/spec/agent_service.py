"""Which of a spec's services its agent is, and what can't be seen of one that is none of them."""

from __future__ import annotations

from collections.abc import Mapping
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
    name = _place(spec, agent, params)
    return name if any(one.name == name and one.kind == "container" for one in spec.services) else None


def is_elsewhere(spec: Spec, agent: AgentBase, params: Mapping[str, Any] | None = None) -> bool:
    """Whether an agent of the type `http` is neither a service of ours nor a model behind the gateway, so that what it
    does is seen by nobody. One whose place is not known is taken for one."""
    if not isinstance(agent, HttpAgent):
        return False
    name = _place(spec, agent, params or {})
    return name != "gateway" and not any(one.name == name and one.kind != "external" for one in spec.services)


def _place(spec: Spec, agent: AgentBase, params: Mapping[str, Any]) -> str | None:
    """The one host that its URL names, as the service that stands in for it: a service, `gateway` for the gateway, or
    any other. None where that is known only later, and for what is not a URL."""
    if not isinstance(agent, HttpAgent):
        return None
    try:
        pieces = parse_expression(agent.url, HTTP_DATA)
        authority = urlsplit("".join(one if isinstance(one, str) else _stand_in(one, params) for one in pieces)).netloc
        host = urlsplit(f"//{authority}").hostname or ""
    except (ExpressionError, ValueError):
        return None
    if _UNKNOWN in authority:
        return None
    host = host.lower().removesuffix(".")
    return spec.network.dns_overrides.get(host, host)


_UNKNOWN = "{{"
"""What no host has in it: what is filled in only when the agent is asked stands in a text as it was written."""


def _stand_in(reference: Reference, params: Mapping[str, Any]) -> str:
    """What shows of a reference whose place in the URL it is: only a host, a port and a URL of ours are known."""
    root, *parts = reference.parts
    if root == "params":
        return str(params.get(parts[-1], _UNKNOWN)) if parts else _UNKNOWN
    if root not in ("services", "gateway") or len(parts) < 2:
        return _UNKNOWN
    host = parts[0] if root == "services" else root
    return {"url": f"http://{host}", "host": host, "port": "1"}.get(parts[1], _UNKNOWN)
