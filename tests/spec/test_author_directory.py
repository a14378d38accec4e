"""Directories of the author's that are read whole before the agent runs, and what is refused in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from support.check_types import HEAD, TYPES

from keystone_action.errors import HarnessError
from keystone_action.runner.started_run import AuthorFiles
from keystone_action.spec.loading import author_files as author_directory
from keystone_action.spec.loading.author_files import files_below, read_below
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loader import load
from keystone_action.spec.models.fields import AuthorPath, CheckModel


class Compare(CheckModel):
    type_name: ClassVar[str] = "compare"
    gate_weight: ClassVar[float] = 0.0
    expect_dir: Annotated[str, AuthorPath("directory")]


SPEC = HEAD + "invariants:\n  same: {gate: %s, check: {type: compare, expect_dir: expected}}\n"


@pytest.fixture
def expected(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    made = tmp_path / "expected"
    (made / "deep" / "er").mkdir(parents=True)
    (made / "a.txt").write_bytes(b"a\r\n")
    (made / "deep" / "er" / "b.bin").write_bytes(bytes(range(256)))
    (made / "deep" / "link").symlink_to("../a.txt")
    return made


def test_every_file_is_read_by_its_relative_path(expected: Path) -> None:
    assert files_below(expected) == ("a.txt", "deep/er/b.bin", "deep/link")
    assert read_below(expected) == {"a.txt": b"a\r\n", "deep/er/b.bin": bytes(range(256)), "deep/link": b"a\r\n"}


def leads_out(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def leads_to_a_directory(path: Path) -> None:
    path.symlink_to("deep")


def leads_nowhere(path: Path) -> None:
    path.symlink_to("gone")


def leads_in_circles(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (leads_out, "a link that leads out of it"),
        (leads_to_a_directory, "a link to a directory"),
        (leads_nowhere, "a link that leads nowhere"),
        (leads_in_circles, "a link that leads nowhere"),
        (os.mkfifo, "not a regular file"),
    ],
)
def test_what_must_not_be_read_is_refused_when_the_spec_is_loaded(
    expected: Path, make: Callable[[Path], None], words: str
) -> None:
    make(expected / "odd")
    path = expected.parent / "keystone.yaml"
    path.write_text(SPEC % "false")
    with pytest.raises(SpecError) as caught:
        load(path, {**TYPES, "compare": Compare})
    (problem,) = caught.value.diagnostics
    assert (problem.line, problem.column) == (6, 58)
    assert f"'expected' holds 'odd', {words}" in problem.sentence


def test_a_directory_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no files in it"):
        files_below(tmp_path / "empty")


def test_more_than_is_kept_is_refused(expected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(author_directory, "MAX_DIRECTORY_BYTES", 258)
    with pytest.raises(ValueError, match="holds more than"):
        files_below(expected)
    monkeypatch.setattr(author_directory, "MAX_DIRECTORY_BYTES", 1000)
    monkeypatch.setattr(author_directory, "MAX_DIRECTORY_FILES", 2)
    with pytest.raises(ValueError, match="holds more than 2 files"):
        files_below(expected)


def test_they_stay_as_they_were_when_the_run_started(expected: Path) -> None:
    files = AuthorFiles()
    files.add_all([expected], {expected})
    (expected / "a.txt").write_text("changed by the agent")
    assert files.directory(expected)["a.txt"] == b"a\r\n"


def test_what_is_not_withheld_is_left_to_whoever_copies_it(expected: Path) -> None:
    files = AuthorFiles()
    files.add_all([expected], ())
    with pytest.raises(FileNotFoundError):
        files.directory(expected)


def test_a_link_that_came_after_loading_is_an_error_of_the_run(expected: Path) -> None:
    leads_out(expected / "late")
    with pytest.raises(HarnessError, match="a link that leads out of it"):
        AuthorFiles().add_all([expected], {expected})


@pytest.mark.parametrize(("gate", "weight"), [("false", 1.0), ("true", 0.0), ("passed", 0.0), ("true, weight: 2", 2.0)])
def test_the_weight_of_a_gate_is_its_types_where_none_is_given(expected: Path, gate: str, weight: float) -> None:
    """5.3, implemented: "As a gate without `weight`, its weight is 0"."""
    path = expected.parent / "keystone.yaml"
    path.write_text(SPEC % gate + "  other: {check: {type: file_exists, path: x}}\n")
    assert load(path, {**TYPES, "compare": Compare}).spec.invariants["same"].weight == weight


def test_a_spec_of_nothing_but_such_gates_grades_nothing(expected: Path) -> None:
    path = expected.parent / "keystone.yaml"
    path.write_text(SPEC % "true")
    with pytest.raises(SpecError, match="every invariant has the weight 0"):
        load(path, {**TYPES, "compare": Compare})
