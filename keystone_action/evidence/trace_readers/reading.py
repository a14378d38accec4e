"""From a transcript in one of the known formats, or from an agent's result, to a `Trace`.

A transcript is read as a stream of JSON objects, one a line, in bounded memory. AgenticAssure's `AgentResult` has tool
calls, but says nothing of their place among other events, and tokens where the agent counted them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from keystone_action.evidence.agent_run import AgentRun, TooMuchPrinted
from keystone_action.evidence.trace import AGENT_RESULT, Trace, Usage
from keystone_action.evidence.trace_readers.builder import (
    MalformedTrace,
    TraceBuilder,
    TraceReader,
    amount,
    as_arguments,
    as_text,
    event_time,
    text,
    token_count,
)
from keystone_action.spec.limits import MOST_COUNTED
from keystone_action.spec.named_classes import class_of_file

LINE_LIMIT = 8 << 20
"""Bytes of one line that are read; a longer one is skipped."""
LINES_LIMIT = 2_000_000
"""Lines, and entries of lists in them, that are read: what half a gigabyte can hold of the shortest takes an hour."""
_SKIPPED = 1 << 16

Count = Callable[[str], None]


class TooManyLines(Exception):  # noqa: N818 - what a transcript has, not an error of ours
    """A transcript has more than LINES_LIMIT lines."""


def objects_of(file: BinaryIO, count: Count) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Pairs of the line's number and an object on it. Lines that hold anything else are skipped and counted; blank
    lines are ignored.

    A list of objects is read as its objects, and a file that is one JSON document over several lines as that.
    `file` can be sought in. Raises TooManyLines.
    """
    document = _document(file)
    if document is not None:
        yield from _objects(1, _as_list(document), count)
        return
    number = entries = 0
    while line := file.readline(LINE_LIMIT + 1):
        number += 1
        values: list[Any] = []
        if len(line) > LINE_LIMIT and not line.endswith(b"\n"):
            _skip(file)
            count(f"longer than {LINE_LIMIT >> 20} MiB")
        elif stripped := line.strip():
            values = _values(stripped, count, last=not line.endswith(b"\n"))
        entries += max(1, len(values))
        if entries > LINES_LIMIT:
            raise TooManyLines(f"more than {LINES_LIMIT:,} lines and entries of lists")
        yield from _objects(number, values, count)


def _document(file: BinaryIO) -> Any:
    """The file as one JSON document, None when it is not one; leaves the file at its start then."""
    first = file.readline(LINE_LIMIT + 1).strip()
    document = None
    # Only what can be no line of its own is worth a look: an object or list that goes on in the next line.
    if first.removeprefix(b"\xef\xbb\xbf")[:1] in (b"{", b"[") and first[-1:] not in (b"}", b"]"):
        file.seek(0)
        data = file.read(LINE_LIMIT + 1)
        try:
            document = json.loads(data) if len(data) <= LINE_LIMIT else None
        except (ValueError, RecursionError):
            document = None
    file.seek(0)
    return document


def _skip(file: BinaryIO) -> None:
    while (rest := file.readline(_SKIPPED)) and not rest.endswith(b"\n"):
        pass


def _values(line: bytes, count: Count, *, last: bool) -> list[Any]:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        count("with bytes that are not UTF-8")
        text = line.decode("utf-8", "replace")
    try:
        return _as_list(json.loads(text))
    except RecursionError:
        count("nested too deep")
    except ValueError:
        count("that is only half written, the last one" if last else "that is not JSON")
    return []


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _objects(number: int, values: list[Any], count: Count) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for one in values:
        if isinstance(one, dict):
            yield number, one
        else:
            count("or entry that is not a JSON object")


def reader_of(source: str) -> type[TraceReader]:
    """The class in the file of a format (`TraceFormat` of the spec), which has its name."""
    return class_of_file(f"{__package__}.{source}", TraceReader)  # type: ignore[type-abstract]


def read_trace(file: BinaryIO, source: str, what: str) -> Trace:
    """Read `file` to its end. source: a `TraceFormat`. what: the transcript's name in sentences.

    What can't be counted with is a trace with a `problem` and nothing else: senseless numbers, more entries than fit,
    nothing that this format has. Raises OSError of the file.
    """
    builder = TraceBuilder(source)
    reader = reader_of(source)(builder)
    number = events = 0
    try:
        for number, event in objects_of(file, builder.skip_line):  # noqa: B007 - told in the sentence below
            events += 1
            builder.ts = event_time(event)
            if reader.event(event):
                builder.understood += 1
            else:
                builder.skip_event(event.get("type", event.get("event_type")))
        if builder.understood:
            reader.finish()
            _count(builder.usage)
    except MalformedTrace as malformed:
        where = f"line {number}: " if events else ""
        return _useless(builder, f"{what} is malformed: {where}{malformed}")
    except TooManyLines as more:
        return _useless(builder, f"{what} has {more}")
    if builder.understood:
        return builder.finish()
    if builder.not_understood:
        return _useless(
            builder, f"{what} holds no event of the format {source}: {', '.join(builder.not_understood[:3])}"
        )
    return _useless(builder, f"{what} is empty")


def _count(usage: Usage) -> None:
    """Each figure was looked at, their sum was not. Raises MalformedTrace."""
    for name in ("input_tokens", "output_tokens", "cost_usd"):
        total = getattr(usage, name)
        if total is not None and not total < MOST_COUNTED:
            raise MalformedTrace(f"expected figures that can be added up, found {total!r:.40} {name}")


def _useless(builder: TraceBuilder, problem: str) -> Trace:
    return Trace(source=builder.source, not_understood=builder.not_understood, problem=problem)


def trace_of_result(run: AgentRun) -> Trace | None:
    """The trace of a run whose result has tool calls or tokens; None when it has neither.

    A result without tool calls can't tell of any: `tool_calls` is None then. Negative and senseless numbers make it
    a trace with a problem (contract, 5.3).
    """
    if run.tool_calls is None and run.token_usage is None:
        return None
    try:
        output = run.whole_output()
    except TooMuchPrinted:
        output = run.output
    builder = TraceBuilder(AGENT_RESULT, final_output=output, calls_known=run.tool_calls is not None)
    try:
        for number, call in enumerate(run.tool_calls or (), 1):
            _add(builder, str(number), call)
        if run.token_usage is not None:
            builder.usage = _usage(run.token_usage)
    except MalformedTrace as malformed:
        return Trace(source=AGENT_RESULT, problem=f"the agent's result is malformed: {malformed}")
    return builder.finish()


def _add(builder: TraceBuilder, number: str, call: Mapping[str, Any]) -> None:
    builder.call(number, text(call, "name"), as_arguments(call.get("arguments")))
    if call.get("result") is not None:
        builder.result(number, "ok", as_text(call["result"]))


def _usage(usage: Mapping[str, Any]) -> Usage:
    read = "input_tokens" if usage.get("input_tokens") is not None else "prompt_tokens"
    written = "output_tokens" if usage.get("output_tokens") is not None else "completion_tokens"
    return Usage(token_count(usage, read), token_count(usage, written), amount(usage, "cost_usd"))
