"""`json`: documents that an agent left, by schema and by values; deep, huge and twisted ones earn nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.command_line import run_spec, spec
from support.context import grade, make_check

from keystone_action.evidence.agent_run import AgentRun
from keystone_action.evidence.requests import descend, parse_path
from keystone_action.invariants.check import Outcome
from keystone_action.invariants.json_values import is_deeper, parse_strict

DOCUMENT = {"a": {"b": [1, 2.5, "three"], "x.y": True}, "n": None, "name": "summary of 7 rows", "empty": {}}
SCHEMA = {
    "type": "object",
    "required": ["a", "name"],
    "properties": {"name": {"type": "string", "pattern": "^summary"}, "a": {"$ref": "#/$defs/a"}},
    "$defs": {"a": {"type": "object", "properties": {"b": {"type": "array", "maxItems": 3}}}},
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    (made / "out.json").write_text(json.dumps(DOCUMENT))
    return made


def check(document: dict[str, Any], workspace: Path, **fields: Any) -> Outcome:
    return grade({"type": "json", "path": "out.json", **document}, workspace, **fields)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"a.b[0]": 1, "a.b[1]": 2.5, "a.b[2]": "three", "n": None, "empty": {}}, ""),
        ({"a.b[0]": 1.0, 'a["x.y"]': True, "$.a.b[-1]": "three", "$": {"exists": True}}, ""),
        ({"a.b": [1, 2.5, "three"], "a": {"b": [1, 2.5, "three"], "x.y": True}}, ""),
        ({"a.b": {"count": 3, "contains": "three", "not_contains": 3}}, ""),
        ({"a.b[1]": {"gt": 2, "lte": 2.5}, "name": {"matches": r"\d rows", "contains": "summary"}}, ""),
        ({"gone": {"exists": False}, "a.b[3]": {"exists": False}, "n": {"exists": True}}, ""),
        ({"empty": {"equals": {}}, "a.b[0]": {"not_equals": "1"}}, ""),
        ({"a.b[0]": "1"}, "a.b[0]: expected '1' (text), found 1 (integer)"),
        ({"a.b[0]": True}, "a.b[0]: expected true (boolean), found 1 (integer)"),
        ({"n": 0}, "n: expected 0 (integer), found null"),
        ({"a.b[3]": 1}, "a.b[3]: expected 1 (integer); the document.a.b has no 3"),
        ({"a.gone": None}, "a.gone: expected null; the document.a has no 'gone'"),
        ({"name": {"exists": False}}, "name: expected nothing there"),
        ({"name": {"gt": 3}}, "the two have no order"),
        ({"a.b": {"count": 2}}, "a.b: expected 2 items, found 3"),
        ({"name": {"matches": "^rows"}}, "name: expected a text that matches '^rows'"),
    ],
)
def test_values(workspace: Path, values: dict[str, Any], problem: str) -> None:
    outcome = check({"values": values}, workspace)
    assert (outcome.status, outcome.score) == (("fail", 0.0) if problem else ("pass", 1.0)), outcome.message
    assert problem in outcome.message


def test_every_problem_is_said(workspace: Path) -> None:
    outcome = check({"values": {"n": 1, "gone": 2, "a.b[0]": {"gt": 5, "lt": 0}}}, workspace)
    assert len(outcome.message.splitlines()) == 4


@pytest.mark.parametrize("where", ["inline", "file", "mapping"])
def test_a_schema_that_fits_and_one_that_does_not(workspace: Path, where: str) -> None:
    def asked(schema: dict[str, Any]) -> dict[str, Any]:
        (workspace.parent / "schema.json").write_text(json.dumps(schema))
        return {"schema": {"inline": schema, "file": "schema.json", "mapping": {"file": "schema.json"}}[where]}

    assert check(asked(SCHEMA), workspace, directory=workspace.parent).message == "out.json is as expected."
    strict = {**SCHEMA, "properties": {"a": {"properties": {"b": {"items": {"type": "number"}}}}}}
    outcome = check(asked(strict), workspace, directory=workspace.parent)
    assert (outcome.status, outcome.message) == (
        "fail",
        "out.json: a.b[2] does not fit the schema: 'three' is not of type 'number'.",
    )


def test_the_draft_is_the_one_that_is_named(workspace: Path) -> None:
    """`items` as a list means each place in draft 7, and is not a schema in 2020-12."""
    schema = {"properties": {"a": {"properties": {"b": {"items": [{"type": "string"}]}}}}}
    outcome = check({"schema": {"$schema": "http://json-schema.org/draft-07/schema#", **schema}}, workspace)
    assert "a.b[0] does not fit" in outcome.message
    with pytest.raises(ValidationError, match="no JSON Schema"):
        make_check({"type": "json", "path": "x", "schema": schema})


@pytest.mark.parametrize(
    ("schema", "keyword", "meant"),
    [
        ({"requried": ["a"]}, "requried", "required"),
        ({"properties": {"a": {"typ": "number"}}}, "typ", "type"),
        ({"items": [{"minimun": 1}], "$schema": "http://json-schema.org/draft-07/schema#"}, "minimun", "minimum"),
        ({"anyOf": [{"proprties": {"a": {}}}]}, "proprties", "properties"),
        ({"$defs": {"x": {"enums": [1]}}}, "enums", "enum"),
    ],
)
def test_a_keyword_that_is_misspelt_asks_for_nothing_and_is_refused(
    workspace: Path, schema: dict[str, Any], keyword: str, meant: str
) -> None:
    told = f"'{keyword}' is not a keyword of JSON Schema, so it asks for nothing; '{meant}' is one"
    with pytest.raises(ValidationError, match=told):
        make_check({"type": "json", "path": "x", "schema": schema})
    (workspace.parent / "schema.json").write_text(json.dumps(schema))
    outcome = check({"schema": "schema.json"}, workspace, directory=workspace.parent)
    assert (outcome.status, told in outcome.message) == ("error", True)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"requried": {}, "typ": {}}, "title": "x", "x-order": 1, "then": {}, "maxContains": 1},
        {"patternProperties": {"typ": True}, "definitions": {"enums": {}}, "dependencies": {"typ": ["enums"]}},
        {"enum": [{"typ": 1}], "const": {"requried": 1}, "default": {"typ": 1}, "examples": [{"typ": 1}]},
    ],
)
def test_names_and_values_in_a_schema_are_not_keywords(schema: dict[str, Any]) -> None:
    assert make_check({"type": "json", "path": "x", "schema": schema})


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:9/schema.json", "file:///etc/passwd", "other.json", "#/$defs/gone"]
)
def test_no_reference_is_fetched(workspace: Path, reference: str) -> None:
    outcome = check({"schema": {"$ref": reference}}, workspace)
    assert outcome.status == "error"
    assert "nothing is fetched" in outcome.message


@pytest.mark.parametrize("content", ["no json", '{"type": 3}', '{"type": "object", "type": "array"}', "\udcff"])
def test_a_file_that_is_no_schema_is_an_error(workspace: Path, content: str) -> None:
    (workspace.parent / "schema.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert check({"schema": "schema.json"}, workspace, directory=workspace.parent).status == "error"


def test_a_byte_order_mark_is_no_part_of_a_document(workspace: Path) -> None:
    """As .NET and PowerShell write it."""
    (workspace / "out.json").write_bytes(b'\xef\xbb\xbf{"total": 42}\r\n')
    (workspace.parent / "schema.json").write_bytes(b'\xef\xbb\xbf{"required": ["total"]}')
    marked: dict[str, Any] = {"schema": "schema.json", "values": {"total": 42}}
    assert check(marked, workspace, directory=workspace.parent).status == "pass"
    assert check({**marked, "values": {"total": 43}}, workspace, directory=workspace.parent).status == "fail"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{} {}",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf\xef\xbb\xbf{}",
        b"NaN",
        b'{"a": Infinity}',
        b'{"a": 1, "a": 2}',
        b"9" * 5000,
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 150 + b"]" * 150,
        b'{"a":' * 400 + b"1" + b"}" * 400,
        b"[" + b"1," * (5 << 20) + b"1]",
    ],
)
@pytest.mark.parametrize("more", [{}, {"schema": {}}, {"values": {"gone": {"exists": False}}}])
def test_what_is_no_plain_json_earns_nothing(workspace: Path, content: bytes, more: dict[str, Any]) -> None:
    (workspace / "out.json").write_bytes(content)
    outcome = check(more, workspace)
    assert (outcome.status, outcome.score) == ("fail", 0.0)


def test_what_is_missing_or_outside_earns_nothing(workspace: Path) -> None:
    (workspace / "link").symlink_to("/etc/hostname")
    for path in ("gone.json", "link", "."):
        assert check({"path": path, "values": {"x": {"exists": False}}}, workspace).status == "fail"


EVIL = "a" * 60


@pytest.mark.parametrize(
    "document",
    [
        {"values": {"x": {"matches": "(a|aa)+$b"}}},
        {"schema": {"properties": {"x": {"pattern": "^(a|aa)+$b"}}}},
        {"schema": {"patternProperties": {"^(a|aa)+$b": {"type": "string"}}}},
        {"schema": {"patternProperties": {"^(a|aa)+$b": {}}, "additionalProperties": False}},
    ],
)
def test_a_regex_that_takes_forever_earns_nothing(workspace: Path, document: dict[str, Any]) -> None:
    (workspace / "out.json").write_text(json.dumps({"x": EVIL, EVIL: 1}))
    outcome = check(document, workspace, timeout=0.7)
    assert (outcome.status, outcome.score) == ("fail", 0.0), outcome.message


def test_a_schema_without_an_end_earns_nothing(workspace: Path) -> None:
    outcome = check({"schema": {"$ref": "#"}}, workspace)
    assert outcome.status == "fail"


def test_a_long_value_is_shortened(workspace: Path) -> None:
    (workspace / "out.json").write_text(json.dumps({"x": "y" * 1_000_000}))
    outcome = check({"schema": {"properties": {"x": {"type": "number"}}}, "values": {"x": 1}}, workspace)
    assert len(outcome.message) < 2_000


def run_of(output: str, **more: Any) -> dict[str, Any]:
    return {"agent": AgentRun(exit_code=0, output=output, stdout=output, **more)}


@pytest.mark.parametrize("source", ["agent_output", "stdout", "file:out.json"])
def test_input_from(workspace: Path, source: str) -> None:
    document = {"type": "json", "input_from": source, "values": {"n": None}}
    assert grade(document, workspace, evidence=run_of(json.dumps(DOCUMENT))).status == "pass"
    (workspace / "out.json").write_text("I am done.")
    assert grade(document, workspace, evidence=run_of("I am done.")).status == "fail"


def test_a_secret_is_compared_as_it_is(workspace: Path) -> None:
    evidence = {**run_of('{"token": "s3cret-value"}'), "secrets": ("s3cret-value",)}
    document = {"type": "json", "input_from": "stdout", "values": {"token": "s3cret-value"}}
    assert grade(document, workspace, evidence=evidence).status == "pass"


def test_an_output_that_could_not_be_had_fails(workspace: Path) -> None:
    document = {"type": "json", "input_from": "agent_output", "values": {"x": {"exists": False}}}
    outcome = grade(document, workspace, evidence=run_of("{}", problem="answer.txt does not exist"))
    assert (outcome.status, "answer.txt does not exist" in outcome.message) == ("fail", True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "expected path or input_from, found neither"),
        ({"path": "x", "input_from": "stdout"}, "found both"),
        ({"path": "x", "values": {"": 1}}, "expected a path"),
        ({"path": "x", "values": {"a[": 1}}, "can't read"),
        ({"path": "x", "values": {"a": {"gt": 1, "lte_": 2}}}, "'lte_' beside operators"),
        ({"path": "x", "values": {"a": {"gt": []}}}, "gt"),
        ({"path": "x", "values": {"a": {"exists": "no"}}}, "exists"),
        ({"path": "x", "values": {"a": {"count": -1}}}, "count"),
        ({"path": "x", "schema": {"type": "objekt"}}, "no JSON Schema"),
        ({"path": "x", "schema": {"pattern": "("}}, "no JSON Schema"),
        ({"path": "x", "schema": []}, "schema"),
        ({"input_from": "outputs"}, "expected"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make_check({"type": "json", **fields})
    assert words in str(caught.value)


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc. ", min_size=1, max_size=3), inner, max_size=3)
    ),
)


def places(value: Any, path: str = "$") -> list[tuple[str, Any]]:
    found = [(path, value)]
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, item in items:
        found += places(item, f"{path}[{key}]" if isinstance(key, int) else f'{path}["{key}"]')
    return found


@given(trees)
def test_every_place_of_a_document_has_a_path(tree: Any) -> None:
    for path, value in places(tree):
        assert descend(tree, parse_path(path), "it") is value


@given(trees)
def test_depth_is_what_it_is(tree: Any) -> None:
    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert is_deeper(tree, depth(tree)) is False
    assert depth(tree) == 0 or not any(True for _ in places(tree)[1:]) or is_deeper(tree, depth(tree) - 2)
    assert parse_strict(json.dumps(tree)) == json.loads(json.dumps(tree).encode("utf-8", "replace"))


@pytest.mark.parametrize(("rows", "code"), [(3, 0), (4, 1)])
def test_by_the_real_command(tmp_path: Path, rows: int, code: int) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object", "required": ["rows"]}')
    agent = '{type: command, command: \'echo "{\\"rows\\": [1, 2, 3]}" > out.json; ls schema.json || true\'}'
    check = f"{{type: json, path: out.json, schema: schema.json, values: {{rows: {{count: {rows}}}}}}}"
    called = run_spec(tmp_path, spec(agent, check))
    assert called.code == code, called.err


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("{type: json, path: out.json, schema: gone.json}", "there is no file 'gone.json'"),
        ("{type: json, path: /out.json}", "is absolute"),
        ("{type: json, path: x, values: {a: {matches: '('}}}", "not a regular expression"),
        ("{type: json, input_from: api.body}", ""),
        ("{type: json, path: x, schema_: {}}", "unknown key 'schema_'"),
        ("{type: json, path: x, values: {a: {gtt: 1, gt: 2}}}", "beside operators"),
    ],
)
def test_bad_specs_are_exit_2_at_their_line(tmp_path: Path, check: str, words: str) -> None:
    called = run_spec(tmp_path, spec(check=check))
    assert called.code == 2
    assert words in called.err
    assert "keystone.yaml:6:" in called.err
    assert not called.has_traceback
