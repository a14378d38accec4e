"""Requests that a mock recorded: their journal, their fields, and the filters that choose among them.

The journal has one JSON line for each request, written before the reply is sent. `http_mock_assertions` and the judge's
`input_from` share one grammar of fields (spec 1.7):

    request_count
    last_request[.method | .path | .query[.name] | .headers[.Name] | .body | .json[.a["b.c"][0]]]
    requests[N][…the same…]

In `filters` (spec 5.3, http_mock_assertions) `method` ignores case; `path` is literal or has `*` and `**`; `query` maps
names to a text, or to a list when a name is repeated; `body` is a substring; `headers` maps names (without case) and
`json` maps paths of a JSON body to values. Any other key is a header (when the request has it, its value decides), or
else a top-level field of a JSON or form body. A JSON list matches if any of its elements does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs

from keystone_action.evidence.journal import JournalRecords, RecordJournal
from keystone_action.evidence.model import RecordedRequest
from keystone_action.spec.globs import compile_path


class RequestJournal(RecordJournal[RecordedRequest]):
    """Appends requests to `<service>.requests.jsonl`."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        super().__init__(path, RecordedRequest)


class JournalRequests(JournalRecords[RecordedRequest]):
    """The requests of a journal as they were when this was made."""

    def __init__(self, path: Path) -> None:
        """See JournalRecords."""
        super().__init__(path, RecordedRequest)


class JournalLog:
    """A `RequestLog` over a journal on disk."""

    def __init__(self, path: Path, before_reading: Callable[[], None] | None = None) -> None:
        """before_reading: called before each reading; waits until everything that clients have sent is written, and
        raises OutputError when something could not be recorded."""
        self.path = path
        self._before_reading = before_reading

    def requests(self) -> JournalRequests:
        """In the order they came in. Raises OutputError when the record is incomplete or unreadable."""
        if self._before_reading is not None:
            self._before_reading()
        return JournalRequests(self.path)


PARTS = ("method", "path", "query", "headers", "body", "json")

_REQUEST = re.compile(r"last_request|requests\[(?P<index>\d{1,9})\]")
_STEP = re.compile(
    r"""\.(?P<key>[^.\[\]"']+)
      | \[(?P<index>-?\d{1,9})\]
      | \[(?P<quote>["'])(?P<quoted>[^"']*)(?P=quote)\]""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Field:
    """A parsed field."""

    text: str
    request: Literal["count", "last"] | int
    """Which request, by its index from 0 unless it is the last; `count` for their number."""
    part: str | None = None
    """One of PARTS, None for the whole request."""
    steps: tuple[str | int, ...] = ()
    """Keys and list indices below `query`, `headers` or `json`."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such value; `reason` is a sentence without a full stop that says what there is."""

    reason: str


def parse_field(text: str) -> Field:
    """Raises ValueError with a sentence that says what was expected."""
    if text == "request_count":
        return Field(text, "count")
    head = _REQUEST.match(text)
    if head is None:
        raise ValueError(f"expected request_count, last_request… or requests[N]…, found {text!r}")
    request: Literal["last"] | int = "last" if head["index"] is None else int(head["index"])
    rest = text[head.end() :]
    if not rest:
        return Field(text, request)
    part = re.match(r"\.([a-z]+)(?![^.\[])", rest)
    if part is None or part[1] not in PARTS:
        raise ValueError(f"expected one of .{', .'.join(PARTS)} after {head[0]!r}, found {rest!r}")
    return Field(text, request, part[1], _steps(part[1], rest[part.end() :], text))


def _steps(part: str, rest: str, text: str) -> tuple[str | int, ...]:
    if rest and part in ("method", "path", "body"):
        raise ValueError(f"expected nothing after .{part} in {text!r}, found {rest!r}")
    if part == "headers" and rest.startswith(".") and len(rest) > 1:
        return (rest[1:],)  # header names may hold dots
    return parse_steps(rest, text)


def parse_steps(rest: str, text: str) -> tuple[str | int, ...]:
    """The steps of `.a["b.c"][0]`. text: what it is the end of, for messages. Raises ValueError with a sentence."""
    steps: list[str | int] = []
    position = 0
    while position < len(rest):
        step = _STEP.match(rest, position)
        if step is None:
            raise ValueError(f'can\'t read {rest[position:]!r} in {text!r}; expected .name, [0] or ["name"]')
        steps.append(int(step["index"]) if step["index"] else (step["key"] or step["quoted"] or ""))
        position = step.end()
    return tuple(steps)


def read_field(field: Field, requests: Sequence[RecordedRequest]) -> Any | Missing:
    """The value of a field among these requests (already filtered), or Missing. `.query` and `.headers` are
    mappings; header names are compared without case; `.json` is the parsed body."""
    if field.request == "count":
        return len(requests)
    index = len(requests) - 1 if field.request == "last" else field.request
    if not 0 <= index < len(requests):
        return Missing(f"there is no {field.text.partition('.')[0]}: {_count_words(len(requests))} recorded")
    request = requests[index]
    if field.part is None:
        return {name: getattr(request, name) for name in ("method", "path", "query", "headers", "body")}
    if field.part == "headers":
        return _header(request, field.steps)
    value: Any
    if field.part == "json":
        try:
            value = json.loads(request.body.removeprefix("\ufeff"))
        except (ValueError, RecursionError):
            return Missing("the request's body is not JSON")
    else:
        value = getattr(request, field.part)
    return descend(value, field.steps, field.part)


def _count_words(count: int) -> str:
    return "1 request was" if count == 1 else f"{count or 'no'} requests were"


def _header(request: RecordedRequest, steps: tuple[str | int, ...]) -> Any | Missing:
    if not steps:
        return dict(request.headers)
    wanted = str(steps[0]).lower()
    found = [value for name, value in request.headers.items() if name.lower() == wanted]
    if not found:
        return Missing(f"the request has no header {steps[0]}")
    return descend(found[0], steps[1:], f"headers.{steps[0]}")


def parse_path(text: str) -> tuple[str | int, ...]:
    """The steps of a path in a document: `a.b[0]`, `[2].id`, `["a.b"]`; `$` is the whole of it and may come first.

    Raises ValueError with a sentence that says what was expected.
    """
    below = text.removeprefix("$")
    if not text:
        raise ValueError("expected a path like a.b[0], found nothing")
    return parse_steps(below if below[:1] in ("", "[", ".") else f".{below}", text)


def descend(value: Any, steps: tuple[str | int, ...], where: str) -> Any | Missing:
    """What is at these steps in a value that is called `where`."""
    for step in steps:
        known = isinstance(value, Mapping) and step in value
        if isinstance(step, int):
            known = isinstance(value, list) and -len(value) <= step < len(value)
        if not known:
            return Missing(f"{where} has no {step!r}")
        value = value[step]
        where = f"{where}[{step}]" if isinstance(step, int) else f"{where}.{step}"
    return value


Equal = Callable[[object, object], bool]
NAMES = ("method", "path", "query", "body", "headers", "json")
"""The keys of `filters` that are ours; any other is the name of a header or of a field of the body."""
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Filter:
    """One condition of `filters`: of requests, or of the calls of tools, of which all is `head`."""

    name: str
    wanted: Any
    find: Callable[[Any], Any | Missing]
    """Gives the value that a request has there."""
    holds: Callable[[Any], bool]
    """Says whether such a value meets the condition."""
    reads: Literal["head", "text", "document", "any"] = "head"
    """The part of a request that is read; `any` is a header, or the body where there is no such header."""

    def matches(self, request: Any) -> bool:
        """Whether this condition lets the request through."""
        found = self.find(request)
        return not isinstance(found, Missing) and self.holds(found)

    def is_sure(self, request: Any) -> bool:
        """Whether the answer of `matches` would be the same if all of the request's body had been kept."""
        if self.reads == "head" or not request.cut:
            return True
        if self.reads == "text":
            return self.matches(request)
        return self.reads == "any" and _wire_header(self.name, request) is not None

    def may_be_named_in(self, request: RecordedRequest) -> bool:
        """Whether the request has a header or field of this name, or may have one in what was not kept of its body."""
        return not self.is_sure(request) or not isinstance(self.find(request), Missing)


def wire_text(value: object) -> object:
    """Headers, queries and forms have nothing but text: a number or boolean of the spec is meant by its text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def compile_filters(filters: Mapping[str, Any], equal: Equal) -> tuple[Filter, ...]:
    """equal: how a value of a JSON body is compared with the spec's. Raises ValueError with a sentence."""
    return tuple(one for name, wanted in filters.items() for one in _compile(name, wanted, equal))


def _compile(name: str, wanted: Any, equal: Equal) -> Iterator[Filter]:
    if name in ("path", "body") and isinstance(wanted, int | float):
        wanted = wire_text(wanted)  # `{{ record.number }}` alone is a number
    if name in ("method", "path", "body") and not isinstance(wanted, str):
        raise ValueError(f"expected a text for the filter {name}, found {json.dumps(wanted, default=str)}")
    if name in ("query", "headers", "json") and not isinstance(wanted, Mapping):
        of = "paths to values" if name == "json" else "names to texts"
        raise ValueError(f"expected a mapping of {of} for the filter {name}, found {wanted!r}")
    holds = partial(value_holds, equal=equal)
    if name == "method":
        method = wanted.upper()
        yield Filter(name, wanted, lambda request: request.method, lambda found: found.upper() == method)
    elif name == "path":
        pattern = compile_path(wanted)
        yield Filter(name, wanted, lambda request: request.path, lambda found: pattern.match(found) is not None)
    elif name == "body":
        yield Filter(name, wanted, lambda request: request.body, lambda found: wanted in found, "text")
    elif name == "query":
        yield Filter(name, wanted, lambda request: request.query, partial(_query_holds, _query(wanted)))
    elif name == "headers":
        for header, value in wanted.items():
            yield Filter(f"headers.{header}", value, partial(_find_header, header), partial(holds, value))
    elif name == "json":
        for path, value in wanted.items():
            find = partial(_find_in_document, parse_path(path))
            yield Filter(f"json.{path}", value, find, partial(holds, value), "document")
    else:
        yield Filter(name, wanted, partial(_header_or_field, name), partial(holds, wanted), "any")


def _query(wanted: Mapping[str, Any]) -> dict[str, object]:
    return {
        name: [wire_text(item) for item in value] if isinstance(value, list) else wire_text(value)
        for name, value in wanted.items()
    }


def _query_holds(wanted: Mapping[str, object], found: Mapping[str, object]) -> bool:
    return all(found.get(name) == value for name, value in wanted.items())


@dataclass(frozen=True)
class _Wire:
    """A value that came as text; repeated ones are all in here."""

    values: tuple[str, ...]


def _wire_header(name: str, request: RecordedRequest) -> _Wire | None:
    lowered = name.lower()
    for header, value in request.headers.items():
        if header.lower() == lowered:
            return _Wire(tuple(value) if isinstance(value, list) else (value,))
    return None


def _find_header(name: str, request: RecordedRequest) -> Any | Missing:
    return _wire_header(name, request) or Missing(f"no header {name}")


def _document(request: RecordedRequest) -> Any | Missing:
    try:
        return json.loads(request.body.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return Missing("a body that is not JSON")


def _find_in_document(steps: tuple[str | int, ...], request: RecordedRequest) -> Any | Missing:
    document = _document(request)
    return document if isinstance(document, Missing) else descend(document, steps, "json")


def _form(request: RecordedRequest) -> dict[str, list[str]] | None:
    """The fields of a form; None for another body."""
    content_type = _wire_header("content-type", request) or _Wire(("",))
    return parse_qs(request.body, keep_blank_values=True) if _FORM in content_type.values[0].lower() else None


def _header_or_field(name: str, request: RecordedRequest) -> Any | Missing:
    header = _wire_header(name, request)
    if header is not None:
        return header
    form = _form(request)
    if form is not None:
        return _Wire(tuple(form[name])) if name in form else Missing(f"no header and no form field {name}")
    document = _document(request)
    if isinstance(document, dict) and name in document:
        return document[name]
    return Missing(f"no header and no field {name}")


def names_in(request: RecordedRequest) -> Iterator[str]:
    """The names that a key of `filters` which is not ours can mean in a request: fields of its body, then headers."""
    form = _form(request)
    fields = _document(request) if form is None else form
    yield from fields if isinstance(fields, dict) else ()
    yield from request.headers


def value_holds(wanted: Any, found: Any, equal: Equal) -> bool:
    """Whether a value is the one that a filter asks for. A list is, where one of its elements is."""
    if isinstance(found, _Wire):
        if isinstance(wanted, list):
            return [wire_text(item) for item in wanted] == list(found.values)
        return wire_text(wanted) in found.values
    return equal(wanted, found) or (isinstance(found, list) and any(equal(wanted, item) for item in found))


def shown_found(found: Any | Missing) -> Any:
    """What `find` gave, as a message can show it."""
    if isinstance(found, _Wire):
        return found.values[0] if len(found.values) == 1 else list(found.values)
    return found
