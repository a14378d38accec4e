"""Two looks at a database, and the writes that they come to."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from keystone_action.errors import ServiceError
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.compared_rows import added_at_once, difference, digest, keep_digests, new_key
from keystone_action.services.service import one_line

NET_CHANGES = "it compares what stood before the agent with what stands after it: what was undone again is not seen"


class Thing(NamedTuple):
    """Something in a database. what: `table`, `view` …; name: as people write it, for a trigger its table's."""

    what: str
    name: str


class Look(Protocol):
    """An open view of a database at one time; what it raises is named to `ComparedDatabase`."""

    def definitions(self) -> Mapping[Thing, str]:
        """All that stands there, each with a text that changes when it is defined otherwise."""

    def tables(self) -> Mapping[Thing, str]:
        """Those of them whose rows are compared, each with a text of which columns its rows have."""

    def refuse(self) -> None:
        """Raises ServiceError where something stands there into which an agent could write unseen."""

    def rows(self, table: Thing) -> Iterator[bytes]:
        """Each of its rows, equal ones as often as they are there. Not all are in memory."""

    def text_of(self, table: Thing, row: bytes) -> str:
        """The values of a row of the table whose rows are being read."""


@dataclass(frozen=True)
class _Kept:
    """What is kept of a look: texts as hashes, rows of tables as files of hashes."""

    definitions: Mapping[Thing, bytes]
    columns: Mapping[Thing, bytes]
    files: Mapping[Thing, Path]
    counts: Mapping[Thing, int]


@dataclass
class ComparedDatabase:
    """A `WriteLog`. look: opens one. errors: what its client raises, and OSError. directory: of ours, for hashes."""

    service: str
    look: Callable[[], AbstractContextManager[Look]]
    errors: tuple[type[Exception], ...]
    directory: Path
    not_seen: Sequence[str] = (NET_CHANGES,)
    _key: bytes = field(default_factory=new_key)
    _before: _Kept | None = None
    _writes: tuple[TableWrite, ...] | None = None
    _added: dict[Thing, Path] = field(default_factory=dict)

    def seal(self) -> None:
        """What stands now stood before the agent. Blocking. Raises ServiceError."""
        self._writes, self._before = None, self._keep(before=True)

    def settle(self) -> None:
        """What stands now is what the agent left. Blocking. Raises ServiceError."""
        after = self._keep()
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
        try:
            for thing, path in self._added.items():
                for wanted in added_at_once(str(path)):
                    yield from self._texts(thing, wanted)
        except self.errors as error:
            raise self._unreadable(error) from None

    def _texts(self, table: Thing, wanted: dict[bytes, int]) -> Iterator[tuple[str, str]]:
        """Those of the rows whose hashes are wanted."""
        with self.look() as look:
            look.tables()
            for row in look.rows(table):
                hashed = digest(row, self._key)
                if left := wanted.get(hashed):
                    wanted[hashed] = left - 1
                    yield table.name, look.text_of(table, row)
        if any(wanted.values()):
            raise ServiceError(f"service {self.service}: {table.name} changed while what was written was read")

    def _keep(self, *, before: bool = False) -> _Kept:
        try:
            with self.look() as look:
                if before:
                    look.refuse()
                definitions = {thing: digest(_encode(text), self._key) for thing, text in look.definitions().items()}
                columns = {thing: digest(_encode(text), self._key) for thing, text in look.tables().items()}
                self.directory.mkdir(mode=0o700, exist_ok=True)
                files = {thing: self._new_file() for thing in columns}
                counts = {thing: keep_digests(look.rows(thing), str(files[thing]), self._key) for thing in columns}
            return _Kept(definitions, columns, files, counts)
        except self.errors as error:
            raise self._unreadable(error) from None

    def _compare(self, before: _Kept, after: _Kept) -> Iterator[TableWrite]:
        self._added = {}
        for thing in sorted({*before.definitions, *after.definitions}):
            was, now = before.definitions.get(thing), after.definitions.get(thing)
            table = Thing("table", thing.name)
            if thing.what == "trigger" and (table in before.definitions) != (table in after.definitions):
                continue  # it came, or went, with its table
            if was != now:
                yield self._write(thing, "create" if was is None else "drop" if now is None else "alter", None)
            if thing in after.columns:
                yield from self._row_writes(thing, before, after)
            elif thing in before.columns and was == now:
                # Its rows are no longer looked at, though it is what it was: a sequence that numbers other rows now.
                yield self._write(thing, "change", None)

    def _row_writes(self, table: Thing, before: _Kept, after: _Kept) -> Iterator[TableWrite]:
        if before.columns.get(table) != after.columns[table]:
            # No row can be compared with one of other columns: all that are there now may be new.
            self._added[table] = after.files[table]
            if table not in before.columns and after.counts[table]:
                yield self._write(table, "insert", after.counts[table])
            return
        found = difference(str(before.files[table]), str(after.files[table]), str(self._new_file()))
        if found.added:
            self._added[table] = Path(found.added_path)
        if found.added and found.removed:
            yield self._write(table, "change", max(found.added, found.removed))
        elif found.added or found.removed:
            yield self._write(table, "insert" if found.added else "delete", found.added or found.removed)

    def _write(self, thing: Thing, operation: str, rows: int | None) -> TableWrite:
        return TableWrite(self.service, thing.name, operation, rows, "comparison", what=thing.what)

    def _new_file(self) -> Path:
        return self.directory / secrets.token_hex(8)

    def _unreadable(self, error: Exception) -> ServiceError:
        return ServiceError(
            f"service {self.service}: what is written into it can't be told: {one_line(error)}",
            help="Give the user that the service is reached as the right to read all its tables.",
        )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
