"""Scenarios from datasets of every format, and inline ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.check_types import CHECKS, HEAD

from keystone_action.spec.loading.dataset import read_dataset
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.models.experiment import Dataset

Errors = Callable[..., list[str]]
Load = Callable[..., LoadedSpec]
Write = Callable[..., Path]

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "input": "one", "expected": "1", "metadata": {"level": "easy"}, "tags": ["x", "y"]},
    {"id": "b", "input": "two", "expected": "2", "metadata": {"level": "hard"}, "tags": ["x"]},
    {"input": "three, with comma", "metadata": {"level": "hard"}},
]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS)
FORMATS = {
    "cases.jsonl": JSONL,
    "cases.json": json.dumps(RECORDS, indent=2),
    "cases.yaml": JSONL.replace('{"i', '- {"i'),
    "cases.csv": 'id,input,expected,level,tags\na,one,1,easy,"x,y"\nb,two,2,hard,x\n,"three, with comma",,hard,\n',
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_scenarios(load_text: Load, write: Write, name: str) -> None:
    write(FORMATS[name], name)
    loaded = load_text(HEAD + f"dataset: {{path: {name}}}\n" + CHECKS)
    assert [one.id for one in loaded.scenarios] == ["a", "b", "record-3"]
    assert [one.record for one in loaded.scenarios] == [
        RECORDS[0],
        RECORDS[1],
        {"id": "record-3", "expected": None, "tags": [], **RECORDS[2]},
    ]
    assert loaded.scenarios[0].tags == ("x", "y")
    assert loaded.scenarios[0].prompt is None


@pytest.mark.parametrize("name", FORMATS)
def test_places_of_records(write: Write, directory: Path, name: str) -> None:
    path = write(FORMATS[name], name)
    lines = [one.where for one in read_dataset(Dataset(path=name), path, name)]
    first = {"cases.jsonl": 1, "cases.json": 2, "cases.yaml": 1, "cases.csv": 2}[name]
    assert lines[0] == f"{name}:{first}"
    assert lines == sorted(set(lines), key=lambda line: int(line.rsplit(":", 1)[1]))


def test_limit_and_tags(load_text: Load, write: Write) -> None:
    write(JSONL, "c.jsonl")

    def ids(options: str) -> list[str]:
        return [one.id for one in load_text(HEAD + f"dataset: {{path: c.jsonl, {options}}}\n" + CHECKS).scenarios]

    assert ids("limit: 2") == ["a", "b"]
    assert ids("filter_tags: [y]") == ["a"]
    assert ids("filter_tags: [x], limit: 1") == ["a"]
    assert ids("filter_tags: [y, x]") == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.jsonl", "", "1:1: no records; there is nothing to run"),
        ("c.json", "[]", "1:1: no records; there is nothing to run"),
        ("c.yaml", "", "1:1: no records; there is nothing to run"),
        ("c.csv", "id,input\n", "1:1: no records; there is nothing to run"),
        ("c.jsonl", '{"input": 1}\n{"input": }\n', "2:11: not readable as JSON: Expecting value"),
        ("c.json", '[\n{"input": 1}\n{}]', "3:1: not readable as JSON"),
        ("c.jsonl", "[1]\n", "1:1: a record, found a list, expected a mapping"),
        ("c.json", '{"a": 1}', "1:1: the dataset, found a mapping, expected a list of records"),
        ("c.yaml", "a: 1", "1:1: the dataset, found a mapping, expected a list of records"),
        ("c.jsonl", '{"id": "a"}\n\n{"id": "a"}\n', "3:1: the id 'a' is there twice; the first is on line 1"),
        ("c.jsonl", '{"id": "a/b"}\n{"id": "a b"}\n', "2:1: the id 'a-b' is there twice"),
        ("c.jsonl", '{"id": "record-2"}\n{"input": 1}\n', "2:1: the id 'record-2' is there twice"),
        ("c.jsonl", '{"id": "//"}\n', "1:1: id, found '//', expected a text with letters or digits"),
        ("c.jsonl", '{"id": true}\n', "1:1: id, found true"),
        (
            "c.jsonl",
            '{"inptu": 1}\n',
            "1:1: unknown key 'inptu', expected one of id, input, expected, metadata",
        ),
        ("c.jsonl", '{"tags": "x"}\n', "1:1: tags, found 'x', expected a list of texts"),
        ("c.jsonl", '{"metadata": [1]}\n', "1:1: metadata, found a list, expected a mapping"),
        ("c.jsonl", '{"input": 1, "input": 2}\n', "1:1: not readable as JSON: the key 'input' is there twice"),
        ("c.jsonl", '{"input": NaN}\n', "1:1: not readable as JSON: NaN is not JSON"),
        ("c.jsonl", '{"input": ' + "[" * 100_000 + "}\n", "1:1: not readable as JSON: nested too deeply"),
        ("c.jsonl", '{"input": ' + "9" * 5000 + "}\n", "1:1: not readable as JSON: a number of thousands of digits"),
        ("c.csv", "id,id\n1,2\n", "1:1: the columns of the first line, expected names that are there once"),
        ("c.csv", "id,input\n1\n", "2:1: 1 cells, expected 2, as in the first line"),
        ("c.csv", 'id,input\n1,"x\n', "2:1: not readable as CSV"),
        ("c.yaml", "- {input: 1, input: 2}\n", "1:14: the key 'input' is there twice"),
        ("c.txt", "x", "1:1: the kind of this dataset can't be told"),
    ],
)
def test_bad_datasets(write: Write, name: str, text: str, expected: str) -> None:
    path = write(text, name)
    with pytest.raises(SpecError) as caught:
        read_dataset(Dataset(path=name), path, name)
    assert caught.value.message.startswith(f"{name}:{expected}")


def test_all_bad_records_at_once_beside_the_errors_of_the_spec(errors_of: Errors, write: Write) -> None:
    write('{"id": 1}\n{"x": 1}\n{"tags": 1}\n', "c.jsonl")
    found = errors_of(HEAD + "colour: red\ndataset: {path: c.jsonl}\n" + CHECKS)
    assert [one.split(": ", 1)[0] for one in found] == ["2:1", "3:1", "5:1"]


def test_a_filter_that_leaves_nothing(write: Write) -> None:
    path = write(JSONL, "c.jsonl")
    with pytest.raises(SpecError, match="no records with one of the tags z"):
        read_dataset(Dataset(path="c.jsonl", filter_tags=["z"]), path, "c.jsonl")


def test_ids_are_made_safe_and_the_record_keeps_its_own(write: Write) -> None:
    path = write('{"id": "HumanEval/12"}\n{"id": 7}\n{"id": 8.0}\n', "c.jsonl")
    scenarios = read_dataset(Dataset(path="c.jsonl"), path, "c.jsonl")
    assert [one.id for one in scenarios] == ["HumanEval-12", "7", "8"]
    assert scenarios[0].record is not None
    assert scenarios[0].record["id"] == "HumanEval/12"


def test_a_line_separator_inside_of_json_is_text(write: Write) -> None:
    path = write('{"input": "a\u2028b"}\n', "c.jsonl")
    (only,) = read_dataset(Dataset(path="c.jsonl"), path, "c.jsonl")
    assert only.record is not None
    assert only.record["input"] == "a\u2028b"


def test_inline_scenarios(load_text: Load) -> None:
    loaded = load_text(
        HEAD
        + """scenarios:
  - {id: one, prompt: say one, params: {n: 1}, tags: [t], expected: x, metadata: {k: v}}
  - {input: say two, invariants: {extra: {check: {type: file_exists, path: e}}}}
  - {input: {a: 1}}
"""
        + CHECKS
    )
    one, two, three = loaded.scenarios
    assert (one.id, one.prompt, one.params, one.tags) == ("one", "say one", {"n": 1}, ("t",))
    assert one.record == {"id": "one", "input": "say one", "expected": "x", "metadata": {"k": "v"}, "tags": ["t"]}
    assert (two.id, two.prompt, list(two.invariants)) == ("scenario-2", "say two", ["extra"])
    assert (three.id, three.prompt) == ("scenario-3", None)
    assert loaded.lines["extra"] == 7
    assert loaded.parameter_names == {"n"}


def test_an_input_is_no_prompt_where_the_prompt_uses_the_record(load_text: Load) -> None:
    loaded = load_text(HEAD.replace("do it", "'answer: {{ record.input }}'") + "scenarios: [{input: x}]\n" + CHECKS)
    assert loaded.scenarios[0].prompt is None


def test_dataset_and_scenarios_exclude_each_other(errors_of: Errors, write: Write) -> None:
    write(JSONL, "c.jsonl")
    (found,) = errors_of(HEAD + "dataset: {path: c.jsonl}\nscenarios: [{input: x}]\n" + CHECKS)
    assert found == "6:1: 'scenarios' beside 'dataset', expected one of the two"


CELLS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff\ufffe\uffff"))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=settings().max_examples // 2,
)
@given(st.lists(CELLS, min_size=1, max_size=5))
def test_inputs_survive_csv_and_jsonl(write: Write, inputs: list[str]) -> None:
    import csv
    import io

    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerows([["input", "tags"], *([value, "t"] for value in inputs)])
    lines = "".join(json.dumps({"input": value}, ensure_ascii=False) + "\n" for value in inputs)
    for name, text in (("c.csv", stream.getvalue()), ("c.jsonl", lines)):
        path = write(text, name)
        found = read_dataset(Dataset(path=name), path, name)
        assert [one.record["input"] for one in found if one.record is not None] == inputs


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=settings().max_examples
)
@given(st.sampled_from(["c.csv", "c.jsonl", "c.json", "c.yaml"]), st.text(alphabet='{}[]",:\n- aidnput1\\'))
def test_no_dataset_crashes(write: Write, name: str, text: str) -> None:
    path = write(text, name)
    found: object = None
    try:
        found = read_dataset(Dataset(path=name), path, name)
    except SpecError as error:
        found = error.diagnostics
    assert found


def asks(field: str, name: str) -> str:
    """A spec whose prompt is of a record's field."""
    prompt = f"'{{{{ record.{field} }}}}'"
    return (
        f"version: 1\nid: asks\ntask: {{prompt: {prompt}}}\nagent: {{type: none}}\n{CHECKS}dataset: {{path: {name}}}\n"
    )


@pytest.mark.parametrize(
    ("field", "name", "text", "told"),
    [
        (
            "input",
            "d.csv",
            "id,inptu,expected\na,x,y\nb,x,y\n",
            "the record 'a' (d.csv:2) has no input, nor has any other; there are id, inptu, expected; did you",
        ),
        (
            "expected",
            "d.jsonl",
            '{"id": "a", "input": "x", "expected": null}\n{"id": "b", "input": "x"}\n',
            "the record 'b' (d.jsonl:2) has no expected; there are id, input",
        ),
        (
            "expected",
            "d.yaml",
            "- {id: a, input: x}\n- {id: b, input: x}\n- {id: c, expected: x}\n",
            "the record 'a' (d.yaml:1) has no expected, nor have 1 more; there are id, input",
        ),
        (
            "metadata.level",
            "d.json",
            '[{"id": "a", "metadata": {"level": 1}},\n {"id": "b", "metadata": {"lvl": 1}}]',
            "the record 'b' (d.json:2) has no such field, only lvl",
        ),
    ],
)
def test_a_field_that_records_lack_is_told_with_their_place_and_the_fields_that_are_there(
    errors_of: Errors, write: Write, field: str, name: str, text: str, told: str
) -> None:
    write(text, name)
    (error,) = errors_of(asks(field, name))
    assert told in error


@pytest.mark.parametrize(
    ("field", "name", "text"),
    [
        ("expected", "d.jsonl", '{"id": "a", "expected": null}\n{"id": "b", "expected": ""}\n'),
        ("expected", "d.csv", "id,expected\na,\nb,x\n"),
        ("metadata.level", "d.csv", "id,level\na,\nb,x\n"),
        ("id", "d.csv", "input\na\n"),
        ("tags", "d.csv", "input\na\n"),
    ],
)
def test_a_field_that_is_empty_or_has_a_default_is_there(
    load_text: Load, write: Write, field: str, name: str, text: str
) -> None:
    write(text, name)
    assert load_text(asks(field, name)).scenarios


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (r'{"id": "a", "input": "x\ud83d"}', "1:24: \\ud83d is half of a character"),
        ('{"id": "a"}\n{"id": "b", "input": "' + r'\ude00"}', "2:23: \\ude00 is half of a character"),
        (r'{"id": "a", "metadata": {"\uD83Dx": 1}}', "1:27: \\uD83D is half of a character"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_with_its_place(write: Write, text: str, place: str) -> None:
    for name, content in (("d.jsonl", text), ("d.json", "[" + text.replace("}\n{", "},\n{") + "]")):
        path = write(content, name)
        with pytest.raises(SpecError) as caught:
            read_dataset(Dataset(path=name), path, name)
        column = place if name == "d.jsonl" or not place.startswith("1:") else f"1:{int(place[2:4]) + 1}{place[4:]}"
        assert f"{name}:{column}" in str(caught.value)


def test_a_whole_pair_and_an_escaped_backslash_are_text(write: Write) -> None:
    path = write(r'{"id": "a", "input": "\ud83d\ude00 \\ud83d"}', "d.jsonl")
    (found,) = read_dataset(Dataset(path="d.jsonl"), path, "d.jsonl")
    assert found.record is not None
    assert found.record["input"] == "\U0001f600 \\ud83d"


@pytest.mark.parametrize(("separator", "shown"), [(";", "';'"), ("\t", "a tab")])
def test_another_separator_than_a_comma_is_named(write: Write, separator: str, shown: str) -> None:
    path = write(f"id{separator}input\na{separator}x\n", "d.csv")
    with pytest.raises(SpecError) as caught:
        read_dataset(Dataset(path="d.csv"), path, "d.csv")
    assert f"d.csv:1:1: one column, whose name has {shown} in it" in str(caught.value)


def test_a_semicolon_in_a_cell_or_beside_commas_is_text(write: Write) -> None:
    path = write("input,a;b\nx;y,z\n", "d.csv")
    (found,) = read_dataset(Dataset(path="d.csv"), path, "d.csv")
    assert found.record == {"id": "record-1", "input": "x;y", "expected": None, "metadata": {"a;b": "z"}, "tags": []}


def test_a_field_of_csv_may_be_as_long_as_one_of_jsonl(write: Write) -> None:
    path = write("id,input\na," + "x" * 200_000 + "\n", "d.csv")
    (found,) = read_dataset(Dataset(path="d.csv"), path, "d.csv")
    assert found.record is not None
    assert len(found.record["input"]) == 200_000


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 104857\n"


def test_a_dataset_that_git_lfs_did_not_fetch_is_named_as_one(errors_of: Errors, write: Write) -> None:
    write(POINTER, "d.jsonl")
    (error,) = errors_of(asks("input", "d.jsonl"))
    assert "this is a pointer of Git LFS, not the file itself" in error
