"""What differs between two versions of a spec, in sentences: `threshold 0.85 → 0.5`, `removed: tests_pass`.

A pure comparison of what was loaded, so that a base that is extended, a default and an alias count for what they mean.
What can let more pass comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from keystone_action.gate.evidence_changes import EvidenceChanges
from keystone_action.gate.leaves import leaves, short_value
from keystone_action.spec.loading.loader import LoadedSpec
from keystone_action.spec.loading.run_rules import RunRules

MAX_DIFFERENCES = 30
_PRIVATE = frozenset({"further_roots", "places", "where", "has_expressions", "names_keys", "id_from_name"})
"""Fields of `RunRules` that say where something is on this machine or in the file, or in which words it is written."""

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Differences:
    """Sentences on two versions of a spec. weakening: of what can let more pass by itself. others: of everything else;
    the last one may count those that were left out."""

    weakening: tuple[str, ...]
    others: tuple[str, ...]


def differences(before: LoadedSpec, after: LoadedSpec, *, places: tuple[Path, Path]) -> tuple[str, ...]:
    """A sentence for each difference, as `ranked_differences` has them."""
    found = ranked_differences(before, after, places=places)
    return (*found.weakening, *found.others)


def ranked_differences(before: LoadedSpec, after: LoadedSpec, *, places: tuple[Path, Path]) -> Differences:
    """A sentence for each difference, at most MAX_DIFFERENCES and one that counts the rest; none when both mean the
    same. places: the directories of the two versions, which count as one and the same."""
    old, new = (_plain(loaded.spec, str(place)) for loaded, place in zip((before, after), places, strict=True))
    checks = _Checks(old, new)
    evidence = EvidenceChanges.between(old, new)
    weakening = [*_weakening(old, new, checks, evidence)]
    others = [*evidence.strengthening, *_others(old, new, checks)]
    rules = [_rules(loaded, str(place)) for loaded, place in zip((before, after), places, strict=True)]
    others += leaves("", *rules)
    more = len(weakening) + len(others) - MAX_DIFFERENCES
    if more > 0:
        weakening = weakening[:MAX_DIFFERENCES]
        others = [*others[: MAX_DIFFERENCES - len(weakening)], f"and {more:,} more differences"]
    return Differences(tuple(weakening), tuple(others))


class _Checks:
    """The invariants of both versions, of the spec and of each scenario that both have, taken out of the documents."""

    def __init__(self, old: Plain, new: Plain) -> None:
        self.pairs = [(old.pop("invariants"), new.pop("invariants"))]
        self.was, self.now = map(_by_id, _pop_names("scenarios", old, new))
        self.both = [name for name in self.was if name in self.now]
        self.pairs += [(self.was[name].pop("invariants"), self.now[name].pop("invariants")) for name in self.both]
        self.places = ["", *(f"scenario {name}: " for name in self.both)]

    def each(self, compare: Callable[[Mapping[str, Plain], Mapping[str, Plain]], Iterator[str]]) -> Iterator[str]:
        for place, (before, after) in zip(self.places, self.pairs, strict=True):
            yield from (f"{place}{one}" for one in compare(before, after))


def _weakening(old: Plain, new: Plain, checks: _Checks, evidence: EvidenceChanges) -> Iterator[str]:
    """What was taken away comes first, before everything else that a change holds."""
    yield from leaves("", old.pop("scoring"), new.pop("scoring"))
    yield from _losses(*checks.pairs[0])
    removed = [name for name in checks.was if name not in checks.now]
    if removed:
        yield f"removed scenarios: {_join_names(removed)}"
    for place, (before, after) in zip(checks.places[1:], checks.pairs[1:], strict=True):
        yield from (f"{place}{one}" for one in _losses(before, after))
    yield from checks.each(_changed_gates)
    yield from evidence.weakening
    yield from checks.each(_changed_checks)


def _others(old: Plain, new: Plain, checks: _Checks) -> Iterator[str]:
    yield from checks.each(_changed_words)
    for name in checks.both:
        yield from (f"scenario {name}: {one}" for one in leaves("", checks.was[name], checks.now[name]))
    added = [name for name in checks.now if name not in checks.was]
    if added:
        yield f"added scenarios: {_join_names(added)}"
    yield from leaves("", old, new)


def _pop_names(name: str, *documents: Plain) -> list[Any]:
    return [document.pop(name) for document in documents]


def _by_id(scenarios: list[Plain] | None) -> dict[str, Plain]:
    return {str(item["id"] or index): item for index, item in enumerate(scenarios or [])}


def _losses(old: Mapping[str, Plain], new: Mapping[str, Plain]) -> Iterator[str]:
    """Invariants that were removed, and gates."""
    removed = [f"{name} (a gate)" if old[name]["gate"] else name for name in old if name not in new]
    if removed:
        yield f"removed: {_join_names(removed)}"
    yield from (f"gate {name} removed" for name in old if name in new and old[name]["gate"] and not new[name]["gate"])


def _changed_gates(old: Mapping[str, Plain], new: Mapping[str, Plain]) -> Iterator[str]:
    """Those that there are in both, and what they check: a gate can be weakened without being removed."""
    for name in old:
        if name in new and old[name]["gate"]:
            before, after = old[name]["gate"], new[name]["gate"]
            if after and before != after:
                yield f"gate {name} {short_value(before)} → {short_value(after)}"
            yield from (f"{name}: {one}" for one in leaves("check", old[name]["check"], new[name]["check"]))


def _changed_checks(old: Mapping[str, Plain], new: Mapping[str, Plain]) -> Iterator[str]:
    """What those that there are in both weigh and check; of gates this has been told."""
    both = [name for name in old if name in new]
    for name in both:
        before, after = old[name]["weight"], new[name]["weight"]
        if before != after:
            yield f"weight of {name} {short_value(before)} → {short_value(after)}"
    for name in both:
        if not old[name]["gate"]:
            yield from (f"{name}: {one}" for one in leaves("check", old[name]["check"], new[name]["check"]))


def _changed_words(old: Mapping[str, Plain], new: Mapping[str, Plain]) -> Iterator[str]:
    """All else about them, and what came."""
    both = [name for name in old if name in new]
    yield from (f"gate {name} added" for name in both if new[name]["gate"] and not old[name]["gate"])
    told = ("gate", "weight", "check")
    for name in both:
        was, now = ({key: value for key, value in one.items() if key not in told} for one in (old[name], new[name]))
        yield from (f"{name}: {one}" for one in leaves("", was, now))
    added = [name for name in new if name not in old]
    if added:
        yield f"added: {_join_names(added)}"


def _join_names(names: list[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _plain(value: Any, place: str) -> Any:
    """A model as mappings and lists; `place`, a directory of this machine, left out of its texts."""
    if isinstance(value, BaseModel):
        return {info.alias or name: _plain(getattr(value, name), place) for name, info in _fields(value)}
    if is_dataclass(value) and not isinstance(value, type):
        named = ((one.name, getattr(value, one.name)) for one in fields(value) if one.name not in _PRIVATE)
        return {name: _plain(item, place) for name, item in named}
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, place) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, place) for item in value]
    if isinstance(value, Path | str):
        return str(value).replace(place, "")
    return value


def _rules(loaded: LoadedSpec, place: str) -> Plain:
    names = [one.name for one in fields(RunRules) if one.name not in _PRIVATE]
    return {name: _plain(getattr(loaded, name), place) for name in names}


def _fields(model: BaseModel) -> Iterator[tuple[str, Any]]:
    yield from type(model).model_fields.items()


def _key(key: Any) -> str:
    return ",".join(map(str, key)) if isinstance(key, tuple) else str(key)
