"""The body of a request to a model: read strictly, so that no provider reads it differently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keystone_action.gateway.ledger import Refusal

_NAMES_READ = frozenset(
    {
        "background",
        "contents",
        "functions",
        "input",
        "mcp_servers",
        "messages",
        "model",
        "plugins",
        "prompt",
        "search_parameters",
        "service_tier",
        "stream",
        "stream_options",
        "system",
        "systemInstruction",
        "tools",
        "web_search_options",
    }
)
"""What limits and rules read of a body."""
_IN_OTHER_LETTERS = {name.casefold(): name for name in _NAMES_READ}
MARKS_LIMIT = 1_000_000
"""Of the marks that begin or part values: each costs far more memory and time than its byte."""


class _TwiceError(ValueError):
    """A name stands twice in one object."""


def parsed_body(body: bytes) -> dict[str, Any]:
    """The object that a body is. Raises Refusal.

    A name that stands twice, or in other letters, is refused: which one counts differs between providers, so a
    request could ask us for a cheap model and the provider for a dear one.
    """
    if _has_too_many_marks(body):
        raise Refusal(413, f"a request may have {MARKS_LIMIT:,} values")
    try:
        parsed = json.loads(body.decode("utf-8"), object_pairs_hook=_object)
    except _TwiceError as error:
        raise Refusal(400, f"the body has the name {error} twice in one object") from None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise Refusal(400, "the body is not a JSON object")
    for name in parsed:
        meant = _IN_OTHER_LETTERS.get(name.casefold())
        if meant is not None and name != meant:
            raise Refusal(400, f"the body has the name {name[:50]} where {meant} is meant")
    return parsed


def _has_too_many_marks(body: bytes) -> bool:
    if _marks(body) <= MARKS_LIMIT:
        return False
    # Those in texts cost nothing.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # Each mark brings at most a name and a text, with two quotes each.
    if plain.count(b'"') > 4 * MARKS_LIMIT:
        return True
    return _marks(b"".join(plain.split(b'"')[::2])) > MARKS_LIMIT


def _marks(body: bytes) -> int:
    return sum(body.count(mark) for mark in (b"{", b"[", b","))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _TwiceError(next(name for name, _ in pairs if name in seen or seen.add(name))[:50])  # type: ignore[func-returns-value]
    return found


def with_usage(body: bytes, parsed: Mapping[str, Any]) -> tuple[bytes, bool]:
    """The body of a streamed chat with `stream_options.include_usage`; and whether that was added."""
    options = parsed.get("stream_options")
    if "stream_options" not in parsed:
        # All other bytes stay: a provider's cache of prompts goes by them.
        place = body.index(b"{") + 1
        comma = b"," if parsed else b""
        return body[:place] + b'"stream_options":{"include_usage":true}' + comma + body[place:], True
    if not isinstance(options, dict | None) or (options or {}).get("include_usage") is True:
        return body, False
    changed = {**parsed, "stream_options": {**(options or {}), "include_usage": True}}
    return json.dumps(changed).encode(), True
