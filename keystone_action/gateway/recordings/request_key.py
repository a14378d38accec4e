"""When two requests are equal: the normal form of a request, and the key that is the digest of it.

Left out of the normal form, since none of it changes what a model answers:

- `metadata`, `user`, `safety_identifier`, `client_metadata`, `labels`: whose request it is, for bills and abuse;
- `prompt_cache_key`, `prompt_cache_retention`, `cache_control` (in any place): what the provider keeps for later;
- `store`: whether it keeps the answer;
- `stream`, `stream_options`: in which pieces the answer comes. A replay makes either.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from keystone_action.gateway.recordings.names import Names, comparable_text
from keystone_action.gateway.recordings.recording import (
    CONVERSATIONS,
    SIZE_LIMIT,
    RecordingError,
    canonical,
    check_depth,
    ids_of_request,
    with_ids,
    with_texts,
)
from keystone_action.gateway.recordings.tool_results import (
    is_result,
    with_equal_results,
    with_results_in_order,
)

KEY_LENGTH = 32
PATTERN_SECONDS = 10.0
"""For all patterns on one request, or on one recording."""
KEPT_LIMIT = 2 * SIZE_LIMIT
"""Bytes of what one cell's requests hold, what they repeat counted once: it stays in our memory."""
_LEFT_OUT = {
    "cache_control",
    "client_metadata",
    "labels",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "store",
    "stream",
    "stream_options",
    "user",
}
_COMMITS = (
    r"\[[\w./-]{1,100}(?: \(root-commit\))? ([0-9a-f]{7,40})\]",
    r"(?<![\w-])commit ([0-9a-f]{40})\b",
)
"""Where git tells of a commit that was made: its hash depends on the second."""


Place = Literal["system", "messages", "results", "tools"]
"""Who writes a text: the program, before all else; whoever speaks to the model; a tool; the program, of its tools."""
_PLACES: Mapping[str, Place] = {
    "system": "system",
    "instructions": "system",
    "systemInstruction": "system",
    "system_instruction": "system",
    "tools": "tools",
    "functions": "tools",
}
_SPEAKERS: Mapping[str, Place] = {"system": "system", "developer": "system", "tool": "results", "function": "results"}


@dataclass(frozen=True, slots=True)
class Sameness:
    """What counts as equal when requests are compared."""

    varies: Mapping[Place, tuple[str, ...]] = field(default_factory=dict)
    """Regular expressions of a preset for parts of a request that depend on machine, date or commit, by the place where
    the agent's program writes them. They are matched when values have their names already."""
    ignore: tuple[str, ...] = ()
    """`gateway.ignore` of the spec."""
    ids: tuple[str, ...] = ()
    """Regular expressions of a preset, each with one group: an id that the agent's program makes anew in each run."""


class NormalForms:
    """The normal forms of one cell's requests: what a recording keeps of them, for people to read. `ignore` is not
    applied.

    Ids that a provider made have their numbers; others, such as a client's own, are numbered within the request:
    `{id:own-1}`. A conversation repeats nearly all of itself with each request, so each message is worked on once, and
    requests share the messages that they have in common.
    """

    def __init__(self, names: Names, sameness: Sameness) -> None:
        self._names = names
        # What a file of the workspace says in the same words is not the program's.
        self._varies = {
            place: _Patterns(patterns, "{varies}", "of the agent's preset")
            for place, patterns in sameness.varies.items()
        }
        self._ids = _Patterns((*_COMMITS, *sameness.ids), "", "of the agent's preset")
        self._known: dict[tuple[bytes, tuple[tuple[str, str], ...], Place | None], Any] = {}
        self._kept = 0

    def of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The normal form of a request. Raises RecordingError."""
        kept = {name: _without_caching(value) for name, value in body.items() if name not in _LEFT_OUT}
        told = {name: kept[name] for name in CONVERSATIONS if isinstance(kept.get(name), list)}
        kept |= {name: with_results_in_order(messages) for name, messages in told.items()}
        own = [one for one in ids_of_request(kept) if self._names.named(one) == one]
        numbers = {one: f"{{id:own-{number}}}" for number, one in enumerate(own, 1)}
        for patterns in self._varies.values():
            patterns.begin()
        self._ids.begin()
        normal: dict[str, Any] = {}
        for name, value in kept.items():
            shown = with_texts(self._names.named(name), comparable_text)
            self._count(len(shown))
            if name in CONVERSATIONS and isinstance(value, list):
                normal[shown] = [self._part(message, numbers, "messages") for message in value]
            else:
                normal[shown] = self._part(value, {}, _PLACES.get(name))
        return normal

    def _count(self, size: int) -> None:
        if self._kept + size > KEPT_LIMIT:
            raise RecordingError(f"the requests of a cell hold more than {KEPT_LIMIT >> 20} MiB in all")
        self._kept += size

    def _part(self, value: Any, numbers: Mapping[str, str], place: Place | None) -> Any:
        within = {"messages": [value]}
        own = {one: numbers[one] for one in ids_of_request(within) if one in numbers} if numbers else {}
        content = _bytes(value)
        key = hashlib.sha256(content).digest(), tuple(own.items()), place
        if key not in self._known:
            self._count(len(content))
            self._names.number_of_program(self._ids.found(value))
            named = self._names.named(within)
            numbered = with_ids(named, own) if own else named
            named = with_texts(numbered["messages"][0], comparable_text)
            self._known[key] = self._without_varying(with_equal_results(named) if place == "messages" else named, place)
        return self._known[key]

    def _without_varying(self, value: Any, place: Place | None) -> Any:
        if place == "messages" and isinstance(value, dict):
            place = "results" if is_result(value) else _SPEAKERS.get(str(value.get("role")), place)
            for name in ("content", "parts"):
                if place == "messages" and isinstance(parts := value.get(name), list):
                    told = [self._without_varying(part, "results" if is_result(part) else place) for part in parts]
                    return {**value, name: told}
        return self._varies[place].applied(value) if place in self._varies else value


def normal_form(api: str, body: Mapping[str, Any], names: Names, sameness: Sameness) -> dict[str, Any]:  # noqa: ARG001
    """The normal form of one request alone. Raises RecordingError."""
    return NormalForms(names, sameness).of(body)


def key_of_request(api: str, model: str, normal: Mapping[str, Any], ignore: Sequence[str] = ()) -> str:
    """The digest of a request in its normal form. Raises RecordingError."""
    return Keys(ignore).key_of(api, model, normal)


class Keys:
    """Keys of many requests that share their messages: each message is looked at once."""

    def __init__(self, ignore: Sequence[str] = ()) -> None:
        self._patterns = _Patterns(ignore, "{ignored}", "of gateway.ignore")
        self._digests: dict[int, tuple[Any, str]] = {}
        """By the identity of messages, which are kept so that none gets the identity of another."""

    def key_of(self, api: str, model: str, normal: Mapping[str, Any]) -> str:
        """See `key_of`."""
        request = {
            name: _joined(map(self._digest, value)) if isinstance(value, list) else self._digest(value)
            for name, value in normal.items()
        }
        return _sha256({"api": api, "model": model, "request": request})[:KEY_LENGTH]

    def _digest(self, value: Any) -> str:
        if not isinstance(value, dict | list):
            return _sha256(self._patterns.applied(value))
        known = self._digests.get(id(value))
        if known is None:
            known = value, _sha256(self._patterns.applied(value))
            self._digests[id(value)] = known
        return known[1]


class _Patterns:
    """Regular expressions whose matches count as equal. whose: for errors."""

    def __init__(self, patterns: Iterable[str], mark: str, whose: str) -> None:
        self._texts, self._mark, self._whose = tuple(patterns), mark, whose
        self._compiled: list[Any] | None = None
        self._left = PATTERN_SECONDS

    def begin(self) -> None:
        """Start the time limit anew."""
        self._left = PATTERN_SECONDS

    def applied(self, value: Any) -> Any:
        """The value with a mark in place of each match. Raises RecordingError when all together took too long."""
        return with_texts(value, self._text) if self._texts else value

    def _ready(self) -> list[Any]:
        if self._compiled is None:
            self._compiled = [self._compile(pattern) for pattern in self._texts]
        return self._compiled

    def found(self, value: Any) -> list[str]:
        """What the groups of the patterns match, in the order of the places. Raises RecordingError."""
        places: list[tuple[int, str]] = []

        def look(text: str) -> str:
            here = [(found.start(1), found[1]) for pattern in self._ready() for found in self._matches(pattern, text)]
            places.extend(sorted(here))
            return text

        if self._texts:
            with_texts(value, look)
        return [text for _, text in places]

    def _compile(self, pattern: str) -> Any:
        import regex

        try:
            return regex.compile(pattern)
        except regex.error as error:
            raise RecordingError(f"the pattern {pattern!r} {self._whose} can't be used: {error}") from None

    def _text(self, text: str) -> str:
        for pattern in self._ready():
            with self._limited(pattern) as limit:
                # concurrent=True lets other threads run meanwhile: this text may have been written to take forever.
                text = pattern.sub(self._replacement, text, timeout=limit, concurrent=True)
        return text

    def _matches(self, pattern: Any, text: str) -> list[Any]:
        with self._limited(pattern) as limit:
            return list(pattern.finditer(text, timeout=limit, concurrent=True))

    @contextmanager
    def _limited(self, pattern: Any) -> Iterator[float]:
        """Gives the seconds that are left."""
        started = time.monotonic()
        try:
            yield max(self._left, 0.001)
        except TimeoutError:
            raise RecordingError(
                f"the pattern {pattern.pattern!r} {self._whose} hit the limit of {PATTERN_SECONDS:g} s",
                help="make it simpler: a pattern with one repetition in another takes forever on some texts",
            ) from None
        self._left -= time.monotonic() - started

    def _replacement(self, found: Any) -> str:
        return self._mark if found[0] else ""


def _bytes(value: Any) -> bytes:
    return canonical(value, sort_keys=True, separators=(",", ":")).encode()


def _joined(digests: Iterable[str]) -> str:
    return f"list {hashlib.sha256(''.join(digests).encode()).hexdigest()}"


def _sha256(value: Any) -> str:
    return hashlib.sha256(_bytes(value)).hexdigest()


def _without_caching(value: Any, depth: int = 0) -> Any:
    """The value without `cache_control`, and without numbers that JSON does not have: Python reads NaN and infinity
    where a client sends them."""
    if isinstance(value, dict):
        check_depth(depth)
        return {
            name: _without_caching(item, depth + 1)
            for name, item in value.items()
            if not (name == "cache_control" and (item is None or isinstance(item, dict)))
        }
    if isinstance(value, list):
        check_depth(depth)
        return [_without_caching(item, depth + 1) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
