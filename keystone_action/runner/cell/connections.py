"""What a cell can reach: its services, its network on the container engine, and the way out of it.

The services of one cell: attached before its agent, detached after its checks.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import HarnessError, KeystoneError, ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.runner.cell.model_gateway import open_model_gateway
from keystone_action.runner.shared_services import ServicesDefinition
from keystone_action.runner.started_run import run_shielded
from keystone_action.services.service import CellScope, Place, RunningService
from keystone_action.spec.expressions import interpolate, leaves, references

if TYPE_CHECKING:
    from pydantic import BaseModel

    from keystone_action.evidence.audit import AuditLog
    from keystone_action.evidence.model import Address
    from keystone_action.runner.cell.running_cell import CellUnderWay
    from keystone_action.spec.models.services import Service


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
        # was an import of itself

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


_OF_A_CELL = ("cell", "workspace", "record", "task")


class Attachments:
    """The services of one cell while they are attached, and the blocks that hold them. internal: none of them has a
    way out of its network."""

    def __init__(self, under_way: CellUnderWay, audit: AuditLog, *, internal: bool) -> None:
        self._under_way, self._services, self._internal = under_way, under_way.spec.services, internal
        self._neighbours = under_way.run.neighbours[under_way.spec.id]
        self._blocks: list[AbstractAsyncContextManager[Place]] = []
        self._scope = CellScope(
            cell_id=under_way.cell.id,
            private=under_way.roots.private,
            workspace=under_way.roots.workspace,
            audit_log=audit,
            exclusive=not self._neighbours.same_spec,
            allowed_users=under_way.users if "user" in under_way.run.provider.isolation else None,
            network=under_way.network,
            in_network=under_way.image is not None,
            watches_writes=under_way.spec.watches_writes,
        )

    async def attach_all(self) -> None:
        """See `reaching.attach_services`."""
        names, places = self._under_way.names, self._under_way.places
        knowing = [service for service in self._services if uses_addresses(service)]
        others = [service for service in self._services if service not in knowing]
        services = [interpolate(service, names) for service in others]
        last = any(names_a_cell(service) for service in others)
        running = await self._acquire(services, last=last) if services else []
        self._under_way.stack.push_async_callback(run_shielded, self._leave)
        # A container is made knowing the names of mocks, so these come first; and containers in the order of the
        # spec, so that one may need another that is named before it.
        containers = {service.name for service in services if service.kind == "container"}
        await self._attach([one for one in running if one.name not in containers])
        for one in running:
            if one.name in containers:
                await self._attach([one])
        for service in knowing:
            addresses = {name: self._in_network(name).as_mapping() for name in addresses_used(service)}
            filled = interpolate(service, {**names, "services": addresses})
            # It may know what only this cell has, so no other cell shares its definition.
            await self._attach(await self._acquire([filled], last=True))
        self._under_way.places = {service.name: places[service.name] for service in self._services}
        self._under_way.notices += [notice for place in self._under_way.places.values() for notice in place.notices]

    async def _acquire(self, services: Sequence[Service], *, last: bool) -> Sequence[RunningService]:
        spec_id, pool, alone = self._under_way.spec.id, self._under_way.run.services, self._neighbours.other_specs
        definition = ServicesDefinition(
            services,
            self._under_way.loaded.directory,
            internal=self._internal,
            owner=spec_id if alone else "",
            watches_writes=self._under_way.spec.watches_writes,
        )
        last = last or (alone and self._neighbours.only_cell)
        running = await pool.acquire(definition)
        self._under_way.stack.push_async_callback(run_shielded, partial(pool.release, definition, last=last))
        return running

    def _in_network(self, name: str) -> Address:
        """The address of an attached service for containers of this cell. Raises ServiceError."""
        address = self._under_way.places[name].for_agent
        service = next(one for one in self._services if one.name == name)
        # A file of the workspace has no host.
        if self._scope.in_network or service.kind == "external" or not address.host:
            return address
        if service.kind == "postgres" and getattr(service, "image", None) is None:
            raise ServiceError(
                f"service {name} is embedded and listens on this machine alone, where no container reaches it",
                help=f"give {name} an image, or set base, so that the cell is in containers",
            )
        url = address.url.replace(f"{address.host}:{address.port}", f"{name}:{address.port}")
        return replace(address, host=name, url=url)

    async def _attach(self, services: Sequence[RunningService]) -> None:
        if len(services) == 1:
            await self._enter(services[0])
            return
        failures: list[KeystoneError] = []

        async def attach(service: RunningService) -> None:
            try:
                await self._enter(service)
            except KeystoneError as error:
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for service in services:
                group.start_soon(attach, service)
        if failures:
            raise failures[0]

    async def _enter(self, service: RunningService) -> None:
        block = service.attach(self._scope)
        place = self._under_way.places[service.name] = await block.__aenter__()
        self._under_way.tell(f"service {service.name}: {place.for_agent.host}:{place.for_agent.port}")
        self._blocks.append(block)

    async def _leave(self) -> None:
        # All at once, which a stack would not do: to remove a container takes a while.
        async with anyio.create_task_group() as group:
            for block in self._blocks:
                group.start_soon(block.__aexit__, None, None, None)


def addresses_used(service: Service) -> frozenset[str]:
    """The services whose addresses a container's definition names; the loader allows it to containers alone."""
    if service.kind != "container":
        return frozenset()
    used = (reference.parts for leaf in leaves(service) for reference in references(leaf.value))
    return frozenset(parts[1] for parts in used if parts[0] == "services" and len(parts) > 1)


def uses_addresses(service: Service) -> bool:
    """Whether it can be defined only when others have their addresses."""
    return bool(addresses_used(service))


def names_a_cell(model: BaseModel) -> bool:
    """Whether an expression of this model differs between cells with equal parameters."""
    return any(
        reference.parts[0] in _OF_A_CELL for leaf in leaves(model) for reference in references(leaf.value, ("request",))
    )
