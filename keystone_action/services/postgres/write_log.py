"""Watching one cell's database from `begin` to `end`: the `WriteLog` of its place."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from keystone_action.errors import ServiceError
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.postgres import definition_log
from keystone_action.services.postgres import row_comparison as comparison
from keystone_action.services.postgres.connections import session_options
from keystone_action.services.postgres.logical_decoding import (
    Commit,
    ReplicationSlots,
    RowChange,
    drop_slot,
    read_changes,
)
from keystone_action.services.service import one_line

if TYPE_CHECKING:
    import psycopg

    from keystone_action.services.postgres.databases import PostgresCellDatabase

_NOT_SEEN = (
    "of unlogged tables, sequences, large objects, rights and settings, only what differs in the end is seen",
    "temporary tables are not data of the service and do not count",
    "writes that were rolled back do not count, but the numbers that they took from sequences stay taken, and count",
    "what went through a foreign table into another server is not seen here",
)
_END_SECONDS = 30
_POLL_SECONDS = 0.02
_READING = {"search_path": "pg_catalog", "default_transaction_read_only": "on", "lock_timeout": "10000"}
_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
     WHERE (datname = %(database)s OR usename = %(owner)s) AND backend_type = 'client backend'
"""
_STATE = """
    SELECT d.datacl::text, d.datconnlimit, d.datallowconn, shobj_description(d.oid, 'pg_database'),
           ARRAY(SELECT concat_ws(' ', r.rolname, a.rolpassword, r.rolconnlimit, r.rolvaliduntil)
                   FROM pg_roles r JOIN pg_authid a ON a.oid = r.oid WHERE r.rolname = %(owner)s),
           ARRAY(SELECT concat_ws(' ', s.setrole, s.setconfig::text) FROM pg_db_role_setting s
                  WHERE s.setdatabase = d.oid OR s.setrole = (SELECT oid FROM pg_roles WHERE rolname = %(owner)s)
                  ORDER BY 1)
      FROM pg_database d WHERE d.datname = %(database)s
"""


@dataclass(frozen=True, slots=True)
class _Before:
    """What stood when the agent started."""

    definitions: definition_log.DefinedObjects
    objects: comparison.ObjectsBefore
    unlogged: comparison.TablesBefore
    state: tuple[Any, ...]
    """Rights and settings of the database and its owner, as the server keeps them."""
    texts: comparison.Defined


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found when the agent had ended."""

    until: str
    """Where the server's log had got to."""
    partitions: dict[str, str]
    """The name that rows are told under, by the partition's own."""
    writes: list[TableWrite]
    objects: comparison.ObjectsBefore
    unlogged: comparison.TablesBefore | None
    texts: comparison.Defined


@dataclass
class PostgresWrites:
    """A `WriteLog`. failure: makes the service's error of a problem."""

    service: str
    cell: PostgresCellDatabase
    failure: Callable[[str], ServiceError]
    not_seen: tuple[str, ...] = _NOT_SEEN
    _schema: str = field(default_factory=lambda: f"keystone_{secrets.token_hex(6)}")
    _slot: str = ""
    _before: _Before | None = None
    _seen: _Seen | None = None
    _rows: list[TableWrite] | None = None

    @property
    def _slots(self) -> ReplicationSlots:
        made = self.cell.server.slots
        if made is None:
            raise self.failure("was not started to have its writes watched")
        return made

    def begin(self) -> None:
        """Watch from now on. Nobody may be at work in the database. Raises psycopg.Error, ServiceError."""
        self.close()
        self._seen = self._rows = None
        with self._admin() as admin:
            if self._before is not None:
                definition_log.remove(admin, self._schema)
            looked = definition_log.read_objects(admin)
            unlogged = [one for one in looked.relations.values() if comparison.is_unlogged(one)]
            if unlogged:
                self.cell.grant_reading(admin)
        with self._reader() if unlogged else self._admin() as session:
            tables = comparison.look_at_tables(session, comparison.is_unlogged)
        with self._admin() as admin:
            objects = comparison.look_at_objects(admin)
            texts = comparison.look_at_texts(admin)
            self._before = _Before(definition_log.read_objects(admin), objects, tables, self._state(), texts)
            admin.execute("SET synchronous_commit = on")
            definition_log.install(admin, self._schema)
            self._refuse_unwatched(definition_log.read_entries(admin, self._schema))
            self._slot = self._slots.make(admin)
            self._mark(admin, "begin")

    def end(self) -> None:
        """The agent's sessions are over: find what it wrote, and leave its database as it would be without us. Raises
        psycopg.Error; ServiceError, also where the agent made a table that can't be watched: what is known by then is
        told by `writes` and `texts` all the same."""
        if self._before is None:
            return
        before, self._before = self._before, None
        state = self._state()
        self.cell.restore_access()
        self._await_end_of_sessions()
        with self._admin() as admin:
            admin.execute("SET synchronous_commit = on")
            self._mark(admin, "end")
            until = _one(admin, "SELECT pg_current_wal_lsn()::text")
            entries = definition_log.read_entries(admin, self._schema)
            now = definition_log.read_objects(admin)
            writes = comparison.objects_written(admin, before.objects, self.service)
            definition_log.remove(admin, self._schema)
        found = definition_log.definitions_written(entries, before.definitions, now, self.service)
        if state != before.state:
            table = self.cell.database
            writes.append(TableWrite(self.service, table, "change", None, "comparison", what="settings"))
        # Rows that were written while their table was unlogged are in no log, also where it is logged again.
        for_a_while = {entry.oid for entry in entries if not entry.is_logged}
        unlogged = replace(
            before.unlogged,
            wanted=lambda one: comparison.is_unlogged(one) or (comparison.is_table(one) and one.oid in for_a_while),
        )
        compares = any(map(unlogged.wanted, now.relations.values()))
        if compares:
            with self._admin() as admin:
                self.cell.grant_reading(admin)
            with self._reader() as reader:
                writes += _of_rows(comparison.tables_written(reader, before.unlogged, self.service))
        partitions = definition_log.row_names(entries, before.definitions)
        without_log = unlogged if compares else None
        self._seen = _Seen(until, partitions, [*found, *writes], before.objects, without_log, before.texts)
        self._refuse_unwatched(entries)

    def close(self) -> None:
        """The server need not keep its log for this any more. Raises psycopg.Error."""
        slot, self._slot = self._slot, ""
        if slot:
            with self.cell.server.admin() as admin:
                drop_slot(admin, slot)

    def writes(self) -> list[TableWrite]:
        """See WriteLog."""
        with self._as_service_error():
            if self._rows is None:
                self._rows = self._count_rows()
            logged = [*self._rows, *(one for one in self._whole.writes if one.ts)]
            compared = [one for one in self._whole.writes if not one.ts]
            return [*sorted(logged, key=lambda one: one.ts), *compared]

    def texts(self) -> Iterator[tuple[str, str]]:
        """See WriteLog. Reads the log once more."""
        with self._as_service_error():
            names = self._whole.partitions
            for change in self._changes(values_of=None):
                if isinstance(change, RowChange):
                    table = f"{change.schema}.{change.table}"
                    yield from ((names.get(table, table), value) for value in change.values)
            if self._whole.unlogged is not None:
                with self._reader() as reader:
                    yield from comparison.values_written(reader, self._whole.unlogged)
            with self._admin() as admin:
                yield from comparison.large_objects_written(admin, self._whole.objects)
                yield from comparison.texts_defined(admin, self._whole.texts)

    @property
    def _whole(self) -> _Seen:
        if self._seen is None:
            raise self.failure("was not watched to the end of the agent")
        return self._seen

    def _count_rows(self) -> list[TableWrite]:
        names = self._whole.partitions
        counts: dict[tuple[str, str], int] = {}
        since: dict[tuple[str, str], str] = {}
        for change in self._changes(values_of=self._schema):
            if isinstance(change, Commit):
                if len(since) < len(counts):
                    since.update(dict.fromkeys(counts.keys() - since.keys(), change.at))
                continue
            table = f"{change.schema}.{change.table}"
            key = (names.get(table, table), change.operation)
            counts[key] = counts.get(key, 0) + 1
        return [
            TableWrite(self.service, table, operation, None if operation == "truncate" else rows, "log", since[key])
            for key, rows in counts.items()
            for table, operation in (key,)
        ]

    def _changes(self, *, values_of: str | None) -> Iterator[RowChange | Commit]:
        """Those between our two marks; ours left out. values_of: see `read_changes`. Raises ServiceError where a mark
        is missing: then the server's log is not whole."""
        marks = iter(("begin", "end"))
        expected = next(marks)
        with self._admin() as admin:
            # Looked at and not taken: the values are read after the tables, from the same place.
            for change in read_changes(admin, self._slot, self._whole.until, self._schema, values_of=values_of):
                if isinstance(change, RowChange) and change.schema == self._schema:
                    if change.table == "marks" and any(f"{expected} {self._slot}" in one for one in change.values):
                        expected = next(marks, "")
                elif expected == "end":
                    yield change
        if expected:
            raise self.failure(f"has no whole record of what was written: its mark of the {expected} is missing")

    def _await_end_of_sessions(self) -> None:
        """What a session that was told to end commits meanwhile must stand before our mark."""
        until = time.monotonic() + _END_SECONDS
        with self.cell.server.admin() as admin:
            while int(_one(admin, _SESSIONS, {"database": self.cell.database, "owner": self.cell.owner})):
                if time.monotonic() > until:
                    raise self.failure(f"has sessions of the agent that did not end in {_END_SECONDS} s")
                time.sleep(_POLL_SECONDS)

    def _mark(self, admin: psycopg.Connection[Any], word: str) -> None:
        admin.execute(f"INSERT INTO {self._schema}.marks VALUES (%s)".encode(), (f"{word} {self._slot}",))  # noqa: S608

    def _refuse_unwatched(self, entries: list[definition_log.DefinitionEntry]) -> None:
        for entry in entries:
            if entry.tag == definition_log.UNWATCHED:
                raise self.failure(
                    f"can't watch the table {entry.name}: it has a virtual generated column and no primary key; give it"
                    " a key, or make the column STORED"
                )

    def _state(self) -> tuple[Any, ...]:
        with self.cell.server.admin() as admin:
            row = admin.execute(_STATE.encode(), {"database": self.cell.database, "owner": self.cell.owner}).fetchone()
        return row or ()

    def _admin(self) -> Any:
        return self.cell.server.admin(self.cell.database)

    @contextmanager
    def _reader(self) -> Iterator[psycopg.Connection[Any]]:
        """A session that may only read: tables of an agent can hold functions of its own, in indexes for one."""
        import psycopg

        cell = self.cell
        with psycopg.connect(
            **cell.server.address(cell.reader, cell.reader_password, cell.database),
            options=session_options(_READING),
            autocommit=True,
            application_name="keystone",
        ) as session:
            yield session

    @contextmanager
    def _as_service_error(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except (psycopg.Error, ValueError) as error:
            raise self.failure(f"can't say what was written into it: {one_line(error)}") from None


def _of_rows(writes: list[TableWrite]) -> list[TableWrite]:
    """Without tables that came, went or got another name: statements say that."""
    return [one for one in writes if one.operation not in ("create", "drop", "alter")]


def _one(session: psycopg.Connection[Any], query: str, values: dict[str, str] | None = None) -> str:
    row = session.execute(query.encode(), values).fetchone()
    assert row is not None
    return str(row[0])
