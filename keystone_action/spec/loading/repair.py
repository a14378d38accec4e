"""What can still be checked in a spec with errors: the data without the entries that are wrong.

So that a misspelt key does not hide a missing file or an unknown name elsewhere: all errors of a file at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.base import CheckModel

_LISTS = frozenset({"services", "fixtures", "secrets", "scenarios"})
_STAND_INS: dict[str, Any] = {
    "version": 1,
    "id": "unnamed",
    "task": {"prompt": "unknown"},
    "agent": {"type": "none"},
}


@dataclass(frozen=True)
class Repaired:
    """data: what is left. kept: for each list, the original index of each entry. damaged: sections that lost something
    other than unknown keys; stand_ins: sections whose content is not the author's."""

    data: dict[str, Any]
    kept: dict[str, list[int]]
    damaged: frozenset[str]
    stand_ins: frozenset[str]

    def original(self, path: KeyPath) -> KeyPath:
        """A path in the repaired data as a path in the file."""
        if len(path) > 1 and path[0] in self.kept and isinstance(path[1], int):
            return (path[0], self.kept[str(path[0])][path[1]], *path[2:])
        return path


def whole(data: dict[str, Any]) -> Repaired:
    """The data as they are."""
    return Repaired(data, {}, frozenset(), frozenset())


def repair(before: Repaired, unknown_keys: Iterable[KeyPath], wrong: Iterable[KeyPath]) -> Repaired:
    """The data without these keys and without the entries that these paths lead into."""
    result: dict[str, Any] = dict(before.data)
    damaged: set[str] = set()
    for path in unknown_keys:
        result = _without(result, path)
    units = {_unit(path) for path in wrong if path}
    kept: dict[str, list[int]] = {}
    for section in sorted({str(unit[0]) for unit in units}):
        damaged.add(section)
        _drop(result, section, {unit for unit in units if unit[0] == section}, kept)
    stand_ins = {name for name in _STAND_INS if name not in result}
    result.update({name: _STAND_INS[name] for name in stand_ins})
    if not isinstance(result.get("invariants"), dict) or not result["invariants"]:
        result["invariants"] = {"unnamed": {"check": CheckModel(type="unknown")}}
        stand_ins.add("invariants")
    indices = {
        section: [before.kept[section][index] for index in own] if section in before.kept else own
        for section, own in kept.items()
    }
    return Repaired(
        result, {**before.kept, **indices}, before.damaged | damaged | stand_ins, before.stand_ins | stand_ins
    )


def _unit(path: KeyPath) -> KeyPath:
    """What is dropped for an error at a path: the entry of a list or of `invariants`, else the whole section."""
    if len(path) > 1 and (path[0] in _LISTS or path[0] == "invariants"):
        return path[:2]
    return path[:1]


def _drop(result: dict[str, Any], section: str, units: set[KeyPath], kept: dict[str, list[int]]) -> None:
    before = result.get(section)
    entries = {unit[1] for unit in units if len(unit) > 1}
    if (section,) in units or not isinstance(before, list | dict):
        result.pop(section, None)
    elif isinstance(before, list):
        kept[section] = [index for index in range(len(before)) if index not in entries]
        result[section] = [before[index] for index in kept[section]]
    else:
        result[section] = {name: value for name, value in before.items() if name not in entries}


def _without(data: Any, path: KeyPath) -> Any:
    """A copy of the data without one key; what is not on the way to it is shared."""
    if not path:
        return data
    step, rest = path[0], path[1:]
    if isinstance(data, dict) and step in data:
        if not rest:
            return {key: value for key, value in data.items() if key != step}
        return {**data, step: _without(data[step], rest)}
    if isinstance(data, list) and isinstance(step, int) and step < len(data) and rest:
        return [*data[:step], _without(data[step], rest), *data[step + 1 :]]
    return data
