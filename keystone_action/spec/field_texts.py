"""What the fields of a model mean, in words: their docstrings, their types and their defaults.

The docstrings below the fields are read from the source when somebody asks for them, so a start of the program pays
nothing for them:

    timeout: Duration = 600.0
    \"""How long the agent may run.

    Example: `5m`
    \"""

A field that has `Field(description=…, examples=…)` instead keeps these, as check types of other packages may. A field
without either has the words of the model that it is inherited from; `type` has those of its model.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.yaml_loader import build_data, parse_yaml
from keystone_action.spec.models.fields import (
    AuthorPath,
    CheckModel,
    RegexPattern,
    ServiceName,
    WorkspacePath,
    parse_duration,
    parse_size,
    scalar_text,
    words_of_pattern,
)

_EXAMPLE = "Example: "


@dataclass(frozen=True)
class FieldText:
    """What the docstring of a field says."""

    description: str = ""
    """Paragraphs with a blank line between them, each on one line."""
    examples: tuple[str, ...] = ()
    """As a spec has them."""

    @property
    def values(self) -> tuple[Any, ...]:
        """The examples as values."""
        return tuple(_value(text) for text in self.examples)


@cache
def field_texts(model: type[BaseModel]) -> Mapping[str, FieldText]:
    """What is said of each field of a model, by its attribute's name; empty texts where nothing is."""
    return {name: _field_text(model, name) for name in model.model_fields}


def description(model: type[BaseModel]) -> str:
    """What a model's docstring says."""
    return paragraphs(inspect.cleandoc(model.__doc__ or ""))


def paragraphs(text: str) -> str:
    """The text with each paragraph on one line: Markdown joins lines anyway."""
    return "\n\n".join(" ".join(one.split()) for one in text.split("\n\n"))


def _field_text(model: type[BaseModel], name: str) -> FieldText:
    field = model.model_fields[name]
    if field.description:
        return FieldText(paragraphs(field.description), tuple(map(_as_yaml, field.examples or ())))
    found = next((text for text in _inherited(model, name) if text), "")
    if not found and name == "type":
        words = (model.type_name,) if issubclass(model, CheckModel) else get_args(field.annotation)
        return FieldText(description(model).partition("\n")[0], words)
    lines = inspect.cleandoc(found).splitlines()
    said = "\n".join(line for line in lines if not line.startswith(_EXAMPLE)).strip()
    examples = [line.removeprefix(_EXAMPLE).strip() for line in lines if line.startswith(_EXAMPLE)]
    return FieldText(paragraphs(said), tuple(one.removeprefix("`").removesuffix("`") for one in examples))


def _inherited(model: type[BaseModel], name: str) -> Iterator[str]:
    for one in model.__mro__:
        if one not in (BaseModel, object):
            yield attribute_docstrings(one).get(name, "")


def attribute_docstrings(kind: type) -> Mapping[str, str]:
    """What stands below the attributes of a class, by their names; nothing where its source is not there."""
    return _docstrings(kind.__module__).get(kind.__qualname__, {})


@cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """By class and attribute. Nothing for a module whose source is not there."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    return dict(_of_classes(tree.body, ""))


def _of_classes(body: list[ast.stmt], above: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield f"{above}{node.name}", dict(_of_attributes(node.body))
            yield from _of_classes(node.body, f"{above}{node.name}.")


def _of_attributes(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            value = text.value.value  # type: ignore[attr-defined]
            if isinstance(value, str):
                yield field.target.id, value


def _value(text: str) -> Any:
    """What an example is as a value of a spec. Raises ValueError for one that is not YAML on one line."""
    try:
        document = parse_yaml(f"value: {text}\n", "example")
        data, problems = (None, []) if document is None else build_data(document)
    except SpecError:
        data, problems = None, []
    if problems or not isinstance(data, dict) or data.keys() != {"value"}:
        raise ValueError(f"the example {text!r} is not a value of a spec")
    return data["value"]


def _as_yaml(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


_DURATION = "duration (`90`, `90s`, `10m`)"
_SIZE = "size (`512Mi`, `2G`)"
_READ_BY: Mapping[Any, str] = {parse_duration: _DURATION, parse_size: _SIZE, scalar_text: "text"}
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
    """The singular, for a type that is not a list, a mapping or a union."""
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
