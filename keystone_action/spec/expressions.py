r"""The texts of a spec: each with the markers that give it its meaning, and the expressions in it.

`{{ a.b }}`: names with dots and nothing else. `\{{` is a literal `{{`.
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from keystone_action.errors import HarnessError
from keystone_action.spec.loading.diagnostics import escape_controls, listing, nearest
from keystone_action.spec.models.fields import PlainText, ShellCommand, StrictModel, Template

if typing.TYPE_CHECKING:
    from keystone_action.spec.loading.yaml_loader import KeyPath

Value = TypeVar("Value")
Marker = TypeVar("Marker")
ModelType = TypeVar("ModelType", bound=BaseModel)

_PART = r"[A-Za-z0-9_-]+"
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]*(?:\.{_PART})*")
_OPEN = re.compile(r"\\?\{\{")
_FIRST_WORD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*)")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One text of a model."""

    value: str
    path: KeyPath
    """Keys and indices as the file has them."""
    markers: tuple[Any, ...]
    untyped: bool = False
    """Whether its field takes any value."""

    def marker(self, kind: type[Marker]) -> Marker | None:
        """The innermost marker of a kind."""
        return next((one for one in reversed(self.markers) if isinstance(one, kind)), None)


Visit = Callable[[Leaf], Any]


def leaves(model: BaseModel, path: KeyPath = ()) -> Iterator[Leaf]:
    """Every text in a model, in the order of its fields."""
    found: list[Leaf] = []

    def collect(leaf: Leaf) -> str:
        found.append(leaf)
        return leaf.value

    transform(model, collect, path)
    yield from found


def transform(model: ModelType, visit: Visit, path: KeyPath = ()) -> ModelType:
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


def _transform(value: Any, annotation: Any, markers: tuple[Any, ...], path: KeyPath, visit: Visit) -> Any:
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
        # Any is a class, but isinstance() refuses it.
        yield annotation, origin if isinstance(origin, type) and origin is not Any else object, markers


class ExpressionError(HarnessError):
    """An expression that can't be read, or a name that is not known. index: where in the text it begins; name: the
    unknown name, or an empty text."""

    def __init__(self, message: str, *, index: int = 0, name: str = "", suggestion: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.name = name
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True)
class Reference:
    """One `{{ a.b }}` of a text."""

    name: str
    index: int
    """The place of its first brace."""
    source: str
    """The whole expression as written."""

    @property
    def parts(self) -> tuple[str, ...]:
        """`("a", "b")`"""
        return tuple(self.name.split("."))


def parse_expression(text: str, later: tuple[str, ...] = ()) -> list[str | Reference]:
    """The literal pieces and the references of a text, in order.

    later: first names of expressions that stay as they are, with all that is in their braces. Raises ExpressionError.
    """
    pieces: list[str | Reference] = []
    position = 0
    while (opening := _OPEN.search(text, position)) is not None:
        pieces.append(text[position : opening.start()])
        if opening[0].startswith("\\"):
            pieces.append(opening[0] if later else "{{")  # who fills it later needs the backslash, too
            position = opening.end()
            continue
        end = text.find("}}", opening.end())
        if end < 0:
            advice = "close it with '}}', or write '\\{{' for two literal braces"
            raise ExpressionError(f"'{{{{' without '}}}}'; {advice}", index=opening.start())
        source = text[opening.start() : end + 2]
        position = end + 2
        first = _FIRST_WORD.match(text, opening.end(), end)
        if later and first is not None and first[1] in later:
            pieces.append(source)
        else:
            pieces.append(_reference(source, opening.start()))
    pieces.append(text[position:])
    return [piece for piece in pieces if piece != ""]


def _reference(source: str, index: int) -> Reference:
    name = source[2:-2].strip()
    if not _NAME.fullmatch(name):
        shown = escape_controls(source if len(source) <= 60 else source[:59] + "…")
        advice = "write '\\{{' for two literal braces"
        raise ExpressionError(
            f"'{shown}' is not an expression, expected a name like params.model; {advice}", index=index
        )
    return Reference(name, index, source)


def references(text: str, later: tuple[str, ...] = ()) -> Iterator[Reference]:
    """The references of a text. Raises ExpressionError."""
    if "{{" in text:
        yield from (piece for piece in parse_expression(text, later) if isinstance(piece, Reference))


def names_used(text: str) -> tuple[str, ...]:
    """The names in a text, in order, each once: `("params.model",)`. Raises ExpressionError."""
    return tuple(dict.fromkeys(reference.name for reference in references(text)))


def interpolate(value: Value, names: Mapping[str, Any]) -> Value:
    """The value with every expression replaced; the same object when there is nothing to do.

    value: a text, a list, a mapping or a model of a spec (at any depth; keys stay). names: nested mappings, for
    example `{"params": {"model": "a"}, "services": {"db": {"url": …}}}`. A text that is one expression and nothing
    else keeps the value's type where the model's field takes any value; elsewhere it becomes text (true, false, JSON
    for lists and mappings). Raises ExpressionError for an unknown name and for null.
    """
    if isinstance(value, StrictModel):

        def visit(leaf: Leaf) -> Any:
            if "{{" not in leaf.value or leaf.marker(PlainText) is not None:
                return leaf.value
            template = leaf.marker(Template)
            return _fill(leaf.value, names, template.later if template else (), typed=leaf.untyped)

        return transform(value, visit)
    return _interpolate(value, names)  # type: ignore[no-any-return]


def _interpolate(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return _fill(value, names) if "{{" in value else value
    if isinstance(value, StrictModel):
        return interpolate(value, names)
    if isinstance(value, dict):
        mapped = {key: _interpolate(item, names) for key, item in value.items()}
        return mapped if any(mapped[key] is not item for key, item in value.items()) else value
    if isinstance(value, list | tuple):
        items = [_interpolate(item, names) for item in value]
        return type(value)(items) if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _fill(text: str, names: Mapping[str, Any], later: tuple[str, ...] = (), *, typed: bool = False) -> Any:
    pieces = parse_expression(text, later)
    if typed and len(pieces) == 1 and isinstance(pieces[0], Reference):
        return resolve_reference(pieces[0], names)
    return "".join(piece if isinstance(piece, str) else _as_text(piece, names) for piece in pieces)


def escaped(value: Any) -> Any:
    """A value for a text that is filled once more: two braces in its own texts are written so that they stay braces."""
    if isinstance(value, str):
        return value.replace("{{", "\\{{")
    if isinstance(value, Mapping):
        return {key: escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list | tuple) else value


def resolve_reference(reference: Reference, names: Mapping[str, Any]) -> Any:
    """The value of a name. Raises ExpressionError that names the nearest known one."""
    value: Any = names
    parts = reference.parts
    for index, part in enumerate(parts):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise unknown_name(reference, parts[:index], value if isinstance(value, Mapping) else ())
    return value


def unknown_name(reference: Reference, before: tuple[str, ...], known: Any) -> ExpressionError:
    """The error for a name whose start, `before`, is known, but whose next part is not among `known`."""
    part = reference.parts[len(before)]
    prefix = ".".join(before) + "." if before else ""
    words = sorted(str(word) for word in known)
    close = nearest(part, words)
    some = listing(prefix + word for word in words[:12]) + (", …" if len(words) > 12 else "")
    message = f"unknown name '{reference.name}'"
    return ExpressionError(
        f"{message}, expected one of {some}" if words else f"{message}; there is nothing in '{'.'.join(before)}'",
        index=reference.index,
        name=reference.name,
        suggestion=prefix + close if close else "",
    )


def _as_text(reference: Reference, names: Mapping[str, Any]) -> str:
    value = resolve_reference(reference, names)
    if isinstance(value, str):
        return value
    if value is None:
        raise ExpressionError(f"'{reference.name}' is null", index=reference.index, name=reference.name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    import json

    return json.dumps(value, ensure_ascii=False)
