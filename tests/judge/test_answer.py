"""From text to a score: only a finite JSON number in [0, 1] is one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.judge.opinion import REASON_LIMIT, BadAnswer, parse_answer

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "score", "reason"),
    [
        ('{"score": 0.25, "passed": false, "reason": "so"}', 0.25, "so"),
        ('{"score": 1, "passed": false, "reason": "an integer is a number"}', 1.0, "an integer is a number"),
        ('{"score": 0}', 0.0, ""),
        ('{"score": 0.5, "reason": ["no", "text"]}', 0.5, ""),
        ('  ```json\n{"score": 0.5, "reason": "fenced as a whole"}\n```\n', 0.5, "fenced as a whole"),
        # What the model says of passing is not looked at, whatever it is.
        ('{"score": 0.1, "passed": "false", "reason": "text"}', 0.1, "text"),
        ('{"score": 0.1, "passed": true, "reason": "a lie"}', 0.1, "a lie"),
    ],
)
def test_reads_the_score(text: str, score: float, reason: str) -> None:
    assert parse_answer(text) == (score, reason)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "an empty answer"),
        ("8 out of 10", "not JSON"),
        ('{"score": 0.9', "not JSON"),
        ('Here you go: {"score": 0.9}', "not JSON"),
        ('{"score": 0.9} {"score": 0.1}', "not JSON"),
        ("[0.9]", "expected a JSON object, found a list"),
        ("0.9", "expected a JSON object, found 0.9"),
        ('{"passed": true}', 'the key "score"'),
        ('{"score": true}', "found true"),
        ('{"score": "0.9"}', "found the text '0.9'"),
        ('{"score": null}', "found null"),
        ('{"score": [0.9]}', "found a list"),
        ('{"score": NaN}', "found NaN"),
        ('{"score": Infinity}', "found Infinity"),
        ('{"score": -Infinity}', "found -Infinity"),
        ('{"score": 1e999}', "found inf"),
        ('{"score": 5}', "found 5"),
        ('{"score": 1.0000001}', "found 1.0000001"),
        ('{"score": -0.1}', "found -0.1"),
        ('{"score": 0.1, "score": 1.0}', "found one twice"),
        ('{"score": ' + "9" * 5000 + "}", "expected"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_refuses_everything_else(text: str, told: str) -> None:
    with pytest.raises(BadAnswer) as problem:
        parse_answer(text)
    assert told in str(problem.value)


def test_a_reason_is_bounded() -> None:
    assert len(parse_answer(json.dumps({"score": 1, "reason": "r" * 100_000}))[1]) == REASON_LIMIT


@given(json_values)
def test_never_a_score_that_is_none(value: Any) -> None:
    """Whatever stands in `score`: a real number in range comes out as it is, anything else is refused."""
    text = json.dumps({"score": value})
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if real and math.isfinite(value) and 0 <= value <= 1:
        assert parse_answer(text)[0] == value
    else:
        with pytest.raises(BadAnswer):
            parse_answer(text)


@given(st.text())
def test_any_text_is_a_score_or_refused(text: str) -> None:
    try:
        score, _ = parse_answer(text)
    except BadAnswer:
        return
    assert 0 <= score <= 1
