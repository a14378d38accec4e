"""What differs between two versions of a spec in what is forbidden, where evidence comes from, and what agents may see.

Each sentence says which way it goes: `forbidden.tools is gone`, `gateway.ignore has one pattern more: \\d+`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keystone_action.gate.leaves import Finding, Leaf, Level, Places, changed_leaves, is_same, short_value
from keystone_action.spec.models.gateway import Gateway

_LISTED = 3
"""Entries of a list that a sentence shows."""
_ALLOWED = ("db_writes_outside", "http_except", "file_writes_outside")
"""Rules that list what is allowed; the others list what is forbidden."""

_NOUNS = {"providers": "provider", "ignore": "pattern", "models": "model"}
_WEAKEST = {"mode": "replay", "match": "turn", "models": None}
"""The value of a field that lets more pass than any other; of other fields each may."""
_ORDER = 2
"""Where these stand among findings of one level."""

Told = tuple[Level, str]


def evidence_changes(old: dict[str, Any], new: dict[str, Any], places: Places = ("", "")) -> Iterator[Finding]:
    """Findings on `forbidden`, `audit`, `gateway`, `agent.trace`, `resources.readable` and `network.egress.allow`.
    These are taken out of the two documents."""
    for number, (level, text) in enumerate(_told(old, new, places)):
        yield Finding(level, text, order=_ORDER, size=-number)


def _told(old: dict[str, Any], new: dict[str, Any], places: Places) -> Iterator[Told]:
    yield from _forbidden(old.pop("forbidden"), new.pop("forbidden"))
    before, after = old.pop("audit"), new.pop("audit")
    yield from ((_level(weakens=not one.new), one.text) for one in changed_leaves("audit", before, after))
    yield from _gateway(old.pop("gateway"), new.pop("gateway"))
    # What an agent says of itself: another place or format of it is another witness.
    traces = old["agent"].pop("trace"), new["agent"].pop("trace")
    yield from ((Level.LOWERED, one.text) for one in changed_leaves("agent.trace", *traces, places))
    folders = old["resources"].pop("readable"), new["resources"].pop("readable")
    yield from _entries("resources.readable", "folder", *folders, more_weakens=True)
    hosts = old["network"]["egress"].pop("allow"), new["network"]["egress"].pop("allow")
    yield from _entries("network.egress.allow", "host", *hosts, more_weakens=True)


def _level(*, weakens: bool) -> Level:
    return Level.LOWERED if weakens else Level.STRICTER


def _forbidden(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Told]:
    for rule in old:
        name, before, after = f"forbidden.{rule}", old[rule], new[rule]
        if before is None and after is not None:
            shown = short_value(after)
            yield Level.STRICTER, f"{name} is new: {shown}" if shown else f"{name} is new"
        elif after is None and before is not None:
            yield Level.TAKEN, f"{name} is gone"
        elif isinstance(before, list) and isinstance(after, list):
            yield from _entries(name, "entry", before, after, more_weakens=rule in _ALLOWED)


def _gateway(old: Any, new: Any) -> Iterator[Told]:
    """Where a spec has no such key, an agent that needs the gateway has it with its defaults."""
    if "off" in (old, new) and old != new:
        was, now = ("on" if isinstance(one, dict) else short_value(one) for one in (old, new))
        yield Level.TAKEN if new == "off" else Level.STRICTER, f"gateway {was} → {now}"
    elif new is None and old is not None:
        yield Level.TAKEN, "gateway is gone"
    defaults = Gateway().model_dump()
    before: dict[str, Any] = old if isinstance(old, dict) else defaults
    after: dict[str, Any] = new if isinstance(new, dict) else defaults
    told = [one for name in defaults for one in _gateway_field(name, before[name], after[name])]
    yield from told
    if old is None and new not in (None, "off") and not told:
        yield Level.STRICTER, "gateway is new"


def _gateway_field(field: str, old: Any, new: Any) -> Iterator[Told]:
    name = f"gateway.{field}"
    if field in ("budget", "prices"):
        for key in dict.fromkeys((*old, *new)):
            for leaf in changed_leaves(f"{name}.{key}", old.get(key), new.get(key)):
                yield _level_of_amount(field, leaf), leaf.text
    elif field in _NOUNS and isinstance(old, list) and isinstance(new, list):
        yield from _entries(name, _NOUNS[field], old, new, more_weakens=True)
    else:
        weakens = new != "deny" if field == "provider_tools" else _WEAKEST.get(field, new) == new
        yield from ((_level(weakens=weakens), leaf.text) for leaf in changed_leaves(name, old, new))


def _level_of_amount(field: str, leaf: Leaf) -> Level:
    """Of a limit, or of a price: one that is too low lets a limit of money pass more, and there can be many of them."""
    if field == "budget":
        return Level.STRICTER if not _allows_more(leaf.old, leaf.new) else _slight_or(Level.LOWERED, leaf)
    return Level.STRICTER if leaf.is_dropped else _slight_or(Level.ASKED, leaf)


def _slight_or(level: Level, leaf: Leaf) -> Level:
    return Level.SLIGHT if leaf.is_slight else level


def _allows_more(limit: float | None, other: float | None) -> bool:
    return limit is not None and (other is None or other > limit)


def _entries(name: str, noun: str, old: Sequence[Any], new: Sequence[Any], *, more_weakens: bool) -> Iterator[Told]:
    came = [one for one in new if not any(is_same(one, other) for other in old)]
    went = [one for one in old if not any(is_same(one, other) for other in new)]
    for found, word, weakens in ((came, "more", more_weakens), (went, "fewer", not more_weakens)):
        if found:
            plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
            number = f"one {noun}" if len(found) == 1 else f"{len(found):,} {plural}"
            if len(found) > _LISTED:
                found.sort(key=lambda one: len(str(one)))  # what lets most pass is short: `.*`, `*`
            shown = ", ".join(filter(None, map(short_value, found[:_LISTED])))
            rest = f" and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
            yield _level(weakens=weakens), f"{name} has {number} {word}{f': {shown}{rest}' if shown else ''}"
