"""What was written into a database, by what stood there before the agent and what stands there after it.

Of definitions hashes are kept, and of each table a file with a hash of every row (`compared_rows`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from keystone_action.errors import ServiceError
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.compared_rows import added_at_once, digest, keep_digests, new_key, row_difference
from keystone_action.services.service import one_line

NET_CHANGES = "it compares what stood before the agent with what stands after it: what was undone again is not seen"


class TableUnreadableError(RuntimeError):
    """The database is there and says that a table's rows can't be read, because of what was done to the table."""


class DatabaseObject(NamedTuple):
    """Something that stands in a database."""

    what: str
    """`table`, `view` …"""
    name: str
    """As people write it; a trigger has the name of its table."""


class DatabaseView(Protocol):
    """An open view of a database at one time; what it raises is named to `ComparedDatabase`."""

    def definitions(self) -> Mapping[DatabaseObject, str]:
        """All that stands there, each with a text that changes when it is defined otherwise."""

    def tables(self) -> Mapping[DatabaseObject, str]:
        """Those of them whose rows are compared, each with a text of which columns its rows have."""

    def refuse(self) -> None:
        """Raises ServiceError where something stands there into which an agent could write unseen."""

    def rows(self, table: DatabaseObject) -> Iterator[bytes]:
        """Each of its rows, equal ones as often as they are there. Not all are in memory.
        Raises TableUnreadableError."""

    def text_of(self, table: DatabaseObject, row: bytes) -> str:
        """The values of a row of the table whose rows are being read."""


@dataclass(frozen=True)
class _Kept:
    """What is kept of a database at one time."""

    definitions: Mapping[DatabaseObject, bytes]
    """The hash of each definition."""
    columns: Mapping[DatabaseObject, bytes]
    """The hash of each table's columns."""
    files: Mapping[DatabaseObject, Path]
    """The hashes of each table's rows."""
    counts: Mapping[DatabaseObject, int]
    """How many rows each table has."""
    unreadable: Collection[DatabaseObject]
    """Tables whose rows can't be read."""


@dataclass
class ComparedDatabase:
    """A `WriteLog`."""

    service: str
    open_view: Callable[[], AbstractContextManager[DatabaseView]]
    errors: tuple[type[Exception], ...]
    """What `open_view` and the view raise, and OSError."""
    directory: Path
    """Of ours, for files of hashes; made when it is needed."""
    not_seen: Sequence[str] = (NET_CHANGES,)
    _key: bytes = field(default_factory=new_key)
    _before: _Kept | None = None
    _writes: tuple[TableWrite, ...] | None = None
    _added: dict[DatabaseObject, Path] = field(default_factory=dict)
    _unreadable_tables: Collection[DatabaseObject] = ()

    def seal(self) -> None:
        """What stands now stood before the agent. Blocking. Raises ServiceError."""
        self._writes, self._before = None, self._keep(before=True)

    def settle(self) -> None:
        """What stands now is what the agent left. Blocking. Raises ServiceError."""
        after = self._keep()
        self._unreadable_tables = after.unreadable
        if self._before is None:
            raise ServiceError(f"service {self.service}: what stood in it before the agent was never looked at")
        try:
            self._writes = tuple(self._compare(self._before, after))
        except OSError as error:
            raise self._unreadable(error) from None

    def writes(self) -> Sequence[TableWrite]:
        """See WriteLog."""
        if self._writes is None:
            raise ServiceError(f"service {self.service}: what stands in it after the agent was not looked at yet")
        return self._writes

    def texts(self) -> Iterator[tuple[str, str]]:
        """See WriteLog. Reads the tables with new rows once more; to be called before anything else writes there."""
        self.writes()
        if self._unreadable_tables:
            names = ", ".join(sorted(one.name for one in self._unreadable_tables))
            raise ServiceError(f"service {self.service}: the agent made the rows of {names} unreadable")
        try:
            for one, path in self._added.items():
                for wanted in added_at_once(str(path)):
                    yield from self._texts(one, wanted)
        except self.errors as error:
            raise self._unreadable(error) from None

    def _texts(self, table: DatabaseObject, wanted: dict[bytes, int]) -> Iterator[tuple[str, str]]:
        """Those of the rows whose hashes are wanted."""
        with self.open_view() as view:
            view.tables()
            for row in view.rows(table):
                hashed = digest(row, self._key)
                if left := wanted.get(hashed):
                    wanted[hashed] = left - 1
                    yield table.name, view.text_of(table, row)
        if any(wanted.values()):
            raise ServiceError(f"service {self.service}: {table.name} changed while what was written was read")

    def _keep(self, *, before: bool = False) -> _Kept:
        try:
            with self.open_view() as view:
                if before:
                    view.refuse()
                definitions = {one: digest(_encode(text), self._key) for one, text in view.definitions().items()}
                columns = {one: digest(_encode(text), self._key) for one, text in view.tables().items()}
                self.directory.mkdir(mode=0o700, exist_ok=True)
                files = {one: self._new_file() for one in columns}
                counts, unreadable = dict[DatabaseObject, int](), set[DatabaseObject]()
                for one, file in files.items():
                    try:
                        counts[one] = keep_digests(view.rows(one), str(file), self._key)
                    except TableUnreadableError:
                        if before:
                            raise
                        unreadable.add(one)
            return _Kept(definitions, columns, files, counts, unreadable)
        except self.errors as error:
            raise self._unreadable(error) from None

    def _compare(self, before: _Kept, after: _Kept) -> Iterator[TableWrite]:
        self._added = {}
        for one in sorted({*before.definitions, *after.definitions}):
            was, now = before.definitions.get(one), after.definitions.get(one)
            table = DatabaseObject("table", one.name)
            if one.what == "trigger" and (table in before.definitions) != (table in after.definitions):
                continue  # it came, or went, with its table
            if was != now:
                yield self._write(one, "create" if was is None else "drop" if now is None else "alter", None)
            if one in after.unreadable:
                yield self._write(one, "change", None)  # it could be read before the agent, or the agent made it
            elif one in after.columns:
                yield from self._row_writes(one, before, after)
            elif one in before.columns and was == now:
                # Its rows are no longer looked at, though it is what it was: a sequence that numbers other rows now.
                yield self._write(one, "change", None)

    def _row_writes(self, table: DatabaseObject, before: _Kept, after: _Kept) -> Iterator[TableWrite]:
        if before.columns.get(table) != after.columns[table]:
            # No row can be compared with one of other columns: all that are there now may be new.
            self._added[table] = after.files[table]
            if table not in before.columns and after.counts[table]:
                yield self._write(table, "insert", after.counts[table])
            return
        found = row_difference(str(before.files[table]), str(after.files[table]), str(self._new_file()))
        if found.added:
            self._added[table] = Path(found.added_path)
        if found.added and found.removed:
            yield self._write(table, "change", max(found.added, found.removed))
        elif found.added or found.removed:
            yield self._write(table, "insert" if found.added else "delete", found.added or found.removed)

    def _write(self, one: DatabaseObject, operation: str, rows: int | None) -> TableWrite:
        return TableWrite(self.service, one.name, operation, rows, "comparison", what=one.what)

    def _new_file(self) -> Path:
        return self.directory / secrets.token_hex(8)

    def _unreadable(self, error: Exception) -> ServiceError:
        return ServiceError(
            f"service {self.service}: what is written into it can't be told: {one_line(error)}",
            help="Give the user that the service is reached as the right to read all its tables.",
        )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
