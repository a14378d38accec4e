"""Walking a model together with its annotations: every text of a spec with the markers that give it its meaning."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from keystone_action.spec.loading.yaml_loader import Path
from keystone_action.spec.models.base import ShellCommand

Marker = TypeVar("Marker")
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One text of a model. path: keys and indices as the file has them. untyped: its field takes any value."""

    value: str
    path: Path
    markers: tuple[Any, ...]
    untyped: bool = False

    def marker(self, kind: type[Marker]) -> Marker | None:
        """The innermost marker of a kind."""
        return next((one for one in reversed(self.markers) if isinstance(one, kind)), None)


Visit = Callable[[Leaf], Any]


def leaves(model: BaseModel, path: Path = ()) -> Iterator[Leaf]:
    """Every text in a model, in the order of its fields."""
    found: list[Leaf] = []

    def collect(leaf: Leaf) -> str:
        found.append(leaf)
        return leaf.value

    transform(model, collect, path)
    yield from found


def transform(model: Model, visit: Visit, path: Path = ()) -> Model:
    """The model with every text replaced by what `visit` makes of it; the same object when nothing changed."""
    changed: dict[str, Any] = {}
    for name, key, annotation, markers in fields_of(type(model)):
        before = getattr(model, name)
        if before is None or isinstance(before, bool | int | float):
            continue
        after = _transform(before, annotation, markers, (*path, key), visit)
        if after is not before:
            changed[name] = after
    return model.model_copy(update=changed) if changed else model


@functools.cache
def fields_of(model: type[BaseModel]) -> tuple[tuple[str, str, Any, tuple[Any, ...]], ...]:
    """(attribute, key in the file, annotation, markers) of each field."""
    return tuple(
        (name, info.alias or name, info.annotation, tuple(info.metadata)) for name, info in model.model_fields.items()
    )


def _transform(value: Any, annotation: Any, markers: tuple[Any, ...], path: Path, visit: Visit) -> Any:
    if annotation is not str:
        annotation, added = unwrap(annotation, value)
        markers = markers + added if added else markers
    if isinstance(value, str):
        return visit(Leaf(value, path, markers, annotation in (Any, object)))
    if isinstance(value, BaseModel):
        return transform(value, visit, path)
    if not isinstance(value, list | tuple | dict) or not value:
        return value
    inside = tuple(one for one in markers if not isinstance(one, ShellCommand))  # only a text is run by a shell
    arguments = typing.get_args(annotation)
    if isinstance(value, dict):
        of_values = arguments[1] if len(arguments) == 2 else Any
        mapped = {key: _transform(item, of_values, inside, (*path, key), visit) for key, item in value.items()}
        return mapped if any(mapped[key] is not item for key, item in value.items()) else value
    of_items = arguments[0] if arguments else Any
    items = [_transform(item, of_items, inside, (*path, index), visit) for index, item in enumerate(value)]
    return type(value)(items) if any(new is not old for new, old in zip(items, value, strict=True)) else value


_Member = tuple[Any, type | tuple[type, ...], tuple[Any, ...]]
_opened: dict[int, tuple[Any, tuple[_Member, ...]]] = {}


def unwrap(annotation: Any, value: Any) -> tuple[Any, tuple[Any, ...]]:
    """The bare annotation for a value, and the markers around it: `Annotated` and aliases are opened, of a union the
    first member that fits is taken."""
    known = _opened.get(id(annotation))
    if known is None:
        # By identity, since markers need not be hashable; kept with its members, so that no other takes its identity.
        known = _opened[id(annotation)] = (annotation, tuple(_open(annotation, ())))
    members = known[1]
    if len(members) == 1:
        return members[0][0], members[0][2]
    return next(((bare, markers) for bare, kind, markers in members if isinstance(value, kind)), (Any, ()))


def _open(annotation: Any, markers: tuple[Any, ...]) -> Iterator[_Member]:
    """Every member of an annotation: bare, the types of its values, and its markers."""
    if hasattr(annotation, "__metadata__"):
        yield from _open(annotation.__origin__, (*markers, *annotation.__metadata__))
    elif hasattr(annotation, "__value__"):
        yield from _open(annotation.__value__, markers)
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        for member in typing.get_args(annotation):
            yield from _open(member, markers)
    elif typing.get_origin(annotation) is typing.Literal:
        yield annotation, tuple({type(one) for one in typing.get_args(annotation)}), markers
    else:
        origin = typing.get_origin(annotation) or annotation
        # Any is a class, of which nothing can be asked to be an instance.
        yield annotation, origin if isinstance(origin, type) and origin is not Any else object, markers


def model_at(root: type[BaseModel], path: Path, data: Any, types_of: Mapping[str, type[BaseModel]]) -> Any:
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
