"""The JSON Schema of a spec file, for editors: every valid spec fits; what only the loader can know is not in it.

Each property has what the reference says of it: a description, a default, examples. `markdownDescription` is what
editors show that know it, by `yaml-language-server`; others show `description`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from keystone_action.spec.loading.rules import AT_MOST_ONE, EXACTLY_ONE
from keystone_action.spec.models.base import CheckModel
from keystone_action.spec.models.spec import Spec
from keystone_action.spec.reference.docstrings import FieldText, description, field_texts
from keystone_action.spec.reference.words import default_value, default_words, is_default_null_a_value

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
    """Keys of which exactly one is given, or at most one."""
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
