"""The specs of tests/data/every_field, which together use every field of the contract; and which fields those are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from keystone_action.dialects.known import DIALECTS
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.models.fields import CheckModel, StrictModel
from keystone_action.spec.models.spec import Spec

FOLDER = Path(__file__).parents[1] / "data" / "every_field"
SPECS = sorted(
    [*FOLDER.glob("*.keystone.yaml"), FOLDER / "touchstone" / "case.yaml", FOLDER / "agenticassure" / "suite.yaml"]
)

WITHOUT_A_SPEC: Mapping[str, set[str]] = {
    "end_to_end/test_known_agents.py runs the real programs": {
        f"PresetAgent.type: {name}"
        for name in ("claude-code", "gemini", "mini-swe-agent", "opencode", "aider", "qwen-code")
    },
}
"""Why there are fields that no spec here uses, and which."""


@cache
def loaded(path: Path) -> LoadedSpec:
    """One of SPECS."""
    return load(path, CheckTypes(), dialects=DIALECTS)


def fields_of_the_contract() -> set[str]:
    """`Model.field` of every field that a spec can have, under the class that declares it: `timeout`, which all agents
    have, is one field. Where `type` has several words for one model, each is one more (`PresetAgent.type: codex`)."""
    types = CheckTypes()
    reached: set[type[BaseModel]] = set()
    for model in (Spec, *(types[name] for name in types)):
        _reach(model, reached)
    return {field for model in reached for name in model.model_fields for field in _names(model, name)}


def fields_used(spec: LoadedSpec) -> set[str]:
    """Those that a spec gives."""
    return set(_used(spec.spec))


def _reach(annotation: Any, reached: set[type[BaseModel]]) -> None:
    """Adds all models that a value of this type may be made of. A check is of a type that the field does not tell."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in reached and annotation is not CheckModel:
            reached.add(annotation)
            for field in annotation.model_fields.values():
                _reach(field.annotation, reached)
        return
    for part in get_args(annotation) if get_origin(annotation) is not Literal else ():
        _reach(part, reached)


def _used(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for name in value.model_fields_set:
            found = getattr(value, name)
            named = list(_names(type(value), name))
            yield from [one for one in named if one.endswith(f": {found}")] if len(named) > 1 else named
            yield from _used(found)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _used(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _used(one)


def _names(model: type[BaseModel], name: str) -> Iterator[str]:
    """Of one field."""
    field = model.model_fields[name]
    declaring = next(one for one in reversed(model.__mro__) if name in get_annotations(one))
    owner = model if declaring in (StrictModel, BaseModel) or name == "type" else declaring
    words = get_args(field.annotation) if name == "type" else ()
    plain = f"{owner.__name__}.{field.alias or name}"
    yield from [f"{plain}: {word}" for word in words] if len(words) > 1 else [plain]
