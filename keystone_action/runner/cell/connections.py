"""What a cell can reach: its network on the container engine with the way out of it, models, and its services, attached
before its agent and detached after its checks."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from keystone_action.agents.program import long_text
from keystone_action.errors import HarnessError, KeystoneError, ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.runner.cell.model_gateway import open_models
from keystone_action.runner.shared_services import ServicesDefinition
from keystone_action.runner.started_run import run_shielded
from keystone_action.services.service import CellScope, Place, RunningService
from keystone_action.spec.expressions import interpolate, leaves, references
from keystone_action.spec.models.services import ContainerService
from keystone_action.system.command import KeptWhole

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.evidence.agent_run import AgentRun
    from keystone_action.evidence.model import Address
    from keystone_action.network.proxy import EgressCell
    from keystone_action.runner.cell.model_gateway import CellModels
    from keystone_action.runner.cell.running_cell import Expressions, RunningCell
    from keystone_action.sandbox.protocol import Sandbox
    from keystone_action.services.container.service import ContainerPlace
    from keystone_action.spec.models.services import Service

_OUTPUT = "container.output"
_OF_A_CELL = ("cell", "workspace", "record", "task")


@dataclass(frozen=True, slots=True)
class CellNetwork:
    """The cell's own network on the container engine, and the way out of it; both None where it has none."""

    own: ContainerNetwork | None = None
    proxy: EgressCell | None = None

    def incomplete(self) -> str:
        """Why the record of what left the cell is not whole; empty when it is."""
        return (self.proxy.failure or "") if self.proxy is not None else ""


class AgentService:
    """The container that is the cell's agent. It is there from the end of `setup` to the agent's end, so that all that
    it does is the agent's doing, and nobody writes while the cell is judged. output: the file for what it prints."""

    def __init__(self, place: ContainerPlace, output: Path, remove: Callable[[], Awaitable[object]]) -> None:
        self.place, self._output, self._remove = place, output, remove
        self._has_ended = False

    async def end(self, run: AgentRun) -> AgentRun:
        """End and remove it. Returns the agent's run, with all that the container printed, and why it had ended before.
        Raises HarnessError where that can't be had."""
        try:
            failure = await anyio.to_thread.run_sync(self._failure)
            printed = await anyio.to_thread.run_sync(self.place.end)
            long = long_text(printed, self._output)
            return replace(
                run, stderr=printed.text(), stderr_bytes=printed.total, long_stderr=long, advice=failure or run.advice
            )
        finally:
            await self.leave()

    def _failure(self) -> str:
        """How it has ended by itself; empty where it has not, or well."""
        try:
            self.place.settle()
        except ServiceError as error:
            return error.message
        return ""

    async def leave(self) -> None:
        """Remove it. Twice does no harm."""
        if not self._has_ended:
            self._has_ended = True
            with anyio.CancelScope(shield=True):
                await self._remove()


class CellUsers:
    """The numeric users whose connections are the cell's. The cell's services look into `ids` as long as they serve."""

    def __init__(self) -> None:
        self.ids = set[int]()

    def admit(self, sandbox: Sandbox) -> None:
        """Let the user of a sandbox reach this cell's services."""
        if sandbox.uid is not None:
            self.ids.add(sandbox.uid)


@dataclass(frozen=True, slots=True)
class Connections:
    """What a cell can reach, and the record of what it does there."""

    audit: AuditLog
    """Open until the cell's end."""

    network: CellNetwork
    models: CellModels | None
    users: CellUsers

    places: Mapping[str, Place]
    """Its services by name, in the order of the spec, without one that is the agent itself."""

    start_agent: Callable[[], Awaitable[AgentService]] | None = None
    """Starts the service that is the agent; None where none of them is."""

    authority: bytes | None = None
    """The certificate that programs have to trust, where mocks stand in for other hosts."""

    @property
    def addresses(self) -> dict[str, Address]:
        """Of its services, for the agent."""
        return {name: place.for_agent for name, place in self.places.items()}

    def mcp_servers(self, services: Sequence[Service]) -> dict[str, str]:
        """The URLs of the MCP servers among these services, for the agent."""
        return {one.name: self.addresses[one.name].url for one in services if one.kind == "mcp_mock"}

    def ways_out(self) -> list[tuple[str, int]]:
        """The addresses on this machine of what the cell may reach where all else is closed to it. Raises HarnessError
        for one that is not on this machine."""
        found = [(f"service {name}", one.host, one.port) for name, one in self.addresses.items() if one.host]
        if self.models is not None:
            urls = [(name, urlsplit(one.url)) for name, one in self.models.gateway.addresses.items()]
            found += [(f"gateway {name}", url.hostname or "", url.port) for name, url in urls]
        return [_on_this_machine(*one) for one in found]

    async def settle_proxy(self, running: RunningCell) -> None:
        """What was asked of the proxy so far is in the audit log, where a rule reads that."""
        if self.network.proxy is not None and running.spec.forbidden.http_except is not None:
            await self.network.proxy.settle()


async def connect_cell(
    running: RunningCell, expressions: Expressions, stack: AsyncExitStack
) -> tuple[Connections, Expressions]:
    """The gateway and every service ready for this cell, and expressions that know them. stack: ends them. Raises
    HarnessError."""
    try:
        audit = AuditLog(running.roots.audit_log)
    except OSError as error:
        raise HarnessError(f"the audit log can't be written: {error.strerror}") from error
    stack.callback(audit.close)
    network = await _enter_network(running, audit, stack)
    models = await open_models(running, network.own, expressions, stack)
    if models is not None:
        addresses = {name: address.as_mapping() for name, address in models.gateway.addresses.items()}
        expressions = expressions.knowing(gateway=addresses)
    users, places, start_agent = CellUsers(), dict[str, Place](), None
    if running.spec.services:
        attachments = _Attachments(running, audit, network, users, expressions, stack)
        places = await attachments.attach_all()
    authority = await _serve_names(running, network, places, stack)
    if running.spec.services and running.agent_service is not None:
        start_agent = partial(attachments.attach_agent, models, authority)
    connections = Connections(audit, network, models, users, places, start_agent, authority)
    known = {name: address.as_mapping() for name, address in connections.addresses.items()}
    return connections, expressions.knowing(services=known)


async def seal_services(connections: Connections, running: RunningCell) -> int:
    """What stands now stood before the agent. Returns the byte of the audit log where that begins. Raises
    ServiceError."""
    for place in connections.places.values():
        await place.seal()
        running.progress.note(*place.notices_once_sealed())
    await connections.settle_proxy(running)
    return connections.audit.size()


async def _enter_network(running: RunningCell, audit: AuditLog, stack: AsyncExitStack) -> CellNetwork:
    containers, spec = running.run.containers, running.spec
    if containers is None:
        return CellNetwork()
    own = [one for one in spec.services if one.kind == "container" or getattr(one, "isolation", "") == "container"]
    egress = spec.egress
    denied = egress.default == "deny"
    proxied = denied and (bool(egress.allow) or spec.forbidden.http_except is not None)
    isolated = denied and not spec.services and not proxied and running.gateway is None
    if (running.image is None and not own) or isolated:
        return CellNetwork()
    # Its own even without services: agents of two cells must not meet, nor anything else on the engine.
    name = f"{running.cell.id}.{secrets.token_hex(4)}"
    network = await stack.enter_async_context(containers.networks.cell(name, internal=denied, wait=False))
    mocks = {service.name for service in spec.services if service.kind == "http_mock"}
    for host, service in spec.network.dns_overrides.items():
        if service in mocks:
            network.hosts[host] = network.host_address
        else:
            network.aliases.setdefault(service, []).append(host)
    if network.notice:
        running.progress.note(network.notice)
    if not proxied:
        return CellNetwork(network)
    proxies = await containers.egress()
    direct = [*(service.name for service in spec.services), *spec.network.dns_overrides]
    proxy = await proxies.open(egress, network, audit, services=direct)
    stack.push_async_callback(run_shielded, proxy.close)
    return CellNetwork(network, proxy)


async def _serve_names(
    running: RunningCell, network: CellNetwork, places: Mapping[str, Place], stack: AsyncExitStack
) -> bytes | None:
    """The mocks under the names of the hosts that they stand in for, and the certificate of the authority that signed
    theirs; None without any. Raises ServiceError."""
    overrides = running.spec.network.dns_overrides
    if not overrides or network.own is None:
        return None
    from keystone_action.network.authority import make_authority
    from keystone_action.services.http_mock.server import serve_names
    from keystone_action.services.http_mock.service import HttpMockPlace

    mocks = {host: place for host, name in overrides.items() if isinstance(place := places.get(name), HttpMockPlace)}
    if not mocks:
        return None
    clock = running.spec.determinism.clock
    authority = make_authority(list(mocks), [clock] if clock is not None else [])
    server, cells = next(iter(mocks.values())).server, {host: place.cell for host, place in mocks.items()}
    secure = await stack.enter_async_context(serve_names(server, cells, network.own.host_address, authority.context))

    def tell() -> None:
        if secure.distrust:
            running.progress.note(
                f"a program did not trust the certificate of the mock for {', '.join(mocks)}: it hung up"
                f" ({', '.join(secure.distrust)})"
            )

    stack.callback(tell)
    return authority.certificate


class _Attachments:
    """Attaches the services of one cell. stack: detaches them."""

    def __init__(
        self,
        running: RunningCell,
        audit: AuditLog,
        network: CellNetwork,
        users: CellUsers,
        expressions: Expressions,
        stack: AsyncExitStack,
    ) -> None:
        self._running, self._names, self._stack = running, expressions.names, stack
        self._network = network
        self._neighbours = running.run.neighbours[running.spec.id]
        self._blocks: list[AbstractAsyncContextManager[Place]] = []
        self._places: dict[str, Place] = {}
        self._scope = CellScope(
            cell_id=running.cell.id,
            private=running.roots.private,
            workspace=running.roots.workspace,
            audit_log=audit,
            exclusive=not self._neighbours.same_spec,
            allowed_users=users.ids if "user" in running.run.provider.isolation else None,
            network=network.own,
            in_network=running.image is not None,
            watches_writes=running.spec.watches_writes,
            shared=running.roots.task,
        )

    async def attach_all(self) -> dict[str, Place]:
        """See `connect`; the places in the order of the spec."""
        wanted = [one for one in self._running.spec.services if one.name != self._running.agent_service]
        knowing = [service for service in wanted if uses_addresses(service)]
        others = [service for service in wanted if service not in knowing]
        services = [interpolate(service, self._names) for service in others]
        last = any(names_a_cell(service) for service in others)
        running = await self._acquire(services, last=last) if services else []
        self._stack.push_async_callback(run_shielded, self._leave)
        # A container is made knowing the names of mocks, so these come first; and containers in the order of the
        # spec, so that one may need another that is named before it.
        containers = {service.name for service in services if service.kind == "container"}
        await self._attach([one for one in running if one.name not in containers])
        for one in running:
            if one.name in containers:
                await self._attach([one])
        for service in knowing:
            # It may know what only this cell has, so no other cell shares its definition.
            await self._attach(await self._acquire([self._filled(service)], last=True))
        places = {service.name: self._places[service.name] for service in wanted}
        self._running.progress.note(*(notice for place in places.values() for notice in place.notices))
        return places

    def _filled(self, service: Service) -> Service:
        """A container that names the addresses of services that are attached."""
        addresses = {name: self._in_network(name).as_mapping() for name in addresses_used(service)}
        return interpolate(service, {**self._names, "services": addresses})

    async def attach_agent(self, models: CellModels | None, authority: bytes | None) -> AgentService:
        """Start the container that is the agent, with what an agent's programs find in their environment: the way to
        models, and out of the network. authority: what they have to trust. Raises HarnessError."""
        name = self._running.agent_service
        service = self._filled(next(one for one in self._running.spec.services if one.name == name))
        assert isinstance(service, ContainerService)
        proxy = self._network.proxy
        variables = {**(proxy.environment if proxy is not None else {})}
        if models is not None:
            variables |= models.gateway.variables
        variables |= service.env
        if models is not None:
            variables, replaced = models.gateway.without_keys(variables)
            if replaced:
                told = ", ".join(replaced)
                self._running.progress.note(f"{told}: the agent got the gateway's key instead of the provider's")
        service = service.model_copy(update={"env": variables})
        started = (await self._acquire([service], last=True))[0]
        output = KeptWhole(self._running.roots.private / _OUTPUT)
        scope = replace(self._scope, agent_limits=self._running.limits, agent_output=output, agent_authority=authority)
        block = started.attach(scope)
        place = cast("ContainerPlace", await block.__aenter__())
        agent = AgentService(place, output.path, partial(block.__aexit__, None, None, None))
        self._stack.push_async_callback(agent.leave)
        return agent

    async def _acquire(self, services: Sequence[Service], *, last: bool) -> Sequence[RunningService]:
        running, alone = self._running, self._neighbours.other_specs
        pool = running.run.servers.pool
        assert pool is not None
        definition = ServicesDefinition(
            services,
            running.loaded.directory,
            internal=running.spec.egress.default == "deny",
            owner=running.spec.id if alone else "",
            watches_writes=running.spec.watches_writes,
        )
        last = last or (alone and self._neighbours.only_cell)
        acquired = await pool.acquire(definition)
        self._stack.push_async_callback(run_shielded, partial(pool.release, definition, last=last))
        return acquired

    def _in_network(self, name: str) -> Address:
        """The address of an attached service for containers of this cell. Raises ServiceError."""
        address = self._places[name].for_agent
        service = next(one for one in self._running.spec.services if one.name == name)
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
        place = self._places[service.name] = await block.__aenter__()
        self._running.progress.tell(f"service {service.name}: {place.for_agent.host}:{place.for_agent.port}")
        self._blocks.append(block)

    async def _leave(self) -> None:
        # All at once, which a stack would not do: to remove a container takes a while.
        async with anyio.create_task_group() as group:
            for block in self._blocks:
                group.start_soon(block.__aexit__, None, None, None)


def _on_this_machine(what: str, host: str, port: int | None) -> tuple[str, int]:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or address.version != 4 or not address.is_loopback or port is None:
        raise HarnessError(
            f"{what} is at {host}:{port}: with network.egress: deny the process sandbox reaches addresses of this"
            " machine's loopback alone (127.0.0.1)",
            help="set base, so that the cell is in a container, whose network has a relay to it",
        )
    return str(address), port


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
