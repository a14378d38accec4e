"""The service kind `external`: something that runs already, known by its URL (a `services:` block of a workflow)."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.model import Address, Database
from keystone_action.network.relay import Outside, PortRelays, RelayTarget
from keystone_action.services.comparison.external import WatchedWrites, compared
from keystone_action.services.mysql import reader as mysql_reader
from keystone_action.services.mysql.reader import MysqlReader
from keystone_action.services.postgres import reader as postgres_reader
from keystone_action.services.postgres.reader import PostgresReader
from keystone_action.services.redefinitions import CatalogueLook, CatalogueWatch
from keystone_action.services.service import CRASHED, CellScope, Place, ServiceKind, Surroundings, one_line
from keystone_action.spec.models.policies import parse_host
from keystone_action.spec.models.services import ExternalService
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.network.loop_thread import LoopThread
    from keystone_action.services.database_queries import OwnRole

_PORTS = {"postgresql": 5432, "mysql": 3306, "http": 80, "https": 443, "redis": 6379, "rediss": 6379, "amqp": 5672}
_SAME = {"postgres": "postgresql", "mariadb": "mysql"}
_LEADING = ("host", "hostaddr", "port")
"""Parameters by which libpq goes elsewhere than to a URL's host."""
_TRY_SECONDS = 5.0
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
        self._compared: WatchedWrites | None = None
        self._exclusive = exclusive
        self._up: tuple[float, float] | None = None
        """The seconds that it had been up when the agent started, and when that was asked."""

    def watch_writes(self, scope: CellScope) -> None:
        """From `seal` on, where it is a database."""
        if self.database is None:
            return
        directory = scope.private / f"writes-{secrets.token_hex(6)}"
        self._compared = self.writes = compared(self.name, self._target.kind, self._target.keywords, directory)

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

    async def run_sql(self, script: str) -> None:
        """See Place. With the rights of the URL's user."""
        import anyio.to_thread

        try:
            await anyio.to_thread.run_sync(self._target.run_script, script)
        except Exception as error:  # noqa: BLE001 - as above
            raise ServiceError(f"service {self.name} refused a fixture: {one_line(error)}") from None
        await self.look()

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


@dataclass(frozen=True)
class ExternalAddress:
    """An address taken apart. kind: the URL's scheme without driver and synonyms. keywords: what the database's
    client connects with. public_url: the URL without credentials."""

    kind: str
    address: Address
    public_url: str
    keywords: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_url(cls, service: str, url: str) -> ExternalAddress:
        """Raises UsageError that never repeats the credentials."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"service {service}: its url can't be read: {error}") from None
        scheme, _, _driver = parts.scheme.partition("+")
        kind = _SAME.get(scheme, scheme)
        shown = f"{scheme}://{parts.hostname or ''}{f':{port}' if port else ''}{parts.path}"
        if kind == "sqlite":
            raise UsageError(f"service {service}: {shown} is a file", help="Use type: sqlite with a path.")
        if not scheme or not parts.hostname:
            raise UsageError(
                f"service {service}: its url names no {'scheme' if not scheme else 'host'}",
                help="Expected something like postgresql://user:password@127.0.0.1:5432/database.",
            )
        port = port or _PORTS.get(kind)
        if port is None:
            raise UsageError(f"service {service}: {shown} has no port, and {scheme} none by default")
        is_database = kind in ("postgresql", "mysql")
        address = Address(
            host=parts.hostname,
            port=port,
            url=url,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=unquote(parts.path.lstrip("/")) if is_database else "",
        )
        return cls(kind, address, shown, _keywords(service, kind, address, parts))

    def refuse_relay(self) -> None:
        """Raises ServiceError for a URL whose parameters lead past its host."""
        if self.kind != "postgresql":
            return
        leading = [name for name, _ in parse_qsl(urlsplit(self.address.url).query) if name in _LEADING]
        if leading:
            raise ServiceError(
                f"a container reaches {self.public_url} by a relay, which its parameter {leading[0]} would pass by",
                help="Name host and port before the path of the url.",
            )

    def by_relay(self, alias: str, port: int) -> Address:
        """The address through a relay at this port. Containers resolve the alias and the host's own name to the relay.
        A host that is a name stays in the address, since certificates and virtual hosts are chosen by it."""
        parts = urlsplit(self.address.url)
        host = self.address.host if _is_a_name_elsewhere(self.address.host) else alias
        user, at, _ = parts.netloc.rpartition("@")
        netloc = f"{user}{at}{host}" if port == self.address.port and parts.port is None else f"{user}{at}{host}:{port}"
        return replace(self.address, host=host, port=port, url=parts._replace(netloc=netloc).geturl())

    @property
    def probe(self) -> Callable[[], None]:
        """One try whether it answers. Raises the client's errors."""
        return {"postgresql": self._ask_postgres, "mysql": self._ask_mysql}.get(
            self.kind, self._ask_http if self.kind in ("http", "https") else self.connect
        )

    def run_script(self, script: str) -> None:
        """Run statements. Raises the client's errors; TypeError for a service that is not a database."""
        if self.kind == "postgresql":
            import psycopg

            with psycopg.connect(**self.keywords, autocommit=True) as connection:
                connection.execute(script.encode())
        elif self.kind == "mysql":
            import pymysql
            from pymysql.constants import CLIENT

            several = {**self.keywords, "autocommit": True, "client_flag": CLIENT.MULTI_STATEMENTS}
            with pymysql.connect(**several) as mysql, mysql.cursor() as cursor:
                cursor.execute(script)
                while cursor.nextset():
                    pass
        else:
            raise TypeError("it is no database")

    def watch_and_role(self) -> tuple[CatalogueWatch, OwnRole | None]:
        """How checks of one cell ask, a role where it is a database: nothing was looked at and none made yet."""
        role: OwnRole
        if self.kind == "postgresql":
            from keystone_action.services.postgres.own_role import PostgresRole

            role = PostgresRole(self.keywords)
        elif self.kind == "mysql":
            from keystone_action.services.mysql.own_role import MysqlRole

            role = MysqlRole(self.keywords)
        else:
            return CatalogueWatch(self.look), None
        return CatalogueWatch(lambda path: role.retry(lambda: self.look(path))), role

    def look(self, path: tuple[str, ...] | None = None) -> CatalogueLook:
        """What stands in a database; of anything else nothing. path: the schemas that its user's names are looked up
        in, None = as it is now. Raises the client's errors."""
        if self.kind == "postgresql":
            import psycopg

            with psycopg.connect(**{"connect_timeout": 10, **self.keywords}, autocommit=True) as connection:
                if path is None:
                    rows = connection.execute("SELECT unnest(pg_catalog.current_schemas(false))::text").fetchall()
                    path = tuple(str(row[0]) for row in rows)
                connection.execute("SET search_path = pg_catalog")
                connection.execute("SET lock_timeout = 10000")
                catalogue = postgres_reader.read_catalogue(connection)
                return catalogue, path, postgres_reader.read_shadows(connection, path)
        if self.kind == "mysql":
            import pymysql

            fields = {**self.keywords, "connect_timeout": 10, "autocommit": True}
            with pymysql.connect(**fields) as mysql, mysql.cursor() as cursor:
                return mysql_reader.read_catalogue(cursor), (self.address.database,), frozenset()
        return {}, (), frozenset()

    def _ask_postgres(self) -> None:
        import psycopg

        with psycopg.connect(**{**self.keywords, "connect_timeout": int(_TRY_SECONDS)}) as connection:
            connection.execute("SELECT 1")

    def _ask_mysql(self) -> None:
        import pymysql

        with pymysql.connect(**self.keywords, connect_timeout=int(_TRY_SECONDS)) as mysql, mysql.cursor() as cursor:
            cursor.execute("SELECT 1")

    def _ask_http(self) -> None:
        import httpx

        # Any answer will do, and none of the runner's proxies: the service is asked, not the way to it.
        httpx.get(self.address.url, timeout=_TRY_SECONDS, trust_env=False, follow_redirects=False)

    def seconds_up(self) -> float:
        """For how long a database has been up. Raises the client's errors; TypeError for anything else."""
        if self.kind == "postgresql":
            import psycopg

            query = "SELECT extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())"
            with psycopg.connect(**{**self.keywords, "connect_timeout": int(_TRY_SECONDS)}) as connection:
                [(seconds,)] = connection.execute(query).fetchall()
                return float(seconds)
        if self.kind == "mysql":
            import pymysql

            with pymysql.connect(**self.keywords, connect_timeout=int(_TRY_SECONDS)) as mysql, mysql.cursor() as cursor:
                cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
                return float(cursor.fetchone()[1])
        raise TypeError("it is not a database")

    def connect(self) -> None:
        """Whether anybody listens there. Raises OSError."""
        socket.create_connection((self.address.host, self.address.port or 0), timeout=_TRY_SECONDS).close()


def _keywords(service: str, kind: str, address: Address, parts: SplitResult) -> dict[str, Any]:
    if kind == "postgresql":
        import psycopg

        url = parts._replace(scheme="postgresql").geturl()
        try:
            # libpq reads its own URLs, with all their parameters.
            return psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise UsageError(f"service {service}: its url can't be read: {one_line(error)}") from None
    if kind == "mysql":
        if parts.query:
            raise UsageError(f"service {service}: parameters in a {parts.scheme} url are not supported")
        found = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password,
            "database": address.database or None,
        }
        return {name: value for name, value in found.items() if value is not None}
    return {}


def _is_a_name_elsewhere(host: str) -> bool:
    try:
        name = parse_host(host)
    except ValueError:
        return False
    # Containers know localhost as themselves.
    return isinstance(name, str) and name.rpartition(".")[2] not in ("localhost", "localdomain")
