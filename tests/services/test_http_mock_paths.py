"""Path patterns of routes and filters: `spec/globs.py`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.spec.globs import compile_path


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/a", "/a", {}),
        ("/a", "/a/", None),
        ("/a", "/A", None),
        ("/", "/", {}),
        ("/a.b", "/axb", None),
        ("/users/{id}", "/users/7", {"id": "7"}),
        ("/users/{id}", "/users/", None),
        ("/users/{id}", "/users/7/x", None),
        ("/{a}/{b}", "/x/y", {"a": "x", "b": "y"}),
        ("/v{major}.{minor}/x", "/v1.2.3/x", {"major": "1", "minor": "2.3"}),
        ("/{name}.json", "/.json", None),
        ("/{name}.json", "/a.json", {"name": "a"}),
        ("/*", "/a", {}),
        ("/*", "/", None),
        ("/*", "/a/b", None),
        ("/a*c", "/ac", {}),
        ("/a*c", "/abbc", {}),
        ("/a*b*c", "/a-b-b-c", {}),
        ("/a*b*c", "/a-c", None),
        ("/**", "/", {}),
        ("/**", "/a/b/c", {}),
        ("**", "anything", {}),
        ("*", "*", {}),
        ("/api/**", "/api", {}),
        ("/api/**", "/api/", {}),
        ("/api/**", "/api/x/y", {}),
        ("/api/**", "/apix", None),
        ("/**/messages", "/messages", {}),
        ("/**/messages", "/a/b/messages", {}),
        ("/**/messages", "/a/b/messages/c", None),
        ("/a/**/b/{x}/**/c", "/a/b/b/b/1/c", {"x": "b"}),
        ("/a/**/a", "/a", None),
    ],
)
def test_what_a_pattern_matches(pattern, path, expected):
    assert compile_path(pattern).match(path) == expected


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("a", "starts with /"),
        ("", "starts with /"),
        ("/a?b", "without ? and #"),
        ("/{a", "don't pair up"),
        ("/a}", "don't pair up"),
        ("/{a b}", "letters, digits and _"),
        ("/{}", "letters, digits and _"),
        ("/{a}/{a}", "used twice"),
        ("/a**", "a whole segment"),
        ("/***", "a whole segment"),
        ("/{a}{b}", "text between two wildcards"),
        ("/*{b}", "text between two wildcards"),
    ],
)
def test_patterns_that_are_refused(pattern, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        compile_path(pattern)


SEGMENTS = st.text("ab.", max_size=4)
PATHS = st.lists(SEGMENTS, min_size=1, max_size=6).map(lambda parts: "/" + "/".join(parts))
PATTERN_SEGMENTS = st.one_of(SEGMENTS, st.sampled_from(["*", "**", "{p}", "a*", "*b", "a*b*.", "{p}.b", "a{p}"]))
PATTERNS = st.lists(PATTERN_SEGMENTS, min_size=1, max_size=6).map(lambda parts: "/" + "/".join(parts))


def oracle(pattern: str) -> re.Pattern[str]:
    """The same rules as a regular expression over `/segment/segment…`, which backtracks and is right by sight."""
    text = ""
    for part in pattern.split("/")[1:]:
        if part == "**":
            text += "(?:/[^/]*)*"
        elif part == "*":
            text += "/[^/]+"
        else:
            pieces = [re.escape(piece) for piece in re.split(r"\*|\{p\}", part)]
            wildcards = ["[^/]*" if found == "*" else "[^/]+" for found in re.findall(r"\*|\{p\}", part)]
            text += "/" + "".join(piece + wild for piece, wild in zip(pieces, [*wildcards, ""], strict=True))
    return re.compile(text)


@given(PATTERNS.filter(lambda pattern: pattern.count("{p}") <= 1), PATHS)
def test_matches_exactly_when_a_regular_expression_of_the_same_rules_does(pattern, path):
    assert (compile_path(pattern).match(path) is not None) == (oracle(pattern).fullmatch(path) is not None)


@given(PATHS)
def test_a_literal_matches_itself(path):
    assert compile_path(path).match(path) == {}


@given(
    st.text(st.characters(exclude_characters="/"), min_size=1),
    st.text(st.characters(exclude_characters="/"), min_size=1),
)
def test_parameters_are_handed_out_as_they_came(one, other):
    assert compile_path("/x/{one}/y/{other}").match(f"/x/{one}/y/{other}") == {"one": one, "other": other}


def test_a_path_made_to_take_forever_ends():
    # An algorithm that backtracks would need longer than the universe has.
    pattern = compile_path("/" + "/".join(["**", "a", "b*b*b*b*c"] * 6) + "/end")
    assert pattern.match("/a" + "/a/bbbbbbbbbbbbbbbbbbbb" * 2_000) is None
    assert pattern.match("/" + "b" * 60_000) is None
