"""The word that is suggested for another: always another one, and one that it can be a slip of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.check_types import CHECKS, HEAD

from keystone_action.spec.loading.diagnostics import nearest

WORDS = st.text("abcde_-T", min_size=1, max_size=9)


@given(WORDS, st.lists(WORDS, max_size=6))
def test_only_another_known_word_is_suggested(word: str, known: list[str]) -> None:
    found = nearest(word, known)
    if word in known:
        assert found == ""
    if found:
        assert found in known
        assert found != word
        letters = [set(one.lower().replace("-", "_")) for one in (found, word)]
        assert letters[0] & letters[1]


DISTINCT = st.lists(st.sampled_from("abcdefghi"), min_size=4, unique=True).map("".join)
"""Of repeated letters difflib pairs the longest run, which need not be the one in its place."""


@given(DISTINCT, st.integers(0, 8), st.sampled_from("vwxyz"))
def test_one_wrong_letter_is_a_slip_and_another_alphabet_is_not(word: str, at: int, letter: str) -> None:
    at %= len(word)
    slip = word[:at] + letter + word[at + 1 :]
    assert nearest(slip, [word, "vwxyz" * 3]) == word
    assert nearest(word, ["v", "vwxyz", "zyxwv"]) == ""


@pytest.mark.parametrize(("word", "known"), [("image", "usage"), ("xy", "ab"), ("--no", "--fo"), ("cmd", "kept")])
def test_what_only_looks_a_little_alike_is_not_meant(word: str, known: str) -> None:
    assert nearest(word, [known]) == ""


CHECK = "invariants: {there: {%scheck: {type: file_exists, path: out.txt%s}}}\n"


@pytest.mark.parametrize(
    ("text", "key", "place"),
    [
        (HEAD + "timeout: 10m\n" + CHECKS, "timeout", "under `agent` or under `resources`"),
        (HEAD + "pass_threshold: 0.5\n" + CHECKS, "pass_threshold", "under `scoring`"),
        (HEAD + "prompt: do it\n" + CHECKS, "prompt", "under `task`"),
        (HEAD + "image: postgres:16\n" + CHECKS, "image", "in an entry of `services`"),
        (HEAD + "gate: true\n" + CHECKS, "gate", "in an entry of `invariants`"),
        (HEAD + "scoring: {replicas: 3}\n" + CHECKS, "replicas", "under `parallelism`"),
        (HEAD + CHECK % ("", ", gate: true"), "gate", "one level up, beside `check`"),
        (HEAD + CHECK % ("path: x, ", ""), "path", "under `check`"),
        (HEAD + CHECK % ("", ", tags: [a]"), "tags", "at the top level, beside `invariants`"),
    ],
)
def test_a_key_of_another_level_is_told_its_place(
    errors_of: Callable[[str], list[str]], text: str, key: str, place: str
) -> None:
    (error,) = [one for one in errors_of(text) if f"unknown key '{key}'" in one]
    assert error.splitlines()[0].endswith(f"; `{key}` belongs {place}")
    assert "did you mean" not in error


def test_a_key_of_no_level_is_told_the_nearest(errors_of: Callable[[str], list[str]]) -> None:
    (error,) = errors_of(HEAD + "agnet: {type: none}\n" + CHECKS)
    assert error.splitlines()[0].endswith("did you mean 'agent'?")
    (error,) = errors_of(HEAD + "zzz: 1\n" + CHECKS)
    assert "did you mean" not in error
    assert "belongs" not in error
