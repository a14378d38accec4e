"""Which recorded requests are meant: the `filters` of an assertion (spec 5.3, http_mock_assertions).

`method` ignores case; `path` is literal or has `*` and `**`; `query` maps names to a text, or to a list when a name is
repeated; `body` is a substring. Any other key is a header (name without case; when the request has it, its value
decides), or failing that a top-level field of a JSON or form body; a JSON list matches if any of its elements does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from keystone_action.evidence.fields import Missing
from keystone_action.evidence.model import RecordedRequest
from keystone_action.spec.path_patterns import compile_path

Equal = Callable[[object, object], bool]
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Filter:
    """One entry of `filters`. find: what a request has there; holds: whether that is what is meant."""

    name: str
    wanted: Any
    find: Callable[[RecordedRequest], Any | Missing]
    holds: Callable[[Any], bool]

    def matches(self, request: RecordedRequest) -> bool:
        """Whether this entry lets the request through."""
        found = self.find(request)
        return not isinstance(found, Missing) and self.holds(found)

    def is_sure(self, request: RecordedRequest) -> bool:
        """Whether all of the request's body would let it through, or not, as what is kept of it does."""
        if not request.cut or self.name in ("method", "path", "query"):
            return True
        if self.name == "body":
            return self.matches(request)
        return self.name.lower() in map(str.lower, request.headers)


def wire_text(value: object) -> object:
    """Headers, queries and forms have nothing but text: a number or boolean of the spec is meant by its text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def compile_filters(filters: Mapping[str, Any], equal: Equal) -> tuple[Filter, ...]:
    """equal: how a value of a JSON body is compared with the spec's. Raises ValueError with a sentence."""
    return tuple(_compile(name, wanted, equal) for name, wanted in filters.items())


def _compile(name: str, wanted: Any, equal: Equal) -> Filter:
    if name in ("path", "body") and isinstance(wanted, int | float):
        wanted = wire_text(wanted)  # `{{ record.number }}` alone is a number
    if name in ("method", "path", "body") and not isinstance(wanted, str):
        raise ValueError(f"expected a text for the filter {name}, found {json.dumps(wanted, default=str)}")
    if name == "method":
        method = wanted.upper()
        return Filter(name, wanted, lambda request: request.method, lambda found: found.upper() == method)
    if name == "path":
        pattern = compile_path(wanted)
        return Filter(name, wanted, lambda request: request.path, lambda found: pattern.match(found) is not None)
    if name == "body":
        return Filter(name, wanted, lambda request: request.body, lambda found: wanted in found)
    if name == "query":
        return Filter(name, wanted, lambda request: request.query, partial(_query_holds, _query(wanted)))
    return Filter(name, wanted, partial(_header_or_field, name), partial(_value_holds, wanted, equal))


def _query(wanted: Any) -> dict[str, object]:
    if not isinstance(wanted, Mapping):
        raise ValueError(f"expected a mapping of names to texts for the filter query, found {wanted!r}")  # noqa: TRY004
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


def _header_or_field(name: str, request: RecordedRequest) -> Any | Missing:
    lowered = name.lower()
    for header, value in request.headers.items():
        if header.lower() == lowered:
            return _Wire(tuple(value) if isinstance(value, list) else (value,))
    content_type = next((str(v) for k, v in request.headers.items() if k.lower() == "content-type"), "")
    if _FORM in content_type.lower():
        values = parse_qs(request.body, keep_blank_values=True).get(name)
        return _Wire(tuple(values)) if values else Missing(f"no header and no form field {name}")
    try:
        document = json.loads(request.body)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and name in document:
        return document[name]
    return Missing(f"no header and no field {name}")


def _value_holds(wanted: Any, equal: Equal, found: Any) -> bool:
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
