"""Spans of OpenTelemetry by its conventions for generative AI: OTLP as JSON, a request a line, or a span a line as SDKs
print them.

Calls are spans of `execute_tool`; tokens are summed over spans that asked a model, since those of agents have the same
tokens once more. Spans come in the order they ended, and are put into the order they began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keystone_action.evidence.trace import Usage
from keystone_action.evidence.trace_readers.builder import (
    ARGUMENT_LIMIT,
    CallStatus,
    MalformedTrace,
    TraceBuilder,
    TraceReader,
    as_arguments,
    as_text,
    bound_value,
    identifier,
    mapping,
    objects,
    size_of,
    text,
    token_count,
)

_MODEL_CALLS = ("chat", "text_completion", "generate_content")
_READ, _WRITTEN = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
_EARLIER = {_READ: "gen_ai.usage.prompt_tokens", _WRITTEN: "gen_ai.usage.completion_tokens"}
_OPERATION, _FAILED = "gen_ai.operation.name", "error.type"
_ARGUMENTS, _RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
_KEPT = {_READ, _WRITTEN, *_EARLIER.values(), _OPERATION, _FAILED, _ARGUMENTS, _RESULT}
_KEPT |= {"gen_ai.tool.name", "gen_ai.tool.call.id"}
_HELD_LIMIT = 64 << 20
"""Characters of all attributes that are held until their order is known."""
_VALUES = ("stringValue", "boolValue", "doubleValue")


@dataclass(frozen=True, slots=True)
class _Span:
    began: str
    attributes: Mapping[str, Any]
    failed: bool


class OtelReader(TraceReader):
    """A span that comes twice is one span, the later one."""

    tells_answer = False

    def __init__(self, builder: TraceBuilder) -> None:
        self._trace = builder
        self._spans: dict[str, _Span] = {}
        self._number = self._held = 0

    def event(self, event: Mapping[str, Any]) -> bool:
        """Take a request of OTLP or a span; False when it is neither. Raises MalformedTrace."""
        found = False
        for span in _spans(event):
            found = True
            self._take(span)
        return found

    def _take(self, span: Mapping[str, Any]) -> None:
        self._number += 1
        attributes = _attributes(span)
        if attributes.keys() <= {_FAILED}:
            return
        attributes = {name: bound_value(value, ARGUMENT_LIMIT) for name, value in attributes.items()}
        self._held += size_of(attributes)
        if self._held > _HELD_LIMIT:
            raise MalformedTrace(f"its spans have more than {_HELD_LIMIT >> 20} MiB of attributes")
        for name in (_READ, _WRITTEN, *_EARLIER.values()):
            token_count(attributes, name)
        context = mapping(span, "context")
        span_id = identifier(span, "spanId") or identifier(span, "span_id") or identifier(context, "span_id")
        whole = identifier(span, "traceId") or identifier(span, "trace_id") or identifier(context, "trace_id")
        began = span.get("startTimeUnixNano", span.get("start_time", ""))
        status = mapping(span, "status")
        failed = str(status.get("code", status.get("status_code", ""))) in ("2", "STATUS_CODE_ERROR", "ERROR")
        self._trace.room(self._spans, "spans")
        key = f"{whole} {span_id or self._number}"
        self._spans[key] = _Span(str(began)[:40].rjust(40), attributes, failed or _FAILED in attributes)

    def finish(self) -> None:
        """Calls in the order they began, and the usage of all requests to models. Raises MalformedTrace."""
        if self._trace.understood and not self._spans:
            raise MalformedTrace("none of its spans has attributes of generative AI (`gen_ai.…`)")
        spans = sorted(self._spans.values(), key=lambda span: span.began)
        for number, span in enumerate(spans, 1):
            if text(span.attributes, _OPERATION) == "execute_tool":
                self._call(span, str(number))
        failed = [one for one in spans if one.failed and text(one.attributes, _OPERATION) == "invoke_agent"]
        if failed:
            self._trace.failure = f"the agent's span failed: {text(failed[0].attributes, _FAILED) or 'error'}"
        asked = [one for one in spans if text(one.attributes, _OPERATION) in _MODEL_CALLS]
        read = [count for one in asked if (count := _count(one, _READ)) is not None]
        written = [count for one in asked if (count := _count(one, _WRITTEN)) is not None]
        self._trace.usage = Usage(sum(read) if read else None, sum(written) if written else None)

    def _call(self, span: _Span, number: str) -> None:
        attributes = span.attributes
        call_id = identifier(attributes, "gen_ai.tool.call.id") or f"#{number}"
        arguments = as_arguments(attributes.get(_ARGUMENTS))
        self._trace.call(call_id, text(attributes, "gen_ai.tool.name"), arguments)
        status: CallStatus = "error" if span.failed else "ok"
        self._trace.result(call_id, status, as_text(attributes.get(_RESULT)))


def _spans(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in objects(event, "resourceSpans"):
        for scope in objects(resource, "scopeSpans"):
            yield from objects(scope, "spans")
    if "name" in event and "attributes" in event:
        yield event


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    given = span.get("attributes")
    pairs = (
        given.items() if isinstance(given, dict) else ((text(a, "key"), _value(a)) for a in objects(span, "attributes"))
    )
    return {name: value for name, value in pairs if name in _KEPT}


def _value(attribute: Mapping[str, Any]) -> Any:
    value = mapping(attribute, "value")
    if "intValue" in value:  # 64 bits are sent as text
        number = value["intValue"]
        return int(number) if isinstance(number, str) and number.lstrip("-").isdecimal() else number
    if "kvlistValue" in value:
        return {text(item, "key"): _value(item) for item in objects(mapping(value, "kvlistValue"), "values")}
    if "arrayValue" in value:
        return [_value({"value": item}) for item in objects(mapping(value, "arrayValue"), "values")]
    return next((value[name] for name in _VALUES if name in value), None)


def _count(span: _Span, name: str) -> int | None:
    known = token_count(span.attributes, name)
    return token_count(span.attributes, _EARLIER[name]) if known is None else known
