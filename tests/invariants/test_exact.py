"""AgenticAssure's exact scorer (spec.md 5.3: "`normalize` = strip and lower-case both")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.context import grade, make_check
from support.observed import evidence

HERE = Path(__file__).parent


def exact(expected: str, output: str, *, problem: str = "", **fields: Any):
    return grade({"type": "exact", "expected": expected, **fields}, HERE, evidence=evidence(output, problem=problem))


@pytest.mark.parametrize(
    ("expected", "output", "normalize", "status"),
    [
        ("Paris", "  paris\n", True, "pass"),
        ("Paris", "Paris.", True, "fail"),
        ("Paris", "in Paris", True, "fail"),
        ("Paris", "paris", False, "fail"),
        ("Paris", "Paris\n", False, "fail"),
        ("Paris", "Paris", False, "pass"),
        ("a b", "a  b", True, "fail"),
        ("", " \n", True, "pass"),
        ("", " \n", False, "fail"),
        ("ÄPFEL", "äpfel", True, "pass"),
    ],
)
def test_the_whole_output_counts(expected: str, output: str, normalize: bool, status: str) -> None:
    outcome = exact(expected, output, normalize=normalize)
    assert (outcome.status, outcome.score) == (status, 1.0 if status == "pass" else 0.0)


def test_normalized_is_the_default_and_the_message_shows_both() -> None:
    assert exact("Yes", " YES ").status == "pass"
    assert exact("Yes", "No!").message == "expected 'yes', found 'no!'."
    long = "line\n" * 100
    assert "in their line ends alone: expected LF, found CRLF." in exact(long, long.replace("\n", "\r\n")).message


def test_a_missing_output_fails_even_where_nothing_is_expected() -> None:
    outcome = exact("", "", problem="the JSON document on stdout is malformed: it is not JSON")
    assert outcome.status == "fail"
    assert "it is not JSON" in outcome.message


def test_long_texts_say_where_they_part() -> None:
    outcome = exact("a" * 5000, "a" * 4000 + "b" * 1000)
    assert "from character 4,001 on" in outcome.message
    assert len(outcome.message) < 700
    assert "from character 5,001 on" in exact("a" * 5000, "a" * 5001).message


@pytest.mark.parametrize("fields", [{}, {"expected": None}, {"expected": 42}, {"expected": "x", "normalize": "false"}])
def test_malformed_fields_are_refused_when_the_spec_is_read(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "exact", **fields})


@given(text=st.text(), other=st.text())
def test_without_normalizing_only_the_same_text_passes(text: str, other: str) -> None:
    assert exact(text, text, normalize=False).status == "pass"
    assert (exact(text, other, normalize=False).status == "pass") is (text == other)
