"""Calls of tools that an mcp_mock recorded: their journal, their fields, and the filters that choose among them.

The journal has one JSON line for each call, written before the answer is sent. Fields of `mcp_assertions` (spec 1.7):

    call_count
    last_call[.tool | .arguments[.a["b.c"][0]] | .result[.a[0]] | .is_error]
    calls[N][…the same…]

`result` is the text of the answer; with a path it is read as JSON. In `filters`, `tool` is the tool's name, `arguments`
maps paths in the arguments to values, and `is_error` is true or false. A JSON list matches if any of its elements does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from keystone_action.evidence.journal import JournalRecords, RecordJournal
from keystone_action.evidence.model import RecordedCall
from keystone_action.evidence.requests import (
    Equal,
    Field,
    Filter,
    Missing,
    descend,
    parse_path,
    parse_steps,
    value_holds,
)

PARTS = ("tool", "arguments", "result", "is_error")
FILTERS = ("tool", "arguments", "is_error")
"""The keys of `filters`; there are no others."""
_CALL = re.compile(r"last_call|calls\[(?P<index>\d{1,9})\]")


def open_call_journal(path: Path) -> RecordJournal[RecordedCall]:
    """Where calls are written down. Raises OSError."""
    return RecordJournal(path, RecordedCall)


class JournaledCalls:
    """A `CallLog` over a journal on disk."""

    def __init__(self, path: Path, before_reading: Callable[[], None]) -> None:
        """before_reading: called before each reading; waits until everything that clients have sent is written, and
        raises OutputError when something could not be recorded."""
        self.path = path
        self._before_reading = before_reading

    def calls(self) -> JournalRecords[RecordedCall]:
        """In the order of the answers. Raises OutputError when the record is incomplete or unreadable."""
        self._before_reading()
        return JournalRecords(self.path, RecordedCall)


def parse_call_field(text: str) -> Field:
    """Raises ValueError with a sentence that says what was expected."""
    if text == "call_count":
        return Field(text, "count")
    head = _CALL.match(text)
    if head is None:
        raise ValueError(f"expected call_count, last_call… or calls[N]…, found {text!r}")
    call: Literal["last"] | int = "last" if head["index"] is None else int(head["index"])
    rest = text[head.end() :]
    if not rest:
        return Field(text, call)
    part = re.match(r"\.([a-z_]+)(?![^.\[])", rest)
    if part is None or part[1] not in PARTS:
        raise ValueError(f"expected one of .{', .'.join(PARTS)} after {head[0]!r}, found {rest!r}")
    below = rest[part.end() :]
    if below and part[1] in ("tool", "is_error"):
        raise ValueError(f"expected nothing after .{part[1]} in {text!r}, found {below!r}")
    return Field(text, call, part[1], parse_steps(below, text))


def is_typed(field: Field) -> bool:
    """Whether a field's values have types of their own; a tool's name and the text of an answer are text."""
    return field.part in ("arguments", "is_error") or (field.part == "result" and bool(field.steps))


def read_call_field(field: Field, calls: Sequence[RecordedCall]) -> Any | Missing:
    """The value of a field among these calls (already filtered), or Missing."""
    if field.request == "count":
        return len(calls)
    index = len(calls) - 1 if field.request == "last" else field.request
    if not 0 <= index < len(calls):
        made = "1 call was" if len(calls) == 1 else f"{len(calls) or 'no'} calls were"
        return Missing(f"there is no {field.text.partition('.')[0]}: {made} recorded")
    call = calls[index]
    if field.part is None:
        return {name: getattr(call, name) for name in PARTS}
    value = getattr(call, field.part)
    if field.part == "result" and field.steps:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return Missing("the call's result is not JSON")
    return descend(value, field.steps, field.part)


def compile_call_filters(filters: Mapping[str, Any], equal: Equal) -> tuple[Filter, ...]:
    """equal: how a value of the arguments is compared with the spec's. Raises ValueError with a sentence."""
    return tuple(one for name, wanted in filters.items() for one in _compile(name, wanted, equal))


def _compile(name: str, wanted: Any, equal: Equal) -> Iterator[Filter]:
    if name == "tool":
        if not isinstance(wanted, str):
            raise ValueError(f"expected the name of a tool for the filter tool, found {wanted!r}")
        yield Filter(name, wanted, lambda call: call.tool, lambda found: found == wanted)
    elif name == "is_error":
        if not isinstance(wanted, bool):
            raise ValueError(f"expected true or false for the filter is_error, found {wanted!r}")
        yield Filter(name, wanted, lambda call: call.is_error, lambda found: found == wanted)
    elif name == "arguments":
        if not isinstance(wanted, Mapping):
            raise ValueError(f"expected a mapping of paths to values for the filter arguments, found {wanted!r}")
        for path, value in wanted.items():
            find = partial(_find, parse_path(path))
            yield Filter(f"arguments.{path}", value, find, partial(value_holds, value, equal=equal))
    else:
        raise ValueError(f"expected one of {', '.join(FILTERS)} as a filter, found {name!r}")


def _find(steps: tuple[str | int, ...], call: RecordedCall) -> Any | Missing:
    return descend(call.arguments, steps, "arguments")
