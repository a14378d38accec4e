r"""What differs between two versions of a spec, in sentences: `threshold 0.85 → 0.5`, `removed: tests_pass`.

A pure comparison of what was loaded, so that a base that is extended, a default and an alias count for what they mean.
What can weaken the gate most comes first, whatever else a change holds. For what is forbidden, where evidence comes
from and what agents may see, a sentence says which way it goes: `forbidden.tools is gone`, `gateway.ignore has one
pattern more: \d+`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from keystone_action.gate.findings import (
    NULL,
    ChangedValue,
    GateFinding,
    Level,
    Places,
    changed_values,
    is_same,
    is_slight,
    join_names,
    short_value,
)
from keystone_action.spec.loading.loaded_spec import LoadedSpec, RunRules
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


def evidence_changes(old: dict[str, Any], new: dict[str, Any], places: Places = ("", "")) -> Iterator[GateFinding]:
    """Findings on `forbidden`, `audit`, `gateway`, `agent.trace`, `resources.readable` and `network.egress.allow`.
    These are taken out of the two documents."""
    for number, (level, text) in enumerate(_told(old, new, places)):
        yield GateFinding(level, text, order=_ORDER, size=-number)


def _told(old: dict[str, Any], new: dict[str, Any], places: Places) -> Iterator[Told]:
    yield from _forbidden(old.pop("forbidden"), new.pop("forbidden"))
    before, after = old.pop("audit"), new.pop("audit")
    yield from ((_level(weakens=not one.new), one.text) for one in changed_values("audit", before, after))
    yield from _gateway(old.pop("gateway"), new.pop("gateway"))
    # What an agent says of itself: another place or format of it is another witness.
    traces = old["agent"].pop("trace"), new["agent"].pop("trace")
    yield from ((Level.LOWERED, one.text) for one in changed_values("agent.trace", *traces, places))
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
            for change in changed_values(f"{name}.{key}", old.get(key), new.get(key)):
                yield _level_of_amount(field, change), change.text
    elif field in _NOUNS and isinstance(old, list) and isinstance(new, list):
        yield from _entries(name, _NOUNS[field], old, new, more_weakens=True)
    else:
        weakens = new != "deny" if field == "provider_tools" else _WEAKEST.get(field, new) == new
        yield from ((_level(weakens=weakens), change.text) for change in changed_values(name, old, new))


def _level_of_amount(field: str, change: ChangedValue) -> Level:
    """Of a limit, or of a price: one that is too low lets a limit of money pass more, and there can be many of them."""
    if field == "budget":
        return Level.STRICTER if not _allows_more(change.old, change.new) else _slight_or(Level.LOWERED, change)
    return Level.STRICTER if change.is_dropped else _slight_or(Level.ASKED, change)


def _slight_or(level: Level, change: ChangedValue) -> Level:
    return Level.SLIGHT if change.is_slight else level


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


MAX_DIFFERENCES = 30
_BEFORE_FILES = 8
"""Differences of a spec that stand before its changed files."""
_PRIVATE = frozenset({"further_roots", "places", "where", "has_expressions", "names_keys", "id_from_name"})
"""Fields of `RunRules` that say where something is on this machine or in the file, or in which words it is written."""
_SCORING, _REMOVED, _GATE, _CHECK, _WEIGHT, _OTHER = range(6)
"""Kinds of findings, in the order in which those of one level are told."""
_IN_SCENARIO = 10
_AGGREGATION = {"all": 0, "majority": 1, "mean": 1, "any": 2}
"""How much an aggregation of replicas lets pass."""
_LARGE_PART = 0.25
"""A share of the weight that what is new may have without making the rest of little account."""
_LEVELS = {
    "parallelism": Level.SELECTED,
    "parallelism.max_concurrency": Level.NONE,
    "dataset": Level.SELECTED,
    "tags": Level.SELECTED,
    "network": Level.LOWERED,
    "agent.must_exit_zero": Level.TAKEN,
    "agent.output": Level.ASKED,
    "description": Level.NONE,
}
"""By the beginning of a path; all else is what agent and checks find."""

_STRICTEST = (("agent.must_exit_zero", True), ("network.egress.default", "deny"))
"""Fields with the value that lets least pass."""

Plain = dict[str, Any]


def first_sentences(found: Iterable[GateFinding], beside: Sequence[GateFinding] = ()) -> tuple[str, ...]:
    """The gravest first, at most MAX_DIFFERENCES and one that counts the rest, with the names that they are about.
    beside: of files, which stand behind what the spec itself asks, but before all but the gravest of it."""
    ranked = sorted(found, key=lambda one: one.rank)
    place = min(sum(one.level <= Level.STRICTER for one in ranked), _BEFORE_FILES)
    ranked[place:place] = sorted(beside, key=lambda one: one.rank)
    rest = ranked[MAX_DIFFERENCES:]
    told = [one.sentence for one in ranked[:MAX_DIFFERENCES]]
    if rest:
        names = list(dict.fromkeys(one.name for one in rest if one.name))
        counted = "one more difference" if len(rest) == 1 else f"{len(rest):,} more differences"
        told.append(f"and {counted}" + (f", of {join_names(names)}" if names else ""))
    return tuple(told)


def spec_findings(before: LoadedSpec, after: LoadedSpec, *, places: tuple[Path, Path]) -> list[GateFinding]:
    """A finding for each difference; none when both mean the same. places: the directories of the two versions."""
    roots = (str(places[0]), str(places[1]))
    old, new = _plain(before.spec), _plain(after.spec)
    checks = _Checks(old, new, roots)
    rules = (
        GateFinding(Level.AROUND if change.path.startswith("agents.") else Level.LOWERED, change.text, _OTHER)
        for change in changed_values("", _rules(before), _rules(after), roots)
    )
    scoring = _scoring(old.pop("scoring"), new.pop("scoring"))
    return [*scoring, *checks.findings(), *evidence_changes(old, new, roots), *_rest(old, new, roots), *rules]


def _scoring(old: Plain, new: Plain) -> Iterator[GateFinding]:
    for change in changed_values("", old, new):
        yield GateFinding(Level.TAKEN if _lets_more_pass(change) else Level.STRICTER, change.text, _SCORING)


def _lets_more_pass(change: ChangedValue) -> bool:
    if change.path == "pass_threshold":
        return bool(change.new < change.old)
    if change.path in ("replica_aggregation.at_least", "scenarios.at_least"):
        return bool(change.new < change.old)
    if change.path == "scenarios":  # a share of all is all
        return change.old == "all" and bool(change.new["at_least"] < 1)
    if change.path == "fail_on_skipped":
        return not change.new
    if change.path == "replica_aggregation" and isinstance(change.old, str) and isinstance(change.new, str):
        return _AGGREGATION[change.new] >= _AGGREGATION[change.old]
    return change.path != "retry_errors" or change.new > change.old


class _Checks:
    """The invariants of both versions, of the spec and of each scenario that both have, taken out of the documents."""

    def __init__(self, old: Plain, new: Plain, places: Places) -> None:
        pairs = [(old.pop("invariants"), new.pop("invariants"))]
        self._places = places
        self._was, self._now = map(_by_id, _pop_names("scenarios", old, new))
        both = [name for name in self._was if name in self._now]
        pairs += [(self._was[name].pop("invariants"), self._now[name].pop("invariants")) for name in both]
        self._sets = [
            _CheckSet(f"scenario {name}: " if name else "", *pair, places)
            for name, pair in zip(["", *both], pairs, strict=True)
        ]
        self._both = both

    def findings(self) -> Iterator[GateFinding]:
        for one in self._sets:
            for finding in one.findings():
                # What all scenarios have is told before what one of them has.
                order = finding.order + (_IN_SCENARIO if one.where else 0)
                yield replace(finding, text=f"{one.where}{finding.text}", order=order)
        removed = [name for name in self._was if name not in self._now]
        if removed:
            yield GateFinding(Level.TAKEN, f"removed scenarios: {join_names(removed)}", _REMOVED)
        for name in self._both:
            for change in changed_values("", self._was[name], self._now[name], self._places):
                level = Level.NONE if change.path == "description" else Level.AROUND
                yield GateFinding(level, f"scenario {name}: {change.text}", _OTHER, name=f"scenario {name}")
        added = [name for name in self._now if name not in self._was]
        if added:
            yield GateFinding(Level.NONE, f"added scenarios: {join_names(added)}", _OTHER)


@dataclass(frozen=True, slots=True)
class _CheckSet:
    """Invariants by name, in both versions. where: what its sentences begin with."""

    where: str
    old: Mapping[str, Plain]
    new: Mapping[str, Plain]
    places: Places

    def findings(self) -> Iterator[GateFinding]:
        """Of those that went, came, or are not what they were."""
        renamed = self._renamed()
        removed = [name for name in self.old if name not in self.new and name not in renamed]
        removed.sort(key=lambda name: (not self.old[name]["gate"], -self.old[name]["weight"], name))
        if removed:
            names = [f"{name} (a gate)" if self.old[name]["gate"] else name for name in removed]
            yield GateFinding(Level.TAKEN, f"removed: {join_names(names)}", _REMOVED)
        if renamed:
            names = [f"{name} → {now}" for name, now in renamed.items()]
            yield GateFinding(Level.SLIGHT, f"renamed: {join_names(names)}", _REMOVED)
        both = [name for name in self.old if name in self.new]
        for name in both:
            yield from self._one(name)
        if [name for name in self.new if name in both] != both:
            yield GateFinding(Level.ASKED, "the order of the checks changed", _OTHER)
        yield from self._added(set(renamed.values()))

    def _renamed(self) -> dict[str, str]:
        """Name → new name, of those that are the same otherwise: a check that went is not to hide among these."""
        found: dict[str, str] = {}
        came = [name for name in self.new if name not in self.old]
        for name in self.old:
            if name not in self.new:
                now = next((one for one in came if self._is_same(name, one)), None)
                if now is not None:
                    found[name] = now
                    came.remove(now)
        return found

    def _is_same(self, name: str, now: str) -> bool:
        old, new = ({**one, "description": ""} for one in (self.old[name], self.new[now]))
        return next(changed_values("", old, new, self.places), None) is None

    def _one(self, name: str) -> Iterator[GateFinding]:
        old, new = self.old[name], self.new[name]
        was, now = old["gate"], new["gate"]
        if was and not now:
            yield GateFinding(Level.TAKEN, f"gate {name} removed", _GATE, name=name)
        elif now and not was:
            yield GateFinding(Level.NONE, f"gate {name} added", _OTHER, name=name)
        elif was != now:
            level = Level.LOWERED if now == "passed" else Level.NONE
            yield GateFinding(level, f"gate {name} {short_value(was)} → {short_value(now)}", _GATE, name=name)
        yield from self._weight(name)
        size = _share(self.old, name, self.new)
        for key in old:
            if key not in ("gate", "weight"):
                for change in changed_values("check" if key == "check" else key, old[key], new[key], self.places):
                    yield GateFinding(_level_of(change, bool(was)), f"{name}: {change.text}", _CHECK, size, name)

    def _weight(self, name: str) -> Iterator[GateFinding]:
        before, after = self.old[name]["weight"], self.new[name]["weight"]
        if is_same(before, after):
            return
        shares = _share(self.old, name, self.new), _share(self.new, name, self.old)
        level = Level.TAKEN if not after else Level.SLIGHT if is_slight(*shares) else Level.LOWERED
        text = f"weight of {name} {short_value(before)} → {short_value(after)}"
        yield GateFinding(level, text, _WEIGHT, abs(shares[0] - shares[1]), name)

    def _added(self, renamed: set[str]) -> Iterator[GateFinding]:
        added = [name for name in self.new if name not in self.old and name not in renamed]
        if not added:
            return
        total = sum(one["weight"] for one in self.new.values())
        weight = sum(self.new[name]["weight"] for name in added)
        if self.old and total and weight / total > _LARGE_PART:
            # What was there counts for less: with a threshold below 1 it may fail.
            share = f", which have {weight / total:.0%} of the weight"
            yield GateFinding(Level.LOWERED, f"added: {join_names(added)}{share}", _WEIGHT)
        else:
            yield GateFinding(Level.NONE, f"added: {join_names(added)}", _OTHER)


def _share(checks: Mapping[str, Plain], name: str, others: Mapping[str, Plain]) -> float:
    """Of the weight of those that both versions have."""
    total = sum(one["weight"] for other, one in checks.items() if other in others)
    return checks[name]["weight"] / total if total else 0.0


def _level_of(change: ChangedValue, is_gate: bool) -> Level:
    """Of a field of an invariant."""
    if change.path == "description":
        return Level.NONE
    if change.path == "on_skip" and change.new != "ignore":
        return Level.NONE
    if change.is_slight:
        return Level.SLIGHT
    if is_gate or change.is_dropped or change.path == "on_skip":
        return Level.LOWERED
    return Level.ASKED


def _rest(old: Plain, new: Plain, places: Places) -> Iterator[GateFinding]:
    for change in changed_values("", old, new, places):
        parts = re.split(r"[.\[]", change.path)
        known = (_LEVELS.get(".".join(parts[:length])) for length in range(len(parts), 0, -1))
        level = next((one for one in known if one is not None), Level.AROUND)
        if (change.path, change.new) in _STRICTEST:
            level = Level.STRICTER
        level = Level.SLIGHT if change.is_slight and level < Level.SLIGHT else level
        yield GateFinding(level, change.text, _GATE if level <= Level.LOWERED else _OTHER, name=parts[0])


def _pop_names(name: str, *documents: Plain) -> list[Any]:
    return [document.pop(name) for document in documents]


def _by_id(scenarios: list[Plain] | None) -> dict[str, Plain]:
    return {str(item["id"] or index): item for index, item in enumerate(scenarios or [])}


def _plain(value: Any) -> Any:
    """A model as mappings and lists, each value with its type."""
    if isinstance(value, BaseModel):
        return {
            info.alias or name: _field(value, name, info.annotation) for name, info in type(value).model_fields.items()
        }
    if is_dataclass(value) and not isinstance(value, type):
        named = ((one.name, getattr(value, one.name)) for one in fields(value) if one.name not in _PRIVATE)
        return {name: _plain(item) for name, item in named}
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _field(model: BaseModel, name: str, annotation: Any) -> Any:
    """Where any value may stand, a null that was written is one: `equals: null`."""
    value = getattr(model, name)
    return NULL if value is None and annotation is Any and name in model.model_fields_set else _plain(value)


def _rules(loaded: LoadedSpec) -> Plain:
    names = [one.name for one in fields(RunRules) if one.name not in _PRIVATE]
    return {name: _plain(getattr(loaded, name)) for name in names}


def _key(key: Any) -> str:
    if isinstance(key, tuple):
        return ",".join(map(str, key))
    return key if isinstance(key, str) else repr(key)
