"""The type and the default of a field in words."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from keystone_action.spec.models.base import (
    AuthorPath,
    RegexPattern,
    ServiceName,
    WorkspacePath,
    parse_duration,
    parse_size,
    text_of,
)
from keystone_action.spec.models.shapes import words_of_pattern

_DURATION = "duration (`90`, `90s`, `10m`)"
_SIZE = "size (`512Mi`, `2G`)"
_READ_BY: Mapping[Any, str] = {parse_duration: _DURATION, parse_size: _SIZE, text_of: "text"}
_PLURALS: Mapping[str, str] = {
    "text": "texts",
    "number": "numbers",
    "whole number": "whole numbers",
    "true or false": "true or false",
    "any value": "values",
    _DURATION: "durations",
    _SIZE: "sizes",
    "regular expression": "regular expressions",
    "name of a service": "names of services",
    "path, relative to the spec": "paths, relative to the spec",
    "directory, relative to the spec": "directories, relative to the spec",
    "path in the workspace": "paths in the workspace",
    "path or glob in the workspace": "paths or globs in the workspace",
    "mapping (keys below)": "mappings (keys below)",
}
_BOUNDS = (("gt", "above"), ("ge", "from"), ("le", "to"))
_PLAIN: Mapping[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any value"}


def type_words(annotation: Any, markers: Iterable[Any] = (), *, plural: bool = False) -> str:
    """`list of texts`, `number from 0 to 1`. markers: what stands around the annotation, as pydantic keeps it.

    Raises TypeError for an annotation that no field of a spec has.
    """
    bare, around = _open(annotation, tuple(markers))
    named = _marked(bare, around)
    if named is None:
        return _structure(bare, around, plural=plural)
    pattern = next((one.pattern for one in around if getattr(one, "pattern", None)), None)
    if named == "text" and pattern is not None and not plural:
        return f"text ({words_of_pattern(pattern)})"
    return (_PLURALS[named] if plural else named) + _range(around)


def default_words(field: FieldInfo) -> str:
    """`required`, a value as YAML has it, or a dash where nothing is meant."""
    if field.is_required():
        return "required"
    value = default_value(field)
    if value is None or value in ("", []) or isinstance(value, dict):
        return "—"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value:g}`" if isinstance(value, int | float) else f"`{value}`"


def default_value(field: FieldInfo) -> Any:
    """The default of an optional field as a spec would have it: a duration as a text, a section as a mapping."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    is_duration = _marked(*_open(field.annotation, tuple(field.metadata))) == _DURATION
    return duration_text(value) if is_duration and value is not None else value


def is_default_null_a_value(field: FieldInfo) -> bool:
    """Whether `null` could be meant as it is (`equals: null`), so that it can't be written for "not given"."""
    bare, _ = _open(field.annotation, ())
    anything = bare is Any or (_is_union(bare) and Any in typing.get_args(bare))
    return anything and not field.is_required() and field.default is None


def duration_text(seconds: float) -> str:
    """`10m`, `90s`, `1h30m`, `250ms`: what `parse_duration` reads as these seconds."""
    left = round(seconds * 1000)
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)


def models_in(annotation: Any, place: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Each mapping with keys of its own in an annotation, with where it stands: `inject[]`."""
    bare, _ = _open(annotation, ())
    arguments = typing.get_args(bare)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        yield place, bare
    elif typing.get_origin(bare) is list:
        yield from models_in(arguments[0], f"{place}[]")
    elif typing.get_origin(bare) is dict:
        yield from models_in(arguments[1], f"{place}.*")
    elif _is_union(bare):
        for one in arguments:
            yield from models_in(one, place)


def _open(annotation: Any, markers: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Without aliases and `Annotated`, and with all the markers of these."""
    while hasattr(annotation, "__metadata__"):
        for one in annotation.__metadata__:
            markers += tuple(one.metadata) if isinstance(one, FieldInfo) else (one,)
        annotation = annotation.__origin__
    return annotation, markers


def _marked(bare: Any, markers: tuple[Any, ...]) -> str | None:
    """The singular of what is no list, mapping or union."""
    for marker in markers:
        if isinstance(marker, AuthorPath):
            return f"{'directory' if marker.kind == 'directory' else 'path'}, relative to the spec"
        if isinstance(marker, WorkspacePath):
            return "path or glob in the workspace" if marker.glob else "path in the workspace"
        if isinstance(marker, RegexPattern):
            return "regular expression"
        if isinstance(marker, ServiceName):
            return "name of a service"
        if getattr(marker, "func", None) in _READ_BY:
            return _READ_BY[marker.func]
        if isinstance(marker, WithJsonSchema):
            const = (marker.json_schema or {}).get("const")
            return f"`{const}`" if const else "text"
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return "mapping (keys below)"
    return _PLAIN.get(bare) if isinstance(bare, type) or bare is Any else None


def _structure(bare: Any, markers: tuple[Any, ...], *, plural: bool) -> str:
    origin, arguments = typing.get_origin(bare), typing.get_args(bare)
    if origin is typing.Literal:
        return _either([f"`{str(one).lower() if isinstance(one, bool) else one}`" for one in arguments])
    if origin is list:
        return f"{'lists' if plural else 'list'} of {type_words(arguments[0], plural=True)}"
    if origin is dict:
        key, value = (type_words(one, plural=True) for one in arguments)
        return f"{'mappings' if plural else 'mapping'} of {key} to {value}"
    if _is_union(bare):
        members = [type_words(one, markers, plural=plural) for one in arguments if one is not types.NoneType]
        numbers = {"number", "numbers"}.intersection(members)
        return _either([one for one in dict.fromkeys(members) if not (numbers and one.startswith("whole number"))])
    raise TypeError(f"no words for the type {bare!r}")


def _range(markers: tuple[Any, ...]) -> str:
    words = ""
    for name, word in _BOUNDS:
        bound = next((getattr(one, name) for one in markers if hasattr(one, name)), None)
        if bound is not None:
            words += f" {word} {bound if isinstance(bound, int) else format(bound, 'g')}"
    return words


def _is_union(bare: Any) -> bool:
    return isinstance(bare, types.UnionType) or typing.get_origin(bare) is typing.Union


def _either(words: list[str]) -> str:
    if any(" or " in one or "," in one for one in words):
        return "; or ".join(words)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
