"""What is wrong at a path of the data, before it has a place in a file; and pydantic's errors in our words.

A message about an unknown key says where the key belongs: the models that the parts of a file are read as tell that.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from keystone_action.spec.expressions import fields_of
from keystone_action.spec.loading.diagnostics import listing, nearest, show_value
from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.agents import AGENT_TYPES
from keystone_action.spec.models.fields import words_of_pattern
from keystone_action.spec.models.services import SERVICE_TYPES
from keystone_action.spec.models.spec import Spec
from keystone_action.spec.models.task import FIXTURE_TYPES

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


_KINDS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "mapping_type": "a mapping",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "a number of at least {}"),
    "greater_than": ("gt", "a number above {}"),
    "less_than_equal": ("le", "a number of at most {}"),
    "less_than": ("lt", "a number below {}"),
    "string_too_long": ("max_length", "at most {} characters"),
}
_ECHOES = frozenset({"default_factory_not_called"})
"""Errors that pydantic reports only because of another error, which it reports as well."""
_FORMS = {
    "invariants": "write each under its name: `invariants: {tests_pass: {check: {type: command_exit, command: …}}}`",
    "check": "the type and its fields belong under it: `check: {type: file_exists, path: …}`",
}
"""What a part of a spec looks like, for those who know it from elsewhere."""
_TYPES_OF = {"agent": AGENT_TYPES, "services": SERVICE_TYPES, "fixtures": FIXTURE_TYPES}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    path: KeyPath
    message: str
    expected: str = ""
    found: str = ""
    suggestion: str = ""
    """The known word that was probably meant."""
    help: str = ""
    """What to do, as a sentence."""
    on_key: bool = False
    """Whether the place is the key of the path's last step, not its value."""
    offset: int = 0
    """Characters into a plain text."""
    unknown_key: bool = False
    """Whether the mapping may be right without this key."""


@dataclass(frozen=True, slots=True)
class _Located:
    """A problem and the union that it comes from."""

    problem: Problem
    union: KeyPath | None = None
    """The path of the union."""
    member: str = ""
    """The member of the union that found the problem."""


def translate_errors(
    error: ValidationError, data: Any, check_types: Mapping[str, type[BaseModel]], renamed: Mapping[int, dict[str, str]]
) -> list[Problem]:
    """Every error of a validation as a problem at its path in `data`. renamed: see `CheckReader`."""
    errors = [one for one in error.errors(include_url=False) if one["type"] not in _ECHOES]
    located = [_locate(one, data, check_types, renamed) for one in errors]
    return list(_without_other_members(located))


def _locate(
    error: Any, data: Any, check_types: Mapping[str, type[BaseModel]], renamed: Mapping[int, dict[str, str]]
) -> _Located:
    """Follow the location through the data; what is not there is a union's member (or what is missing)."""
    location: tuple[str | int, ...] = error["loc"]
    path: list[str | int] = []
    union: KeyPath | None = None
    member = ""
    here = data
    absent = error["type"] == "missing"
    for named in location[: len(location) - absent]:
        step = renamed.get(id(here), {}).get(str(named), named)
        following = item_of(here, step)
        if following is not None:
            here = following[0]
        else:
            if union is None and not (isinstance(step, str) and step[:1] in "<["):
                union, member = tuple(path), str(step)
            continue
        path.append(step)
    if absent:
        return _Located(_missing(tuple(path), str(location[-1])), union, member)
    on_key = location[-1:] == ("[key]",)
    if error["type"] == "extra_forbidden":
        model = model_at(Spec, location[:-1], data, check_types)
        return _Located(_unknown_key(tuple(path), model, data, check_types), union, member)
    problem = _explain(error, tuple(path))
    if on_key:
        is_bare = problem.message == _name_of(problem.path)
        problem = replace(problem, message="the name" if is_bare else problem.message, on_key=True)
    return _Located(problem, union, member)


def _missing(path: KeyPath, key: str) -> Problem:
    return Problem(path, f"the key '{key}' is missing", help=_FORMS.get(key, ""), on_key=True)


def _unknown_key(
    path: KeyPath, model: type[BaseModel] | None, data: Any, check_types: Mapping[str, type[BaseModel]]
) -> Problem:
    """A key that belongs elsewhere is told its place; one that belongs nowhere, the nearest that does."""
    key = str(path[-1]) if path else ""
    known = sorted(one for _, one, _, _ in fields_of(model)) if model is not None else []
    problem = Problem(path, f"unknown key {show_value(key)}", expected=_one_of(known), on_key=True, unknown_key=True)
    if places := places_of(key, path[:-1], data, check_types):
        return replace(problem, help=f"`{key}` belongs {' or '.join(places)}")
    return replace(problem, suggestion=nearest(key, known))


def not_yet(path: KeyPath, what: str, advice: str, *, on_key: bool = False) -> Problem:
    """A part of the contract that this version refuses rather than ignores."""
    return Problem(path, f"{what} is not supported yet", help=advice, on_key=on_key)


def _one_of(words: Iterable[str]) -> str:
    text = listing(words)
    return f"one of {text}" if text else ""


def _explain(error: Any, path: KeyPath) -> Problem:
    kind, value, context = error["type"], error.get("input"), error.get("ctx") or {}
    name = _name_of(path)
    if kind in _KINDS:
        form = _FORMS.get(name, "") if isinstance(value, list) else ""
        return Problem(path, name, expected=_KINDS[kind], found=show_value(value), help=form or _quote_it(kind, value))
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return Problem(path, name, expected=words.format(context.get(key)), found=show_value(value))
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(path, value, context)
    if "expected" in context or "message" in context:
        return _ours(path, value, context)
    if kind == "value_error":
        return Problem(path, f"{name}: {context.get('error', error['msg'])}")
    if isinstance(value, dict | list):
        return Problem(path, f"{name}: {error['msg']}", on_key=True)
    return Problem(path, f"{name}: {error['msg'][:1].lower()}{error['msg'][1:]}")


def _ours(path: KeyPath, value: Any, context: Mapping[str, Any]) -> Problem:
    """An error that one of our own validators raised: its context says everything, `at` a key below the path."""
    below: KeyPath = (context["at"],) if "at" in context else ()
    return Problem(
        path + below,
        str(context.get("message") or _name_of(path)),
        expected=str(context.get("expected", "")),
        found=show_value(value) if "found" in context else "",
        suggestion=str(context.get("suggestion", "")),
        help=str(context.get("help", "")),
    )


def _literal(path: KeyPath, value: Any, context: Mapping[str, Any]) -> Problem:
    expected = str(context.get("expected", ""))
    words = [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]
    suggestion = nearest(value, words) if isinstance(value, str) else ""
    return Problem(
        path, _name_of(path), expected=expected.replace("'", ""), found=show_value(value), suggestion=suggestion
    )


def _pattern(path: KeyPath, value: Any, context: Mapping[str, Any]) -> Problem:
    return Problem(path, _name_of(path), expected=words_of_pattern(str(context["pattern"])), found=show_value(value))


def _too_short(path: KeyPath, value: Any, context: Mapping[str, Any]) -> Problem:  # noqa: ARG001
    return Problem(path, f"{_name_of(path)} is empty", expected=f"at least {context.get('min_length', 1)} entry")


def _empty_text(path: KeyPath, value: Any, context: Mapping[str, Any]) -> Problem:  # noqa: ARG001
    return Problem(path, f"{_name_of(path)} is empty", expected="a text")


def _no_member(path: KeyPath, value: Any, context: Mapping[str, Any]) -> Problem:  # noqa: ARG001
    if not isinstance(value, dict):
        return Problem(path, _name_of(path), expected="a mapping", found=show_value(value))
    known = _TYPES_OF.get(str(path[0]) if path else "", ())
    if "type" not in value:
        return Problem(path, "the key 'type' is missing", expected=_one_of(known), on_key=True)
    found = value["type"]
    suggestion = nearest(found, known) if isinstance(found, str) else ""
    message = f"unknown type of {_singular(path)}"
    return Problem((*path, "type"), message, expected=_one_of(known), found=show_value(found), suggestion=suggestion)


_SPECIAL: dict[str, Callable[[KeyPath, Any, Mapping[str, Any]], Problem]] = {
    "literal_error": _literal,
    "string_pattern_mismatch": _pattern,
    "too_short": _too_short,
    "string_too_short": _empty_text,
    "union_tag_not_found": _no_member,
    "union_tag_invalid": _no_member,
}


def _singular(path: KeyPath) -> str:
    return str(path[0]).removesuffix("s") if path else "entry"


def _name_of(path: KeyPath) -> str:
    """The last key of a path, with the indices behind it: `tags[2]`."""
    keys = [index for index, step in enumerate(path) if isinstance(step, str)]
    if not keys:
        return "the file"
    last = keys[-1]
    return (str(path[last]) or "the key ''") + "".join(f"[{step}]" for step in path[last + 1 :])


def _quote_it(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, int | float):
        return "put it into quotes"
    return ""


def _without_other_members(located: list[_Located]) -> Iterable[Problem]:
    """Of a union that several members refused: only the member that was meant (it got furthest), or all of them in
    one sentence."""
    unions: dict[KeyPath, list[_Located]] = {}
    for one in located:
        if one.union is None:
            yield one.problem
        else:
            unions.setdefault(one.union, []).append(one)
    for union, members in unions.items():
        deepest = max(members, key=lambda one: len(one.problem.path))
        if len(deepest.problem.path) > len(union):
            yield from (one.problem for one in members if one.member == deepest.member)
            continue
        expected = " or ".join(dict.fromkeys(one.problem.expected for one in members if one.problem.expected))
        yield replace(members[0].problem, expected=expected, help="")
