"""The audit log of a cell: one JSON line for each thing that happened, written only by us (spec 5.3, `custom`).

The lines of `http_call` have exactly the keys that the source document's `validate_api_responses.py` reads:
`{"ts", "type": "http_call", "details": {"service", "method", "url", "request_body", "status", "response_body"}}`; where
not all of the request's body was kept, `request_body_cut` says how many bytes are missing.
"""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keystone_action.errors import OutputError
from keystone_action.evidence.model import RecordedCall, RecordedRequest

_dumps = json.JSONEncoder(check_circular=False, allow_nan=False).encode
"""ASCII only: no line ever holds a character that some reader takes for the end of it."""


def _line(document: object) -> bytes:
    """It is JSON whatever somebody sent: a number that JSON does not have is written as its name, in quotes."""
    try:
        text = _dumps(document)
    except ValueError:
        text = _dumps(json.loads(json.dumps(document), parse_constant=str))
    return text.encode("ascii") + b"\n"


def now() -> str:
    """The time in UTC as ISO 8601 with microseconds, as evidence has it."""
    return shown_time(datetime.now(UTC))


def shown_time(moment: datetime) -> str:
    """A moment in UTC in that form."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class LineFile:
    """A file that grows by whole lines. It is the file's only writer: what can't be written whole is taken back, and
    nobody else's line must be behind it. `append` may be called from any thread. Raises OSError on opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def append(self, document: object) -> int:
        """One line, with the kernel when this returns; its bytes. Raises OSError when it can't be written whole."""
        line = _line(document)
        with self._lock:
            written = os.write(self._descriptor, line)
            try:
                while written < len(line):  # a full disk says so at the second try
                    written += os.write(self._descriptor, line[written:])
            except OSError:
                # Half a line would spoil the next one.
                os.ftruncate(self._descriptor, os.lseek(self._descriptor, 0, os.SEEK_CUR) - written)
                raise
        return written

    def close(self) -> None:
        """Harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class TurnTimes:
    """When the turns of a cell's conversation were; none in a cell without turns. Nothing of a turn runs when the next
    one begins, so a moment says which turn it belongs to."""

    def __init__(self) -> None:
        self._starts: list[str] = []
        self._end = ""

    def begin(self) -> None:
        """The next turn begins now."""
        self._starts.append(now())

    def end(self) -> None:
        """The conversation is over."""
        self._end = now()

    def at(self, ts: str) -> int | None:
        """The turn, counted from 1, that a moment belongs to; None before, after and without a conversation."""
        if not ts or (self._end and ts > self._end):
            return None
        return bisect_right(self._starts, ts) or None


class AuditLog:
    """A cell's `audit.jsonl`: the one object that writes it, for all that observe the cell."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.turns = TurnTimes()
        self._file = LineFile(path)

    def write(self, event: str, details: dict[str, Any], *, ts: str, turn: int | None = None) -> int:
        """A line, with its turn, or that which its moment belongs to, where there are turns. Returns its bytes. Raises
        OSError."""
        turn = turn or self.turns.at(ts)
        counted = {} if turn is None else {"turn": turn}
        return self._file.append({"ts": ts, "type": event, **counted, "details": details})

    def http_call(self, request: RecordedRequest) -> int:
        """A request that a mock answered; returns the bytes of its line. Raises OSError."""
        details = {
            "service": request.service,
            "method": request.method,
            "url": request.url,
            "request_body": request.body,
            "status": request.status,
            "response_body": request.response_body,
        }
        if request.cut:
            details["request_body_cut"] = request.cut
        return self.write("http_call", details, ts=request.ts)

    def mcp_call(self, call: RecordedCall) -> int:
        """A call of a tool that an mcp_mock answers; returns the bytes of its line. Raises OSError."""
        details = {
            "service": call.service,
            "tool": call.tool,
            "arguments": call.arguments,
            "result": call.result,
            "is_error": call.is_error,
        }
        return self.write("mcp_call", details, ts=call.ts)

    def close(self) -> None:
        """Harmless when repeated."""
        self._file.close()

    def size(self) -> int:
        """Bytes that are in it by now. Raises OSError."""
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One line as it is read back."""

    ts: str
    type: str
    details: dict[str, Any]
    turn: int | None = None
    """Of the conversation; None where there is none."""


def read_audit_log(path: Path, start: int = 0) -> Iterator[AuditLine]:
    """The lines of an audit log from a place in it, one at a time. Raises OutputError."""
    try:
        with path.open("rb") as lines:
            lines.seek(start)
            for line in lines:
                yield AuditLine(**json.loads(line))
    except (OSError, ValueError, TypeError) as error:
        raise OutputError(f"the audit log {path} can't be read: {error}") from error
