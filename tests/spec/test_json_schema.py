"""The schema for editors: it is valid, accepts what the loader accepts, and refuses misspelt keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.check_types import CHECKS, HEAD, TYPES

from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.format_reference import json_schema
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.loading.yaml_loader import build_data, parse_yaml

EXAMPLES = {
    "minimal": HEAD + CHECKS,
    "long forms": """version: 1
id: long
task: {prompt: {file: prompt.md}, system: "{{ params.model }}", files: [prompt.md]}
workspace: .
agent: {type: command, command: [run, "{{ task.prompt }}"], timeout: 90, output: {json: stdout}, env: {A: 1, B: x}}
resources: {cpu: 0.5, memory: 512Mi, disk: 1000000, pids: 64, timeout: 15m, strict: false}
services:
  - {name: db, image: "postgres:16", env: {POSTGRES_USER: u}, ready_timeout: 30}
  - {name: emb, type: postgres}
  - {name: lite, type: sqlite, path: data.db}
  - {name: ext, type: external, url: "http://localhost:1"}
  - name: api
    type: http_mock
    record: true
    default_response: 503
    routes:
      - {method: POST, path: "/a/{id}", status: 201, json: {ok: true}, headers: {X-A: 1}, delay: 20ms}
      - {path: /b, sequence: [{status: 500}, {response: done}], match: {query: {q: [a, b]}, body: x}, times: 2}
      - {path: /c, fault: reset}
fixtures: [{type: sql, service: db, sql: select 1}, {type: git_repo, url: x, depth: 1}]
secrets: [TOKEN, {name: KEY, source: "env:OTHER", optional: true}]
setup: {packages: [httpx], commands: [make], files: [{path: x, content: y, mode: "0644"}], env: {A: b}}
determinism: {seed: 1}
parallelism: {replicas: 3, matrix: {model: [a, 1, {x: y}]}, exclude: [{model: a}], max_concurrency: 2}
scenarios: [{id: a, prompt: p, params: {q: 1}, tags: [t], invariants: {b: {check: {type: file_exists, path: b}}}}]
invariants:
  a: {description: d, weight: 0, gate: passed, on_skip: ignore, timeout: 1m, check: {type: command, cmd: x}}
  c: {weight: 1, check: {type: sql, service: db, query: q, equals: 0}}
  d: {check: {type: command_exit, command: [a, b]}}
  e: {check: {type: file_content, path: x, pattern: [a, b]}}
scoring: {pass_threshold: 0.85, replica_aggregation: {at_least: 2}, retry_errors: 1, fail_on_skipped: true}
""",
    "dataset": HEAD + "dataset: {path: c.jsonl, limit: 1}\nscoring: {replica_aggregation: majority}\n" + CHECKS,
    "extends": "extends: base.yaml\nagent: {env: {A: b}}\n",
}
BROKEN = {
    "misspelt key": HEAD + "colour: red\n" + CHECKS,
    "missing agent": "version: 1\nid: a\ntask: {prompt: x}\n" + CHECKS,
    "unknown check": HEAD + "invariants: {a: {check: {type: nope}}}\n",
    "misspelt key of a check": HEAD + "invariants: {a: {check: {type: file_exists, paht: x}}}\n",
    "unknown agent": HEAD.replace("none", "robot") + CHECKS,
    "weight of text": HEAD + "invariants: {a: {weight: high, check: {type: file_exists, path: x}}}\n",
    "misspelt key beside extends": "extends: base.yaml\ncolour: red\n",
}


def data_of(text: str) -> Any:
    document = parse_yaml(text, "f.yaml")
    assert document is not None
    return build_data(document)[0]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json_schema(TYPES)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_the_loader_accepts_fits(
    validator: Draft202012Validator, load_text: Callable[..., LoadedSpec], write: Callable[..., Path], name: str
) -> None:
    write("do it", "prompt.md")
    write('{"input": 1}', "c.jsonl")
    write(HEAD.replace("{type: none}", "{type: cli, binary: x}") + CHECKS, "base.yaml")
    assert load_text(EXAMPLES[name])
    assert [error.message for error in validator.iter_errors(data_of(EXAMPLES[name]))] == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_does_not_fit(
    validator: Draft202012Validator, errors_of: Callable[..., list[str]], write: Callable[..., Path], name: str
) -> None:
    write(HEAD + CHECKS, "base.yaml")
    assert errors_of(BROKEN[name])
    assert not validator.is_valid(data_of(BROKEN[name]))


def test_the_schema_of_the_real_check_types_is_valid() -> None:
    types = CheckTypes()
    schema = json_schema(types)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(data_of(HEAD + CHECKS))
    assert {name for name in schema["$defs"] if name.startswith("check.")} == {
        f"check.{types[name].type_name}" for name in types
    }


SHIPPED = sorted((Path(__file__).parents[2] / "examples").rglob("*keystone.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_example_of_ours_loads_and_fits(path: Path) -> None:
    types = CheckTypes()
    assert load(path, types)
    errors = Draft202012Validator(json_schema(types)).iter_errors(data_of(path.read_text()))
    assert [error.message for error in errors] == []


def test_there_are_examples_of_ours() -> None:
    assert {path.parent.name for path in SHIPPED} >= {"reconcile", "fix-tests", "custom-check"}


def test_every_reference_leads_somewhere() -> None:
    schema = json_schema(TYPES)

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [one for value in node.values() for one in references(value)]
        return [one for value in node for one in references(value)] if isinstance(node, list) else []

    found = references(schema)
    assert found
    assert {one.removeprefix("#/$defs/") for one in found} <= set(schema["$defs"])
