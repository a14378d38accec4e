"""Every example of every field in a small spec of its own, as a file that the loader can be given."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.field_texts import field_texts, models_in
from keystone_action.spec.models.fields import CheckModel
from keystone_action.spec.models.spec import Spec

BASE: Mapping[str, Any] = {
    "version": 1,
    "id": "a",
    "task": {"prompt": "x"},
    "agent": {"type": "none"},
    "secrets": ["ROUTER_KEY"],
    "services": [
        {"name": "db", "type": "postgres"},
        {"name": "shop", "type": "http_mock", "record": True},
        {"name": "desk", "type": "mcp_mock"},
    ],
    "invariants": {"first": {"check": {"type": "file_exists", "path": "x"}}},
}
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "AgentTrace.format": {"path": "trace.jsonl"},
    "PostgresService": {"image": "postgres:16"},
    "SqlFixture.type": {"sql": "select 1"},
    "SqlFixture.service": {"sql": "select 1"},
    "SetupFile.path": {"content": "x"},
    "SetupFile.mode": {"content": "x"},
    "Parallelism.exclude": {"matrix": {"model": ["gpt-5"], "style": ["long", "short"]}},
    "ModelProvider.key": {"base_url": "https://router.example"},
    "Budget": {"max_tokens": 1},
    "Custom.agent_packages": {"runs_in": "sandbox"},
    "Efficiency": {"target_tokens": 1},
    "Diff": {"max_files": 1},
    "FileContent": {"contains": "x"},
    "Files": {"patterns": ["x"]},
    "Files.patterns": {"expect_dir": "expected"},
    "Assertion": {"field": "last_request.body", "equals": "1"},
    "CallAssertion": {"field": "last_call.result", "equals": "1"},
    "Http": {"start": "x"},
    "Json.type": {"path": "x"},
    "Json.schema": {"path": "x"},
    "Json.values": {"path": "x"},
    "Sql": {"equals": 1},
    "Tests": {"cmd": "x", "junit_xml": "x.xml"},
    "ToolCorrectness.match": {"expected": ["execute"]},
    "TraceCheck": {"max_tokens": 1},
    "TraceCheck.order": {"require_tools": [{"kind": "read"}, {"kind": "write"}]},
}
"""What else a mapping has, or must have when a field of it is given, to be in order."""
ALL_BESIDE: Mapping[str, Mapping[str, Any]] = {
    "Forbidden.http_except": {"base": "python:3.12-slim"},
    "Network.dns_overrides": {"base": "python:3.12-slim"},
    "Scoring.replica_aggregation": {"parallelism": {"replicas": 5}},
    "AtLeast.at_least": {"parallelism": {"replicas": 5}},
    "Task.turns": {"agent": {"type": "command", "command": "true"}},
}
"""What else the spec must have."""
FILES: Mapping[str, str] = {
    "agent/my_agent.py": "class Agent:\n    def run(self, input, context):\n        return {'output': input}\n",
    "base.yaml": json.dumps(BASE),
    "cases.jsonl": '{"input": "x", "tags": ["refund"]}\n',
    "checks/scorers.py": "",
    "report.schema.json": "{}",
    **dict.fromkeys(
        (
            "checks/report.py",
            "criteria.md",
            "defaults.ini",
            "docs/brief.md",
            "example/x",
            "expected/x",
            "hidden/test_totals.py",
            "prompt.md",
            "response.bin",
            "schema.sql",
            "seed/x",
        ),
        "x",
    ),
}
"""What the examples name."""


@dataclass(frozen=True)
class Place:
    """Where a model can stand in a spec. steps: the key, list or mapping above it, each with its model."""

    model: type[BaseModel]
    above: Place | None = None
    steps: str = ""

    @property
    def root(self) -> type[BaseModel]:
        """`Spec`, or the check type that the model is a part of."""
        return self.model if self.above is None else self.above.root

    def spec_with(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A whole spec with this mapping in this place."""
        if self.above is None:
            return {**BASE, **document} if self.model is Spec else {
                **BASE, "invariants": {"example": {"check": dict(document)}}
            }  # fmt: skip
        key, *nesting = self.steps.replace("[]", "/[]").replace(".*", "/*").split("/")
        value: Any = dict(document)
        for one in reversed(nesting):
            value = [value] if one == "[]" else {"name": value}
        return self.above.spec_with({**required(self.above.model, key), key: value})


def required(model: type[BaseModel], given: str = "") -> dict[str, Any]:
    """The keys that a model must have, and what has to stand beside the key that is given."""
    found = {
        field.alias or name: field_texts(model)[name].values[0]
        for name, field in model.model_fields.items()
        if field.is_required() and name != "check"
    }
    if "check" in model.model_fields:
        found["check"] = {"type": "file_exists", "path": "x"}
    beside = {**BESIDE.get(model.__name__, {}), **BESIDE.get(f"{model.__name__}.{given}", {})}
    return {**({} if model is Spec else found), **beside}


@cache
def places() -> tuple[Place, ...]:
    """One for each model that a spec can be made of."""
    types = CheckTypes()
    checks = {types[name] for name in types}
    found: dict[type[BaseModel], Place] = {}
    for root in (Spec, *sorted(checks, key=lambda one: one.__name__)):
        for place in _below(Place(root)):
            found.setdefault(place.model, place)
    return tuple(found.values())


def _below(place: Place) -> Iterator[Place]:
    yield place
    for name, field in place.model.model_fields.items():
        for steps, inner in models_in(field.annotation, field.alias or name):
            if inner is not CheckModel:
                yield from _below(Place(inner, place, steps))


def spec_text(place: Place, key: str, value: Any) -> str:
    """A spec in which a field has this value, as JSON, which is YAML as well."""
    document = {**required(place.model, key), key: value}
    named = f"{place.model.__name__}.{key}"
    return json.dumps({**place.spec_with(document), **ALL_BESIDE.get(named, {})}, indent=1)


def write_files(folder: Path) -> None:
    """Lay out what the examples name."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
