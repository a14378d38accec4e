"""A cell's database on a MySQL or MariaDB server of ours: its user, our reader, and what the agent's clients leave.

The agent's user may do everything in its database and nothing outside. Checks ask as a user of ours that may only
SELECT there. What runs on without a client is ended (sessions) or never runs (events: the server's scheduler is off).
"""

from __future__ import annotations

import secrets
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from keystone_action.services.mysql import catalogue as mysql_catalogue
from keystone_action.services.redefinitions import CatalogueLook

_LOCK_SECONDS = 1
_LAST_LOCK_SECONDS = 10
_END_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LOCK_WAIT_TIMEOUT = 1205


class MysqlServer(Protocol):
    """A server whose superuser is ours alone."""

    def admin(self) -> AbstractContextManager[Any]:
        """A cursor of the superuser, every statement committed. Raises pymysql's errors."""

    def address(self, user: str, password: str, database: str) -> dict[str, Any]:
        """Keywords of `pymysql.connect`."""


@dataclass
class CellDatabase:
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

    def run_script(self, script: str) -> None:
        """Run statements with the user's rights. Raises pymysql's errors."""
        import pymysql
        from pymysql.constants import CLIENT

        keywords = self.server.address(self.user, self.password, self.database)
        with (
            pymysql.connect(**keywords, autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS) as session,
            session.cursor() as cursor,
        ):
            cursor.execute(script)
            while cursor.nextset():
                pass

    def look(self, _path: tuple[str, ...] | None = None) -> CatalogueLook:
        """What stands in the database, and its name; built-in functions come first here. Raises pymysql's errors."""
        with self.server.admin() as admin:
            catalogue = mysql_catalogue.look(admin)
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
