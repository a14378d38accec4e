"""What a cell can reach: its services, its network on the container engine, and the way out of it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from keystone_action.errors import HarnessError
from keystone_action.evidence.audit import AuditLog
from keystone_action.runner.cell.layout import run_shielded
from keystone_action.runner.cell.model_gateway import open_model_gateway

if TYPE_CHECKING:
    from keystone_action.runner.cell.under_way import CellUnderWay


async def attach_services(under_way: CellUnderWay) -> None:
    """The gateway and every service ready for this cell, in the order of the spec, and known to expressions. Raises
    HarnessError."""
    try:
        audit = under_way.audit = AuditLog(under_way.roots.audit_log)
    except OSError as error:
        raise HarnessError(f"the audit log can't be written: {error.strerror}") from error
    under_way.stack.callback(audit.close)
    await _enter_network(under_way, audit)
    await open_model_gateway(under_way)
    if under_way.spec.services:
        from keystone_action.runner.cell.attachments import Attachments

        await Attachments(under_way, audit, internal=_is_denied(under_way)).attach_all()
    under_way.names["services"] = {name: place.for_agent.as_mapping() for name, place in under_way.places.items()}


async def seal(under_way: CellUnderWay) -> None:
    """What stands now stood before the agent. Raises ServiceError."""
    for place in under_way.places.values():
        await place.seal()
        under_way.notices += place.notices_once_sealed()
    await settle_proxy(under_way)
    under_way.audit_start = under_way.audit.size()


async def settle_proxy(under_way: CellUnderWay) -> None:
    """What was asked of it so far is in the audit log, where a rule reads that."""
    if under_way.proxy is not None and under_way.spec.forbidden.http_except is not None:
        await under_way.proxy.settle()


def _is_denied(under_way: CellUnderWay) -> bool:
    return under_way.spec.egress.default == "deny"


async def _enter_network(under_way: CellUnderWay, audit: AuditLog) -> None:
    containers, spec = under_way.run.containers, under_way.spec
    if containers is None:
        return
    own = [one for one in spec.services if one.kind == "container" or getattr(one, "isolation", "") == "container"]
    denied, egress = _is_denied(under_way), spec.egress
    proxied = denied and (bool(egress.allow) or spec.forbidden.http_except is not None)
    isolated = denied and not spec.services and not proxied and under_way.gateway_wanted is None
    if (under_way.image is None and not own) or isolated:
        return
    # Its own even without services: agents of two cells must not meet, nor anything else on the engine.
    name = f"{under_way.cell.id}.{secrets.token_hex(4)}"
    opened = containers.networks.cell(name, internal=denied, wait=False)
    network = under_way.network = await under_way.stack.enter_async_context(opened)
    if network.notice:
        under_way.notices.append(network.notice)
    if proxied:
        proxies = await containers.egress()
        services = [service.name for service in spec.services]
        under_way.proxy = await proxies.open(egress, network, audit, services=services)
        under_way.stack.push_async_callback(run_shielded, under_way.proxy.close)
