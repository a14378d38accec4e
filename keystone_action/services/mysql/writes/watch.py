"""How a cell's database on a server of ours is watched: by the server's binary log where that tells all, else by
comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from keystone_action.errors import ServiceError
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.database_comparison import NET_CHANGES, ComparedDatabase, Thing
from keystone_action.services.mysql.writes.events import LogError, Position
from keystone_action.services.mysql.writes.log import BinaryLog
from keystone_action.services.mysql.writes.look import MysqlLook, errors, looking, python_encoding
from keystone_action.services.service import one_line

if TYPE_CHECKING:
    from keystone_action.evidence.writes import WriteLog

_FIRST_VERSION = 80000
"""Logs of older servers are not read: 5.7 does not say when, by its own clock, a transaction was."""
_OWN_DATABASE = "temporary tables, and the password of the agent's own user, are not looked at"
_NEW_WORDS = 80200
_SETTINGS = {
    "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_value_options": "",
    "binlog_transaction_compression": "OFF",
}  # fmt: skip


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
            with self._asking() as server:
                self._no_log = server.why_no_log() or self._look_at(server)
                if not self._no_log:
                    self._start = server.position()
                    return
            self._found = self._compared
            self._compared.seal()
        except errors() as error:
            raise self._failure(error) from None

    def _look_at(self, server: _Server) -> str:
        """What the log needs to be understood; why it does not have all that changes in this database, empty where it
        does. Raises ServiceError."""
        with self._look() as opened:
            look = cast("MysqlLook", opened)
            if server.hides_cascades and (tables := look.foreign_keys_that_cascade()):
                return f"its binary log does not have what the foreign key of {tables[0]} changes"
            if tables := look.merge_tables():
                return f"its binary log does not say what is written through {tables[0]}, which is made of others"
            look.refuse()
            self._tables_of = look.tables_of_triggers()
            triggers = {Thing("trigger", f"{self._shown}.{name}") for name in self._tables_of}
            self._standing = triggers | {one for one in look.definitions() if one.what != "trigger"}
        return ""

    def settle(self) -> None:
        """What stands now is what the agent left: no session of it is there. Blocking. Raises ServiceError."""
        try:
            if self._no_log:
                self._compared.settle()
                return
            assert self._start is not None
            with self._asking() as server:
                self._found = BinaryLog(
                    self._service,
                    self._connection,
                    self._database,
                    self._shown,
                    self._standing,
                    self._tables_of,
                    server.encodings(),
                    server.version,
                    self._start,
                    server.position(),
                )
        except errors() as error:
            raise self._failure(error) from None

    def writes(self) -> Sequence[TableWrite]:
        """See WriteLog."""
        return self._found.writes()

    def texts(self) -> Iterator[tuple[str, str]]:
        """See WriteLog."""
        return self._found.texts()

    @contextmanager
    def _asking(self) -> Iterator[_Server]:
        import pymysql

        with closing(pymysql.connect(**self._connection)) as session, session.cursor() as cursor:
            yield _Server(cursor)

    def _failure(self, error: Exception) -> ServiceError:
        return ServiceError(f"service {self._service}: what is written into it can't be told: {one_line(error)}")


class _Server:
    """What a server says of itself and of its log. version: as `/*!80000` has it. hides_cascades: what a foreign key
    does to other rows is not logged."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._variables = {str(name): str(value) for name, value in self._ask("SHOW GLOBAL VARIABLES")}
        self._name = self._variables["version"]
        major, minor, patch = (int(part) for part in self._name.split("-")[0].split("."))
        self.version = major * 10000 + minor * 100 + patch
        self.hides_cascades = self._variables.get("innodb_native_foreign_keys", "ON") == "ON"

    def why_no_log(self) -> str:
        """Why its log does not tell all of what is written; empty where it does."""
        variables = self._variables
        if "mariadb" in self._name.lower():
            return "it is MariaDB, whose log is not read"
        if self.version < _FIRST_VERSION:
            return f"it is MySQL {self._name}, whose log is not read"
        if variables.get("log_bin") != "ON":
            return "its binary log is off"
        if different := [name for name, value in _SETTINGS.items() if variables.get(name, value).upper() != value]:
            return f"{' and '.join(different)} of its binary log is set so that not all can be read"
        return "its binary log leaves databases out" if any(self._status()[2:4]) else ""

    def position(self) -> Position:
        """Where its log ends now. Raises LogError."""
        file, offset = self._status()[:2]
        return Position.of(file, int(offset))

    def encodings(self) -> Mapping[int, str]:
        """Of Python, by the number of a collation."""
        query = "SELECT id, character_set_name FROM information_schema.collations"
        return {int(number): python_encoding(name) for number, name in self._ask(query) if number is not None}

    def _status(self) -> Sequence[Any]:
        found = self._ask(f"SHOW {'BINARY LOG' if self.version >= _NEW_WORDS else 'MASTER'} STATUS")
        if not found:
            raise LogError("it does not say where its binary log ends")
        return tuple(found[0])

    def _ask(self, query: str) -> Sequence[Any]:
        self._cursor.execute(query)
        return list(self._cursor.fetchall())
