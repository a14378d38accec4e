"""How an error looks."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.errors import UsageError
from keystone_action.spec.loading.diagnostics import (
    SHOWN_AT_MOST,
    Diagnostic,
    SpecError,
    escape_controls,
    nearest,
    show_value,
    slip_of,
)


def test_everything_there_is_to_say() -> None:
    one = Diagnostic("a.yaml", 7, 5, "unknown key 'comand'", "one of command, env", "", "command", "    comand: x")
    assert one.render() == (
        "a.yaml:7:5: unknown key 'comand', expected one of command, env, did you mean 'command'?\n"
        "        comand: x\n"
        "        ^"
    )


def test_an_error_is_of_usage_and_sorted_by_place() -> None:
    error = SpecError([Diagnostic("a", 9, 1, "late"), Diagnostic("a", 2, 3, "early"), Diagnostic("a", 2, 3, "early")])
    assert isinstance(error, UsageError)
    assert error.exit_code == 2
    assert error.message == "a:2:3: early\na:9:1: late"


def test_a_flood_is_counted() -> None:
    error = SpecError(Diagnostic("a", line, 1, "bad") for line in range(1, 201))
    assert error.message.endswith(f"… and {200 - SHOWN_AT_MOST} more errors")
    assert len(error.diagnostics) == 200


def test_the_caret_stands_below_wide_and_long_text() -> None:
    wide = Diagnostic("a", 1, 4, "bad", source_line="日本 x").render().splitlines()
    assert wide[2].index("^") == 4 + 5
    long = Diagnostic("a", 1, 501, "bad", source_line="a" * 500 + "X" + "b" * 500).render().splitlines()
    assert long[1][long[2].index("^")] == "X"
    assert len(long[1]) < 140


def test_hostile_characters_are_shown_as_what_they_are() -> None:
    line = "x: \x1b[31mred\u202eevil\u200b"
    text = Diagnostic("a\x1b", 1, 1, f"found {line}", source_line=line).render()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[31mred\\u202eevil\\u200b" in text


@given(st.text())
def test_what_is_visible_has_no_control_or_format_directions(text: str) -> None:
    for character in escape_controls(text):
        assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )


@given(st.text(), st.integers(1, 400), st.text(max_size=20))
def test_rendering_never_fails_and_keeps_to_its_lines(line: str, column: int, message: str) -> None:
    rendered = Diagnostic("a", 1, column, message, source_line=line).render()
    assert rendered.count("\n") in (0, 2)


def test_values_in_the_words_of_yaml() -> None:
    assert [show_value(value) for value in (None, True, 3, 1.5, "x", [1], {"a": 1}, 10**9999)] == [
        "nothing",
        "true",
        "the number 3",
        "the number 1.5",
        "'x'",
        "a list",
        "a mapping",
        "a very long number",
    ]


def test_the_nearest_word_ignores_case_and_dashes() -> None:
    assert nearest("HTTP-mock", ["http_mock", "postgres"]) == "http_mock"
    assert nearest("zzz", ["http_mock"]) == ""


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("mehtod", "method"),
        ("methd", "method"),
        ("metthod", "method"),
        ("methof", "method"),
        ("METHOD", "method"),
        ("method", ""),
        ("mehtdo", ""),
        ("mthd", ""),
        ("patx", "path"),
        ("z", ""),
        ("cwd", ""),
        ("level2", ""),
        ("", ""),
    ],
)
def test_a_slip_is_one_letter_or_two_that_changed_places(word: str, meant: str) -> None:
    assert slip_of(word, ["method", "path", "x", "cmd", "level1"]) == meant
