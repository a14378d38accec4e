"""GitHub's published OpenAPI description as a judge: of requests, of the fake's answers, and as a source of documents.

The part of it that we need is tests/data/github/openapi.json (see tools/github_description.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

FILE = Path(__file__).parent.parent / "data" / "github" / "openapi.json"
_URI = "urn:github"


@dataclass(frozen=True)
class Operation:
    """One operation that was asked for, with the values in its path."""

    id: str
    method: str
    template: str
    values: Mapping[str, str]
    document: Mapping[str, Any]


class Description:
    """The description, its schemas as JSON Schema."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = _as_json_schema(document)
        resource = Resource(contents=self.document, specification=DRAFT202012)
        self._registry = Registry().with_resource(_URI, resource)
        self._validators: dict[str, Draft202012Validator] = {}
        self._routes = [
            (
                re.compile(re.sub(r"\{[^}]+\}", "([^/]+)", template.replace("{path}", "(.+)"))),
                re.findall(r"\{([^}]+)\}", template),
                template,
            )
            for template in self.document["paths"]
        ]

    def operation(self, method: str, path: str) -> Operation | None:
        """The operation of a request; None when GitHub describes none."""
        for pattern, names, template in self._routes:
            match = pattern.fullmatch(path)
            found = self.document["paths"][template].get(method.lower()) if match else None
            if match and found:
                values = dict(zip(names, (unquote(value) for value in match.groups()), strict=True))
                return Operation(found["operationId"], method, template, values, found)
        return None

    def wrong_request(self, operation: Operation, query: Mapping[str, str], body: Any) -> list[str]:
        """What is wrong with a request. GitHub ignores names that it does not know; for us they are mistakes."""
        parameters = [self._resolve(parameter) for parameter in operation.document.get("parameters", ())]
        values = {"path": operation.values, "query": query}
        known = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
        found = [f"there is no query parameter {name}" for name in sorted(set(query) - known)]
        for parameter in parameters:
            given = values.get(parameter["in"], {})
            if parameter["name"] in given:
                value = _typed(given[parameter["name"]], self._resolve(parameter["schema"]))
                found += self._errors(parameter["schema"], value, parameter["name"])
        schema = operation.document.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        if schema is None:
            return found + ([f"{operation.id} takes no body"] if body is not None else [])
        unknown = set(body) - set(schema["properties"]) if isinstance(body, dict) else set()
        found += [f"there is no field {name} in the body" for name in sorted(unknown)]
        return found + self._errors(schema, body, "body")

    def wrong_answer(self, operation: Operation, status: int, document: Any) -> list[str]:
        """What is wrong with an answer. Errors that an operation does not list have the general shape."""
        described = self._resolve(operation.document["responses"].get(str(status), {}))
        schema = described.get("content", {}).get("application/json", {}).get("schema")
        if schema is None:
            if status < 400:
                return [] if described else [f"{operation.id} never answers {status}"]
            schema = {"$ref": "#/components/schemas/basic-error"}
        return self._errors(schema, document, f"{operation.id} {status}")

    def sample(self, name: str, /, **more: Any) -> dict[str, Any]:
        """A document of a schema with every required field filled, and `more` in it."""
        return {**_sample(self, {"$ref": f"#/components/schemas/{name}"}), **more}

    def _errors(self, schema: Any, value: Any, where: str) -> list[str]:
        key = json.dumps(schema)
        if key not in self._validators:
            absolute = json.loads(key.replace('"#/', f'"{_URI}#/'))
            self._validators[key] = Draft202012Validator(absolute, registry=self._registry)
        return [
            f"{where}.{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"
            for error in self._validators[key].iter_errors(value)
            if not _is_known_gap(error)
        ]

    def _resolve(self, node: Any) -> Any:
        while "$ref" in node:
            _, _, kind, name = node["$ref"].split("/")
            node = self.document["components"][kind][name]
        return node


@cache
def description() -> Description:
    """The one that all fakes share."""
    return Description(json.loads(FILE.read_bytes()))


def _is_known_gap(error: Any) -> bool:
    """A pull request's fork that was deleted is null in GitHub's answers, which the description leaves out."""
    return list(error.absolute_path)[-2:] == ["head", "repo"] and error.instance is None


def _pattern(template: str) -> str:
    """Of the paths of a template; a parameter that is a path itself may have several parts."""
    return re.sub(r"\{[^}]+\}", "([^/]+)", template.replace("{path}", "(.+)"))


def _as_json_schema(node: Any) -> Any:
    """OpenAPI 3.0 says `nullable: true` where JSON Schema has a type of its own."""
    if isinstance(node, list):
        return [_as_json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    converted = {key: _as_json_schema(value) for key, value in node.items()}
    if converted.get("nullable") is True:
        del converted["nullable"]
        return {"anyOf": [converted, {"type": "null"}]}
    return converted


def _typed(value: str, schema: Mapping[str, Any]) -> Any:
    """A value of a path or query, all of which are texts, as what the schema asks for."""
    kinds = [schema.get("type"), *(option.get("type") for option in schema.get("oneOf", ()))]
    if "integer" in kinds and re.fullmatch(r"-?[0-9]+", value):
        return int(value)
    if "boolean" in kinds and value in ("true", "false"):
        return value == "true"
    return value


def _sample(owner: Description, schema: Any) -> Any:
    schema = owner._resolve(schema)
    for options in ("anyOf", "oneOf"):
        if options in schema:
            return None if {"type": "null"} in schema[options] else _sample(owner, schema[options][0])
    if "allOf" in schema:
        return {key: value for part in schema["allOf"] for key, value in _sample(owner, part).items()}
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(owner, properties.get(name, {})) for name in schema.get("required", ())}
    return {"array": [], "integer": 1, "number": 1, "boolean": False, "string": _text(schema)}[kind]


def _text(schema: Mapping[str, Any]) -> str:
    return {"date-time": "2026-01-02T03:04:05Z", "uri": "https://github.com/somewhere"}.get(
        schema.get("format", ""), "text"
    )
