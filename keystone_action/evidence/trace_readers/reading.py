"""From a transcript in one of the known formats to a `Trace`, as a stream and in bounded memory."""

from __future__ import annotations

from typing import BinaryIO

from keystone_action.evidence.trace import Trace, Usage
from keystone_action.evidence.trace_readers.builder import TraceBuilder, TraceReader
from keystone_action.evidence.trace_readers.lines import TooManyLines, objects_of
from keystone_action.evidence.trace_readers.values import MalformedTrace, moment
from keystone_action.spec.limits import MOST_COUNTED
from keystone_action.spec.named_classes import class_of_file


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
            builder.ts = moment(event)
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
