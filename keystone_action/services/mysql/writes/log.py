"""What was written into one database, by the binary log of its server: all of it, also what was undone later."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import shown_time
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.database_comparison import Thing
from keystone_action.services.mysql.writes.events import (
    GTIDS,
    IGNORED,
    QUERY,
    ROWS,
    TABLE_MAP,
    XA_PREPARE,
    XID,
    Event,
    LogError,
    Position,
    Query,
    committed_at,
    read_log,
    read_prepared,
    read_query,
)
from keystone_action.services.mysql.writes.look import decode, errors
from keystone_action.services.mysql.writes.row_events import LoggedTable, Rows, read_table, table_of_rows
from keystone_action.services.mysql.writes.statements import Made, NotUnderstood, understand
from keystone_action.services.service import one_line

_Key = tuple[str, str, str]
"""What it is, its name, the operation."""


@dataclass
class _Transaction:
    """What one transaction wrote so far, and what it had written at each savepoint."""

    start: Position
    ts: str
    counts: dict[_Key, int | None] = field(default_factory=dict)
    savepoints: dict[str, tuple[Position, dict[_Key, int | None]]] = field(default_factory=dict)

    def add(self, key: _Key, rows: int | None) -> None:
        before = self.counts.get(key, 0)
        self.counts[key] = None if rows is None or before is None else before + rows


@dataclass
class BinaryLog:
    """The log between two positions, as far as it is about one database. connection: of a user that may read the log.
    shown: the name by which people know the database. standing: what was there at the start, triggers by names of their
    own; tables_of: the table of each trigger then. encodings: of Python, by
    the number of a collation. version: of the server, as 90704."""

    service: str
    connection: Mapping[str, Any]
    database: str
    shown: str
    standing: Collection[Thing]
    tables_of: Mapping[str, str]
    encodings: Mapping[int, str]
    version: int
    start: Position
    end: Position
    _found: dict[_Key, tuple[int | None, str]] = field(default_factory=dict)
    _undone: list[tuple[Position, Position]] = field(default_factory=list)
    _prepared: dict[str, tuple[_Transaction, Position]] = field(default_factory=dict)
    _there: set[Thing] = field(default_factory=set)
    _tables_of: dict[str, str] = field(default_factory=dict)
    _is_read: bool = False
    not_seen: Sequence[str] = ("what was rolled back was not written, and is not told",)

    def writes(self) -> Sequence[TableWrite]:
        """See WriteLog. Reads the log once."""
        if not self._is_read:
            try:
                self._read()
            except errors() as error:
                raise self._unreadable(error) from None
            self._is_read = True
        return [
            TableWrite(self.service, name, operation, rows, "log", ts, what)
            for (what, name, operation), (rows, ts) in self._found.items()
        ]

    def texts(self) -> Iterator[tuple[str, str]]:
        """See WriteLog. Reads the log once more, without what was rolled back."""
        self.writes()
        undone = sorted(self._undone)
        tables: dict[int, LoggedTable] = {}
        number = 0
        try:
            for event in read_log(self.connection, self.start, self.end):
                while number < len(undone) and undone[number][1] <= event.start:
                    number += 1
                is_undone = number < len(undone) and undone[number][0] <= event.start
                if event.kind == TABLE_MAP:
                    self._map(event, tables)
                elif event.kind in ROWS and not is_undone and ROWS[event.kind] != "delete":
                    if table := self._table(event, tables):
                        shown = f"{self.shown}.{table.name}"
                        for text in Rows(event.kind, event.body, table).texts(self.encodings):
                            yield shown, text
                elif event.kind == QUERY and not is_undone:
                    statement, things = self._statement(read_query(event.body))
                    if things:
                        yield self._told(things[0]), statement
        except errors() as error:
            raise self._unreadable(error) from None

    def _read(self) -> None:
        self._found, self._undone, self._prepared = {}, [], {}
        self._tables_of = dict(self.tables_of)
        self._there = {_comparable(thing) for thing in self.standing}
        tables: dict[int, LoggedTable] = {}
        transaction, ts = None, ""
        for event in read_log(self.connection, self.start, self.end):
            if event.kind in GTIDS:
                if transaction is not None:
                    raise LogError("a transaction of its binary log has no end")
                ts = _shown_time(committed_at(event))
            elif event.kind == TABLE_MAP:
                self._map(event, tables)
            elif event.kind == QUERY:
                transaction = self._query(event, transaction, ts)
            elif event.kind not in IGNORED:
                if transaction is None:
                    raise LogError(f"its binary log has an event of kind {event.kind} outside a transaction")
                transaction = self._go_on(event, transaction, tables)
        # What was prepared and never committed was not written.
        self._undone += [(one.start, end) for one, end in self._prepared.values()]

    def _go_on(self, event: Event, transaction: _Transaction, tables: Mapping[int, LoggedTable]) -> _Transaction | None:
        """The transaction after one more event of it; None where that was its end."""
        if event.kind in ROWS:
            if table := self._table(event, tables):
                rows = Rows(event.kind, event.body, table).count()
                transaction.add(("table", f"{self.shown}.{table.name}", ROWS[event.kind]), rows)
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

    def _query(self, event: Event, transaction: _Transaction | None, ts: str) -> _Transaction | None:
        """The transaction that goes on after a statement."""
        query = read_query(event.body)
        first, _, rest = query.statement.decode("utf-8", "backslashreplace").partition(" ")
        if query.statement == b"BEGIN" or (first == "XA" and rest.startswith("START ")):
            return _Transaction(event.start, ts)
        if transaction is None:
            if first == "XA":
                self._end_prepared(rest, query.schema)
            else:
                whole = _Transaction(event.start, ts)
                self._add_statement(whole, query)
                self._keep(whole)
            return None
        if query.statement == b"COMMIT":
            self._keep(transaction)
            return None
        if query.statement == b"ROLLBACK":
            self._undone.append((transaction.start, event.end))
            return None
        if first == "SAVEPOINT":
            transaction.savepoints[rest.casefold()] = event.end, dict(transaction.counts)
        elif query.statement.startswith(b"ROLLBACK TO "):
            since, counts = transaction.savepoints[rest.removeprefix("TO ").casefold()]
            self._undone.append((since, event.end))
            transaction.counts = dict(counts)
        elif first != "XA":  # XA END
            self._add_statement(transaction, query)
        return transaction

    def _end_prepared(self, rest: str, schema: str) -> None:
        """Of `XA COMMIT X'78',X'',1` or of ROLLBACK. One that was prepared before the start is of another cell."""
        what, _, name = rest.partition(" ")
        transaction, end = self._prepared.pop(name, (None, None))
        if transaction is None or end is None:
            if what == "COMMIT" and schema in ("", self.database):
                raise LogError("it committed a transaction that was prepared before the agent started")
            return
        if what == "COMMIT":
            self._keep(transaction)
        else:
            self._undone.append((transaction.start, end))

    def _keep(self, transaction: _Transaction) -> None:
        for key, rows in transaction.counts.items():
            before, ts = self._found.get(key, (0, transaction.ts))
            self._found[key] = (None if rows is None or before is None else before + rows), ts

    def _add_statement(self, transaction: _Transaction, query: Query) -> None:
        for made in self._statement(query)[1]:
            if made.of_table:
                self._tables_of[made.name] = made.of_table
            if self._happened(made, Thing(made.what, _name(self.shown, made))):
                transaction.add((made.what, self._told(made), made.operation), None)

    def _told(self, made: Made) -> str:
        """The name that it is told under: a trigger's is its table."""
        table = self._tables_of.get(made.name) if made.what == "trigger" else None
        return _name(self.shown, made._replace(name=table or made.name))

    def _happened(self, made: Made, thing: Thing) -> bool:
        """Whether `IF EXISTS` or `IF NOT EXISTS` let it happen: such statements are logged in any case."""
        key = _comparable(thing)
        was_there = key in self._there
        if made.operation == "create":
            self._there.add(key)
            return not (made.if_so and was_there)
        if made.operation == "drop":
            self._there.discard(key)
            if made.what == "database":
                self._there.clear()
        return was_there or not made.if_so

    def _statement(self, query: Query) -> tuple[str, list[Made]]:
        """It as text, and what of ours it defines; the whole database where that can't be told."""
        text = decode(query.statement, self.encodings.get(query.charset, ""))
        try:
            things = understand(text, query.sql_mode, self.version)
        except NotUnderstood:
            named = self.database.encode().lower() in query.statement.lower()
            ours = query.schema == self.database or named or self.database in (query.databases or ())
            return text, [Made("database", self.database, "", "change")] if ours else []
        return text, [one for one in things if (one.schema or query.schema) == self.database]

    def _map(self, event: Event, tables: dict[int, LoggedTable]) -> None:
        number, table = read_table(event.body)
        tables[number] = table

    def _table(self, event: Event, tables: Mapping[int, LoggedTable]) -> LoggedTable | None:
        """The table that rows are of, None for one of another database. Raises LogError."""
        table = tables.get(table_of_rows(event.body))
        if table is None:
            raise LogError("rows of its binary log are of a table that it did not name")
        return table if table.schema == self.database else None

    def _unreadable(self, error: Exception) -> ServiceError:
        return ServiceError(f"service {self.service}: what was written into it can't be told: {one_line(error)}")


def _name(shown: str, thing: Made) -> str:
    if thing.what == "database" and thing.operation == "change":
        return f"{shown}.*"
    return f"{shown}.{thing.name}" if thing.name else shown


def _comparable(thing: Thing) -> Thing:
    """Names of tables, views and triggers differ by case, others do not."""
    return thing if thing.what in ("table", "view", "trigger") else Thing(thing.what, thing.name.lower())


def _shown_time(seconds: float | None) -> str:
    return "" if seconds is None else shown_time(datetime.fromtimestamp(seconds, UTC))
