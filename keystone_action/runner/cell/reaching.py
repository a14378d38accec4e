"""What a cell can reach: its services, its network on the container engine, and the way out of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.errors import HarnessError, KeystoneError, ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.runner.cell.layout import names_a_cell, shielded
from keystone_action.runner.cell.names import with_services
from keystone_action.runner.cell.opening import CellNetwork
from keystone_action.runner.service_pool import Definition
from keystone_action.services.base import CellScope, Place, RunningService
from keystone_action.spec.expressions import interpolate, references
from keystone_action.spec.loading.annotations import leaves

if TYPE_CHECKING:
    from pathlib import Path

    from keystone_action.engine.networks import Network
    from keystone_action.evidence.model import Address
    from keystone_action.plan import Cell
    from keystone_action.runner.world import CellRoots, World
    from keystone_action.sandbox.base import Sandbox
    from keystone_action.services.egress.proxy import EgressCell
    from keystone_action.spec.models.services import Service


class Reach:
    """Of one attempt at a cell. `stack` undoes it in reverse; notices are added to."""

    def __init__(self, cell: Cell, world: World, roots: CellRoots, stack: AsyncExitStack, notices: list[str]) -> None:
        self._cell, self._world, self._roots, self._stack, self._notices = cell, world, roots, stack, notices
        self._spec = cell.loaded.spec
        self._company = world.company[self._spec.id]
        self._in_container = self._spec.id in world.images
        self._users: set[int] = set()
        self._network: Network | None = None
        self._places: dict[str, Place] = {}
        self._blocks: list[AbstractAsyncContextManager[Place]] = []
        self._proxy: EgressCell | None = None

    @property
    def _denied(self) -> bool:
        return self._spec.network.egress.default == "deny"

    async def services(self, names: Mapping[str, Any], audit_log: Path) -> dict[str, Place]:
        """Every service ready for this cell, in the order of the spec. Raises HarnessError."""
        try:
            audit = AuditLog(audit_log)
        except OSError as error:
            raise HarnessError(f"the audit log can't be written: {error.strerror}") from error
        self._stack.callback(audit.close)
        await self._enter_network(audit)
        if not self._spec.services:
            return {}
        knowing = [service for service in self._spec.services if uses_addresses(service)]
        others = [service for service in self._spec.services if service not in knowing]
        services = [interpolate(service, names) for service in others]
        last = any(names_a_cell(service) for service in others)
        running = await self._acquire(services, last=last) if services else []
        scope = CellScope(
            cell_id=self._cell.id,
            private=self._roots.private,
            workspace=self._roots.workspace,
            audit_log=audit,
            exclusive=not self._company.own,
            allowed_users=self._users if "user" in self._world.provider.isolation else None,
            network=self._network,
            in_network=self._in_container,
        )
        self._stack.push_async_callback(shielded, self._leave)
        # A container is made knowing the names of mocks, so these come first; and containers in the order of the
        # spec, so that one may need another that is named before it.
        containers = {service.name for service in services if service.kind == "container"}
        await self._attach([one for one in running if one.name not in containers], scope)
        for one in running:
            if one.name in containers:
                await self._attach([one], scope)
        for service in knowing:
            addresses = {name: self._in_network(name) for name in addresses_used(service)}
            filled = interpolate(service, with_services(names, addresses))
            # It may know what only this cell has, so no other cell shares its definition.
            await self._attach(await self._acquire([filled], last=True), scope)
        self._places = {service.name: self._places[service.name] for service in self._spec.services}
        self._notices += [notice for place in self._places.values() for notice in place.notices]
        return self._places

    async def _acquire(self, services: Sequence[Service], *, last: bool) -> Sequence[RunningService]:
        pool = self._world.services
        alone = self._company.others
        owner = self._spec.id if alone else ""
        definition = Definition(services, self._cell.loaded.directory, internal=self._denied, owner=owner)
        last = last or (alone and self._company.single)
        running = await pool.acquire(definition)
        self._stack.push_async_callback(shielded, partial(pool.release, definition, last=last))
        return running

    def _in_network(self, name: str) -> Address:
        """The address of an attached service for containers of this cell. Raises ServiceError."""
        address = self._places[name].for_agent
        service = next(one for one in self._spec.services if one.name == name)
        if self._in_container or service.kind in ("sqlite", "external"):
            return address
        if service.kind == "postgres" and getattr(service, "image", None) is None:
            raise ServiceError(
                f"service {name} is embedded and listens on this machine alone, where no container reaches it",
                help=f"give {name} an image, or set base, so that the cell is in containers",
            )
        url = address.url.replace(f"{address.host}:{address.port}", f"{name}:{address.port}")
        return replace(address, host=name, url=url)

    async def _enter_network(self, audit: AuditLog) -> None:
        containers, declared = self._world.containers, self._spec.services
        if containers is None:
            return
        own = [one for one in declared if one.kind == "container" or getattr(one, "isolation", "") == "container"]
        isolated = self._denied and not declared and not self._spec.network.egress.allow
        if (not self._in_container and not own) or isolated:
            return
        # Its own even without services: agents of two cells must not meet, nor anything else on the engine.
        name = f"{self._cell.id}.{secrets.token_hex(4)}"
        opened = containers.networks.cell(name, internal=self._denied, wait=False)
        network = await self._stack.enter_async_context(opened)
        self._network = network
        if network.notice:
            self._notices.append(network.notice)
        if self._denied and self._spec.network.egress.allow:
            proxies = await containers.egress()
            services = [service.name for service in self._spec.services]
            self._proxy = await proxies.open(self._spec.network.egress, network, audit, services=services)
            self._stack.push_async_callback(shielded, self._proxy.close)

    async def _attach(self, services: Sequence[RunningService], scope: CellScope) -> None:
        if len(services) == 1:
            await self._enter(services[0], scope)
            return
        failures: list[KeystoneError] = []

        async def attach(service: RunningService) -> None:
            try:
                await self._enter(service, scope)
            except KeystoneError as error:
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for service in services:
                group.start_soon(attach, service)
        if failures:
            raise failures[0]

    async def _enter(self, service: RunningService, scope: CellScope) -> None:
        block = service.attach(scope)
        self._places[service.name] = await block.__aenter__()
        self._blocks.append(block)

    async def _leave(self) -> None:
        # All at once, which a stack would not do: to remove a container takes a while.
        async with anyio.create_task_group() as group:
            for block in self._blocks:
                group.start_soon(block.__aexit__, None, None, None)

    async def run_sql(self, service: str, script: str) -> None:
        """For sql fixtures. Raises ServiceError."""
        await self._places[service].run_sql(script)

    async def seal(self) -> None:
        """What stands now stood before the agent. Raises ServiceError."""
        for place in self._places.values():
            await place.seal()
            self._notices += place.notices_once_sealed()

    def network(self) -> CellNetwork:
        """How containers of this cell are connected, once its services are ready."""
        network, spec = self._network, self._spec
        return CellNetwork(
            network=network.name if network is not None else "none",
            hosts=dict(network.hosts) if network is not None else {},
            dns=network.dns if network is not None else (),
            open=not self._denied,
            shared_state=bool(spec.services or spec.fixtures),
            variables=self._proxy.environment if self._proxy is not None else {},
        )

    def admit(self, sandbox: Sandbox) -> None:
        """Let the user of a sandbox reach this cell's services."""
        uid = getattr(sandbox, "uid", None)
        if uid is not None:
            self._users.add(uid)

    def incomplete(self) -> str:
        """Why the record of what left this cell is not whole; empty when it is."""
        return (self._proxy.failure or "") if self._proxy is not None else ""


def addresses_used(service: Service) -> frozenset[str]:
    """The services whose addresses a container's definition names; the loader allows it to containers alone."""
    if service.kind != "container":
        return frozenset()
    used = (reference.parts for leaf in leaves(service) for reference in references(leaf.value))
    return frozenset(parts[1] for parts in used if parts[0] == "services" and len(parts) > 1)


def uses_addresses(service: Service) -> bool:
    """Whether it can be defined only when others have their addresses."""
    return bool(addresses_used(service))
