"""How a cell's database on a server of ours is watched: by the server's binary log where that tells all, else by
comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from keystone_action.errors import ServiceError
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.comparison.looks import NET_CHANGES, ComparedDatabase, Thing
from keystone_action.services.error_text import one_line
from keystone_action.services.mysql.writes.events import LogError, Position
from keystone_action.services.mysql.writes.log import BinaryLog
from keystone_action.services.mysql.writes.look import MysqlLook, errors, looking, python_encoding

if TYPE_CHECKING:
    from keystone_action.evidence.writes import WriteLog

_FIRST_VERSION = 80000
"""Logs of older servers are not read: 5.7 does not say when, by its own clock, a transaction was."""
_OWN_DATABASE = "temporary tables, and the password of the agent's own user, are not looked at"
_SETTINGS = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_value_options": ""}


class MysqlWrites:
    """A `WriteLog`. connection: keywords of `pymysql.connect`, of a user of ours who may read everything. shown: the
    database's name as people know it. directory: of ours."""

    def __init__(self, service: str, connection: Mapping[str, Any], database: str, shown: str, directory: Path) -> None:
        self._service = service
        self._connection = connection
        self._database, self._shown = database, shown
        self._look = looking(connection, {database: shown}, service)
        self._compared = ComparedDatabase(service, self._look, errors(), directory)
        self._no_log = "it was not looked at yet"
        self._start: Position | None = None
        self._standing: set[Thing] = set()
        self._tables_of: Mapping[str, str] = {}
        self._found: WriteLog = self._compared

    @property
    def not_seen(self) -> Sequence[str]:
        """See WriteLog."""
        if not self._no_log:
            return *self._found.not_seen, _OWN_DATABASE
        return f"{self._no_log}, so {NET_CHANGES}", _OWN_DATABASE

    def seal(self) -> None:
        """What stands now stood before the agent. Blocking. Raises ServiceError."""
        try:
            self._no_log = self._why_no_log()
            if self._no_log:
                self._compared.seal()
                self._found = self._compared
            else:
                with self._look() as opened:
                    look = cast("MysqlLook", opened)
                    self._tables_of = look.tables_of_triggers()
                    triggers = {Thing("trigger", f"{self._shown}.{name}") for name in self._tables_of}
                    self._standing = triggers | {one for one in look.definitions() if one.what != "trigger"}
                self._start = self._position()
        except errors() as error:
            raise self._failure(error) from None

    def settle(self) -> None:
        """What stands now is what the agent left: no session of it is there. Blocking. Raises ServiceError."""
        try:
            if self._no_log:
                self._compared.settle()
                return
            assert self._start is not None
            self._found = BinaryLog(
                self._service,
                self._connection,
                self._database,
                self._shown,
                self._standing,
                self._tables_of,
                self._encodings(),
                self._version(),
                self._start,
                self._position(),
            )
        except errors() as error:
            raise self._failure(error) from None

    def writes(self) -> Sequence[TableWrite]:
        """See WriteLog."""
        return self._found.writes()

    def texts(self) -> Iterator[tuple[str, str]]:
        """See WriteLog."""
        return self._found.texts()

    def _why_no_log(self) -> str:
        """Why its log does not tell all of what is written into this database; empty where it does."""
        server = self._ask("SELECT @@version")[0][0]
        if "mariadb" in server.lower():
            return "it is MariaDB, whose log is not read"
        if self._version() < _FIRST_VERSION:
            return f"it is MySQL {server}, whose log is not read"
        variables = dict(self._ask("SHOW GLOBAL VARIABLES"))
        if variables.get("log_bin") != "ON":
            return "its binary log is off"
        different = [name for name, value in _SETTINGS.items() if variables.get(name, value).upper() != value]
        if variables.get("binlog_transaction_compression", "OFF") != "OFF":
            different.append("binlog_transaction_compression")
        if different:
            return f"{' and '.join(different)} of its binary log is set so that not all can be read"
        if any(self._status()[2:4]):
            return "its binary log leaves databases out"
        return self._why_incomplete(cascades=variables.get("innodb_native_foreign_keys", "ON") == "ON")

    def _why_incomplete(self, *, cascades: bool) -> str:
        """Why rows change in this database that are not logged as its own. cascades: what a foreign key does to other
        rows is not logged."""
        with self._look() as opened:
            look = cast("MysqlLook", opened)
            if cascades and (tables := look.foreign_keys_that_cascade()):
                return f"its binary log does not have what the foreign key of {tables[0]} changes"
            if tables := look.merge_tables():
                return f"its binary log does not say what is written through {tables[0]}, which is made of others"
        return ""

    def _position(self) -> Position:
        file, offset = self._status()[:2]
        return Position.of(file, int(offset))

    def _status(self) -> Sequence[Any]:
        words = "BINARY LOG" if self._version() >= 80200 else "MASTER"
        found = self._ask(f"SHOW {words} STATUS")
        if not found:
            raise LogError("it does not say where its binary log ends")
        return tuple(found[0])

    def _version(self) -> int:
        """As `/*!80000` has it."""
        major, minor, patch = (int(part) for part in self._ask("SELECT @@version")[0][0].split("-")[0].split("."))
        return major * 10000 + minor * 100 + patch

    def _encodings(self) -> Mapping[int, str]:
        query = "SELECT id, character_set_name FROM information_schema.collations"
        return {int(number): python_encoding(name) for number, name in self._ask(query) if number is not None}

    def _ask(self, query: str) -> Sequence[Any]:
        import pymysql

        with closing(pymysql.connect(**self._connection)) as session, session.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def _failure(self, error: Exception) -> ServiceError:
        return ServiceError(f"service {self._service}: what is written into it can't be told: {one_line(error)}")
