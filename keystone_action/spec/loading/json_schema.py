"""The JSON Schema of a spec file, for editors: every valid spec fits; what only the loader can know is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystone_action.spec.models.base import CheckModel
from keystone_action.spec.models.spec import Spec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(check_types: Mapping[str, type[CheckModel]]) -> dict[str, Any]:
    """The schema (draft 2020-12) with these check types; iterates over their names and looks each up."""
    spec = Spec.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = spec.pop("$defs")
    definitions["CheckModel"] = _checks(check_types, definitions)
    spec["properties"]["secrets"]["items"] = {
        "anyOf": [{"type": "string"}, {"$ref": "#/$defs/SecretEntry"}],
        "description": "NAME, or a mapping",
    }
    spec["properties"]["extends"] = {"type": "string", "description": "path of a base spec, relative to this file"}
    definitions["Spec"] = spec
    # A spec that extends another may leave anything to it, at any depth, so only its own keys can be checked.
    return {
        "$schema": DIALECT,
        "title": "Keystone spec",
        "description": "What an agent is asked to do, what it works against, and how the result is judged.",
        "type": "object",
        "if": {"required": ["extends"]},
        "then": {
            "properties": {name: _about(schema) for name, schema in spec["properties"].items()},
            "additionalProperties": False,
        },
        "else": {"$ref": "#/$defs/Spec"},
        "$defs": definitions,
    }


def _about(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in ("title", "description") if key in schema}


def _checks(check_types: Mapping[str, type[CheckModel]], definitions: dict[str, Any]) -> dict[str, Any]:
    """One schema for each name. An alias takes the keys of the tool it comes from, which only its type knows."""
    choices: list[dict[str, Any]] = []
    for name in check_types:
        model = check_types[name]
        if name != model.type_name:
            about = f"the same as {model.type_name}, with the keys of the format it comes from as well"
            properties = {"type": {"const": name}}
            choices.append({"type": "object", "description": about, "properties": properties, "required": ["type"]})
            continue
        schema = model.model_json_schema(by_alias=True, ref_template=f"#/$defs/{name}.{{model}}")
        for key, definition in schema.pop("$defs", {}).items():
            definitions[f"{name}.{key}"] = definition
        schema["properties"]["type"] = {"const": name}
        definitions[f"check.{name}"] = schema
        choices.append({"$ref": f"#/$defs/check.{name}"})
    return {"anyOf": choices} if choices else {"type": "object"}
