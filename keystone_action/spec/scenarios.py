"""A spec's scenarios: one, or one for each record of a dataset or entry of `scenarios`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from keystone_action.spec.models.spec import Invariant, ScenarioItem, Spec

RECORD = ("id", "input", "expected", "metadata", "tags")
"""The fields of a record."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One task with its invariants.

    id: unique in the spec, safe as a file name. prompt: replaces the task's, None = the task's own. record: what
    `{{ record.… }}` gives (id, input, expected, metadata, tags), None without dataset and scenarios. invariants: added
    to the spec's. where: `file:line` of a dataset's record. fields: what the file calls the fields, or columns, that it
    has for it.
    """

    id: str
    prompt: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] | None = None
    invariants: Mapping[str, Invariant] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    where: str = ""
    fields: tuple[str, ...] = field(default=(), compare=False)


def inline_scenarios(spec: Spec) -> Iterator[Scenario]:
    """Those of `scenarios`, in order; entries without an id are `scenario-1`, `scenario-2`, … by their place."""
    uses_record = isinstance(spec.task.prompt, str) and re.search(r"(?<!\\)\{\{\s*record\b", spec.task.prompt)
    for index, item in enumerate(spec.scenarios or []):
        identity = item.id or f"scenario-{index + 1}"
        yield Scenario(
            id=identity,
            prompt=_prompt(item, uses_record=bool(uses_record)),
            params=item.params,
            record=_record(identity, item),
            fields=_given(item),
            invariants=item.invariants,
            tags=tuple(item.tags),
        )


def _prompt(item: ScenarioItem, *, uses_record: bool) -> str | None:
    if item.prompt is not None:
        return item.prompt
    return item.input if isinstance(item.input, str) and not uses_record else None


def _given(item: ScenarioItem) -> tuple[str, ...]:
    has = {"id", *(name for name in RECORD if name in item.model_fields_set)}
    return tuple(name for name in RECORD if name in has or (name == "input" and item.prompt is not None))


def _record(identity: str, item: ScenarioItem) -> dict[str, Any]:
    return {
        "id": identity,
        "input": item.prompt if item.input is None else item.input,
        "expected": item.expected,
        "metadata": item.metadata,
        "tags": list(item.tags),
    }


def only_scenario(spec: Spec) -> Scenario:
    """The one of a spec that declares none: it has the spec's id."""
    return Scenario(id=spec.id)


def safe_id(text: str) -> str:
    """A record's id as a scenario's: what file names don't take becomes `-`; an empty text when nothing is left."""
    return _UNSAFE.sub("-", text).strip("-.")[:128]
