"""The JSON Schema and the loader agree: on all specs of ours, and on mistakes that a schema can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.check_types import CHECKS, HEAD
from support.every_field import FOLDER, SPECS

from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.format_reference import json_schema
from keystone_action.spec.loading.yaml_loader import build_data, parse_yaml

TYPES = CheckTypes()
Errors = Callable[..., list[str]]
OWN_FORMAT = [path for path in SPECS if path.name.endswith("keystone.yaml")]
BOTH_REFUSE = {
    "a misspelt key deep down": "services: [{name: a, type: http_mock, routes: [{path: /, statsu: 1}]}]",
    "a duration": "resources: {timeout: soon}",
    "a duration of no unit": "resources: {timeout: ''}",
    "a negative duration": "resources: {timeout: -1}",
    "a size": "resources: {memory: lots}",
    "a size of no unit": "resources: {memory: 1.5}",
    "a number of cores": "resources: {cpu: 0}",
    "a kind of service": "services: [{name: a, type: oracle}]",
    "a name of a service": "services: [{name: A B, type: postgres}]",
    "an image": "base: 'a b'",
    "a service without its image": "services: [{name: a}]",
    "a port": "services: [{name: a, image: x, ports: [70000]}]",
    "a status": "services: [{name: a, type: http_mock, default_response: 101}]",
    "a path of a route": "services: [{name: a, type: http_mock, routes: [{path: x}]}]",
    "a kind of fixture": "fixtures: [{type: http, url: x}]",
    "a source of a secret": "secrets: [{name: A, source: 'vault:x'}]",
    "a rule for replicas": "scoring: {replica_aggregation: most}",
    "a threshold": "scoring: {pass_threshold: 1.5}",
    "a threshold as a text": "scoring: {pass_threshold: '1'}",
    "replicas": "parallelism: {replicas: 0}",
    "an empty list of the matrix": "parallelism: {matrix: {model: []}}",
    "a mode of the gateway": "gateway: {mode: rewind}",
    "a base URL": "gateway: {providers: [{name: a, api: openai, base_url: 'ftp://x'}]}",
    "a rule of forbidden": "forbidden: {secrets_in_logs: allow}",
    "a list that is none": "forbidden: {tools: bash}",
    "a seed": "determinism: {seed: -1}",
    "a clock without a zone": "determinism: {clock: '2026-01-01T00:00:00'}",
    "a list of overrides": "network: {dns_overrides: [a.example]}",
    "two keys that exclude each other": "fixtures: [{type: sql, service: db, sql: x, file: y}]",
    "neither of two keys": "setup: {files: [{path: x}]}",
    "two answers of a mock": "services: [{name: a, type: http_mock, routes: [{path: /, response: a, json: 1}]}]",
    "two origins of a secret": "secrets: [{name: A, source: env, from: generated}]",
    "a mapping of a base spec's key": "extends: {path: base.yaml}",
}
ONLY_THE_LOADER_REFUSES = {
    "a file that is not there": "dataset: {path: gone.jsonl}",
    "a path that leads out": "forbidden: {file_writes_outside: [../x]}",
    "an unknown name in an expression": "setup: {commands: ['{{ params.nope }}']}",
    "a regular expression": "forbidden: {commands: ['(']}",
    "a service that is not there": "fixtures: [{type: sql, service: db, sql: x}]",
    "a name that is there twice": "secrets: [A, A]",
    "a host": "network: {egress: {allow: ['https://x']}}",
    "more passes than replicas": "scoring: {replica_aggregation: {at_least: 2}}",
    "a rule without what it needs": "forbidden: {http_except: []}",
    "a duration of nothing": "resources: {timeout: 0s}",
}
"""What a schema can't tell: it sees one value at a time, and no files."""


def data_of(text: str) -> Any:
    document = parse_yaml(text, "f.yaml")
    assert document is not None
    return build_data(document)[0]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json_schema(TYPES)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("path", OWN_FORMAT, ids=lambda path: str(path.relative_to(FOLDER)))
def test_specs_that_use_every_field_fit(validator: Draft202012Validator, path: Path) -> None:
    assert [error.message for error in validator.iter_errors(data_of(path.read_text("utf-8")))] == []


@pytest.mark.parametrize("name", BOTH_REFUSE)
def test_both_refuse(validator: Draft202012Validator, errors_of: Errors, name: str) -> None:
    text = HEAD + BOTH_REFUSE[name] + "\n" + CHECKS
    assert errors_of(text)
    assert not validator.is_valid(data_of(text))


@pytest.mark.parametrize("name", ONLY_THE_LOADER_REFUSES)
def test_only_the_loader_refuses(validator: Draft202012Validator, errors_of: Errors, name: str) -> None:
    text = HEAD + ONLY_THE_LOADER_REFUSES[name] + "\n" + CHECKS
    assert errors_of(text)
    assert validator.is_valid(data_of(text))


@pytest.mark.parametrize(
    "agent", ["{type: http}", "{type: anthropic}", "{type: none, user: root}", "{type: cli}", "{}", "codex"]
)
def test_both_refuse_an_agent(validator: Draft202012Validator, errors_of: Errors, agent: str) -> None:
    text = HEAD.replace("{type: none}", agent) + CHECKS
    assert errors_of(text)
    assert not validator.is_valid(data_of(text))
