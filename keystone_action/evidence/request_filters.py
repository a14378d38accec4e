"""Which recorded requests are meant: the `filters` of an assertion (spec 5.3, http_mock_assertions).

`method` ignores case; `path` is literal or has `*` and `**`; `query` maps names to a text, or to a list when a name is
repeated; `body` is a substring; `headers` maps names (without case) and `json` maps paths of a JSON body to values. Any
other key is a header (when the request has it, its value decides), or failing that a top-level field of a JSON or form
body. A JSON list matches if any of its elements does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import parse_qs

from keystone_action.evidence.fields import Missing, descend, parse_path
from keystone_action.evidence.model import RecordedRequest
from keystone_action.spec.path_patterns import compile_path

Equal = Callable[[object, object], bool]
NAMES = ("method", "path", "query", "body", "headers", "json")
"""The keys of `filters` that are ours; any other is the name of a header or of a field of the body."""
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Filter:
    """One condition of `filters`. find: what a request has there; holds: whether that is what is meant. reads: the part
    of a request that is looked at; `any` = a header, else the body."""

    name: str
    wanted: Any
    find: Callable[[RecordedRequest], Any | Missing]
    holds: Callable[[Any], bool]
    reads: Literal["head", "text", "document", "any"] = "head"

    def matches(self, request: RecordedRequest) -> bool:
        """Whether this condition lets the request through."""
        found = self.find(request)
        return not isinstance(found, Missing) and self.holds(found)

    def is_sure(self, request: RecordedRequest) -> bool:
        """Whether all of the request's body would let it through, or not, as what is kept of it does."""
        if not request.cut or self.reads == "head":
            return True
        if self.reads == "text":
            return self.matches(request)
        return self.reads == "any" and _header(self.name, request) is not None

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
    holds = partial(_value_holds, equal=equal)
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


def _header(name: str, request: RecordedRequest) -> _Wire | None:
    lowered = name.lower()
    for header, value in request.headers.items():
        if header.lower() == lowered:
            return _Wire(tuple(value) if isinstance(value, list) else (value,))
    return None


def _find_header(name: str, request: RecordedRequest) -> Any | Missing:
    return _header(name, request) or Missing(f"no header {name}")


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
    content_type = _header("content-type", request) or _Wire(("",))
    return parse_qs(request.body, keep_blank_values=True) if _FORM in content_type.values[0].lower() else None


def _header_or_field(name: str, request: RecordedRequest) -> Any | Missing:
    header = _header(name, request)
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


def _value_holds(wanted: Any, found: Any, equal: Equal) -> bool:
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
