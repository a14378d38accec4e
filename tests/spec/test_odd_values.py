"""Values that no author means: each is an error with its place, none hides another, and none breaks the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loader import load

TYPES = CheckTypes()
HUGE = int("9" * 400)
LONG = "a" * 300
SPEC = """\
version: 1
id: odd
task: {prompt: x}
agent: {type: none}
invariants: {a: {check: {type: file_exists, path: x}}}
"""


def problems(directory: Path, text: str) -> list[str]:
    """Each with its place."""
    path = directory / "keystone.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load(path, TYPES)
    return [f"{one.line}:{one.column}: {one.sentence}" for one in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("line", "before", "after", "said"),
    [
        (2, "id: odd", f"extends: {LONG}\nid: odd", "2:10: a path that is longer than any file's"),
        (2, "id: odd", f"extends: {'a/' * 3000}b\nid: odd", "2:10: a path that is longer than any file's"),
        (2, "id: odd", 'extends: "a\\0b"\nid: odd', "2:10: a path with a NUL, which no file can have"),
        (3, "prompt: x", f"prompt: {{file: {LONG}}}", "3:23: 'aaaa"),
        (3, "prompt: x", 'prompt: {file: "a\\0b"}', "3:23: "),
        (4, "agent: {", f"dataset: {{path: {LONG}}}\nagent: {{", "4:17: 'aaaa"),
    ],
)
def test_paths_that_no_file_can_have(tmp_path: Path, line: int, before: str, after: str, said: str) -> None:
    found = problems(tmp_path, SPEC.replace(before, after))
    assert any(one.startswith(said) for one in found), found
    assert all(one.startswith(f"{line}:") for one in found), found


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("{check:", f"{{weight: {HUGE}, check:", "5:26"),
        ("agent: {", f"agent: {{timeout: {HUGE}, ", "4:18"),
        ("id: odd", f"id: odd\nparallelism: {{matrix: {{n: [{HUGE}]}}}}", "3:28"),
        ("path: x", f"path: x, number: -{HUGE}", "5:62"),
        ("id: odd", f"id: odd\nresources: {{memory: {HUGE}}}", "3:21"),
        ("id: odd", f"id: odd\nresources: {{memory: '{HUGE}Mi'}}", "3:21"),
    ],
)
def test_a_number_of_400_digits_is_an_error_at_its_place(tmp_path: Path, before: str, after: str, place: str) -> None:
    found = problems(tmp_path, SPEC.replace(before, after))
    assert any(one.startswith(f"{place}: ") for one in found), found


def test_a_number_that_is_merely_large_is_none(tmp_path: Path) -> None:
    path = tmp_path / "keystone.yaml"
    path.write_text(SPEC.replace("{check:", f"{{weight: {10**300}, check:"))
    assert load(path, TYPES).spec.invariants["a"].weight == 1e300


def test_an_agenticassure_suite_says_where_its_number_is(tmp_path: Path) -> None:
    suite = f"scenarios:\n  - {{name: a, input: b, scorers: [exact], expected_output: c, timeout_seconds: {HUGE}}}\n"
    found = problems(tmp_path, suite)
    assert any(one.startswith("2:80: a number of 400 digits") for one in found), found


def test_an_unknown_key_hides_no_other_error(tmp_path: Path) -> None:
    text = SPEC.replace(
        "agent: {type: none}", "agent: {type: none, foo: 1}\nscoring: {replica_aggregation: {at_least: 4}}"
    )
    text = text.replace("{a: {check: {type: file_exists, path: x}}}", "")
    text += (
        "  one: {check: {type: custom, script: nope.py, foo: 1}}\n"
        "  two: {check: {type: file_content, foo: 1, path: x}}\n"
        "  three: {check: {type: http_mock_assertions, service: none, foo: 1,\n"
        "      assertions: [{field: request_count, matches: x}]}}\n"
    )
    said = problems(tmp_path, text)
    for part in (
        "4:21: unknown key 'foo'",
        "5:43: at_least is above the 1 replicas",
        "7:39: there is no file 'nope.py'",
        "7:48: unknown key 'foo'",
        "8:9: check: expected at least one of equals, contains, not_contains, pattern",
        "8:37: unknown key 'foo'",
        "9:62: unknown key 'foo'",
        "10:20: assertions[0]: request_count is a number",
    ):
        assert any(one.startswith(part) for one in said), (part, said)


def test_an_error_of_an_entry_has_its_place_though_others_are_gone(tmp_path: Path) -> None:
    """Entries that are left out for their own errors don't move those behind them, however often that happens."""
    services = "services:\n" + "".join(
        f"  - {entry}\n"
        for entry in (
            "{name: a, type: http_mock, ready_timeout: x}",
            "{name: b, type: http_mock, foo: 1, routes: [{path: /, response: a, json: {}}]}",
            "{name: c, type: nothing}",
            "{name: d, type: sqlite, path: ../x}",
        )
    )
    said = problems(tmp_path, services + SPEC)
    assert [one.partition(" ")[0] for one in said] == ["2:47:", "3:32:", "3:72:", "4:21:", "5:35:"], said


def test_a_key_without_a_name_is_told_in_words(tmp_path: Path) -> None:
    found = problems(tmp_path, SPEC.replace("{a: {check: {type: file_exists, path: x}}}", '{"": 1}'))
    assert any("the key '', found the number 1, expected a mapping" in one for one in found), found


ODD: list[Any] = [
    *("", None, [], {}, 5, -1, True, "{{", "{{ }}", HUGE, 1e308, "a\0b", LONG, "b/" * 3000, "\u202e", "*[", ".", ".."),
    *([None], {"": 1}, [[]], [{}], {"type": 5}, {"file": LONG}, {"file": ""}, "9" * 400, f"{HUGE}h", {"equals": HUGE}),
]
ASSERTION = {"field": "request_count", "equals": 1, "filters": {"body": "x"}}
WHOLE = yaml.safe_load(SPEC) | {
    "description": "d",
    "tags": ["a"],
    "task": {"prompt": {"file": "p.md"}, "files": ["p.md"]},
    "workspace": ".",
    "agent": {"type": "command", "command": "true", "timeout": "5m", "env": {"A": "b"}, "output": {"file": "x"}},
    "setup": {"packages": ["a"], "commands": ["b"], "files": [{"path": "c", "content": "d"}], "env": {"E": "f"}},
    "resources": {"cpu": 1, "memory": "1G", "pids": 5, "timeout": 60},
    "services": [{"name": "api", "type": "http_mock", "record": True, "routes": [{"path": "/", "response": "x"}]}],
    "secrets": ["KEY"],
    "parallelism": {"replicas": 2, "matrix": {"m": [1, 2]}, "exclude": [{"m": 1}]},
    "scoring": {"pass_threshold": 0.5, "replica_aggregation": {"at_least": 1}},
    "invariants": {
        "a": {"weight": 2, "gate": True, "check": {"type": "command_exit", "command": "true"}},
        "b": {"check": {"type": "file_content", "path": "x", "pattern": "y"}},
        "c": {"check": {"type": "http_mock_assertions", "service": "api", "assertions": [ASSERTION]}},
        "d": {"check": {"type": "budget", "max_tokens": 5}},
    },
}  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


def put(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = node.copy()
    copy[path[0]] = put(node[path[0]], path[1:], value)
    return copy


@settings(max_examples=3 * settings().max_examples)
@given(st.sampled_from(places(WHOLE)[1:]), st.sampled_from(ODD), st.booleans(), st.data())
def test_whatever_stands_anywhere_is_valid_or_told_in_words_at_its_place(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[Any, ...], value: Any, more: bool, data: st.DataObject
) -> None:
    directory = tmp_path_factory.getbasetemp() / "odd"
    directory.mkdir(exist_ok=True)
    (directory / "p.md").write_text("do it")
    spec = put(WHOLE, place, value)
    if more:
        mappings = [path for path in places(spec) if isinstance(_at(spec, path), dict)]
        path = data.draw(st.sampled_from(mappings))
        spec = put(spec, path, {**_at(spec, path), "foo": value})
    (directory / "keystone.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    try:
        load(directory / "keystone.yaml", TYPES)
    except SpecError as error:
        for one in error.diagnostics:
            assert one.message.strip(), one
            assert one.sentence[0] not in ",;: ", one
            assert one.line >= 1


def _at(node: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        node = node[step]
    return node
