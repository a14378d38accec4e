"""command_exit and its alias command, in the real process sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from support.context import grade, make_check

from keystone_action.invariants.command_output import tail
from keystone_action.sandbox.programs import sentence_on_missing, started_program
from keystone_action.system.command import Capture, CommandLimits

pytestmark = pytest.mark.sandbox


def run(command: object, workspace: Path, **fields: object):  # type: ignore[no-untyped-def]
    given = {
        name: fields.pop(name)
        for name in ("timeout", "missing_programs", "limits", "check_environment")
        if name in fields
    }
    return grade({"type": "command_exit", "command": command, **fields}, workspace, **given)


def test_a_string_runs_through_the_shell_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    outcome = run("test -f a.txt && grep -q hello a.txt; [ $? -eq 0 ]", tmp_path)
    assert (outcome.status, outcome.score) == ("pass", 1.0)
    assert outcome.details == {"exit_code": 0, "expected": 0}


def test_another_exit_code_fails_with_the_tails_of_both_streams(tmp_path: Path) -> None:
    outcome = run("echo one; echo two >&2; exit 3", tmp_path)
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    assert outcome.message == (
        "`echo one; echo two >&2; exit 3` ended with exit code 3, expected 0.\nstdout:\none\nstderr:\ntwo"
    )
    assert "--- stdout ---\none" in outcome.log
    assert "--- stderr ---\ntwo" in outcome.log


def test_the_expected_exit_code_passes(tmp_path: Path) -> None:
    assert run("exit 3", tmp_path, exit_code=3).status == "pass"
    assert run("exit 0", tmp_path, exit_code=3).status == "fail"


def test_a_list_is_run_without_a_shell(tmp_path: Path) -> None:
    assert run(["test", "$HOME", "=", "$HOME"], tmp_path).status == "pass"
    assert run(["printf", "a b;c", ">", "d"], tmp_path).status == "pass"


def test_an_ending_by_signal_counts_as_in_a_shell(tmp_path: Path) -> None:
    outcome = run("kill -SEGV $$", tmp_path)
    assert outcome.status == "fail"
    assert "was ended by SIGSEGV (exit code 139), expected 0" in outcome.message
    assert run("kill -SEGV $$", tmp_path, exit_code=139).status == "pass"


def test_the_environment_is_the_checks_and_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "secret-of-ours")
    outcome = run(
        "env; exit 1", tmp_path, env={"MINE": "1", "PORT": 8080}, check_environment={"THEIRS": "2", "MINE": "0"}
    )
    lines = set(outcome.log.splitlines())
    assert {"MINE=1", "PORT=8080", "THEIRS=2"} <= lines
    assert "secret-of-ours" not in outcome.log


def test_a_time_limit_fails_and_says_so(tmp_path: Path) -> None:
    outcome = run("echo begun; sleep 60", tmp_path, timeout=2.0)
    assert outcome.status == "fail"
    assert "was stopped at its time limit of 2 s" in outcome.message
    assert "begun" in outcome.message


def test_a_resource_limit_fails_and_says_so(tmp_path: Path) -> None:
    outcome = run(
        "head -c 50000000 /dev/zero > big; sleep 60", tmp_path, limits=CommandLimits(disk=10_000_000), timeout=60.0
    )
    assert outcome.status == "fail"
    assert "was stopped at a limit: " in outcome.message
    assert "disk" in outcome.message


def test_a_program_that_was_missing_before_the_agent_is_our_error(tmp_path: Path) -> None:
    outcome = run("npm-of-nowhere test", tmp_path, missing_programs=frozenset({"npm-of-nowhere"}))
    assert outcome.status == "error"
    assert outcome.message == "npm-of-nowhere is not in this sandbox; set base to an image that has it"
    assert outcome.score is None


def test_a_program_that_the_agent_should_have_made_is_its_failure(tmp_path: Path) -> None:
    outcome = run("./build/tool", tmp_path)
    assert outcome.status == "fail"
    assert "exit code 127" in outcome.message
    outcome = run(["./build/tool"], tmp_path)
    assert outcome.status == "fail"
    assert "there is no program './build/tool'" in outcome.message


def test_output_that_is_no_text_and_huge_is_bounded(tmp_path: Path) -> None:
    outcome = run(r"head -c 9000000 /dev/zero | tr '\0' '\377'; echo end; exit 1", tmp_path)
    assert outcome.status == "fail"
    assert "bytes before this" in outcome.message
    assert outcome.message.rstrip().endswith("end")
    assert len(outcome.message) < 5000
    assert "bytes cut" in outcome.log


def test_what_it_writes_stays_in_its_copy(tmp_path: Path) -> None:
    assert run("echo x > made", tmp_path).status == "pass"
    assert list(tmp_path.iterdir()) == []


def test_on_the_host_it_runs_in_a_throw_away_copy_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert run("test -f a && rm a", tmp_path, runs_in="host").status == "pass"
    assert (tmp_path / "a").exists()
    assert make_check({"type": "command_exit", "command": "true", "runs_in": "host"}).run_phase == "observe"
    assert make_check({"type": "command_exit", "command": "true"}).run_phase == "shared_copy"


def test_the_alias_has_names_of_its_own(tmp_path: Path) -> None:
    aliased = {"type": "command", "cmd": "exit 4", "expect_exit": 4, "timeout_s": 5}
    assert grade(aliased, tmp_path).status == "pass"
    assert make_check(aliased).model_dump()["timeout_s"] == 5.0
    late = grade({"type": "command", "cmd": "sleep 60", "timeout_s": 0.5}, tmp_path)
    assert "time limit of 0.5 s" in late.message


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": ""},
        {"command": []},
        {"command": 5},
        {"command": "true", "exit_code": 256},
        {"command": "true", "exit_code": -1},
        {"command": "true", "exit_code": "0"},
        {"command": "true", "runs_in": "moon"},
        {"command": "true", "cmd": "true"},
        {"command": "true", "cwd": "."},
    ],
)
def test_bad_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "command_exit", **fields})


def test_both_names_of_a_field_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="cmd"):
        make_check({"type": "command", "cmd": "true", "command": "false"})


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("npm test", "npm"),
        ("CI=1 NODE_ENV=test npm test", "npm"),
        ("npm test; ls", "npm"),
        ("./run.sh", "./run.sh"),
        ("'my tool' --x", "my tool"),
        ("echo 'open", None),
        ("cd x && npm test", None),
        ("(cd a; b)", None),
        ("[ -f a ]", None),
        ("$TOOL x", None),
        ("A=1", None),
        ("", None),
        (["npm", "test"], "npm"),
        ([], None),
    ],
)
def test_the_first_word_is_the_program_or_nothing(command: str | list[str], word: str | None) -> None:
    assert started_program(command) == word


def test_a_known_program_comes_with_an_image() -> None:
    assert sentence_on_missing("npm") == "npm is not in this sandbox; set base: node:22"


def test_a_short_stream_is_shown_whole() -> None:
    assert tail(Capture(b"one\ntwo\n", b"", 8)) == "one\ntwo"
    assert tail(Capture()) == ""


def test_a_long_stream_is_shown_by_its_end() -> None:
    text = "".join(f"line {number}\n" for number in range(100)).encode()
    shown = tail(Capture(text, b"", len(text)))
    assert shown.splitlines()[0].endswith("bytes before this …]")
    assert shown.splitlines()[1:] == [f"line {number}" for number in range(80, 100)]
