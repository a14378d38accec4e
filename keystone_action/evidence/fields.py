"""Fields of recorded requests: `request_count`, `last_request.body`, `requests[0].json.items[2].id`.

The one grammar that `http_mock_assertions` and the judge's `input_from` share (spec 1.7):

    request_count
    last_request[.method | .path | .query[.name] | .headers[.Name] | .body | .json[.a["b.c"][0]]]
    requests[N][…the same…]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keystone_action.evidence.model import RecordedRequest

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
    """A parsed field. request: `count`, `last`, or an index from 0. part: one of PARTS, None for the whole request.
    steps: keys and list indices below `query`, `headers` or `json`."""

    text: str
    request: Literal["count", "last"] | int
    part: str | None = None
    steps: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    """What was asked for isn't there; `reason` is a sentence that says what was, without a full stop."""

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
    if not rest:
        return ()
    if part in ("method", "path", "body"):
        raise ValueError(f"expected nothing after .{part} in {text!r}, found {rest!r}")
    if part == "headers" and rest.startswith(".") and len(rest) > 1:
        return (rest[1:],)  # header names may hold dots
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
            return Missing("the request's body is no JSON")
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
    return _steps("json", below if below[:1] in ("", "[", ".") else f".{below}", text)


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
