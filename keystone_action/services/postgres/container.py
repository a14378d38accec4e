"""Images of PostgreSQL and what is built on them: a database and a role for each cell, as on the embedded server.

The image is started with exactly the `env` of the spec, so that its own scripts find what they expect. Then its
superuser is renamed, which leaves the names of `env` to a role that owns a database and nothing else. What the image
made in its database becomes the template of every cell's, and nobody is let in without a password.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from keystone_action.engine.calls import ask_engine
from keystone_action.engine.pulling import ensure_image
from keystone_action.errors import ServiceError, UsageError
from keystone_action.services.container.engine_container import ServiceContainer, ServiceContainerPlan
from keystone_action.services.container.service import DatabaseServers, unmet_condition
from keystone_action.services.postgres.connections import OPTIONS, SuperuserConnections, keywords, scram_verifier
from keystone_action.services.postgres.databases import MAINTENANCE
from keystone_action.services.postgres.logical_decoding import SERVER_SETTINGS, ReplicationSlots
from keystone_action.services.postgres.place import PostgresCredentials, PostgresPlace, read_credentials
from keystone_action.services.service import CellScope, Place, one_line
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    import psycopg

    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.services.postgres.databases import PostgresServer, StateBefore
    from keystone_action.spec.models.services import ContainerService, PostgresService

TEMPLATE_DATABASE = "keystone_template"
_CONNECT_SECONDS = 2
# The data lives as long as the run: nothing has to survive a crash, and a server that has crashed stays ended.
_HASTE: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "restart_after_crash": "off",
}


class PostgresInContainer:
    """See `PostgresServer`. by_image: what the image makes its own superuser and database of."""

    def __init__(
        self, container: ServiceContainer, by_image: PostgresCredentials, port: int, *, watches_writes: bool = False
    ) -> None:
        self.container = container
        self.port = port
        self.template = TEMPLATE_DATABASE
        self.template_state: StateBefore | None = None
        self.slots: ReplicationSlots | None = None
        self._watches_writes = watches_writes
        self._by_image = by_image
        self._superuser = f"keystone_{secrets.token_hex(6)}"
        self._password = secrets.token_urlsafe(32)
        # Every server has it, and nobody else needs it by then: making a database of our own would double what we do.
        self._maintenance = "template1"
        self._first: psycopg.Connection[tuple[Any, ...]] | None = None
        self._superusers = SuperuserConnections(partial(self.address, self._superuser, self._password))

    async def start(self, network: ContainerNetwork, timeout: float, *, wait_for: str | None, cell: str = "") -> None:
        """Ready when a query is answered over TCP (while it sets itself up, the image's server listens on a socket
        only), and `wait_for` succeeds. Raises ServiceError."""
        import anyio
        import anyio.to_thread
        import psycopg

        async def ready() -> str:
            missing = await anyio.to_thread.run_sync(self._ask)
            return missing or (await unmet_condition(self.container, wait_for) if wait_for is not None else "")

        await self.container.start(network, cell=cell)
        try:
            await self.container.until(ready, timeout)
            try:
                await anyio.to_thread.run_sync(self._take_over)
            except psycopg.Error as error:
                raise await self.container.failure_in_thread(f"can't be set up for cells: {one_line(error)}") from None
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.remove()
            raise

    def _ask(self) -> str:
        import psycopg

        if not self.container.address:
            return "it has no address"
        try:
            if self._first is None:
                self._first = self._image_session()
            self._first.execute("SELECT 1")
        except psycopg.OperationalError as error:
            self._close_first()
            return one_line(error)
        return ""

    def _close_first(self) -> None:
        session, self._first = self._first, None
        if session is not None:
            session.close()

    def _image_session(self) -> psycopg.Connection[tuple[Any, ...]]:
        import psycopg

        mine = self._by_image
        keywords = {**self.address(mine.user, mine.password, mine.database), "connect_timeout": _CONNECT_SECONDS}
        return psycopg.connect(**keywords, options=OPTIONS, autocommit=True)

    def _take_over(self) -> None:
        from psycopg import sql

        session = self._first
        assert session is not None
        for setting, value in _HASTE.items():
            session.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(setting), sql.Literal(value)))
        session.execute(
            sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(
                sql.Identifier(self._superuser), sql.Literal(scram_verifier(self._password, private=True))
            )
        )
        there = "SELECT count(*) FROM pg_database WHERE datname = 'template1' AND datallowconn"
        if not _value(session, there):
            self._maintenance = MAINTENANCE
            session.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(MAINTENANCE)))
        # The image's database gets another name, for which nobody may be in it.
        self._close_first()
        with self.admin() as admin:
            self._close_to_others(admin)
            self._make_template(admin)
        if self._watches_writes:
            self.slots = ReplicationSlots(self.admin, self.container.failure)
        self._superusers.witness(self._maintenance)

    def _close_to_others(self, admin: psycopg.Connection[Any]) -> None:
        """Nobody but us is superuser, nobody gets in without a password (the images trust local connections), and no
        database is open to everybody."""
        from psycopg import sql

        renamed = sql.Identifier(f"keystone_image_{secrets.token_hex(6)}")
        mine = sql.Identifier(self._by_image.user)
        admin.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(mine, renamed))
        admin.execute(sql.SQL("ALTER ROLE {} NOLOGIN PASSWORD NULL").format(renamed))
        file = str(_value(admin, "SHOW hba_file"))
        rules = sql.SQL(", ").join(sql.Literal(rule) for rule in self._access_rules())
        admin.execute(
            sql.SQL("COPY (SELECT pg_catalog.unnest(ARRAY[{}])) TO {}").format(rules, sql.Literal(file)),
        )
        wrong = _value(admin, "SELECT error FROM pg_hba_file_rules WHERE error IS NOT NULL LIMIT 1")
        if wrong is not None:
            raise ServiceError(f"the access rules of {self.container.plan.service} can't be set: {wrong}")
        admin.execute("SELECT pg_reload_conf()")
        others = admin.execute("SELECT datname FROM pg_database WHERE datname <> 'template0'").fetchall()
        for (name,) in others:
            admin.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))

    def _make_template(self, admin: psycopg.Connection[Any]) -> None:
        from psycopg import sql

        mine, template = sql.Identifier(self._by_image.database), sql.Identifier(TEMPLATE_DATABASE)
        # An image's health check may be connected just now.
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (self._by_image.database,)
        )
        admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(mine, template))
        admin.execute(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(template))

    def _access_rules(self) -> list[str]:
        rules = [f'host all "{self._superuser}" all scram-sha-256']
        if self._by_image.trust:
            quoted = '"' + self._by_image.user.replace('"', '""') + '"'
            rules.append(f"host all {quoted} all trust")
        return [*rules, "host all all all scram-sha-256"]

    def admin(self, database: str = "") -> AbstractContextManager[psycopg.Connection[tuple[Any, ...]]]:
        """See PostgresServer. Our own database is the one that none is named for."""
        return self._superusers.to_cell(database) if database else self._superusers.to_own(self._maintenance)

    @property
    def crashed(self) -> bool:
        """See PostgresServer."""
        return self._superusers.crashed

    async def remove(self) -> None:
        """Remove the server. Never raises."""
        self._close_first()
        self._superusers.close()
        await self.container.remove()

    def address(self, user: str, password: str, database: str) -> dict[str, Any]:
        """See PostgresServer."""
        return keywords(self.container.address, self.port, user, password, database)


def _value(session: psycopg.Connection[Any], query: str) -> Any:
    row = session.execute(query.encode()).fetchone()
    return row[0] if row is not None else None


_PORT = 5432
_RESERVED = frozenset({"template0", "template1", MAINTENANCE, TEMPLATE_DATABASE})
_STARTS_A_SERVER = frozenset({"postgres", "docker-entrypoint.sh"})
_UNREADABLE = ("POSTGRES_USER_FILE", "POSTGRES_PASSWORD_FILE", "POSTGRES_DB_FILE")


class PostgresContainer:
    """A `RunningService`."""

    def __init__(
        self, definition: PostgresService | ContainerService, host: ContainerHost, *, watches_writes: bool = False
    ) -> None:
        """watches_writes: see Surroundings. Raises UsageError for an env that can't be honoured."""
        assert definition.image is not None
        self._definition = definition
        self._image = definition.image
        self._host = host
        self._watches_writes = watches_writes
        self._command: str | Sequence[str] | None = definition.command
        self._credentials = postgres_credentials(definition.name, definition.env)
        self._port = port_of(definition, "PGPORT", _PORT)
        self._servers = DatabaseServers(definition, self._image, host, self._server)

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """See RunningService. With `isolation: container` only the image is pulled; each cell starts its server."""
        if self._watches_writes:
            self._command = await self._command_with_log()
        await self._servers.start()

    async def _command_with_log(self) -> str | Sequence[str] | None:
        """The command, or the image's own, for a server that keeps a log of changes. One that is started by another
        program is not ours to change: it says itself what it has."""
        await ensure_image(self._host.client, self._image, self._host.pull)
        words = self._definition.command
        if words is None:
            found = await ask_engine(lambda: self._host.client.inspect_image(self._image), f"service {self.name}")
            words = (found["Config"] or {}).get("Cmd") or ["postgres"]
        words = shlex.split(words) if isinstance(words, str) else list(words)
        if words and (words[0].startswith("-") or PurePosixPath(words[0]).name in _STARTS_A_SERVER):
            words += [part for name, value in SERVER_SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return words

    def _server(self) -> PostgresInContainer:
        definition = self._definition
        env = {"POSTGRES_PASSWORD": self._credentials.password, "POSTGRES_INITDB_ARGS": "--no-sync", **definition.env}
        plan = ServiceContainerPlan(
            service=self.name, image=self._image, env=env, command=self._command, is_database=True
        )
        return PostgresInContainer(
            self._host.container(plan), self._credentials, self._port, watches_writes=self._watches_writes
        )

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService."""
        async with self._servers.seat(scope) as seat:
            wanted = self._credentials if seat.by_env else PostgresCredentials.of_a_cell()
            for_host = wanted.address(seat.server.container.address, self._port)
            for_agent = wanted.address(self.name, self._port) if scope.in_network else for_host
            place = PostgresPlace(
                self.name,
                for_agent,
                for_host,
                seat.server,
                wanted,
                _failure,
                databases=[self._credentials.database],
                watches_writes=scope.watches_writes,
            )
            await place.create()
            async with undoing(place.drop) if seat.shared else nullcontext():
                yield place

    async def stop(self) -> None:
        """See RunningService."""
        await self._servers.stop()


def postgres_credentials(service: str, env: Mapping[str, str]) -> PostgresCredentials:
    """By the official image's variables. Raises UsageError for names that are reserved, and for `…_FILE`, which name
    files that only the container has."""
    for name in _UNREADABLE:
        if name in env:
            raise UsageError(
                f"service {service}: env {name} names a file in the container, which can't be read from here",
                help=f"Set {name.removesuffix('_FILE')}; a secret of the spec keeps its value out of the file.",
            )
    return read_credentials(service, env, reserved=_RESERVED)


def port_of(definition: PostgresService | ContainerService, variable: str, default: int) -> int:
    """The first of `ports`, or what the image's variable says, or the usual one. Raises UsageError."""
    if definition.ports:
        return definition.ports[0]
    text = definition.env.get(variable, str(default))
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"service {definition.name}: env {variable} must be a port, found {text!r}")
    return int(text)


def _failure(server: PostgresServer, problem: str) -> ServiceError:
    assert isinstance(server, PostgresInContainer)
    return server.container.failure(problem)
