"""`diff`: where an agent worked and how much it changed, whatever it does to look smaller."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.changed import Act, grade_changes
from support.command_line import run_spec, spec
from support.context import make_check

from keystone_action.files.patch import PATCH_LIMIT, line_counts
from keystone_action.files.snapshot import Change, FileState
from keystone_action.files.workspace import compare_entries, keep_originals, snapshot, write_patch
from keystone_action.invariants.check import Outcome


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / "src" / "deep").mkdir(parents=True)
    (made / "tests").mkdir()
    (made / "src" / "main.py").write_text("".join(f"line {number}\n" for number in range(100)))
    (made / "src" / "deep" / "x.py").write_text("x\n")
    (made / "tests" / "test_main.py").write_text("test\n")
    (made / "logo.png").write_bytes(b"\0\n\n\n")
    return made


def edit(workspace: Path) -> None:
    """Two lines added, one removed, in src/main.py; a new file of three lines."""
    path = workspace / "src" / "main.py"
    path.write_text(path.read_text().replace("line 50\n", "line fifty\nmore\n"))
    (workspace / "src" / "new.py").write_text("a\nb\nc")


def check(document: dict[str, Any], workspace: Path, agent: Act = edit, **fields: Any) -> Outcome:
    return grade_changes({"type": "diff", **document}, workspace, agent, **fields)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"only": ["src/**"]}, ""),
        ({"only": ["src"]}, ""),
        ({"only": ["src/"]}, ""),
        ({"only": ["./src"]}, ""),
        ({"only": ["src/*.py"]}, ""),
        ({"only": ["**/*.py"]}, ""),
        ({"only": ["src/main.py"]}, "src/new.py changed; only src/main.py may."),
        ({"only": ["*.py"]}, "src/main.py, src/new.py changed; only *.py may."),
        ({"only": ["*"]}, "src/main.py, src/new.py changed; only * may."),
        ({"never": ["tests/**", "**/*.toml"]}, ""),
        ({"never": ["src"]}, "src/main.py, src/new.py changed; src must not."),
        ({"never": ["**/new.*"]}, "src/new.py changed; **/new.* must not."),
        ({"max_files": 2}, ""),
        ({"max_files": 1}, "2 files changed, at most 1 may: src/main.py, src/new.py."),
        ({"max_lines": 6, "max_added": 5, "max_removed": 1}, ""),
        ({"max_lines": 5}, "6 lines added and removed, at most 5 may be."),
        ({"max_added": 4}, "5 lines added, at most 4 may be."),
        ({"max_removed": 0}, "1 line removed, at most 0 may be."),
    ],
)
def test_each_rule(workspace: Path, document: dict[str, Any], problem: str) -> None:
    outcome = check(document, workspace)
    assert (outcome.status, outcome.score) == (("fail", 0.0) if problem else ("pass", 1.0)), outcome.message
    assert not problem or outcome.message == problem


def test_every_problem_is_said(workspace: Path) -> None:
    outcome = check({"only": ["docs"], "never": ["src"], "max_files": 0, "max_lines": 0}, workspace)
    assert len(outcome.message.splitlines()) == 4
    assert (outcome.details["added"], outcome.details["removed"]) == (5, 1)


def test_line_ends_that_changed_are_told(workspace: Path) -> None:
    def convert(workspace: Path) -> None:
        for path in (workspace / "src" / "main.py", workspace / "src" / "deep" / "x.py"):
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        (workspace / "tests" / "test_main.py").write_bytes(b"other\r\n")

    outcome = check({"max_lines": 10}, workspace, convert)
    assert outcome.message.splitlines() == [
        "204 lines added and removed, at most 10 may be.",
        "Only line ends changed in src/deep/x.py, src/main.py: LF → CRLF.",
    ]


def test_nothing_changed_passes(workspace: Path) -> None:
    outcome = check({"only": ["src"], "max_files": 0, "max_lines": 0}, workspace, lambda _: None)
    assert (outcome.status, outcome.message) == ("pass", "0 files changed, 0 lines added, 0 removed.")


def remove(workspace: Path) -> None:
    (workspace / "tests" / "test_main.py").unlink()


def close(workspace: Path) -> None:
    (workspace / "tests" / "test_main.py").chmod(0o755)


def link(workspace: Path) -> None:
    (workspace / "tests" / "test_main.py").unlink()
    (workspace / "tests" / "test_main.py").symlink_to("../src/main.py")


def swap(workspace: Path) -> None:
    shutil.rmtree(workspace / "tests")
    (workspace / "tests").write_text("no directory\n")


def hide(workspace: Path) -> None:
    (workspace / "tests" / ".hidden").write_text("x")


@pytest.mark.parametrize("agent", [remove, close, link, swap, hide])
def test_every_kind_of_change_counts(workspace: Path, agent: Act) -> None:
    outcome = check({"never": ["tests/**", "tests"]}, workspace, agent)
    assert outcome.status == "fail"


def test_a_directory_that_is_named_like_a_file_opens_no_way(workspace: Path) -> None:
    """`only: ["*.md"]` is about files of that name, not about directories that an agent may name so."""

    def agent(workspace: Path) -> None:
        (workspace / "notes.md").mkdir()
        (workspace / "notes.md" / "evil.py").write_text("x")

    assert check({"only": ["*.md"]}, workspace, agent).status == "fail"


def binary(workspace: Path) -> None:
    path = workspace / "src" / "main.py"
    path.write_bytes(b"\0" + path.read_bytes())


def large(workspace: Path) -> None:
    path = workspace / "src" / "main.py"
    path.write_bytes(path.read_bytes() + b"\n" * (2 << 20))


def pushed_out(workspace: Path) -> None:
    """Fills the patch with what comes before, so that this change isn't in it any more."""
    for number in range(PATCH_LIMIT // (1 << 20) + 2):
        (workspace / f"a{number:02}").write_text("x" * ((1 << 20) - 1) + "\n")
    edit(workspace)


@pytest.mark.parametrize(
    ("agent", "added", "removed"), [(binary, 100, 100), (large, 100 + (2 << 20), 100), (pushed_out, 10 + 101 + 3, 100)]
)
def test_what_the_diff_does_not_show_counts_whole(workspace: Path, agent: Act, added: int, removed: int) -> None:
    outcome = check({"max_lines": 20}, workspace, agent)
    assert (outcome.status, outcome.details["added"], outcome.details["removed"]) == ("fail", added, removed)
    assert "every line counts" in outcome.message


def test_what_can_not_be_counted_fails(workspace: Path) -> None:
    def agent(workspace: Path) -> None:
        with (workspace / "vast").open("wb") as file:
            file.truncate(1 << 40)

    outcome = check({"max_added": 10**9}, workspace, agent)
    assert (outcome.status, outcome.message) == (
        "fail",
        "the lines of vast can't be counted, and at most 1,000,000,000 may be added.",
    )


@pytest.mark.parametrize(
    "name",
    [
        "@@ -0,0 +0,0 @@",
        "@@ -0,0 +1 @@",
        "@@ -1,9 +1,9 @@",
        "diff --git a",
        "diff --git a/z b/z",
        "--- a",
        "new\nline",
        'quo"te',
        "odd-\udcff",
    ],
)
def test_no_name_makes_a_change_smaller(workspace: Path, name: str) -> None:
    def agent(workspace: Path) -> None:
        path = workspace / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\0\n" * 7)
        (workspace / name.replace("/", "_")).write_bytes(b"\0\n" * 7)
        (workspace / "zz").write_text("1\n2\n3\n")

    outcome = check({"max_lines": 0}, workspace, agent)
    assert (outcome.details["added"], outcome.details["removed"]) == (17, 0)


def test_no_content_makes_a_change_smaller(workspace: Path) -> None:
    def agent(workspace: Path) -> None:
        text = "diff --git a/zz b/zz\n@@ -1,9 +0,0 @@\n--- a\n+++ b\n\\ No newline\n-x\n+y\n\n \n"
        (workspace / "a.txt").write_text(text)
        path = workspace / "src" / "main.py"
        path.write_text(path.read_text() + text)
        (workspace / "zz").write_text("1\n2\n3\n")

    outcome = check({"max_lines": 0}, workspace, agent)
    assert (outcome.details["added"], outcome.details["removed"]) == (9 + 9 + 3, 0)


def test_a_fifo_is_a_file_that_changed(workspace: Path) -> None:
    outcome = check({"max_files": 0, "max_lines": 0}, workspace, lambda root: os.mkfifo(root / "pipe"))
    assert outcome.message == "1 file changed, at most 0 may: pipe."


lines = st.lists(
    st.sampled_from(["a", "b", "", "-", "+x", "@@ -1 +1 @@", "diff --git a/f b/f", "\\", " ", "\r"]), max_size=8
)


@given(before=lines, after=lines)
def test_counts_are_those_of_the_texts(tmp_path_factory: pytest.TempPathFactory, before: Any, after: Any) -> None:
    root = tmp_path_factory.mktemp("counts")
    workspace = root / "workspace"
    workspace.mkdir()
    (workspace / "f").write_bytes("\n".join(before).encode())
    originals = keep_originals(workspace, root / "originals")
    old = snapshot(workspace)
    (workspace / "f").write_bytes("\n".join(after).encode())
    found = compare_entries(old, snapshot(workspace))
    counted = list(line_counts(write_patch(originals, workspace, found).text, found, originals, workspace))
    assert len(counted) == (before != after and "\n".join(before) != "\n".join(after))
    for count in counted:
        assert count.added is not None
        assert count.removed is not None
        number = [_lines(before), _lines(after)]
        assert count.added - count.removed == number[1] - number[0]
        assert count.added <= number[1]
        assert count.removed <= number[0]


def _lines(parts: list[str]) -> int:
    text = "\n".join(parts)
    return text.count("\n") + (bool(text) and not text.endswith("\n"))


def test_without_originals_what_was_there_can_not_be_counted(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\n")
    change = Change("f", "modified", FileState("file", 0o644, 5, "a"), FileState("file", 0o644, 2, "b"))
    (count,) = line_counts("", [change], None, tmp_path)
    assert (count.added, count.removed, count.in_patch) == (1, None, False)


@pytest.mark.parametrize(
    "fields",
    [{}, {"only": None}, {"only": []}, {"never": [""]}, {"max_files": -1}, {"max_lines": 1.5}, {"max_lines": True}],
)
def test_bad_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "diff", **fields})


def script(tmp_path: Path, command: str, text: str) -> Callable[[], Any]:
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "a.txt").write_text("one\ntwo\n")
    return lambda: run_spec(tmp_path, spec(f"{{type: command, command: '{command}'}}", text, workspace="start"))


@pytest.mark.parametrize(("limit", "status"), [(2, "pass"), (1, "fail")])
def test_by_the_real_command(tmp_path: Path, limit: int, status: str) -> None:
    """000_66edd30c29bbac31.txt, small_diff: "git diff --stat" under a limit, as a check of its own."""
    called = script(tmp_path, "echo three > a.txt; echo x >> .gitignore", f"{{type: diff, max_files: {limit}}}")()
    assert called.checks["it_holds"]["status"] == status, called.err


def test_a_path_outside_is_exit_2(tmp_path: Path) -> None:
    called = run_spec(tmp_path, spec(check="{type: diff, only: [../x]}"))
    assert called.code == 2
    assert "'..' in '../x'" in called.err
