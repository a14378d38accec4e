"""What one field of a spec means, as text for a terminal: `agent.timeout`, `services.routes.match`, `check.sql`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from pydantic import BaseModel

from keystone_action.errors import UsageError
from keystone_action.spec.loading.diagnostics import listing, nearest
from keystone_action.spec.models.base import CheckModel
from keystone_action.spec.models.spec import Spec
from keystone_action.spec.reference.docstrings import description, field_texts
from keystone_action.spec.reference.words import default_words, models_in, type_words

_WIDTH = 100
_PLACES = 4


def explain(path: str, check_types: Mapping[str, type[CheckModel]]) -> str:
    """The text about a place of a spec; the empty path is the whole spec. A field that only some types of an agent or
    service have is told for each. Raises UsageError, naming what there is, for a path that leads nowhere."""
    steps = [one for one in path.split(".") if one]
    models: Sequence[type[BaseModel]] = [Spec]
    if steps[:1] == ["check"]:
        steps = ["invariants", *steps]
    about: list[str] = []
    for index, step in enumerate(steps):
        if list(models) == [CheckModel]:
            about, models = _check_type(step, check_types)
            continue
        having = [one for one in models if step in _keys(one)]
        if not having:
            where, known = ".".join(steps[:index]), sorted({key for one in models for key in _keys(one)})
            elsewhere = [] if index else _places(step, check_types)
            raise _unknown(f"{where or 'a spec'} has no field {step!r}", step, known, elsewhere)
        told: dict[str, list[type[BaseModel]]] = {}
        for one in having:
            told.setdefault(_field(one, step), []).append(one)
        about = [f"{_types(*users)}{text}" if len(told) > 1 else text for text, users in told.items()]
        models = list(dict.fromkeys(inner for one in having for inner in _below(one, step)))
    if list(models) == [CheckModel]:
        return _joined([*about, f"Types: {', '.join(check_types)}. `keystone explain check.TYPE` tells more."])
    return _joined([*about, *map(_mapping, models)])


def _check_type(name: str, check_types: Mapping[str, type[CheckModel]]) -> tuple[list[str], list[type[BaseModel]]]:
    if name not in check_types:
        raise _unknown(f"there is no check type {name!r}", name, list(check_types))
    return [], [check_types[name]]


def _places(name: str, check_types: Mapping[str, type[CheckModel]]) -> list[str]:
    """Where a spec has what somebody names without its place: a type of checks, and keys at most two levels below."""
    found = [f"check.{name}"] if name in check_types else []
    for key in _keys(Spec):
        for model in _below(Spec, key):
            found += [f"{key}.{name}"] if name in _keys(model) else []
            found += [
                f"{key}.{deep}.{name}" for deep in _keys(model) for one in _below(model, deep) if name in _keys(one)
            ]
    return sorted(dict.fromkeys(found), key=lambda place: (place.count("."), place))


def _unknown(message: str, name: str, known: list[str], elsewhere: Sequence[str] = ()) -> UsageError:
    if elsewhere:
        listed = ", ".join(f"`keystone explain {place}`" for place in elsewhere[:_PLACES])
        more = f", and {len(elsewhere) - _PLACES} more places" if len(elsewhere) > _PLACES else ""
        return UsageError(message, help=f"there is {listed}{more}")
    close = nearest(name, known)
    hint = f"; did you mean {close}?" if close else ""
    return UsageError(message + hint, help=f"there is: {listing(known)}" if known else "")


def _keys(model: type[BaseModel]) -> dict[str, str]:
    """The attribute of each key."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _below(model: type[BaseModel], key: str) -> Iterator[type[BaseModel]]:
    for _, inner in models_in(model.model_fields[_keys(model)[key]].annotation, key):
        yield inner


def _field(model: type[BaseModel], key: str) -> str:
    name = _keys(model)[key]
    field, said = model.model_fields[name], field_texts(model)[name]
    words = type_words(field.annotation, field.metadata).replace("`", "").replace(" (keys below)", "")
    default = default_words(field).replace("`", "")
    optional = "required" if default == "required" else "optional" if default == "—" else f"default {default}"
    examples = "\n".join(f"    {key}: {one}" for one in said.examples)
    return _joined([f"{key}: {words}, {optional}", said.description, examples])


def _mapping(model: type[BaseModel]) -> str:
    """A table of the keys, with the first sentence about each."""
    keys = {key: name for key, name in _keys(model).items() if key != "type"}
    width = max(map(len, keys), default=0)
    rows = []
    for key, name in keys.items():
        first = field_texts(model)[name].description.partition(". ")[0].rstrip(".")
        left = f"  {key:{width}}  "
        rows.append(textwrap.fill(first, _WIDTH, initial_indent=left, subsequent_indent=" " * len(left)))
    return _joined([_types(model) + description(model), "\n".join(["Keys:", *rows]) if rows else ""])


def _types(*models: type[BaseModel]) -> str:
    """What `type` must say for models of which there are several."""
    fields = [one.model_fields["type"] for one in models if "type" in one.model_fields]
    words = [word for field in fields for word in get_args(field.annotation)]
    return f"type: {', '.join(words)}\n\n" if words else ""


def _joined(parts: Sequence[str]) -> str:
    """Blank lines between parts; paragraphs no wider than a terminal. What has lines of its own is wrapped already."""
    paragraphs = [one for part in parts if part for one in part.split("\n\n")]
    return "\n\n".join(one if "\n" in one or one.startswith(" ") else textwrap.fill(one, _WIDTH) for one in paragraphs)
