"""The journal of recorded requests: one JSON line each, written before the reply is sent, read back one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import overload

from keystone_action.errors import OutputError
from keystone_action.evidence.audit import LineFile
from keystone_action.evidence.model import RecordedRequest

_FIELDS = RecordedRequest.__slots__
_values = attrgetter(*_FIELDS)


class RequestJournal:
    """Appends requests to `<service>.requests.jsonl`."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = LineFile(path)

    def append(self, request: RecordedRequest) -> int:
        """With the kernel when this returns: it outlives us. Returns its bytes. Raises OSError."""
        return self._file.append(dict(zip(_FIELDS, _values(request), strict=True)))

    def close(self) -> None:
        """Harmless when repeated."""
        self._file.close()


class JournalRequests(Sequence[RecordedRequest]):
    """The requests of a journal as they were when this was made; each is read when it is asked for.

    Only where each line starts is held in memory: bodies may have 16 MiB each. A line that is not complete (we were
    ended while writing it) was never answered and is left out.
    """

    def __init__(self, path: Path) -> None:
        """A journal that isn't there has no requests. Raises OutputError when it can't be read."""
        self._path = path
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
    def __getitem__(self, index: int) -> RecordedRequest: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordedRequest]: ...
    def __getitem__(self, index: int | slice) -> RecordedRequest | list[RecordedRequest]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        start = self._starts[index]
        try:
            with self._path.open("rb") as lines:
                lines.seek(start)
                return _parse(lines.readline())
        except (OSError, ValueError, TypeError) as error:
            raise _unreadable(self._path, error) from error

    def __iter__(self) -> Iterator[RecordedRequest]:
        if not self._starts:
            return
        try:
            with self._path.open("rb") as lines:
                for _ in self._starts:
                    yield _parse(lines.readline())
        except (OSError, ValueError, TypeError) as error:
            raise _unreadable(self._path, error) from error


class JournalLog:
    """A `RequestLog` over a journal on disk.

    before_reading: called first; waits until what clients have already sent has been written, and raises OutputError
    when something could not be recorded.
    """

    def __init__(self, path: Path, before_reading: Callable[[], None] | None = None) -> None:
        self.path = path
        self._before_reading = before_reading

    def requests(self) -> JournalRequests:
        """In the order they came in. Raises OutputError when the record is incomplete or unreadable."""
        if self._before_reading is not None:
            self._before_reading()
        return JournalRequests(self.path)


def _parse(line: bytes) -> RecordedRequest:
    return RecordedRequest(**json.loads(line))


def _unreadable(path: Path, error: Exception) -> OutputError:
    return OutputError(f"the record of requests in {path} can't be read: {error}")
