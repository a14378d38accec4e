"""One MySQL or MariaDB server in a container of an image, and the databases of cells on it.

The image's `root` and its own user make place for our superuser. What the image's scripts made in its database is
dumped once, and loaded into every cell's. The agent's user may do everything in its database and nothing outside;
checks ask as a user of ours that may only SELECT there. What the agent's clients left running is ended (sessions) or
never runs (events: the server's scheduler is off).
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keystone_action.errors import ServiceError
from keystone_action.services.container.engine_container import ServiceContainer
from keystone_action.services.container.service import unmet_condition
from keystone_action.services.mysql.reader import read_mysql_catalogue
from keystone_action.services.redefinitions import CatalogueLook
from keystone_action.services.service import one_line

if TYPE_CHECKING:
    from keystone_action.engine.networks import ContainerNetwork

_CONNECT_SECONDS = 3
_SECONDS = 60
_LONGEST_WAIT = 2147483
"""Seconds that a session may say nothing; servers take no more on every system."""
_LOCK_SECONDS = 1
_LAST_LOCK_SECONDS = 10
_END_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LOCK_WAIT_TIMEOUT = 1205


class MysqlServer(ABC):
    """A server whose superuser is ours alone."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._superuser = f"keystone_{secrets.token_hex(6)}"
        self._password = secrets.token_urlsafe(24)
        self._witness: Any = None
        self._asking = threading.Lock()

    @property
    @abstractmethod
    def host(self) -> str:
        """Where we reach it."""

    @abstractmethod
    def failure(self, problem: str) -> ServiceError:
        """A ServiceError about this service, with what it printed last. Blocking."""

    async def fill(self, cell: MysqlCellDatabase) -> None:  # noqa: B027 - there may be no image
        """What its image made of its database, into a cell's. Raises ServiceError."""

    def address(self, user: str, password: str, database: str) -> dict[str, Any]:
        """Keywords of `pymysql.connect`."""
        where: dict[str, Any] = {"host": self.host, "port": self.port}
        return {**where, "user": user, "password": password, "database": database or None}

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """A cursor of the superuser, every statement committed. Raises pymysql's errors."""
        with self.session(self._superuser, self._password, _SECONDS) as session, session.cursor() as cursor:
            yield cursor

    def reads_all(self) -> dict[str, Any]:
        """Keywords of `pymysql.connect`, for what must see all that is there, and the server's log."""
        limits = {"connect_timeout": _CONNECT_SECONDS * 4, "read_timeout": _SECONDS * 5}
        return {**self.address(self._superuser, self._password, ""), **limits}

    def session(self, user: str, password: str, seconds: int) -> Any:
        """A connection that waits no longer than this. Raises pymysql's errors."""
        import pymysql

        return pymysql.connect(
            **self.address(user, password, ""),
            autocommit=True,
            connect_timeout=min(seconds, 10),
            read_timeout=seconds,
            local_infile=False,
        )

    def set_up(self, cursor: Any) -> None:
        """What holds for every cell. cursor: of a superuser. Raises pymysql's errors."""
        # What an agent plans for later must not change what is graded.
        cursor.execute("SET GLOBAL event_scheduler = OFF")
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        cursor.execute("SET GLOBAL sync_binlog = 0")
        # MySQL keeps a binary log by itself, and then only a superuser could load a dump with triggers.
        cursor.execute("SET GLOBAL log_bin_trust_function_creators = 1")

    def watch(self) -> None:
        """From now on `crashed` is known. Raises pymysql's errors."""
        self._witness = self.session(self._superuser, self._password, _SECONDS)
        with self._witness.cursor() as cursor:
            cursor.execute(f"SET SESSION wait_timeout = {_LONGEST_WAIT}")

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


@dataclass
class MysqlCellDatabase:
    """One database with its user (the agent's) and its reader (ours)."""

    server: MysqlServer
    database: str
    user: str
    password: str
    # A name that says nothing: what the agent made could give this user another answer.
    reader: str = field(default_factory=lambda: f"cell_{secrets.token_hex(6)}")
    reader_password: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def create(self) -> None:
        """A fresh database and both users; what had these names is dropped first. Raises pymysql's errors."""
        with self.server.admin() as admin:
            self._drop(admin)
            admin.execute(f"CREATE DATABASE {quote_name(self.database)}")
            for user, password in ((self.user, self.password), (self.reader, self.reader_password)):
                admin.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (user, password))
            # In a grant, `_` and `%` of a database's name stand for other characters.
            pattern = quote_name(self.database.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%"))
            admin.execute(f"GRANT ALL PRIVILEGES ON {_literal(pattern)}.* TO %s@'%%'", (self.user,))
            admin.execute(f"GRANT SELECT, SHOW VIEW ON {_literal(pattern)}.* TO %s@'%%'", (self.reader,))

    def drop(self) -> None:
        """Remove the database and both users, ending their sessions. Raises pymysql's errors."""
        with self.server.admin() as admin:
            self._drop(admin)

    def settle(self) -> None:
        """End the agent's sessions, busy ones too, and undo what it did to its own password: scripts of the
        author's have the old one. Raises pymysql's errors."""
        with self.server.admin() as admin:
            self._end_sessions(admin)
            admin.execute("ALTER USER %s@'%%' IDENTIFIED BY %s", (self.user, self.password))

    def user_connection(self) -> dict[str, Any]:
        """Keywords of `pymysql.connect` for the user."""
        return self.server.address(self.user, self.password, self.database)

    def look(self, _path: tuple[str, ...] | None = None) -> CatalogueLook:
        """What stands in the database, and its name; built-in functions come first here. Raises pymysql's errors."""
        with self.server.admin() as admin:
            catalogue = read_mysql_catalogue(admin)
        own = {name: entry for name, entry in catalogue.items() if name[0] == self.database}
        return own, (self.database,), frozenset()

    def reader_connection(self) -> dict[str, Any]:
        """Keywords of `pymysql.connect` for checks."""
        return self.server.address(self.reader, self.reader_password, self.database)

    def has_sessions(self) -> bool:
        """Whether the agent still has some, which could not be ended. Raises pymysql's errors."""
        with self.server.admin() as admin:
            return bool(self._sessions(admin))

    def _sessions(self, admin: Any) -> list[int]:
        admin.execute("SELECT id FROM information_schema.processlist WHERE user IN (%s, %s)", self._users)
        return [row[0] for row in admin.fetchall()]

    def _end_sessions(self, admin: Any) -> None:
        from pymysql.err import MySQLError

        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline and (running := self._sessions(admin)):
            for session in running:
                try:
                    admin.execute("KILL CONNECTION %s", (session,))
                except MySQLError:
                    continue  # it has just ended
            time.sleep(_POLL_SECONDS)

    @property
    def _users(self) -> tuple[str, str]:
        return self.user, self.reader

    def _drop(self, admin: Any) -> None:
        from pymysql.err import OperationalError

        self._end_sessions(admin)
        _wait_for_locks(admin, _LOCK_SECONDS)
        try:
            admin.execute(f"DROP DATABASE IF EXISTS {quote_name(self.database)}")
        except OperationalError as error:
            if error.args[0] != _LOCK_WAIT_TIMEOUT:
                raise
            # A prepared XA transaction holds its locks after its session's end.
            _roll_back_prepared(admin)
            _wait_for_locks(admin, _LAST_LOCK_SECONDS)
            admin.execute(f"DROP DATABASE IF EXISTS {quote_name(self.database)}")
        for user in self._users:
            admin.execute("DROP USER IF EXISTS %s@'%%'", (user,))


def _wait_for_locks(admin: Any, seconds: int) -> None:
    # MySQL's DROP waits for the first, MariaDB's for the second.
    admin.execute(f"SET SESSION lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}")


def _roll_back_prepared(admin: Any) -> None:
    from pymysql.err import MySQLError

    admin.execute("XA RECOVER")
    for format_id, length, _, data in admin.fetchall():
        name = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)
        parts = f"X'{name[:length].hex()}', X'{name[length:].hex()}', {format_id}"
        try:
            admin.execute(f"XA ROLLBACK {parts}")
        except MySQLError:
            continue  # another cell's, whose session still has it


def quote_name(name: str) -> str:
    """As an identifier."""
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    """For a statement that pymysql formats."""
    return text.replace("%", "%%")


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


class MysqlInContainer(MysqlServer):
    """See `MysqlServer`. by_image: the user and database that the image makes. root: its superuser's
    password."""

    def __init__(self, container: ServiceContainer, by_image: MysqlCredentials, root: str, port: int) -> None:
        super().__init__(port)
        self.container = container
        self._by_image = by_image
        self._root = root
        self._has_template = False

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
    def host(self) -> str:
        """See MysqlServer."""
        return self.container.address

    def failure(self, problem: str) -> ServiceError:
        """See MysqlServer."""
        return self.container.failure(problem)

    async def remove(self) -> None:
        """Remove the server. Never raises."""
        await self.container.remove()

    def _ask(self) -> str:
        import pymysql

        if not self.container.address:
            return "it has no address"
        try:
            with self.session("root", self._root, _CONNECT_SECONDS) as session, session.cursor() as cursor:
                cursor.execute("SELECT 1")
        except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
            return one_line(error)
        return ""

    def _take_over(self) -> bool:
        """Make our superuser; whether there is anything in the image's database."""
        with self.session("root", self._root, _SECONDS) as session, session.cursor() as cursor:
            cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (self._superuser, self._password))
            cursor.execute("GRANT ALL PRIVILEGES ON *.* TO %s@'%%' WITH GRANT OPTION", (self._superuser,))
        with self.admin() as admin:
            self.set_up(admin)
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
        self.watch()

    async def fill(self, cell: MysqlCellDatabase) -> None:
        """See MysqlServer."""
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
