"""Changes between two snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.files.snapshot import FileState, compare_entries

FILE = FileState("file", 0o644, 1, "a")
OTHER = FileState("file", 0o644, 1, "b")
EXECUTABLE = FileState("file", 0o755, 1, "a")
DIRECTORY = FileState("directory", 0o755)
LINK = FileState("link", 0o777, target="x")
FIFO = FileState("other", 0o644)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (None, FILE, "added"),
        (FILE, None, "removed"),
        (FILE, FILE, None),
        (FILE, OTHER, "modified"),
        (FILE, EXECUTABLE, "mode"),
        (EXECUTABLE, OTHER, "modified"),
        (LINK, FileState("link", 0o777, target="y"), "modified"),
        (LINK, FileState("link", 0o755, target="x"), None),
        (FILE, LINK, "modified"),
        (FILE, FIFO, "modified"),
        (None, FIFO, "added"),
        (None, DIRECTORY, None),
        (DIRECTORY, None, None),
        (DIRECTORY, FileState("directory", 0), "mode"),
        (FILE, DIRECTORY, "removed"),
        (DIRECTORY, FILE, "added"),
    ],
)
def test_what_a_difference_is_called(before: FileState | None, after: FileState | None, change: str | None) -> None:
    found = compare_entries({"p": before} if before else {}, {"p": after} if after else {})
    assert [one.change for one in found] == ([change] if change else [])
    for one in found:
        assert (one.path, one.before, one.after) == ("p", before, after)


_states = st.sampled_from([FILE, OTHER, EXECUTABLE, DIRECTORY, LINK, FIFO])
_snapshots = st.dictionaries(st.sampled_from("abcdef"), _states)


@given(_snapshots, _snapshots)
def test_changes_are_sorted_symmetric_and_none_for_the_same(
    before: dict[str, FileState], after: dict[str, FileState]
) -> None:
    there, back = compare_entries(before, after), compare_entries(after, before)
    opposite = {"added": "removed", "removed": "added", "modified": "modified", "mode": "mode"}
    assert [(one.path, opposite[one.change]) for one in there] == [(one.path, one.change) for one in back]
    assert [one.path for one in there] == sorted(one.path for one in there)
    assert compare_entries(before, before) == ()
