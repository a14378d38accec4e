"""What an agent wrote into a cell's database on a server of ours: rows by the server's binary log, where there is one
that we read, everything else by comparison.

The log has each row of each transaction. Definitions, and rows that the log does not have (of a table that was
truncated, of a foreign key's cascade), are told by what stood before the agent and what stands after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import shown_time
from keystone_action.evidence.writes import DEFINITION, TableWrite
from keystone_action.services.database_comparison import NET_CHANGES, ComparedDatabase
from keystone_action.services.mysql.binary_log import (
    GTIDS,
    IGNORED,
    QUERY,
    ROW_OPERATIONS,
    TABLE_MAP,
    XA_PREPARE,
    XID,
    LogError,
    LogEvent,
    LoggedRows,
    LoggedTable,
    LogPosition,
    committed_at,
    read_log,
    read_prepared,
    read_statement,
    read_table,
    table_number,
)
from keystone_action.services.mysql.database_view import decode, errors, python_encoding, view_opener
from keystone_action.services.service import one_line

_FIRST_VERSION = 80000
"""Logs of older servers are not read: 5.7 does not say when, by its own clock, a transaction was."""
_NEW_WORDS = 80200
_SETTINGS = {
    "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_value_options": "",
    "binlog_transaction_compression": "OFF",
}  # fmt: skip
_ROLLED_BACK = "what was rolled back was not written, and is not told"
_COMPARED = (
    "definitions, and rows that the binary log does not have (of a truncated table, of a foreign key's cascade), are"
    " compared before and after the agent: what it took back of them is not seen"
)
_OWN_DATABASE = "temporary tables, and the password of the agent's own user, are not looked at"
_Key = tuple[str, str]
"""A table, and what was done to it."""
_GAP = r"(?:\s|--(?=\s)[^\n]*+|#[^\n]*+|/\*!\d*+|\*/|/\*(?!!).*?\*/)"
"""Between words. What stands in `/*!50001 … */` is executed."""
_GAPS = rf"(?>{_GAP}*)"
"""Atomic, not `(…)*+`: before Python 3.11.5, `re` gives back a part of a possessive repeat of a group (gh-106052)."""
_NAME = r"(?:`[^`]*+`|'[^']*+'|\"[^\"]*+\"|[\w.$%-]++)"
_OPTION = (
    r"(?:OR|REPLACE|TEMPORARY|AGGREGATE|UNIQUE|FULLTEXT|SPATIAL)\b"
    rf"|(?:ALGORITHM|DEFINER|SQL{_GAP}{_GAPS}SECURITY)\b{_GAPS}=?{_GAPS}{_NAME}"
    rf"(?>(?:{_GAPS}@{_GAPS}{_NAME})?)(?>(?:\(\))?)"
)
"""Before the word for what is defined."""
_KNOWN = re.compile(
    rf"{_GAPS}(?:(?:TRUNCATE|RENAME|GRANT|REVOKE|SET|ANALYZE|OPTIMIZE|REPAIR|CHECK|FLUSH|DELETE"
    r"|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|XA)\b"
    rf"|(?:CREATE|ALTER|DROP)\b(?>(?:{_GAP}|{_OPTION})*)"
    r"(?:TABLE|VIEW|TRIGGER|PROCEDURE|FUNCTION|EVENT|LIBRARY|INDEX|DATABASE|SCHEMA|USER|ROLE)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""How a statement begins that does nothing which a comparison does not see. Servers yet to come may have others."""


class MysqlWrites:
    """A `WriteLog`. connection: keywords of `pymysql.connect`, of a user of ours who may read everything. shown: the
    database's name as people know it. directory: of ours."""

    def __init__(self, service: str, connection: Mapping[str, Any], database: str, shown: str, directory: Path) -> None:
        self._service = service
        self._connection = connection
        self._database, self._shown = database, shown
        opener = view_opener(connection, {database: shown}, service)
        self._compared = ComparedDatabase(service, opener, errors(), directory)
        self._no_log = "it was not looked at yet"
        self._start: LogPosition | None = None
        self._logged: LoggedWrites | None = None
        self._is_compared = False

    @property
    def not_seen(self) -> Sequence[str]:
        """See WriteLog."""
        if self._no_log:
            return f"{self._no_log}, so {NET_CHANGES}", _OWN_DATABASE
        return _ROLLED_BACK, _COMPARED, _OWN_DATABASE

    def seal(self) -> None:
        """What stands now stood before the agent. Blocking. Raises ServiceError."""
        self._start, self._logged, self._is_compared = None, None, False
        self._compared.seal()
        with self._server() as server:
            self._no_log = server.why_no_log()
            if not self._no_log:
                self._start = server.log_end()

    def settle(self) -> None:
        """What stands now is what the agent left: no session of it is there. Blocking. Raises ServiceError; what the
        log has can be told all the same."""
        if self._start is not None:
            with self._server() as server:
                self._logged = LoggedWrites(
                    self._service,
                    self._connection,
                    self._database,
                    self._shown,
                    server.encodings(),
                    self._start,
                    server.log_end(),
                )
        self._compared.settle()
        self._is_compared = True

    def writes(self) -> Sequence[TableWrite]:
        """See WriteLog. Of a table whose rows are in the log, what the comparison says of its rows is left out. Where
        the comparison failed, as `settle` said, what the log has: that is certain."""
        logged = self._logged.writes() if self._logged is not None else []
        if self._logged is not None and not self._is_compared:
            return logged
        tables = {one.table for one in logged}
        compared = self._compared.writes()
        return [*logged, *(one for one in compared if one.rows is None or one.table not in tables)]

    def texts(self) -> Iterator[tuple[str, str]]:
        """See WriteLog."""
        return self._compared.texts() if self._logged is None else self._logged.texts()

    @contextmanager
    def _server(self) -> Iterator[_LoggingServer]:
        import pymysql

        try:
            with closing(pymysql.connect(**self._connection)) as session, session.cursor() as cursor:
                yield _LoggingServer(cursor)
        except errors() as error:
            raise ServiceError(
                f"service {self._service}: what is written into it can't be told: {one_line(error)}"
            ) from None


class _LoggingServer:
    """What a server says of itself and of its log."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._variables = {str(name): str(value) for name, value in self._ask("SHOW GLOBAL VARIABLES")}
        self._name = self._variables["version"]
        major, minor, patch = (int(part) for part in self._name.split("-")[0].split("."))
        self._version = major * 10000 + minor * 100 + patch

    def why_no_log(self) -> str:
        """Why its log does not have the rows that are written; empty where it has them."""
        variables = self._variables
        if "mariadb" in self._name.lower():
            return "it is MariaDB, whose log is not read"
        if self._version < _FIRST_VERSION:
            return f"it is MySQL {self._name}, whose log is not read"
        if variables.get("log_bin") != "ON":
            return "its binary log is off"
        if different := [name for name, value in _SETTINGS.items() if variables.get(name, value).upper() != value]:
            return f"{' and '.join(different)} of its binary log is set so that not all can be read"
        return "its binary log leaves databases out" if any(self._log_status()[2:4]) else ""

    def log_end(self) -> LogPosition:
        """Where its log ends now. Raises LogError."""
        file, offset = self._log_status()[:2]
        return LogPosition.of(file, int(offset))

    def encodings(self) -> Mapping[int, str]:
        """Python's encodings, by the number of a collation."""
        query = "SELECT id, character_set_name FROM information_schema.collations"
        return {int(number): python_encoding(name) for number, name in self._ask(query) if number is not None}

    def _log_status(self) -> Sequence[Any]:
        found = self._ask(f"SHOW {'BINARY LOG' if self._version >= _NEW_WORDS else 'MASTER'} STATUS")
        if not found:
            raise LogError("it does not say where its binary log ends")
        return tuple(found[0])

    def _ask(self, query: str) -> Sequence[Any]:
        self._cursor.execute(query)
        return list(self._cursor.fetchall())


@dataclass
class _Transaction:
    """What one transaction wrote so far, and what it had written at each savepoint."""

    start: LogPosition
    ts: str
    counts: dict[_Key, int] = field(default_factory=dict)
    savepoints: dict[str, tuple[LogPosition, dict[_Key, int]]] = field(default_factory=dict)


@dataclass
class LoggedWrites:
    """The rows of one database that stand in the binary log between two positions."""

    service: str
    connection: Mapping[str, Any]
    """Keywords of `pymysql.connect`, of a user that may read the log."""
    database: str
    shown: str
    """The name by which people know the database."""
    encodings: Mapping[int, str]
    """Python's, by the number of a collation."""
    start: LogPosition
    end: LogPosition
    _found: dict[_Key, tuple[int, str]] = field(default_factory=dict)
    """How many rows, and since when; 0 rows where that is not known."""
    _undone: list[tuple[LogPosition, LogPosition]] = field(default_factory=list)
    _prepared: dict[str, tuple[_Transaction, LogPosition]] = field(default_factory=dict)
    _tables: dict[int, LoggedTable] = field(default_factory=dict)
    _is_read: bool = False

    def writes(self) -> list[TableWrite]:
        """One for each table and operation, in the order of the first. Reads the log once. Raises ServiceError."""
        if not self._is_read:
            with self._as_service_error():
                self._read()
            self._is_read = True
        return [
            TableWrite(self.service, table, operation, rows or None, "log", ts, "table" if rows else "database")
            for (table, operation), (rows, ts) in self._found.items()
        ]

    def texts(self) -> Iterator[tuple[str, str]]:
        """Each row's values with its table, and each statement that defines something. Reads the log once more, without
        what was rolled back. Raises ServiceError."""
        self.writes()
        undone = sorted(self._undone)
        number = 0
        with self._as_service_error():
            for event in read_log(self.connection, self.start, self.end):
                while number < len(undone) and undone[number][1] <= event.start:
                    number += 1
                is_undone = number < len(undone) and undone[number][0] <= event.start
                if event.kind == TABLE_MAP:
                    self._map(event)
                elif not is_undone:
                    yield from self._texts_of(event)

    def _texts_of(self, event: LogEvent) -> Iterator[tuple[str, str]]:
        if ROW_OPERATIONS.get(event.kind) in ("insert", "update"):
            if table := self._table(event):
                for text in LoggedRows(event, table).texts(self.encodings):
                    yield f"{self.shown}.{table.name}", text
        elif event.kind == QUERY:
            schema, statement = read_statement(event.body)
            if self._is_ours(schema, statement):
                # In which character set a client wrote it is not said: a secret may stand in either.
                for encoding in ("utf-8", "latin1"):
                    yield f"{DEFINITION}something in {self.shown}", decode(statement, encoding)

    def _is_ours(self, schema: str, statement: bytes) -> bool:
        """Whether a statement may be about this database. schema: the session's."""
        return schema == self.database or self.database.encode().lower() in statement.lower()

    def _read(self) -> None:
        self._found, self._undone, self._prepared = {}, [], {}
        transaction, ts = None, ""
        for event in read_log(self.connection, self.start, self.end):
            if event.kind in GTIDS:
                if transaction is not None:
                    raise LogError("a transaction of its binary log has no end")
                seconds = committed_at(event)
                ts = "" if seconds is None else shown_time(datetime.fromtimestamp(seconds, UTC))
            elif event.kind == TABLE_MAP:
                self._map(event)
            elif event.kind == QUERY:
                transaction = self._after_statement(event, transaction, ts)
            elif event.kind not in IGNORED:
                if transaction is None:
                    raise LogError(f"its binary log has an event of kind {event.kind} outside a transaction")
                transaction = self._after_event(event, transaction)
        # What was prepared and never committed was not written.
        self._undone += [(one.start, end) for one, end in self._prepared.values()]

    def _after_event(self, event: LogEvent, transaction: _Transaction) -> _Transaction | None:
        """The transaction after one more event of it; None where that was its end."""
        if event.kind in ROW_OPERATIONS:
            if table := self._table(event):
                key = f"{self.shown}.{table.name}", ROW_OPERATIONS[event.kind]
                transaction.counts[key] = transaction.counts.get(key, 0) + LoggedRows(event, table).count()
            return transaction
        if event.kind == XID:
            self._keep(transaction)
        elif event.kind == XA_PREPARE:
            one_phase, name = read_prepared(event.body)
            if one_phase:
                self._keep(transaction)
            else:
                self._prepared[name] = transaction, event.end
        else:
            raise LogError(f"an event of kind {event.kind} is in its binary log, which we do not know")
        return None

    def _after_statement(self, event: LogEvent, transaction: _Transaction | None, ts: str) -> _Transaction | None:
        """The transaction that goes on after a statement. What a statement defines is told by comparison; one of a kind
        that we do not know may have changed anything."""
        schema, statement = read_statement(event.body)
        text = statement.decode("utf-8", "backslashreplace")
        if self._is_ours(schema, statement) and not _KNOWN.match(text):
            self._found.setdefault((f"{self.shown}.*", "change"), (0, ts))
        first, _, rest = text.partition(" ")
        if statement == b"BEGIN" or (first == "XA" and rest.startswith("START ")):
            return _Transaction(event.start, ts)
        if transaction is None:
            if first == "XA":
                self._end_prepared(rest, schema)
        elif statement == b"COMMIT":
            self._keep(transaction)
            return None
        elif statement == b"ROLLBACK":
            self._undone.append((transaction.start, event.end))
            return None
        elif first == "SAVEPOINT":
            transaction.savepoints[rest.casefold()] = event.end, dict(transaction.counts)
        elif statement.startswith(b"ROLLBACK TO "):
            since, counts = transaction.savepoints[rest.removeprefix("TO ").casefold()]
            self._undone.append((since, event.end))
            transaction.counts = dict(counts)
        return transaction

    def _end_prepared(self, rest: str, schema: str) -> None:
        """Of `XA COMMIT X'78',X'',1` or of ROLLBACK. One that was prepared before the start is of another cell."""
        what, _, name = rest.partition(" ")
        transaction, end = self._prepared.pop(name, (None, None))
        if transaction is None or end is None:
            if what == "COMMIT" and schema in ("", self.database):
                raise LogError("it committed a transaction that was prepared before the agent started")
        elif what == "COMMIT":
            self._keep(transaction)
        else:
            self._undone.append((transaction.start, end))

    def _keep(self, transaction: _Transaction) -> None:
        for key, rows in transaction.counts.items():
            before, ts = self._found.get(key, (0, transaction.ts))
            self._found[key] = before + rows, ts

    def _map(self, event: LogEvent) -> None:
        number, table = read_table(event.body)
        self._tables[number] = table

    def _table(self, event: LogEvent) -> LoggedTable | None:
        """The table that rows are of, None for one of another database. Raises LogError."""
        table = self._tables.get(table_number(event.body))
        if table is None:
            raise LogError("rows of its binary log are of a table that it did not name")
        return table if table.schema == self.database else None

    @contextmanager
    def _as_service_error(self) -> Iterator[None]:
        try:
            yield
        except errors() as error:
            raise ServiceError(
                f"service {self.service}: what was written into it can't be told: {one_line(error)}"
            ) from None
