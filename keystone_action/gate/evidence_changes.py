"""What differs between two versions of a spec in what is forbidden, where evidence comes from, and what agents may see.

Each sentence says which way it goes: `forbidden.tools is gone`, `gateway.ignore has one pattern more: \\d+`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keystone_action.gate.leaves import leaves, short_value
from keystone_action.spec.models.gateway import Gateway

_LISTED = 3
"""Entries of a list that a sentence shows."""
_ALLOWED = ("db_writes_outside", "http_except", "file_writes_outside")
"""Rules that list what is allowed; the others list what is forbidden."""

_NOUNS = {"providers": "provider", "ignore": "pattern", "models": "model"}
_WEAKEST = {"mode": "replay", "match": "turn", "models": None}
"""The value of a field that lets more pass than any other; of other fields each may."""

Told = tuple[bool, str]
"""Whether it can let more pass, and a sentence."""


@dataclass(frozen=True, slots=True)
class EvidenceChanges:
    """Sentences on `forbidden`, `audit`, `gateway`, `agent.trace` and `resources.readable`."""

    weakening: tuple[str, ...]
    strengthening: tuple[str, ...]

    @classmethod
    def between(cls, old: dict[str, Any], new: dict[str, Any]) -> EvidenceChanges:
        """Takes these sections out of two documents."""
        told = list(_told(old, new))
        return cls(
            tuple(text for weakens, text in told if weakens), tuple(text for weakens, text in told if not weakens)
        )


def _told(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Told]:
    yield from _forbidden(old.pop("forbidden"), new.pop("forbidden"))
    before, after = old.pop("audit"), new.pop("audit")
    for name in before:
        yield from ((not after[name], text) for text in leaves(f"audit.{name}", before[name], after[name]))
    yield from _gateway(old.pop("gateway"), new.pop("gateway"))
    # What an agent says of itself: another place or format of it is another witness.
    traces = old["agent"].pop("trace"), new["agent"].pop("trace")
    yield from ((True, text) for text in leaves("agent.trace", *traces))
    folders = old["resources"].pop("readable"), new["resources"].pop("readable")
    yield from _entries("resources.readable", "folder", *folders, more_weakens=True)


def _forbidden(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Told]:
    for rule in old:
        name, before, after = f"forbidden.{rule}", old[rule], new[rule]
        if before is None and after is not None:
            shown = short_value(after)
            yield False, f"{name} is new: {shown}" if shown else f"{name} is new"
        elif after is None and before is not None:
            yield True, f"{name} is gone"
        elif isinstance(before, list) and isinstance(after, list):
            yield from _entries(name, "entry", before, after, more_weakens=rule in _ALLOWED)


def _gateway(old: Any, new: Any) -> Iterator[Told]:
    """Where a spec has no such key, an agent that needs the gateway has it with its defaults."""
    if old == new:
        return
    if "off" in (old, new):
        was, now = ("on" if isinstance(one, dict) else short_value(one) for one in (old, new))
        yield new == "off", f"gateway {was} → {now}"
    elif new is None:
        yield True, "gateway is gone"
    defaults = Gateway().model_dump()
    before: dict[str, Any] = old if isinstance(old, dict) else defaults
    after: dict[str, Any] = new if isinstance(new, dict) else defaults
    told = [one for name in defaults for one in _gateway_field(name, before[name], after[name])]
    yield from told
    if old is None and new != "off" and not told:
        yield False, "gateway is new"


def _gateway_field(field: str, old: Any, new: Any) -> Iterator[Told]:
    name = f"gateway.{field}"
    if field in ("budget", "prices"):
        for key in dict.fromkeys((*old, *new)):
            before, after = old.get(key), new.get(key)
            weakens = _allows_more(before, after) if field == "budget" else after is not None
            yield from ((weakens, text) for text in leaves(f"{name}.{key}", before, after))
    elif field in _NOUNS and isinstance(old, list) and isinstance(new, list):
        yield from _entries(name, _NOUNS[field], old, new, more_weakens=True)
    else:
        weakens = new != "deny" if field == "provider_tools" else _WEAKEST.get(field, new) == new
        yield from ((weakens, text) for text in leaves(name, old, new))


def _allows_more(limit: float | None, other: float | None) -> bool:
    return limit is not None and (other is None or other > limit)


def _entries(name: str, noun: str, old: Sequence[Any], new: Sequence[Any], *, more_weakens: bool) -> Iterator[Told]:
    came, went = [one for one in new if one not in old], [one for one in old if one not in new]
    for found, word, weakens in ((came, "more", more_weakens), (went, "fewer", not more_weakens)):
        if found:
            plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
            number = f"one {noun}" if len(found) == 1 else f"{len(found):,} {plural}"
            shown = ", ".join(filter(None, map(short_value, found[:_LISTED])))
            rest = f" and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
            yield weakens, f"{name} has {number} {word}{f': {shown}{rest}' if shown else ''}"
