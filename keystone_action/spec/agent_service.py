"""Which of a spec's services its agent is, and what can't be seen of one that is none of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from keystone_action.spec.expressions import ExpressionError, Reference, leaves, parse_expression, references
from keystone_action.spec.loading.problems import Problem
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


def misuses_of(spec: Spec, name: str) -> Iterator[Problem]:
    """What this service can't be, and where it can't be named, in a cell whose agent it is."""
    index, service = next((at, one) for at, one in enumerate(spec.services) if one.name == name)
    if getattr(service, "isolation", "") == "database":
        advice = "leave it out: each cell has an agent of its own"
        yield Problem(("services", index, "isolation"), f"the service {name} is the agent, for one cell", help=advice)
    advice = "it runs from the end of setup until it has answered"
    for leaf in leaves(spec):
        if leaf.path[0] == "agent" or "{{" not in leaf.value or "services." not in leaf.value:
            continue
        with contextlib.suppress(ExpressionError):
            for reference in references(leaf.value, ("request", "port")):
                if reference.parts[:2] == ("services", name):
                    message = f"'{reference.name}': the service {name} is the agent"
                    yield Problem(leaf.path, message, help=advice, offset=reference.index)


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
