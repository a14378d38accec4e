"""file_exists, file_absent and file_content over what a hostile agent left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.context import grade, make_check

Build = Callable[[Path], None]


def status(document: dict[str, object], workspace: Path) -> tuple[str, str]:
    outcome = grade(document, workspace, timeout=5.0)
    return outcome.status, outcome.message


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / "src" / "deep").mkdir(parents=True)
    (made / "out.json").write_text('{"status": "success"}\n')
    (made / "src" / "main.ts").write_text("first\nconsole.log(1)\nlast\n")
    (made / "src" / "deep" / "other.ts").write_text("clean\n")
    (made / "empty").mkdir()
    (tmp_path / "secret.txt").write_text("secret of ours")
    return made


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("out.json", True),
        ("src/main.ts", True),
        ("src", True),
        ("src/", True),
        ("empty", True),
        ("*.json", True),
        ("**/*.ts", True),
        ("src/*/other.ts", True),
        ("nothing", False),
        ("*.yaml", False),
        ("out.json/", False),
        ("src/main.ts/x", False),
    ],
)
def test_exists_and_absent_are_opposites(workspace: Path, path: str, there: bool) -> None:
    assert status({"type": "file_exists", "path": path}, workspace)[0] == ("pass" if there else "fail")
    assert status({"type": "file_absent", "path": path}, workspace)[0] == ("fail" if there else "pass")


def test_messages_name_what_was_found(workspace: Path) -> None:
    assert status({"type": "file_exists", "path": "**/*.ts"}, workspace)[1] == "src/deep/other.ts, src/main.ts exist."
    assert status({"type": "file_absent", "path": "out.*"}, workspace)[1] == (
        "out.json exists; nothing was expected at out.*."
    )


def test_a_dangling_link_is_absent(workspace: Path) -> None:
    (workspace / "dangling").symlink_to("nowhere")
    assert status({"type": "file_exists", "path": "dangling"}, workspace)[0] == "fail"
    assert status({"type": "file_absent", "path": "dangling"}, workspace)[0] == "pass"
    assert status({"type": "file_absent", "path": "dang*"}, workspace)[0] == "pass"


def test_a_link_inside_is_what_it_leads_to(workspace: Path) -> None:
    (workspace / "link.json").symlink_to("out.json")
    assert status({"type": "file_exists", "path": "link.json"}, workspace)[0] == "pass"
    assert status({"type": "file_content", "path": "link.json", "contains": "success"}, workspace)[0] == "pass"


@pytest.mark.parametrize("kind", ["file_exists", "file_absent", "file_content"])
@pytest.mark.parametrize("path", ["escape", "esc*", "folder/secret.txt"])
def test_a_link_that_leads_out_fails_every_check(workspace: Path, kind: str, path: str) -> None:
    (workspace / "escape").symlink_to(workspace.parent / "secret.txt")
    (workspace / "folder").symlink_to(workspace.parent)
    condition = {"contains": "secret"} if kind == "file_content" else {}
    found, message = status({"type": kind, "path": path, **condition}, workspace)
    assert found == "fail"
    assert "out of the workspace" in message
    assert "secret of ours" not in message


@pytest.mark.parametrize("kind", ["file_exists", "file_absent", "file_content"])
def test_a_workspace_that_is_gone_fails_every_check(tmp_path: Path, kind: str) -> None:
    condition = {"contains": "x"} if kind == "file_content" else {}
    document = {"type": kind, "path": "x", **condition}
    outcome = grade(document, tmp_path / "gone", timeout=5.0)
    assert outcome.status == "fail"
    assert "workspace itself is gone" in outcome.message


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"contains": '"status": "success"'}, "pass"),
        ({"contains": "Success"}, "fail"),
        ({"contains": ["status", "success"]}, "pass"),
        ({"contains": ["status", "failure"]}, "fail"),
        ({"not_contains": "failure"}, "pass"),
        ({"not_contains": ["failure", "success"]}, "fail"),
        ({"pattern": r"succ\w+"}, "pass"),
        ({"pattern": [r"succ\w+", r"\bstatus\b"]}, "pass"),
        ({"pattern": [r"succ\w+", r"^status"]}, "fail"),
        ({"contains": "status", "not_contains": "failure", "pattern": "^{"}, "pass"),
        ({"contains": "status", "not_contains": "failure", "pattern": "^x"}, "fail"),
    ],
)
def test_all_conditions_must_hold(workspace: Path, conditions: dict[str, object], expected: str) -> None:
    assert status({"type": "file_content", "path": "out.json", **conditions}, workspace)[0] == expected


FAR = "x" * 100
ENDS = "only line ends differ: expected "


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        ("one\ntwo\n", "one\ntwo\n", ""),
        ("", "", ""),
        ("one\n", ["one\n", "one\n"], ""),
        (
            "one\n",
            "one",
            f"differs in line 1: expected 'one', found 'one\\n'; {ENDS}none at the end, found 1 at the end.",
        ),
        ("one\r\n", "one\n", f"differs in line 1: expected 'one\\n', found 'one\\r\\n'; {ENDS}LF, found CRLF."),
        (
            "1\r\n2\r\n",
            "1\n2\n",
            f"differs in line 1: expected '1\\n', found '1\\r\\n' (lines that differ: 2); {ENDS}LF, found CRLF.",
        ),
        ("one\r\n", "One\n", "differs in line 1: expected 'One\\n', found 'one\\r\\n'."),
        ("one\n", "one\ntwo", "differs in line 2: expected 'two', found no such line."),
        ("one\ntwo", "one\n", "differs in line 2: expected no such line, found 'two'."),
        ("x", "", "differs in line 1: expected no such line, found 'x'."),
        ("a\u2028b\nc", "a\u2028b\nd", "differs in line 2: expected 'd', found 'c'."),
        ("x" * 90, "X", f"differs in line 1: expected 'X', found {'x' * 80!r}…."),
        (
            "x" * 100 + "a",
            "x" * 100 + "b",
            f"differs in line 1: expected …{'x' * 20 + 'b'!r}, found …{'x' * 20 + 'a'!r}.",
        ),
        ("1\n2\n3\n", "a\n2\n", "differs in line 1: expected 'a\\n', found '1\\n' (lines that differ: 2)."),
        ("one", ["one", "two"], "differs in line 1: expected 'two', found 'one'."),
    ],
)
def test_the_whole_text_is_compared_and_the_first_difference_told(
    workspace: Path, text: str, wanted: object, said: str
) -> None:
    (workspace / "whole.txt").write_bytes(text.encode())
    found, message = status({"type": "file_content", "path": "whole.txt", "equals": wanted}, workspace)
    assert (found, message) == (("fail", f"whole.txt {said}") if said else ("pass", "whole.txt: all conditions hold."))


def test_each_problem_is_said_with_its_line(workspace: Path) -> None:
    document = {
        "type": "file_content",
        "path": "src/main.ts",
        "contains": "missing",
        "not_contains": "console.log",
        "pattern": "^last$",
    }
    assert status(document, workspace)[1].splitlines() == [
        "src/main.ts does not contain 'missing'.",
        "src/main.ts contains 'console.log' (line 2).",
        "src/main.ts does not match the pattern '^last$'.",
    ]


@pytest.mark.parametrize(
    ("unwanted", "line"), [("secret", 1), ("s", 1), ("secret\n", 1), ("the", 2), ("end", 2), ("d", 2), ("Secret", 0)]
)
def test_an_unwanted_text_is_found_at_both_ends(workspace: Path, unwanted: str, line: int) -> None:
    (workspace / "ends.txt").write_text("secret\nthe end", "utf-8")
    found, message = status({"type": "file_content", "path": "ends.txt", "not_contains": unwanted}, workspace)
    assert found == ("fail" if line else "pass")
    assert not line or message == f"ends.txt contains {unwanted!r} (line {line})."


def test_a_byte_order_mark_is_told_where_something_fails(workspace: Path) -> None:
    (workspace / "marked.txt").write_bytes("\ufefftotal 42\n".encode())
    document = {"type": "file_content", "path": "marked.txt", "contains": "total 42"}
    assert status(document, workspace)[0] == "pass"
    found, message = status({**document, "pattern": "^total 42"}, workspace)
    assert (found, message.splitlines()[1:]) == (
        "fail",
        ["marked.txt begins with a byte order mark, which is a character of its text."],
    )


def test_anchors_bind_to_the_whole_text_unless_told(workspace: Path) -> None:
    check = {"type": "file_content", "path": "src/main.ts"}
    assert status({**check, "pattern": "^console"}, workspace)[0] == "fail"
    assert status({**check, "pattern": "(?m)^console"}, workspace)[0] == "pass"
    assert status({**check, "pattern": "^first"}, workspace)[0] == "pass"


def test_every_match_of_a_glob_must_satisfy_all(workspace: Path) -> None:
    check = {"type": "file_content", "path": "src/**/*.ts"}
    assert status({**check, "not_contains": "console.log"}, workspace)[0] == "fail"
    assert status({**check, "pattern": "."}, workspace)[0] == "pass"
    assert status({**check, "path": "lib/**", "not_contains": "x"}, workspace) == ("fail", "lib/** does not exist.")


@pytest.mark.parametrize("condition", [{"contains": "x"}, {"not_contains": "x"}])
def test_a_missing_file_fails_both_ways(workspace: Path, condition: dict[str, object]) -> None:
    assert status({"type": "file_content", "path": "missing", **condition}, workspace)[0] == "fail"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00x")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(65 << 20)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (fifo, "is a FIFO"),
        (Path.mkdir, "is a directory"),
        (binary, "its bytes are not UTF-8"),
        (huge, "at most 67,108,864 are read"),
        (loop, ""),
    ],
)
@pytest.mark.parametrize("condition", [{"contains": "x"}, {"not_contains": "x"}, {"pattern": "x"}])
def test_what_is_no_readable_text_fails_and_never_blocks(
    workspace: Path, build: Build, message: str, condition: dict[str, object]
) -> None:
    build(workspace / "odd")
    found, said = status({"type": "file_content", "path": "odd", **condition}, workspace)
    assert found == "fail"
    assert message in said


def test_a_pattern_that_takes_forever_hits_the_time_limit(workspace: Path) -> None:
    (workspace / "evil.txt").write_text("a" * 60)
    document = {"type": "file_content", "path": "evil.txt", "pattern": "(a|aa)+$b"}
    outcome = grade(document, workspace, timeout=0.5)
    assert outcome.status == "fail"
    assert "hit the time limit" in outcome.message


def test_a_name_that_is_no_text_can_be_shown(workspace: Path) -> None:
    (workspace / "odd-\udcff.txt").write_text("x")
    outcome = grade({"type": "file_exists", "path": "odd-*"}, workspace)
    assert outcome.message == r"odd-\xff.txt exists."
    assert outcome.details["matches"] == [r"odd-\xff.txt"]


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "file_exists"},
        {"type": "file_exists", "path": ""},
        {"type": "file_content", "path": "x"},
        {"type": "file_content", "path": "x", "contains": ""},
        {"type": "file_content", "path": "x", "contains": []},
        {"type": "file_content", "path": "x", "contains": [""]},
        {"type": "file_content", "path": "x", "contains": 5},
        {"type": "file_content", "path": "x", "content": "y"},
    ],
)
def test_bad_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_check(fields)
