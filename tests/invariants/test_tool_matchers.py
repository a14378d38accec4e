"""What a matcher of tool calls means: `path_glob` and `args` above all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.observed import call, unreadable_call

from keystone_action.invariants.agent_work import PATH_LIMIT, ToolMatcher, shown_calls

WORKSPACE = Path("/cells/one/workspace")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def matches(glob: str, path: Any) -> bool:
    return ToolMatcher(path_glob=glob).matches(call("Edit", "write", file_path=path), WORKSPACE)


@pytest.mark.parametrize(
    ("glob", "path", "holds"),
    [
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/deep/a.py", True),  # as Touchstone has it: `*` crosses directories
        ("src/*.py", "/cells/one/workspace/src/a.py", True),
        ("src/*.py", "/workspace/src/a.py", True),
        ("src/*.py", "/etc/src/a.py", False),
        ("src/*.py", "./src/a.py", True),
        ("src/*.py", "docs/../src/a.py", True),
        ("src/*.py", "src/a.pyc", False),
        ("*.py", "/anywhere/a.py", True),
        ("**/*.py", "a.py", True),
        ("**/.git/**", ".git/config", True),
        ("**/.git/**", "/workspace/.git/hooks/pre-commit", True),
        (".env", "/cells/one/workspace/.env", True),
        (".env", "x.env", False),
        ("/etc/*", "/etc/passwd", True),
        ("a[0-9].txt", "a7.txt", True),
        ("SRC/*", "src/a.py", False),
        ("*", "", True),
        ("src/**/a.py", "src/a.py", True),
        ("src/**/a.py", "src/x/y/a.py", True),
        ("src/**/a.py", "src/xa.py", False),
        ("**/a/**/b/**", "b/a/b/c", True),
        ("**/a/**/b/**", "b/a/c", False),
        ("**/**/**/a.py", "a.py", True),
        ("src**/a.py", "srca.py", False),
    ],
)
def test_path_globs(glob: str, path: str, holds: bool) -> None:
    assert matches(glob, path) is holds


def test_no_path_takes_long() -> None:
    """With a pattern that goes back on what it took, one of these takes hours."""
    observed = call("Edit", "write", paths=["a/b/" * 1000 + "x"] * 50)
    assert not ToolMatcher(path_glob="**/a/**/b/**/c/**/d").matches(observed, WORKSPACE)
    assert not ToolMatcher(path_glob="**/a/" * 40 + "d").matches(observed, WORKSPACE)


def test_any_text_in_the_arguments_is_looked_at_however_deep() -> None:
    deep: Any = {"path": "src/a.py"}
    for _ in range(50_000):
        deep = [deep]
    assert matches("src/*.py", deep)
    assert matches("src/*.py", {"edits": [{"file": "x"}, {"file": "src/a.py"}]})
    assert not matches("src/*.py", {"src/a.py": 1})


def test_texts_longer_than_any_path_are_none() -> None:
    assert matches("*a", "a" * PATH_LIMIT)
    assert not matches("*a", "a" * (PATH_LIMIT + 1))


def test_all_keys_must_hold() -> None:
    matcher = ToolMatcher(kind="write", name="Edit", raw_name="edit", path_glob="*.py", args={"line": 1})
    good = call("Edit", "write", raw_name="edit", file_path="a.py", line=1.0, more="x")
    assert matcher.matches(good, WORKSPACE)
    for other in (
        call("Edit", "read", raw_name="edit", file_path="a.py", line=1),
        call("edit", "write", raw_name="edit", file_path="a.py", line=1),
        call("Edit", "write", raw_name="Edit", file_path="a.py", line=1),
        call("Edit", "write", raw_name="edit", file_path="a.md", line=1),
        call("Edit", "write", raw_name="edit", file_path="a.py", line="1"),
        call("Edit", "write", raw_name="edit", file_path="a.py", line=True),
        call("Edit", "write", raw_name="edit", file_path="a.py"),
    ):
        assert not matcher.matches(other, WORKSPACE)


def test_arguments_that_could_not_be_read_leave_some_matchers_unsure() -> None:
    unread = unreadable_call("Edit", "write")
    assert ToolMatcher(kind="write").matches(unread, WORKSPACE)
    assert ToolMatcher(kind="write").can_tell(unread)
    for unsure in (ToolMatcher(kind="write", path_glob="*"), ToolMatcher(args={"a": 1})):
        assert not unsure.matches(unread, WORKSPACE)
        assert not unsure.can_tell(unread)
    assert ToolMatcher(kind="read", path_glob="*").can_tell(unread)


def test_matchers_and_calls_are_shown_as_a_spec_writes_them() -> None:
    assert str(ToolMatcher(kind="write", args={"n": 1, "s": "x"})) == "{kind: write, args: {n: 1, s: 'x'}}"
    assert str(ToolMatcher()) == "any tool"
    assert shown_calls([call("a")] * 10) == "a, a, a, a, a, a, a, a and 2 more"
    assert shown_calls([]) == "none"


@given(glob=st.text(min_size=1, max_size=12), arguments=st.dictionaries(st.text(), JSON, max_size=4))
def test_no_glob_and_no_arguments_break_a_matcher(glob: str, arguments: dict[str, Any]) -> None:
    observed = call("Edit", "write")
    observed = type(observed)("1", "Edit", "Edit", "write", arguments)
    assert ToolMatcher(path_glob=glob).matches(observed, WORKSPACE) in (True, False)
    assert ToolMatcher(args=arguments).matches(observed, WORKSPACE) in (True, False)
    assert str(ToolMatcher(args=arguments))
