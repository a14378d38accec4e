"""`files`: the graders page of Touchstone (004_722b8593dcd13c4e.txt), contract 5.3, and what hostile agents leave."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.command_line import run_spec, spec
from support.context import grade, make_check

from keystone_action.files.globs import is_set_aside, matches_any
from keystone_action.files.workspace import snapshot
from keystone_action.invariants.check import Outcome

SEED = {"type": "files", "expect_dir": "./graders/expected", "patterns": ["retry", "backoff"]}
"""004_722b8593dcd13c4e.txt, "files": each file here must exist & match byte-for-byte; each regex must appear somewhere
in the sandbox."""


@pytest.fixture
def author(tmp_path: Path) -> Path:
    expected = tmp_path / "spec" / "graders" / "expected"
    (expected / "deep").mkdir(parents=True)
    (expected / "a.txt").write_bytes(b"first\nsecond\n")
    (expected / "deep" / "b.bin").write_bytes(b"\x00\xff\xfe")
    return tmp_path / "spec"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / "deep").mkdir(parents=True)
    (made / "a.txt").write_bytes(b"first\nsecond\n")
    (made / "deep" / "b.bin").write_bytes(b"\x00\xff\xfe")
    (made / "client.py").write_text("def retry(): ...\n# exponential backoff\n")
    return made


def check(document: dict[str, Any], workspace: Path, author: Path, **fields: Any) -> Outcome:
    return grade(document, workspace, directory=author, evidence={"after": snapshot(workspace)}, **fields)


def test_the_seed_passes(workspace: Path, author: Path) -> None:
    outcome = check(SEED, workspace, author)
    assert (outcome.status, outcome.score, outcome.message) == ("pass", 1.0, "All 4 hold.")
    assert outcome.details["patterns"] == {"retry": "client.py", "backoff": "client.py"}


def test_the_seed_fails_with_the_fraction_that_holds(workspace: Path, author: Path) -> None:
    """ "Score = fraction of checks that pass." """
    (workspace / "client.py").write_text("def retry(): ...\n")
    (workspace / "a.txt").write_bytes(b"first\nsecone\n")
    outcome = check(SEED, workspace, author)
    assert (outcome.status, outcome.score) == ("fail", 0.5)
    assert outcome.message.splitlines() == [
        "2 of 4 hold.",
        "a.txt differs from what is expected, first at byte 11 (line 2).",
        "the pattern 'backoff' matches in no text file.",
    ]


def missing(path: Path) -> None:
    path.unlink()


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def carriage_returns(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def some_carriage_returns(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n", 1))


def old_line_ends(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))


def more_text(path: Path) -> None:
    path.write_bytes(b"more\r\n" + path.read_bytes()[4:])


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_out(path: Path) -> None:
    (path.parent.parent / "same.txt").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(path.parent.parent / "same.txt")


def link_to_the_expected_file(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent / "spec" / "graders" / "expected" / "a.txt")


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (missing, "a.txt does not exist"),
        (longer, "in its line ends alone: expected 1 at the end, found 2 at the end"),
        (more_text, "it has 15 bytes, expected 13"),
        (carriage_returns, "in its line ends alone: expected LF, found CRLF"),
        (some_carriage_returns, "in its line ends alone: expected LF, found LF and CRLF"),
        (old_line_ends, "in its line ends alone: expected LF, found CR"),
        (directory, "a.txt is a directory"),
        (fifo, "a.txt is a FIFO"),
        (link_out, "out of the workspace"),
        (link_to_the_expected_file, "out of the workspace"),
        (loop, "loop of links"),
        (huge, "it has 1,099,511,627,776 bytes"),
    ],
)
def test_what_is_not_the_expected_file_earns_nothing(
    workspace: Path, author: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(workspace / "a.txt")
    outcome = check({"type": "files", "expect_dir": "graders/expected"}, workspace, author)
    assert (outcome.status, outcome.score) == ("fail", 0.5)
    assert words in outcome.message


def test_a_workspace_that_is_gone_earns_nothing(tmp_path: Path, author: Path) -> None:
    outcome = check(SEED, tmp_path / "gone", author)
    assert (outcome.status, outcome.score) == ("fail", 0.0)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (".hidden/x.txt", b"needle"),
        ("node_modules/x/y.js", b"needle"),
        ("src/vendor/x.go", b"needle"),
        ("binary", b"needle\0"),
        ("split", b"nee\ndle"),
    ],
)
def test_where_patterns_do_not_look(workspace: Path, author: Path, path: str, content: bytes) -> None:
    (workspace / path).parent.mkdir(parents=True, exist_ok=True)
    (workspace / path).write_bytes(content)
    assert check({"type": "files", "patterns": ["needle"]}, workspace, author).status == "fail"


@pytest.mark.parametrize("content", ["needle é".encode("latin-1"), "needle é".encode("utf-16"), b"\xef\xbb\xbfneedle"])
def test_patterns_look_at_texts_of_other_encodings(workspace: Path, author: Path, content: bytes) -> None:
    (workspace / "text").write_bytes(content)
    assert check({"type": "files", "patterns": ["needle"]}, workspace, author).status == "pass"


def test_patterns_do_not_look_through_links(workspace: Path, author: Path) -> None:
    (author / "secret.txt").write_text("needle")
    (workspace / "link").symlink_to(author / "secret.txt")
    (workspace / "folder").symlink_to(author)
    assert check({"type": "files", "patterns": ["needle"]}, workspace, author).status == "fail"


@pytest.mark.parametrize(
    ("path", "exclude", "found"),
    [
        (".github/x.yml", [], True),
        (".env", None, True),
        ("vendor/x", ["docs"], True),
        ("docs/deep/x", ["docs"], False),
        ("docs/deep/x", ["docs/"], False),
        ("docs/deep/x", ["d*"], False),
        ("docs/deep/x.md", ["**/*.md"], False),
        ("docs/deep/x.md", ["*.md"], True),
        (".secret/x", ["**"], False),
    ],
)
def test_exclude_takes_the_place_of_the_default(
    workspace: Path, author: Path, path: str, exclude: list[str] | None, found: bool
) -> None:
    (workspace / path).parent.mkdir(parents=True, exist_ok=True)
    (workspace / path).write_text("needle")
    more = {} if exclude is None else {"exclude": exclude}
    outcome = check({"type": "files", "patterns": ["needle"], **more}, workspace, author)
    assert outcome.status == ("pass" if found else "fail")


def test_anchors_bind_to_a_whole_file(workspace: Path, author: Path) -> None:
    assert check({"type": "files", "patterns": ["^second"]}, workspace, author).status == "fail"
    assert check({"type": "files", "patterns": ["(?m)^second$"]}, workspace, author).status == "pass"


def test_a_pattern_that_takes_forever_earns_nothing(workspace: Path, author: Path) -> None:
    (workspace / "a.txt").write_text("a" * 60)
    document = {"type": "files", "patterns": ["aaa", "(a|aa)+$b"]}
    outcome = check(document, workspace, author, timeout=0.5)
    assert (outcome.status, outcome.score) == ("fail", 0.5)
    assert "hit the time limit of the check in a.txt" in outcome.message


@pytest.mark.parametrize(
    "fields",
    [{}, {"patterns": []}, {"patterns": [""]}, {"expect_dir": ""}, {"patterns": "x"}, {"patterns": ["x"], "weight": 1}],
)
def test_nothing_to_check_is_refused(fields: dict[str, object]) -> None:
    """5.1: "`files` with nothing to check" is exit 2."""
    with pytest.raises(ValidationError):
        make_check({"type": "files", **fields})


names = st.text("ab.*", min_size=1, max_size=4)


@given(st.lists(names, min_size=1, max_size=4))
def test_a_file_below_a_plain_pattern_is_covered_by_it(parts: list[str]) -> None:
    path = "/".join(parts)
    if "*" not in parts[0] and parts[0] != ".":
        assert matches_any([parts[0]])(path)
    assert not matches_any([])(path)
    assert is_set_aside(path) == any(part.startswith(".") for part in parts[:-1])


AGENT = "{type: command, command: 'printf same > out.txt; printf changed > \"$KEYSTONE_WORKSPACE/../out.txt\" || true'}"


@pytest.mark.parametrize(("content", "status"), [("same", "pass"), ("other", "fail")])
def test_by_the_real_command(tmp_path: Path, content: str, status: str) -> None:
    (tmp_path / "expected").mkdir()
    (tmp_path / "expected" / "out.txt").write_text(content)
    called = run_spec(tmp_path, spec(AGENT, "{type: files, expect_dir: expected, patterns: [sam.]}"))
    entry = called.checks["it_holds"]
    assert (entry["status"], entry["score"]) == (status, {"pass": 1.0, "fail": 0.5}[status]), called.err


@pytest.mark.parametrize("kind", ["links", "empty"])
def test_an_expect_dir_full_of_links_or_of_nothing_is_exit_2(tmp_path: Path, kind: str) -> None:
    (tmp_path / "expected").mkdir()
    for number in range(100 if kind == "links" else 0):
        (tmp_path / "expected" / f"{number}").symlink_to("/etc/passwd")
    called = run_spec(tmp_path, spec(check="{type: files, expect_dir: expected}"))
    assert called.code == 2
    words = "a link that leads out of it" if kind == "links" else "has no files in it"
    assert words in called.err
    assert "keystone.yaml:6:" in called.err


def test_the_agent_does_not_see_what_is_expected(tmp_path: Path) -> None:
    """5.2: every file named by `expect_dir` is withheld from the workspace."""
    (tmp_path / "start" / "expected").mkdir(parents=True)
    (tmp_path / "start" / "expected" / "out.txt").write_text("answer")
    agent = "{type: command, command: 'cp expected/out.txt out.txt'}"
    called = run_spec(tmp_path, spec(agent, "{type: files, expect_dir: start/expected}", workspace="start"))
    assert called.checks["it_holds"]["status"] == "fail"
    assert "out.txt does not exist" in called.checks["it_holds"]["message"]
