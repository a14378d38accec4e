"""Values of a transcript, brought into a form that can be counted with, kept and written. All of them are a hostile
author's."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from keystone_action.evidence.audit import shown_time
from keystone_action.spec.limits import MOST_COUNTED

NAME_LIMIT = 200
"""Characters of a name or of an identifier that are kept."""
_DEPTH = 64
_EARLIEST = datetime(2001, 9, 9, tzinfo=UTC)


class MalformedTrace(Exception):  # noqa: N818 - an outcome: `Trace.problem`
    """The transcript can't be counted with; the message says what was expected and what was found."""


def amount(source: Mapping[str, Any], name: str) -> float | None:
    """A number under `name`, None where there is none or null. Raises MalformedTrace for anything that is no finite
    number of at least 0 (contract, 5.3)."""
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedTrace(f"expected a number under `{name}`, found {kind_of(value)}")
    if not 0 <= value < MOST_COUNTED:  # NaN and infinity are not, either
        raise MalformedTrace(f"expected a finite number of at least 0 under `{name}`, found {value!r:.40}")
    return value


def tokens(source: Mapping[str, Any], name: str) -> int | None:
    """A whole number under `name`, else as `amount`."""
    value = amount(source, name)
    if value is not None and value != int(value):
        raise MalformedTrace(f"expected a whole number under `{name}`, found {value!r:.40}")
    return None if value is None else int(value)


def mapping(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under `name`; an empty one where there is none."""
    value = source.get(name)
    return value if isinstance(value, dict) else {}


def moment(event: Mapping[str, Any]) -> str:
    """When an event happened by its `ts` or `timestamp`, in UTC as evidence has it: text of ISO 8601 with a zone, or
    seconds since 1970. Empty for anything else, and for a time before 2001."""
    told = event.get("ts", event.get("timestamp"))
    try:
        found = datetime.fromisoformat(told) if isinstance(told, str) else datetime.fromtimestamp(told, UTC)
        if found.tzinfo is not None and found >= _EARLIEST:
            return shown_time(found.astimezone(UTC))
    except (TypeError, ValueError, OverflowError, OSError):
        pass
    return ""


def objects(source: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of the list under `name`."""
    value = source.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(source: Mapping[str, Any], name: str) -> str:
    """The text under `name`; an empty one where there is none."""
    value = source.get(name)
    return value if isinstance(value, str) else ""


def identifier(source: Mapping[str, Any], name: str) -> str:
    """The text under `name`, by which things are joined; of a very long one its digest, which tells it apart too."""
    value = text(source, name)
    if len(value) > NAME_LIMIT:
        return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()
    return kept_text(value, NAME_LIMIT)


def as_text(value: Any) -> str:
    """What a tool gave back: a text as it is, the texts of content blocks one after the other, else JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and value and all(isinstance(block, dict) and "type" in block for block in value):
        return "\n".join(text(block, "text") or f"[{text(block, 'type')}]" for block in value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "[nested too deep]"


def as_arguments(value: Any) -> Mapping[str, Any] | None:
    """Arguments as an object, also where they were sent as JSON text; None when they could not be read."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def bound_value(value: Any, limit: int, depth: int = _DEPTH) -> Any:
    """The value with every text at most `limit` characters long (an ellipsis says the cut), fit for strict JSON and
    UTF-8. Raises MalformedTrace when it is nested deeper than anything sane."""
    if isinstance(value, str):
        return kept_text(value, limit)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise MalformedTrace(f"the arguments of a tool call are nested deeper than {_DEPTH} levels")
    if isinstance(value, dict):
        return {kept_text(key, limit): bound_value(item, limit, depth - 1) for key, item in value.items()}
    return [bound_value(item, limit, depth - 1) for item in value]


def kept_text(value: str, limit: int) -> str:
    """At most `limit` characters, the cut said by an ellipsis; lone surrogates replaced."""
    if len(value) > limit:
        value = value[:limit] + "…"
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def size_of(value: Any) -> int:
    """How many characters of text a JSON value holds, names and a little for each entry included."""
    if isinstance(value, str):
        return len(value) + 8
    if isinstance(value, dict):
        return 8 + sum(len(key) + 8 + size_of(item) for key, item in value.items())
    return 8 + sum(size_of(item) for item in value) if isinstance(value, list) else 8


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return next((words for kind, words in kinds.items() if isinstance(value, kind)), "a number")
