"""`{{ a.b }}`: reading, replacing, and never an empty string."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from keystone_action.spec.expressions import ExpressionError, Reference, interpolate, names_used, parse_expression
from keystone_action.spec.models.fields import PlainText, StrictModel, Template

NAMES: dict[str, Any] = {
    "params": {"model": "a", "count": 3, "on": True, "none": None, "list": [1, "x"], "ratio": 0.5},
    "services": {"my-db": {"url": "postgres://x"}},
    "workspace": "/w",
}


class Inner(StrictModel):
    name: Annotated[str, PlainText()] = "n"
    text: str = ""


class Outer(StrictModel):
    anything: Any = None
    text: str = ""
    several: list[str | Inner] = Field(default_factory=list)
    mapping: dict[str, str] = Field(default_factory=dict)
    response: Annotated[str, Template()] = ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("{{ params.model }}", "a"),
        ("{{params.model}}-{{ params.model }}", "a-a"),
        ("{{ services.my-db.url }}/x", "postgres://x/x"),
        ("{{ workspace }}", "/w"),
        ("n={{ params.count }} r={{ params.ratio }} b={{ params.on }}", "n=3 r=0.5 b=true"),
        ("{{ params.list }}", '[1, "x"]'),
        ("{{ params.list.1 }}", "x"),
        (r"\{{ params.model }}", "{{ params.model }}"),
        (r"\{{ {{ params.model }} }}", "{{ a }}"),
        ("{ {x} }}", "{ {x} }}"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert interpolate(text, NAMES) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ params.modle }}", "unknown name 'params.modle', expected one of params.count"),
        ("{{ parms.model }}", "unknown name 'parms.model', expected one of params, services, workspace"),
        ("{{ params.model.x }}", "unknown name 'params.model.x'"),
        ("{{ params.none }}", "'params.none' is null"),
        ("{{ params", "'{{' without '}}'"),
        ("{{ }}", "is not an expression"),
        ("{{ params.model | upper }}", "is not an expression"),
        ("{{ 1 + 1 }}", "is not an expression"),
        ("{{ params..model }}", "is not an expression"),
        ("{{{ params.model }}}", "is not an expression"),
    ],
)
def test_what_can_not_be_replaced_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        interpolate(text, NAMES)
    assert message in caught.value.message
    assert caught.value.exit_code == 3


def test_the_nearest_known_name_is_suggested() -> None:
    with pytest.raises(ExpressionError) as caught:
        interpolate("x {{ params.modle }}", NAMES)
    assert caught.value.suggestion == "params.model"
    assert caught.value.index == 2


def test_what_needs_nothing_is_the_same_object() -> None:
    model = Outer(text="x", several=["a", Inner()], mapping={"a": "b"}, anything=[1, {"a": None}])
    for value in (["a", {"b": "c"}], {"a": ["b"]}, model):
        assert interpolate(value, NAMES) is value


def test_a_lone_expression_keeps_its_type_where_anything_goes() -> None:
    model = Outer(anything="{{ params.count }}", text="{{ params.count }}")
    filled = interpolate(model, NAMES)
    assert filled.anything == 3
    assert filled.text == "3"
    assert interpolate(Outer(anything={"a": ["{{ params.on }}", "x{{ params.on }}"]}), NAMES).anything == {
        "a": [True, "xtrue"]
    }
    assert interpolate(Outer(anything="{{ params.none }}"), NAMES).anything is None


def test_models_lists_and_mappings_are_filled_at_any_depth() -> None:
    model = Outer(several=["{{ params.model }}", Inner(text="{{ workspace }}")], mapping={"{{ k }}": "{{ workspace }}"})
    filled = interpolate(model, NAMES)
    assert filled.several == ["a", Inner(text="/w")]
    assert filled.mapping == {"{{ k }}": "/w"}
    assert model.several[0] == "{{ params.model }}"
    assert interpolate({"a": [model]}, NAMES)["a"][0] == filled


def test_names_stay_as_they_are() -> None:
    assert interpolate(Inner(name="{{ params.model }}"), NAMES).name == "{{ params.model }}"


def test_a_template_leaves_what_is_filled_later() -> None:
    model = Outer(response=r"{{ params.model }} {{ request.body | upper }} \{{ x }}")
    assert interpolate(model, NAMES).response == r"a {{ request.body | upper }} \{{ x }}"
    with pytest.raises(ExpressionError, match="is not an expression"):
        interpolate(Outer(response="{{ params.model | upper }}"), NAMES)


def test_values_are_never_read_again() -> None:
    assert interpolate("{{ params.x }}", {"params": {"x": "{{ params.x }}"}}) == "{{ params.x }}"


def test_names_used() -> None:
    assert names_used(r"{{ a.b }} \{{ c }} {{ a.b }} {{ d }}") == ("a.b", "d")


@given(st.text(alphabet="{}\\ ab._-\n|é") | st.text())
def test_no_text_crashes_the_parser(text: str) -> None:
    try:
        pieces = parse_expression(text)
    except ExpressionError as error:
        assert 0 <= error.index < len(text)  # noqa: PT017
        assert text[error.index] == "{"  # noqa: PT017
        return
    for piece in pieces:
        if isinstance(piece, Reference):
            assert text[piece.index : piece.index + len(piece.source)] == piece.source


@given(st.text())
def test_escaped_text_comes_back(text: str) -> None:
    escaped = text.replace("\\", "").replace("{{", r"\{{")
    assert interpolate(escaped, {}) == text.replace("\\", "")


@given(st.lists(st.sampled_from(["plain ", "{{ a }}", "{{ b.c }}", r"\{{", "}} ", "\n"])))
def test_every_piece_is_replaced_where_it_stands(pieces: list[str]) -> None:
    values = {"{{ a }}": "A", "{{ b.c }}": "7", r"\{{": "{{"}
    expected = "".join(values.get(piece, piece) for piece in pieces)
    try:
        assert interpolate("".join(pieces), {"a": "A", "b": {"c": 7}}) == expected
    except ExpressionError:
        assert r"\{{" in pieces


def test_a_field_of_a_model_or_anything_takes_anything() -> None:
    class Asked(StrictModel):
        at_least: int

    class Values(StrictModel):
        values: dict[str, Asked | Any]

    given = {"text": "a {{ params.n }}", "typed": "{{ params.n }}", "number": 3, "asked": Asked(at_least=1)}
    found = interpolate(Values(values=given), {"params": {"n": 7}})
    assert found.values == {"text": "a 7", "typed": 7, "number": 3, "asked": Asked(at_least=1)}
