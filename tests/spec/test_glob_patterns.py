"""The one matcher of globs beside those that it stands for, on short inputs; and alone where they never come back."""

from __future__ import annotations

import fnmatch
import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wcmatch import glob as wcmatch

from keystone_action.spec.globs import Globs, PathMatcher, escape, path_text_pattern, text_pattern

PIECES = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "*",
        "?",
        "**",
        "/",
        "[ab]",
        "[!a]",
        "[^b]",
        "[a-c]",
        "[]a]",
        "[!]a]",
        "[",
        "]",
        "\\",
        "-",
        "!",
        "[[:alpha:]]",
        "[![:digit:]-]",
        "[a-]",
        "[.]",
        "{a,b}",
        "é",
        "[\\]a]",
        "[\\]",
    ]
)
PATTERNS = st.lists(PIECES, min_size=1, max_size=8).map("".join)
NAMES = st.text("ab.c-]é\n[", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)


def ours(pattern: str, path: str, *, dot: bool) -> bool:
    return PathMatcher(Globs([pattern], dot=dot))(path)


def theirs(pattern: str, path: str, *, dot: bool) -> bool:
    flags = wcmatch.GLOBSTAR | (wcmatch.DOTGLOB if dot else 0)
    return bool(wcmatch.globmatch(path, pattern, flags=flags, limit=0))


def is_compared(pattern: str) -> bool:
    """Patterns that callers refuse or strip before: of absolute paths, of directories alone; and a `\\` that escapes
    nothing, of which wcmatch makes what suits it."""
    parts = re.sub(r"/+", "/", pattern).split("/")
    return "" not in parts and not any(part.endswith("\\") for part in parts) and not {".", ".."} & set(parts)


@settings(max_examples=4 * settings().max_examples)
@given(PATTERNS.filter(is_compared), PATHS, st.booleans())
@example("**/.h/**/c", ".h/.h/c", False)
@example("**/*/.h/**", "a/b/.h/x", False)
@example("a/**", "a", False)
@example("**/a/**/a", "a/b/a", True)
def test_paths_match_as_wcmatch_has_it(pattern: str, path: str, dot: bool) -> None:
    assert ours(pattern, path, dot=dot) == theirs(pattern, path, dot=dot)


@settings(max_examples=3 * settings().max_examples // 2)
@given(st.lists(PATTERNS.filter(is_compared), max_size=4), st.lists(PATHS, max_size=8), st.booleans())
def test_several_patterns_and_paths_are_matched_as_one_of_each(
    patterns: list[str], paths: list[str], dot: bool
) -> None:
    matches = PathMatcher(Globs(patterns, dot=dot))
    for path in (*paths, *paths[::-1]):
        assert matches(path) == any(ours(pattern, path, dot=dot) for pattern in patterns)


@settings(max_examples=3 * settings().max_examples // 2)
@given(PATTERNS.filter(is_compared), st.lists(PATHS, max_size=8))
def test_what_lies_inside_of_a_match_matches_where_it_is_asked_for(pattern: str, paths: list[str]) -> None:
    matches = PathMatcher(Globs([pattern], dot=True), inside=True)
    for path in paths:
        parts = path.split("/")
        above = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        assert matches(path) == any(ours(pattern, one, dot=True) for one in above)


TEXTS = st.text("ab.c-]/é\n[\\", max_size=8)


@settings(max_examples=4 * settings().max_examples)
@given(PATTERNS, TEXTS)
def test_texts_match_as_fnmatch_has_it(pattern: str, text: str) -> None:
    assert bool(text_pattern(pattern).match(text)) == fnmatch.fnmatchcase(text, pattern)


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.sampled_from(["**/", "*", "a", "/", "b", "?", "."]), max_size=8).map("".join), TEXTS)
@example("**/a/**/*b", "a/a/b")
@example("a/**/b", "a/b/b")
def test_directories_between_may_be_none(pattern: str, text: str) -> None:
    """Each `**/` that begins a part, left out or not, by fnmatch."""
    pieces = re.split(r"(?:^|(?<=/))(?:\*\*/)+", pattern)
    ways = itertools.product(("**/", ""), repeat=len(pieces) - 1)
    globs = ("".join(itertools.chain(*itertools.zip_longest(pieces, way, fillvalue=""))) for way in ways)
    assert bool(path_text_pattern(pattern).match(text)) == any(fnmatch.fnmatchcase(text, one) for one in globs)


@given(st.lists(st.text("a*?[]\\!{-", min_size=1, max_size=4), min_size=1, max_size=4).map("/".join))
def test_an_escaped_path_matches_itself_alone(path: str) -> None:
    assert ours(escape(path), path, dot=False)
    assert not ours(escape(path), f"{path}x", dot=True)


@pytest.mark.parametrize("pattern", ["**/tests/**/*.py", "**/a/**/a/**/a/**/b", "*/".join(["**/"] * 9) + "b"])
def test_a_deep_tree_of_many_names_is_read_once(pattern: str) -> None:
    """wcmatch needs longer than anybody has for one such path: there is no limit here that could be too short."""
    deep = "/".join(["tests", "a"] * 1_500)
    matches = PathMatcher(Globs([pattern]))
    assert not any(matches(f"{deep}/{number}.txt") for number in range(3_000))
    assert PathMatcher(Globs(["**/tests/**/*.py"]))(f"{deep}/x.py")


@pytest.mark.parametrize("pattern", ["*a" * 40 + "b", "**/a" * 40, "[a]*" * 40 + "b", "?*" * 40 + "b"])
def test_a_long_text_is_read_once(pattern: str) -> None:
    text = "a" * 4_000
    assert not text_pattern(pattern).match(text)
    assert not path_text_pattern(pattern).match(text + "c")
    assert not PathMatcher(Globs([pattern.replace("/", "")]))(text + "c")


def test_what_lies_deep_in_a_directory_that_matches_matches_too() -> None:
    inside = PathMatcher(Globs(["a/b"]), inside=True)
    assert [path for path in ("a", "a/b", "a/b/c", "a/b/c/d/e", "a/bc/d", "x/a/b/c") if inside(path)] == [
        "a/b",
        "a/b/c",
        "a/b/c/d/e",
    ]
    assert not PathMatcher(Globs(["a/b"]))("a/b/c")


@pytest.mark.parametrize(
    ("glob", "text"), [("*ab*b", "abab"), ("*ab*ab", "abab"), ("*ab*b", "xababb"), ("a*ba*a", "ababa")]
)
def test_a_gap_leaves_to_the_next_what_it_does_not_need(glob: str, text: str) -> None:
    assert text_pattern(glob).match(text)
