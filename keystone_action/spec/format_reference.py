"""The format of a spec for people and editors: what one field means, as text for a terminal, and the JSON Schema.

Every valid spec fits the schema; rules that only the loader can check are not in it. Each property has what the
reference says of it: a description, a default, examples. Editors that know `markdownDescription` (yaml-language-server)
show it; others show `description`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from keystone_action.errors import UsageError
from keystone_action.spec.field_texts import (
    FieldText,
    default_value,
    default_words,
    description,
    field_texts,
    is_default_null_a_value,
    models_in,
    type_words,
)
from keystone_action.spec.loading.diagnostics import listing, nearest
from keystone_action.spec.loading.rules import AT_MOST_ONE, EXACTLY_ONE
from keystone_action.spec.models.fields import CheckModel
from keystone_action.spec.models.spec import Spec

_WIDTH = 100
_PLACES = 4


def explain_field(path: str, check_types: Mapping[str, type[CheckModel]]) -> str:
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
    """What `type` must say, where several models have one."""
    fields = [one.model_fields["type"] for one in models if "type" in one.model_fields]
    words = [word for field in fields for word in get_args(field.annotation)]
    return f"type: {', '.join(words)}\n\n" if words else ""


def _joined(parts: Sequence[str]) -> str:
    """Blank lines between parts; paragraphs no wider than a terminal. What has lines of its own is wrapped already."""
    paragraphs = [one for part in parts if part for one in part.split("\n\n")]
    return "\n\n".join(one if "\n" in one or one.startswith(" ") else textwrap.fill(one, _WIDTH) for one in paragraphs)


DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ANY_TYPE = ["object", "array", "string", "number", "boolean", "null"]
_TYPED = ("type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum")


def json_schema(check_types: Mapping[str, type[CheckModel]]) -> dict[str, Any]:
    """The schema (draft 2020-12) with these check types; iterates over their names and looks each up."""
    spec = Spec.model_json_schema(by_alias=True, schema_generator=_Described)
    definitions: dict[str, Any] = spec.pop("$defs")
    definitions["CheckModel"] = _checks(check_types, definitions)
    spec["properties"]["secrets"]["items"] = {
        "description": "The name of an environment variable, or a mapping.",
        "anyOf": [{"type": "string"}, {"$ref": "#/$defs/SecretEntry"}],
    }
    extends = spec["properties"]["extends"]
    spec["properties"]["extends"] = {**_about(extends), "type": "string"}
    definitions["Spec"] = spec
    # A spec that extends another may leave anything to it, at any depth, so only its own keys can be checked.
    return {
        "$schema": DIALECT,
        "description": "What an agent is asked to do, what it works against, and how the result is judged.",
        "type": "object",
        "if": {"required": ["extends"]},
        "then": {
            "properties": {
                name: schema if name == "extends" else _about(schema) for name, schema in spec["properties"].items()
            },
            "additionalProperties": False,
        },
        "else": {"$ref": "#/$defs/Spec"},
        "$defs": definitions,
    }


class _Described(GenerateJsonSchema):
    """pydantic's own, with what the reference says of each field."""

    def model_schema(self, schema: ModelSchema) -> dict[str, Any]:
        found = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        # A title is the heading of what editors show: nobody who writes a spec knows the names of our classes.
        found.pop("title", None)
        properties = found.get("properties", {})
        for name, text in field_texts(model).items():
            field = model.model_fields[name]
            key = field.alias or name
            properties[key].pop("default", None)
            if not field.is_required() and not is_default_null_a_value(field):
                properties[key]["default"] = default_value(field)
            properties[key] = _described(properties[key], text, default_words(field))
        return {**_said(description(model)), **found, **_said(description(model)), **_exclusions(model)}

    def sort(self, value: dict[str, Any], parent_key: str | None = None) -> dict[str, Any]:  # noqa: ARG002
        """As it is: keys of an example have an order that helps to read it."""
        return value


def _exclusions(model: type[BaseModel]) -> dict[str, Any]:
    """Keys that exclude each other: exactly one is given, or at most one."""
    if model in EXACTLY_ONE:
        return {"oneOf": [{"required": [key]} for key in EXACTLY_ONE[model].values()]}
    names = next((names for kind, names in AT_MOST_ONE.items() if issubclass(model, kind)), {})
    both = [{"required": list(pair)} for pair in combinations(names.values(), 2)]
    return {"not": {"anyOf": both}} if both else {}


def _described(schema: Mapping[str, Any], text: FieldText, default: str = "") -> dict[str, Any]:
    about: dict[str, Any] = {key: value for key, value in schema.items() if key not in ("title", "description")}
    if not any(key in about for key in _TYPED):
        about["type"] = _ANY_TYPE
    examples = {"examples": list(text.values)} if text.examples else {}
    return {**_said(text.description, default), **about, **examples}


def _said(text: str, default: str = "") -> dict[str, str]:
    """Editors that know `markdownDescription` show no default of their own."""
    if not text:
        return {}
    more = f"\n\nDefault: {default}." if default.startswith("`") else ""
    return {"description": text, "markdownDescription": text + more}


def _about(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in ("description", "markdownDescription", "examples") if key in schema}


def _checks(check_types: Mapping[str, type[CheckModel]], definitions: dict[str, Any]) -> dict[str, Any]:
    """One schema for each name. An alias takes the keys of the tool it comes from, which only its type knows."""
    choices: list[dict[str, Any]] = []
    for name in check_types:
        model = check_types[name]
        if name != model.type_name:
            choices.append(_alias(name, model))
            continue
        schema = model.model_json_schema(
            by_alias=True, ref_template=f"#/$defs/{name}.{{model}}", schema_generator=_Described
        )
        for key, definition in schema.pop("$defs", {}).items():
            definitions[f"{name}.{key}"] = definition
        schema["properties"]["type"] = _described({"const": name}, field_texts(model)["type"])
        definitions[f"check.{name}"] = schema
        choices.append({"$ref": f"#/$defs/check.{name}"})
    about = "A check: its `type`, and the fields of that type."
    return {"description": about, "anyOf": choices} if choices else {"description": about, "type": "object"}


def _alias(name: str, model: type[CheckModel]) -> dict[str, Any]:
    about = f"The same as `{model.type_name}`, with the keys of the format it comes from as well."
    properties = {"type": _described({"const": name}, FieldText(about, (name,)))}
    return {"type": "object", "description": about, "properties": properties, "required": ["type"]}
