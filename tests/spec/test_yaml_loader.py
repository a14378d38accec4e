"""Text → data: the YAML 1.2 core schema, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.yaml_loader import MAX_DEPTH, SourceText, build_data, parse_yaml, resolve_plain


def data_of(text: str) -> Any:
    document = parse_yaml(text, "f.yaml")
    assert document is not None
    data, problems = build_data(document)
    if problems:
        raise SpecError(problems)
    return data


def errors_in(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        data_of(text)
    return [f"{one.line}:{one.column}: {one.sentence}" for one in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("190:20:30", "190:20:30"),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        ("0b101", "0b101"),
        ("0123", 123),
        ("-7", -7),
        ("+7", 7),
        ("0o14", 12),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-.inf", -math.inf),
        (".INF", math.inf),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("~", None),
        ("null", None),
        ("nULL", "nULL"),
        ("=", "="),
        ("'5'", "5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("", None),
    ],
)
def test_scalars_are_what_the_core_schema_says(text: str, value: object) -> None:
    found = data_of(f"key: {text}\n")["key"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(data_of("a: .nan")["a"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\n", ["2:1: the key 'a' is there twice; the first is on line 1"]),
        ("a: &x [1, *x]\n", ["1:4: an alias that contains itself; aliases can't be recursive"]),
        ("a:\n\t- b\n", ["2:1: a tab in the indentation, expected spaces"]),
        ("a: 1\n---\nb: 2\n", ["2:1: a second document begins here, expected one document in a file"]),
        ("1: x\n", ["""1:1: a key that is not a text, found the number 1; write "1" in quotes"""]),
        (
            "[a]: x\n",
            [
                (
                    "1:1: a key that is a list or mapping, expected a text; an expression at the start of a value needs"
                    ' quotes: "{{ … }}"; without them it is a mapping'
                )
            ],
        ),
        ("a: !ruby 1\n", ["1:4: the tag !ruby, expected no tags; a spec holds plain data only"]),
        ("a: !!python/name:os.system x\n", None),
        ("a: !!int x\n", ["1:4: the tag !!int on 'x'; remove the tag"]),
        ("a: !!set {x}\n", ["1:4: the tag !!set, expected no tags; a spec holds plain data only"]),
        ("a: {<<: {b: 1}}\n", None),
        ('a: "x\\0y"\n', ["1:4: the escape of a character that no file, command or variable can hold"]),
    ],
)
def test_what_a_spec_may_not_hold(text: str, expected: list[str] | None) -> None:
    found = errors_in(text)
    assert len(found) == 1
    if expected is not None:
        assert found == expected


def test_a_merge_key_is_refused_by_name() -> None:
    assert "a merge key `<<`; YAML 1.2 has none" in errors_in("x: &x {a: 1}\ny:\n  <<: *x\n")[0]


def test_all_errors_of_a_tree_come_at_once() -> None:
    found = errors_in("a: 1\na: 2\nb: !x 1\n3: c\n")
    assert [line.split(":")[0] for line in found] == ["2", "3", "4"]


@pytest.mark.parametrize(
    "text", ["a: b: c", "a: 'x", "a: [1", "a: *nowhere", "a: @x", "- a\nb: 1", "a: |x\n", "%FOO", "{"]
)
def test_syntax_errors_have_a_place_and_no_traceback(text: str) -> None:
    (found,) = errors_in(text)
    assert found[0].isdigit()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "- " * 5_000, "{a: " * 5_000, "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)]
)
def test_deep_nesting_is_an_error_and_not_a_crash(text: str) -> None:
    (found,) = errors_in(text)
    assert "nested deeper than 100 levels" in found


def test_an_alias_bomb_is_counted_and_not_built() -> None:
    rows = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    rows += [f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]" for i in range(20)]
    (found,) = errors_in("\n".join(rows))
    assert "more than 1,000,000 values once all aliases are expanded" in found


def test_aliases_give_the_value_they_name() -> None:
    assert data_of("a: &x {k: [1]}\nb: *x\nc: [*x, *x]\n") == {"a": {"k": [1]}, "b": {"k": [1]}, "c": [{"k": [1]}] * 2}


def test_a_number_of_thousands_of_digits_is_no_crash() -> None:
    assert "a number of thousands of digits" in errors_in("a: " + "9" * 5000)[0]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_nothing_is_no_document(text: str) -> None:
    assert parse_yaml(text, "f.yaml") is None


TEXTS = st.text(
    st.characters(
        codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff\ufffe\uffff\x85\u2028\u2029"
    )
)


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    )
)
def test_json_scalars_come_back_as_they_are(value: Any) -> None:
    # YAML 1.2 is a superset of JSON: what json writes must read the same.
    found = data_of("key: " + json.dumps(value, ensure_ascii=False))["key"]
    assert found == value
    assert type(found) is type(value)


@given(TEXTS.filter(bool))
def test_a_plain_scalar_is_a_text_unless_the_schema_names_it(text: str) -> None:
    found = resolve_plain(text)
    if isinstance(found, str):
        assert found == text
    else:
        assert text.strip() == text
        assert found is None or isinstance(found, bool | int | float)


def _collections(inner: Any) -> Any:
    return st.lists(inner) | st.dictionaries(TEXTS, inner)


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, _collections)


@given(VALUES, st.booleans())
def test_every_node_has_a_place_within_the_file(value: Any, flow: bool) -> None:
    text = yaml.safe_dump({"root": value}, default_flow_style=flow, allow_unicode=True)
    document = parse_yaml(text, "f.yaml")
    assert document is not None
    lines = SourceText("f.yaml", text).lines

    def visit(data: Any, path: tuple[str | int, ...]) -> None:
        for key in (False, True):
            at = document.position(path, key=key)
            assert 1 <= at.line <= len(lines)
            assert 1 <= at.column <= len(lines[at.line - 1]) + 1
            assert at.source_line == lines[at.line - 1]
        items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
        for step, item in items:
            visit(item, (*path, step))

    visit({"root": value}, ())


def test_places_are_those_of_keys_and_values() -> None:
    document = parse_yaml("a:\n  - x\n  - {b: é, c: [1, 2]}\n", "f.yaml")
    assert document is not None

    def where(*path: str | int, key: bool = False) -> tuple[int, int]:
        at = document.position(path, key=key)
        return at.line, at.column

    assert where("a", key=True) == (1, 1)
    assert where("a", 1, "c", key=True) == (3, 12)
    assert where("a", 1, "c", 1) == (3, 19)
    assert where("a", 7, "nowhere") == (2, 3)


@given(st.text())
def test_no_text_crashes_the_parser(text: str) -> None:
    diagnostics: tuple[Any, ...] = (None,)
    try:
        document = parse_yaml(text.replace("\0", ""), "f.yaml")
        if document is not None:
            build_data(document)
    except SpecError as error:
        diagnostics = error.diagnostics
    assert diagnostics
