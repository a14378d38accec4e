"""Journals of what a mock recorded: one JSON line for each record, written before the answer is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from keystone_action.errors import OutputError
from keystone_action.evidence.audit import LineFile

Record = TypeVar("Record")


class RecordJournal(Generic[Record]):
    """Appends records of one kind, a frozen dataclass with slots, to a file."""

    def __init__(self, path: Path, kind: type[Record]) -> None:
        """Raises OSError."""
        self._file = LineFile(path)
        self._fields: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]
        self._values: Callable[[Record], tuple[Any, ...]] = attrgetter(*self._fields)

    def append(self, record: Record) -> int:
        """Append one record and return its bytes. The kernel has the line when this returns, so it survives the end of
        this process. Raises OSError."""
        return self._file.append(dict(zip(self._fields, self._values(record), strict=True)))

    def close(self) -> None:
        """Harmless when repeated."""
        self._file.close()


class JournalRecords(Sequence[Record]):
    """The records of a journal as they were when this was made; each is read when it is asked for.

    Only where each line starts is held in memory: bodies may have 16 MiB each. A line that is not complete (we were
    ended while writing it) was never answered and is left out.
    """

    def __init__(self, path: Path, kind: type[Record]) -> None:
        """A journal that isn't there has no records. Raises OutputError when it can't be read."""
        self._path, self._kind = path, kind
        self._starts: list[int] = []
        try:
            with path.open("rb") as lines:
                position = 0
                for line in lines:
                    if line.endswith(b"\n"):
                        self._starts.append(position)
                    position += len(line)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unreadable(path, error) from error

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        start = self._starts[index]
        try:
            with self._path.open("rb") as lines:
                lines.seek(start)
                return self._parse(lines.readline())
        except (OSError, ValueError, TypeError) as error:
            raise _unreadable(self._path, error) from error

    def __iter__(self) -> Iterator[Record]:
        if not self._starts:
            return
        try:
            with self._path.open("rb") as lines:
                for _ in self._starts:
                    yield self._parse(lines.readline())
        except (OSError, ValueError, TypeError) as error:
            raise _unreadable(self._path, error) from error

    def _parse(self, line: bytes) -> Record:
        return self._kind(**json.loads(line))


def _unreadable(path: Path, error: Exception) -> OutputError:
    return OutputError(f"the record of requests in {path} can't be read: {error}")
