"""One MySQL or MariaDB server in a container of an image, taken over: `root` and the image's user make place for ours.

What the image's own scripts made in its database is dumped once, and loaded into every cell's.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keystone_action.errors import ServiceError
from keystone_action.services.container.engine_container import ServiceContainer
from keystone_action.services.container.service import unmet_condition
from keystone_action.services.error_text import one_line
from keystone_action.services.mysql.cells import CellDatabase, quote_name

if TYPE_CHECKING:
    from keystone_action.engine.networks import ContainerNetwork

_CONNECT_SECONDS = 3
_SECONDS = 60
_LONGEST_WAIT = 2147483
"""Seconds that a session may say nothing; servers take no more on every system."""
_DUMP = "/tmp/keystone-template.sql"  # noqa: S108 - in the server's container, where nobody else writes
_ADMIN = '-h127.0.0.1 --protocol=tcp -P"$PORT" -u"$OURS"'
_MAKE_DUMP = f"""set -eu
dump=$(command -v mariadb-dump || command -v mysqldump) || dump=
[ -n "$dump" ] || {{ echo "it has neither mariadb-dump nor mysqldump"; exit 1; }}
option=; "$dump" --help 2>/dev/null | grep -q set-gtid-purged && option=--set-gtid-purged=OFF
"$dump" {_ADMIN} $option --no-tablespaces --routines --triggers --events --single-transaction "$TEMPLATE" > {_DUMP}
"""
# Views and routines run as who defined them: the image's user becomes the cell's. Rows begin with INSERT or `(`, and
# are left alone.
_LOAD_DUMP = f"""set -eu
client=$(command -v mariadb || command -v mysql)
sed -E -e "/^(\\/\\*M?!|CREATE )/s/DEFINER=\\`[^\\`]*\\`@\\`[^\\`]*\\`/DEFINER=\\`$USER_OF_CELL\\`@\\`%\\`/g" {_DUMP} |
  "$client" {_ADMIN} "$DATABASE"
"""


@dataclass(frozen=True, slots=True)
class MysqlCredentials:
    """Who may use which database."""

    user: str
    password: str = field(repr=False)
    database: str

    @classmethod
    def of_a_cell(cls) -> MysqlCredentials:
        """Names that no other cell has."""
        name = f"cell_{secrets.token_hex(6)}"
        return cls(name, secrets.token_urlsafe(18), name)


class MysqlInContainer:
    """See `MysqlServer`. by_image: the user and database that the image makes. root: its superuser's
    password."""

    def __init__(self, container: ServiceContainer, by_image: MysqlCredentials, root: str, port: int) -> None:
        self.container = container
        self.port = port
        self._by_image = by_image
        self._root = root
        self._superuser = f"keystone_{secrets.token_hex(6)}"
        self._password = secrets.token_urlsafe(24)
        self._has_template = False
        self._witness: Any = None
        self._asking = threading.Lock()

    async def start(self, network: ContainerNetwork, timeout: float, *, wait_for: str | None, cell: str = "") -> None:
        """Ready when a query is answered over TCP and `wait_for` succeeds. Raises ServiceError."""
        import anyio
        import anyio.to_thread
        import pymysql

        async def ready() -> str:
            missing = await anyio.to_thread.run_sync(self._ask)
            return missing or (await unmet_condition(self.container, wait_for) if wait_for is not None else "")

        await self.container.start(network, cell=cell)
        try:
            await self.container.until(ready, timeout)
            try:
                if await anyio.to_thread.run_sync(self._take_over):
                    await self._run(_MAKE_DUMP, {"TEMPLATE": self._by_image.database})
                    self._has_template = True
                await anyio.to_thread.run_sync(self._make_place)
            except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
                raise await self.container.failure_in_thread(f"can't be set up for cells: {one_line(error)}") from None
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.remove()
            raise

    @property
    def crashed(self) -> bool:
        """See DatabaseServer. One session of ours stays open for as long as the server lives: a crash ends it, also
        where a supervisor in the container starts the server again."""
        import pymysql

        with self._asking:
            try:
                self._witness.ping(reconnect=False)
            except (pymysql.err.MySQLError, OSError):
                return True
        return False

    async def remove(self) -> None:
        """Remove the server. Never raises."""
        await self.container.remove()

    def _ask(self) -> str:
        import pymysql

        if not self.container.address:
            return "it has no address"
        try:
            with self._session("root", self._root, _CONNECT_SECONDS) as session, session.cursor() as cursor:
                cursor.execute("SELECT 1")
        except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
            return one_line(error)
        return ""

    def _take_over(self) -> bool:
        """Make our superuser; whether there is anything in the image's database."""
        with self._session("root", self._root, _SECONDS) as session, session.cursor() as cursor:
            cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (self._superuser, self._password))
            cursor.execute("GRANT ALL PRIVILEGES ON *.* TO %s@'%%' WITH GRANT OPTION", (self._superuser,))
        with self.admin() as admin:
            # What an agent plans for later must not change what is graded.
            admin.execute("SET GLOBAL event_scheduler = OFF")
            admin.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
            admin.execute("SET GLOBAL sync_binlog = 0")
            admin.execute(
                "SELECT (SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s)"
                " + (SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = %s)",
                (self._by_image.database, self._by_image.database),
            )
            return bool(admin.fetchone()[0])

    def _make_place(self) -> None:
        with self.admin() as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {quote_name(self._by_image.database)}")
            for user in {"root", self._by_image.user}:
                admin.execute("DROP USER IF EXISTS %s@'%%'", (user,))
            # An account without a name would let everybody in, and come before names from anywhere.
            admin.execute("SELECT user, host FROM mysql.user WHERE user = ''")
            for user, host in admin.fetchall():
                admin.execute("DROP USER %s@%s", (user, host))
        self._witness = self._session(self._superuser, self._password, _SECONDS)
        with self._witness.cursor() as cursor:
            cursor.execute(f"SET SESSION wait_timeout = {_LONGEST_WAIT}")

    async def fill(self, cell: CellDatabase) -> None:
        """What the image's database had, into a cell's. Raises ServiceError."""
        if self._has_template:
            user = re.sub(r"[\\/&]", r"\\\g<0>", cell.user.replace("`", "``"))
            await self._run(_LOAD_DUMP, {"DATABASE": cell.database, "USER_OF_CELL": user})

    async def _run(self, script: str, variables: dict[str, str]) -> None:
        env = {"MYSQL_PWD": self._password, "OURS": self._superuser, "PORT": str(self.port), **variables}
        exit_code, printed = await self.container.run(["/bin/sh", "-c", script], env)
        if exit_code != 0:
            raise ServiceError(
                f"service {self.container.plan.service}: what its image made of its database can't be copied for a "
                f"cell: {' '.join(printed.split())[-500:]}"
            )

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """See MysqlServer."""
        with self._session(self._superuser, self._password, _SECONDS) as session, session.cursor() as cursor:
            yield cursor

    def reads_all(self) -> dict[str, Any]:
        """Keywords of `pymysql.connect`, for what must see all that is there, and the server's log."""
        limits = {"connect_timeout": _CONNECT_SECONDS * 4, "read_timeout": _SECONDS * 5}
        return {**self.address(self._superuser, self._password, ""), **limits}

    def _session(self, user: str, password: str, seconds: int) -> Any:
        import pymysql

        return pymysql.connect(
            **self.address(user, password, ""),
            autocommit=True,
            connect_timeout=min(seconds, 10),
            read_timeout=seconds,
            local_infile=False,
        )

    def address(self, user: str, password: str, database: str) -> dict[str, Any]:
        """See MysqlServer."""
        where: dict[str, Any] = {"host": self.container.address, "port": self.port}
        return {**where, "user": user, "password": password, "database": database or None}
