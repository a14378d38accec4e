"""What differs between two versions of a spec, in sentences: `threshold 0.85 → 0.5`, `removed: tests_pass`.

A pure comparison of what was loaded, so that a base that is extended, a default and an alias count for what they mean.
What can weaken the gate most comes first, whatever else a change holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from keystone_action.gate.evidence_changes import evidence_changes
from keystone_action.gate.leaves import (
    NULL,
    Finding,
    Leaf,
    Level,
    Places,
    changed_leaves,
    is_same,
    is_slight,
    join_names,
    short_value,
)
from keystone_action.spec.loading.loader import LoadedSpec
from keystone_action.spec.loading.run_rules import RunRules

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


def differences(before: LoadedSpec, after: LoadedSpec, *, places: tuple[Path, Path]) -> tuple[str, ...]:
    """A sentence for each difference, as `spec_findings` has them."""
    return first_sentences(spec_findings(before, after, places=places))


def first_sentences(found: Iterable[Finding], beside: Sequence[Finding] = ()) -> tuple[str, ...]:
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


def spec_findings(before: LoadedSpec, after: LoadedSpec, *, places: tuple[Path, Path]) -> list[Finding]:
    """A finding for each difference; none when both mean the same. places: the directories of the two versions."""
    roots = (str(places[0]), str(places[1]))
    old, new = _plain(before.spec), _plain(after.spec)
    checks = _Checks(old, new, roots)
    rules = (
        Finding(Level.AROUND if leaf.path.startswith("agents.") else Level.LOWERED, leaf.text, _OTHER)
        for leaf in changed_leaves("", _rules(before), _rules(after), roots)
    )
    scoring = _scoring(old.pop("scoring"), new.pop("scoring"))
    return [*scoring, *checks.findings(), *evidence_changes(old, new, roots), *_rest(old, new, roots), *rules]


def _scoring(old: Plain, new: Plain) -> Iterator[Finding]:
    for leaf in changed_leaves("", old, new):
        yield Finding(Level.TAKEN if _lets_more_pass(leaf) else Level.STRICTER, leaf.text, _SCORING)


def _lets_more_pass(leaf: Leaf) -> bool:
    if leaf.path == "pass_threshold":
        return bool(leaf.new < leaf.old)
    if leaf.path == "replica_aggregation.at_least":
        return bool(leaf.new < leaf.old)
    if leaf.path == "fail_on_skipped":
        return not leaf.new
    if leaf.path == "replica_aggregation" and isinstance(leaf.old, str) and isinstance(leaf.new, str):
        return _AGGREGATION[leaf.new] >= _AGGREGATION[leaf.old]
    return leaf.path != "retry_errors" or leaf.new > leaf.old


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

    def findings(self) -> Iterator[Finding]:
        for one in self._sets:
            for finding in one.findings():
                # What all scenarios have is told before what one of them has.
                order = finding.order + (_IN_SCENARIO if one.where else 0)
                yield replace(finding, text=f"{one.where}{finding.text}", order=order)
        removed = [name for name in self._was if name not in self._now]
        if removed:
            yield Finding(Level.TAKEN, f"removed scenarios: {join_names(removed)}", _REMOVED)
        for name in self._both:
            for leaf in changed_leaves("", self._was[name], self._now[name], self._places):
                level = Level.NONE if leaf.path == "description" else Level.AROUND
                yield Finding(level, f"scenario {name}: {leaf.text}", _OTHER, name=f"scenario {name}")
        added = [name for name in self._now if name not in self._was]
        if added:
            yield Finding(Level.NONE, f"added scenarios: {join_names(added)}", _OTHER)


@dataclass(frozen=True, slots=True)
class _CheckSet:
    """Invariants by name, in both versions. where: what its sentences begin with."""

    where: str
    old: Mapping[str, Plain]
    new: Mapping[str, Plain]
    places: Places

    def findings(self) -> Iterator[Finding]:
        """Of those that went, came, or are not what they were."""
        renamed = self._renamed()
        removed = [name for name in self.old if name not in self.new and name not in renamed]
        removed.sort(key=lambda name: (not self.old[name]["gate"], -self.old[name]["weight"], name))
        if removed:
            names = [f"{name} (a gate)" if self.old[name]["gate"] else name for name in removed]
            yield Finding(Level.TAKEN, f"removed: {join_names(names)}", _REMOVED)
        if renamed:
            names = [f"{name} → {now}" for name, now in renamed.items()]
            yield Finding(Level.SLIGHT, f"renamed: {join_names(names)}", _REMOVED)
        both = [name for name in self.old if name in self.new]
        for name in both:
            yield from self._one(name)
        if [name for name in self.new if name in both] != both:
            yield Finding(Level.ASKED, "the order of the checks changed", _OTHER)
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
        return next(changed_leaves("", old, new, self.places), None) is None

    def _one(self, name: str) -> Iterator[Finding]:
        old, new = self.old[name], self.new[name]
        was, now = old["gate"], new["gate"]
        if was and not now:
            yield Finding(Level.TAKEN, f"gate {name} removed", _GATE, name=name)
        elif now and not was:
            yield Finding(Level.NONE, f"gate {name} added", _OTHER, name=name)
        elif was != now:
            level = Level.LOWERED if now == "passed" else Level.NONE
            yield Finding(level, f"gate {name} {short_value(was)} → {short_value(now)}", _GATE, name=name)
        yield from self._weight(name)
        size = _share(self.old, name, self.new)
        for key in old:
            if key not in ("gate", "weight"):
                for leaf in changed_leaves("check" if key == "check" else key, old[key], new[key], self.places):
                    yield Finding(_level_of(leaf, bool(was)), f"{name}: {leaf.text}", _CHECK, size, name)

    def _weight(self, name: str) -> Iterator[Finding]:
        before, after = self.old[name]["weight"], self.new[name]["weight"]
        if is_same(before, after):
            return
        shares = _share(self.old, name, self.new), _share(self.new, name, self.old)
        level = Level.TAKEN if not after else Level.SLIGHT if is_slight(*shares) else Level.LOWERED
        text = f"weight of {name} {short_value(before)} → {short_value(after)}"
        yield Finding(level, text, _WEIGHT, abs(shares[0] - shares[1]), name)

    def _added(self, renamed: set[str]) -> Iterator[Finding]:
        added = [name for name in self.new if name not in self.old and name not in renamed]
        if not added:
            return
        total = sum(one["weight"] for one in self.new.values())
        weight = sum(self.new[name]["weight"] for name in added)
        if self.old and total and weight / total > _LARGE_PART:
            # What was there counts for less: with a threshold below 1 it may fail.
            share = f", which have {weight / total:.0%} of the weight"
            yield Finding(Level.LOWERED, f"added: {join_names(added)}{share}", _WEIGHT)
        else:
            yield Finding(Level.NONE, f"added: {join_names(added)}", _OTHER)


def _share(checks: Mapping[str, Plain], name: str, others: Mapping[str, Plain]) -> float:
    """Of the weight of those that both versions have."""
    total = sum(one["weight"] for other, one in checks.items() if other in others)
    return checks[name]["weight"] / total if total else 0.0


def _level_of(leaf: Leaf, is_gate: bool) -> Level:
    """Of a field of an invariant."""
    if leaf.path == "description":
        return Level.NONE
    if leaf.path == "on_skip" and leaf.new != "ignore":
        return Level.NONE
    if leaf.is_slight:
        return Level.SLIGHT
    if is_gate or leaf.is_dropped or leaf.path == "on_skip":
        return Level.LOWERED
    return Level.ASKED


def _rest(old: Plain, new: Plain, places: Places) -> Iterator[Finding]:
    for leaf in changed_leaves("", old, new, places):
        parts = re.split(r"[.\[]", leaf.path)
        known = (_LEVELS.get(".".join(parts[:length])) for length in range(len(parts), 0, -1))
        level = next((one for one in known if one is not None), Level.AROUND)
        if (leaf.path, leaf.new) in _STRICTEST:
            level = Level.STRICTER
        level = Level.SLIGHT if leaf.is_slight and level < Level.SLIGHT else level
        yield Finding(level, leaf.text, _GATE if level <= Level.LOWERED else _OTHER, name=parts[0])


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
