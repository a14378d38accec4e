"""Which models the parts of a file are read as, and where in it a key belongs."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.spec import Spec

_SHOWN_PLACES = 3


def places_of(key: str, path: KeyPath, data: Any, check_types: Mapping[str, type[BaseModel]]) -> list[str]:
    """Where a key belongs that the mapping at a path has and must not have: `under `agent``, `at the top level`.

    Looked at are the mappings around that one, and those directly below it and beside it; where none of these has the
    key, the entries of lists and of mappings with free names there. Empty when none has it, or more than three: then it
    is a name that says little, such as `type`.
    """
    found, in_entries = [], []
    for depth in range(len(path), -1, -1):
        around = path[:depth]
        models = _models_at(around, data, check_types)
        if depth < len(path) and any(key in _keys(model) for model in models):
            beside = path[depth]
            found.append(f"one level up, beside `{beside}`" if depth else f"at the top level, beside `{beside}`")
        if depth < len(path) - 1:
            continue  # what is below a distant mapping is too far away to be meant
        for name in dict.fromkeys(name for model in models for name in _keys(model)):
            below: KeyPath = (*around, name)
            if below != path and _has(key, below, data, check_types):
                found.append(f"under `{name}`")
            elif below != path[:-1] and any(_has(key, (*below, step), data, check_types) for step in ("", 0)):
                in_entries.append(f"in an entry of `{name}`")
    places = found or in_entries
    return places if len(places) <= _SHOWN_PLACES else []


def _has(key: str, path: KeyPath, data: Any, check_types: Mapping[str, type[BaseModel]]) -> bool:
    return any(key in _keys(model) for model in _models_at(path, data, check_types))


def _models_at(path: KeyPath, data: Any, check_types: Mapping[str, type[BaseModel]]) -> list[type[BaseModel]]:
    """The models that a mapping at a place can be read as; none for lists and for mappings with free names."""
    annotations: list[Any] = [Spec]
    for step in path:
        annotations = [
            inner for one in annotations for member, _ in _members(one) if (inner := _step(member, step)) is not None
        ]
        following = item_of(data, step)
        data = following[0] if following is not None else None
        if step == "check":
            named = check_types.get(str(data.get("type"))) if isinstance(data, dict) else None
            annotations = list(check_types.values()) if named is None else [named]
    return [member for one in annotations for member, _ in _members(one) if _is_model(member)]


def _keys(model: type[BaseModel]) -> list[str]:
    return [key for _, key, _ in _infos(model)]


def model_at(root: type[BaseModel], path: KeyPath, data: Any, types_of: Mapping[str, type[BaseModel]]) -> Any:
    """The model that a mapping at a place of the file is read as, or None when that can't be told.

    path: a location of a validation error, tags of unions (`<command>`) included. types_of: check types by name.
    """
    annotation: Any = root
    for step in path:
        candidates = list(_members(annotation))
        if isinstance(step, str) and step.startswith("<"):
            annotation = next((one for one, tags in candidates if step in tags), None)
            continue
        annotation = next((inner for one, _ in candidates if (inner := _step(one, step)) is not None), None)
        following = item_of(data, step)
        data = following[0] if following is not None else None
        if step == "check" and isinstance(data, dict):
            annotation = types_of.get(str(data.get("type")), annotation)
        if annotation is None:
            return None
    return next((one for one, _ in _members(annotation) if _is_model(one)), None)


def _members(annotation: Any, tags: tuple[str, ...] = ()) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every bare annotation in a union, with its tags."""
    if hasattr(annotation, "__metadata__"):
        own = tuple(one.tag for one in annotation.__metadata__ if hasattr(one, "tag"))
        yield from _members(annotation.__origin__, tags + own)
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        for member in typing.get_args(annotation):
            yield from _members(member, tags)
    elif isinstance(annotation, FieldInfo):
        own = tuple(one.tag for one in annotation.metadata if hasattr(one, "tag"))
        yield from _members(annotation.annotation, tags + own)
    else:
        yield annotation, tags


def _step(annotation: Any, step: str | int) -> Any:
    if _is_model(annotation):
        return next((info for _, key, info in _infos(annotation) if key == step), None)
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is list and isinstance(step, int):
        return arguments[0]
    return arguments[1] if origin is dict and len(arguments) == 2 else None


def _infos(model: type[BaseModel]) -> Iterator[tuple[str, str, FieldInfo]]:
    for name, info in model.model_fields.items():
        yield name, info.alias or name, info


def item_of(data: Any, step: str | int) -> tuple[Any] | None:
    """What is below a mapping or list at a step, in a tuple of one; None where there is nothing."""
    if isinstance(data, Mapping):
        return (data[step],) if step in data else None
    return (data[step],) if isinstance(data, list) and isinstance(step, int) and step < len(data) else None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
