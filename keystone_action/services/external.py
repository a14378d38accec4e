"""The service kind `external`: something that runs already, known by its URL (a `services:` block of a workflow)."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from keystone_action.errors import ServiceError
from keystone_action.evidence.model import Address, Database
from keystone_action.network.relay import Outside, PortRelays, RelayTarget
from keystone_action.services.database_comparison import NET_CHANGES, ComparedDatabase
from keystone_action.services.external_address import ExternalAddress
from keystone_action.services.mysql.reader import MysqlReader
from keystone_action.services.postgres.reader import PostgresReader
from keystone_action.services.service import CRASHED, CellScope, Place, ServiceKind, Surroundings, one_line
from keystone_action.services.sql_script import SqlScript, run_script
from keystone_action.spec.models.services import ExternalService
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.network.loop_thread import LoopThread
    from keystone_action.services.postgres.external_writes import ComparedPostgres

NOT_SEEN = (
    NET_CHANGES,
    "what the user of its url can't see is not looked at, nor are the server's own databases, users and settings",
    "who wrote is not known there: what others do meanwhile counts, and what a session does after the agent does not",
)
_PAUSE_SECONDS = 0.1
_UNSURE_SECONDS = 5.0
"""By how much the clocks of two machines may drift apart while an agent runs."""


class External(ServiceKind[ExternalService]):
    """A `RunningService` that we neither start nor stop, nor reset between cells. thread: for the relays by which
    containers reach it [its own]."""

    def __init__(self, definition: ExternalService, thread: LoopThread | None = None) -> None:
        self._definition = definition
        self._target = ExternalAddress.from_url(definition.name, definition.url)
        self._relays = PortRelays(thread)

    @classmethod
    def build(cls, definition: ExternalService, surroundings: Surroundings) -> External:
        """See ServiceKind."""
        return cls(definition, surroundings.mocks.thread)

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """Wait until it answers: a query, a request, or a connection where we speak no more of its protocol."""
        import anyio
        import anyio.to_thread

        deadline = time.monotonic() + self._definition.ready_timeout
        while True:
            try:
                return await anyio.to_thread.run_sync(self._target.probe, abandon_on_cancel=True)
            except Exception as error:  # noqa: BLE001 - clients differ in what they raise of a server that isn't there yet
                if time.monotonic() + _PAUSE_SECONDS >= deadline:
                    raise ServiceError(
                        f"service {self.name}: nothing answered at {self._target.public_url} within "
                        f"{self._definition.ready_timeout:g} s; the last try said: {one_line(error)}"
                    ) from None
            await anyio.sleep(_PAUSE_SECONDS)

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService. Several cells at a time share it, which is said. After the cell it stays as it is,
        without roles of ours; then the way there closes."""
        place = ExternalPlace(self.name, self._target, exclusive=scope.exclusive)
        if scope.watches_writes:
            place.watch_writes(scope)
        await place.look()
        async with AsyncExitStack() as way:
            if scope.network is not None and scope.in_network and await self._is_behind_us(scope.network):
                place.for_agent = await self._open_way(scope.network, way)
            async with undoing(place.drop_roles):
                yield place

    async def _open_way(self, network: ContainerNetwork, way: AsyncExitStack) -> Address:
        """The address by which containers of this network reach it through us. Raises ServiceError."""
        address = self._target.address
        try:
            self._target.refuse_relay()
            opened = self._relays.open(network, RelayTarget(address.host, address.port or 0))
            relay = await way.enter_async_context(opened)
        except ServiceError as error:
            raise ServiceError(f"service {self.name}: {error.message}", help=error.help) from error
        for_agent = self._target.by_relay(self.name, relay.port)
        network.hosts[for_agent.host] = network.host_address
        return for_agent

    async def _is_behind_us(self, network: ContainerNetwork) -> bool:
        """Whether a container of this network can't get there without us: there is no way out of it, or the address
        is one of our own surroundings (this machine, the network of a job's service containers)."""
        if network.internal:
            return True
        try:
            found = await Outside().resolve(self._target.address.host)
        except OSError:
            return True  # `start` reached it, so it can be reached again
        return not all(address.is_global for address in found)

    async def stop(self) -> None:
        """It runs on."""
        await self._relays.stop()


class ExternalPlace(Place):
    """A service of somebody else's as one cell has it, and how its checks ask it."""

    def __init__(self, name: str, target: ExternalAddress, *, exclusive: bool) -> None:
        shared = f"service {name} is external: its state is shared by all cells and never reset"
        self._target = target
        self._watch, self._role = target.watch_and_role()
        notices = () if exclusive else (shared,)
        super().__init__(name, target.address, target.address, database=self._reader(), notices=notices)
        self._compared: ComparedPostgres | ComparedDatabase | None = None
        self._exclusive = exclusive
        self._up: tuple[float, float] | None = None
        """The seconds that it had been up when the agent started, and when that was asked."""

    def watch_writes(self, scope: CellScope) -> None:
        """From `seal` on, where it is a database."""
        keywords = self._target.keywords
        if self._target.kind == "postgresql":
            from keystone_action.services.postgres.external_writes import ComparedPostgres

            self._compared = ComparedPostgres(self.name, keywords, NOT_SEEN)
        elif self._target.kind == "mysql":
            from keystone_action.services.mysql.database_view import errors, view_opener

            directory = scope.private / f"writes-{secrets.token_hex(6)}"
            opener = view_opener(keywords, None, self.name)
            self._compared = ComparedDatabase(self.name, opener, errors(), directory, NOT_SEEN)
        self.writes = self._compared

    def _reader(self) -> Database | None:
        watch, role, keywords = self._watch, self._role, self._target.keywords
        if role is None:
            return None
        if self._target.kind == "postgresql":
            return PostgresReader(
                keywords, lambda: watch.path, prepare=watch.stand_in, changes=watch.changes, lend=role.lend
            )
        return MysqlReader(keywords, watch.changes, role.lend)

    async def look(self) -> None:
        """What its user sees now stood before the agent. Raises ServiceError."""
        import anyio.to_thread

        try:
            await anyio.to_thread.run_sync(self._watch.seal)
        except Exception as error:  # noqa: BLE001 - clients differ in what they raise of a server that has gone
            raise ServiceError(f"service {self.name} went away: {one_line(error)}") from None

    async def run_sql(self, script: SqlScript) -> tuple[str, ...]:
        """See Place. With the rights of the URL's user."""
        notices = await run_script(self.name, script, lambda: self._target.run_script(script), [Exception])
        await self.look()
        return notices

    async def seal(self) -> None:
        """See Place. Finds out, too, whether a role of ours can be had."""
        import anyio.to_thread

        await self.look()
        with contextlib.suppress(Exception):  # what speaks the protocol of a database need not know that
            self._up = await anyio.to_thread.run_sync(self._target.seconds_up), time.monotonic()
        if self._role is not None:
            await anyio.to_thread.run_sync(self._role.try_out)
        if self._compared is not None:
            if not self._exclusive:
                raise ServiceError(
                    f"service {self.name}: what is written into it can't be told: it is external, and cells that run "
                    "at once share it",
                    help="Let one cell run at a time: --max-concurrency 1.",
                )
            await anyio.to_thread.run_sync(self._compared.seal)

    def settle(self) -> None:
        """See Place. What its clients left running on the server is not ended: others may have the same user."""
        self.require_unbroken()
        if self._compared is not None:
            self._compared.settle()

    def require_unbroken(self) -> None:
        """See Place. Of a database: whether it has been up since `seal`. That it ended all sessions and recovered, as
        PostgreSQL does when a backend is killed, can't be told from here; it then loses nothing that was committed,
        unless its owner set it up so."""
        if self._up is None:
            return
        before, asked = self._up
        try:
            now = self._target.seconds_up()
        except Exception as error:  # noqa: BLE001 - as above
            with contextlib.suppress(OSError):
                self._target.connect()
                return  # it is there, and does not let us in: the agent may have its user
            raise ServiceError(f"service {self.name} {CRASHED}: {one_line(error)}") from None
        if now + _UNSURE_SECONDS < before + (time.monotonic() - asked):
            raise ServiceError(f"service {self.name} {CRASHED}: it has been up for {now:.0f} s only")

    def notices_once_sealed(self) -> tuple[str, ...]:
        """See Place. Where checks ask as the URL's user, for want of a role of ours."""
        role, user = self._role, self._target.address.user or "the user of its url"
        if role is None or not role.refusal:
            return ()
        sentence = f"checks ask service {self.name} as {user}, as whom the agent can act too: no role of our own"
        return (f"{sentence} can be had there ({role.refusal})",)

    async def drop_roles(self) -> None:
        """Those of ours that queries left. Never raises."""
        import anyio.to_thread

        if self._role is not None:
            await anyio.to_thread.run_sync(self._role.drop)
