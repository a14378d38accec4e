"""One PostgreSQL server in a container of an image, taken over: its superuser becomes ours alone.

The image is started with exactly the `env` of the spec, so that its own scripts find what they expect. Then its
superuser is renamed, which leaves the names of `env` to a role that owns a database and nothing else; what the image
made in its database becomes the template of every cell's; and nobody is let in without a password.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from keystone_action.errors import ServiceError
from keystone_action.services.container.engine_container import ServiceContainer
from keystone_action.services.container.service import unmet_condition
from keystone_action.services.error_text import one_line
from keystone_action.services.postgres.databases import PostgresCredentials
from keystone_action.services.postgres.passwords import scram_verifier
from keystone_action.services.postgres.reader import keywords
from keystone_action.services.postgres.superuser import OPTIONS, SuperuserConnections
from keystone_action.services.postgres.writes.slots import Slots

if TYPE_CHECKING:
    import psycopg

    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.services.postgres.cells import StateBefore

MAINTENANCE = "keystone"
"""Our own database where there is no `template1`; else that one, which every server has and nobody needs once there
are no other databases to be made. To make one more costs as much as all else that we do to a server."""
TEMPLATE = "keystone_template"
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
        self.template = TEMPLATE
        self.template_state: StateBefore | None = None
        self.slots: Slots | None = None
        self._watches_writes = watches_writes
        self._by_image = by_image
        self._superuser = f"keystone_{secrets.token_hex(6)}"
        self._password = secrets.token_urlsafe(32)
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
            self.slots = Slots(self.admin, self.container.failure)
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

        mine, template = sql.Identifier(self._by_image.database), sql.Identifier(TEMPLATE)
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
