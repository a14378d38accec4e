"""What spec.md says of agents, sentence by sentence, by the real command."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import keystone, run_spec, spec


def test_a_text_is_read_by_sh_whatever_path_the_spec_gives(tmp_path: Path) -> None:
    """1.1: "`command` (string → `sh -c`…)", "the agent sees … its `env`"."""
    check = "{type: command_exit, command: 'test \"$PATH\" = /nowhere', env: {PATH: /nowhere}}"
    agent = "{type: command, command: 'echo $PATH', env: {PATH: /nowhere}}"
    called = run_spec(tmp_path, spec(agent, check))
    assert (called.code, called.cells[0]["agent"]["output"]) == (0, "/nowhere\n")


@pytest.mark.parametrize(("size", "in_environment"), [(100 * 1024, 100 * 1024), (100 * 1024 + 1, 0)])
def test_a_long_prompt_is_only_in_its_file(tmp_path: Path, size: int, in_environment: int) -> None:
    """5.2: "A prompt above 100 KiB is only in `KEYSTONE_PROMPT_FILE`"; 1: a prompt from a file is not interpolated."""
    (tmp_path / "prompt.txt").write_text("{{ x }}".ljust(size, "."), "utf-8")
    agent = '{type: command, command: \'printf %s "$KEYSTONE_PROMPT" | wc -c; wc -c < "$KEYSTONE_PROMPT_FILE"\'}'
    text = spec(agent).replace('prompt: "do it"', "prompt: {file: prompt.txt}")
    called = run_spec(tmp_path, text)
    assert called.cells[0]["agent"]["output"].split() == [str(in_environment), str(size)]


@pytest.mark.parametrize(
    ("agent", "code", "exit_code"),
    [
        ("{type: command, command: 'exit 3'}", 0, 3),
        ("{type: command, command: no-such-program}", 0, 127),
        ("{type: command, command: 'exit 3', must_exit_zero: true}", 1, 3),
        ("{type: command, command: 'sleep 9', timeout: 1s, must_exit_zero: true}", 1, None),
        ("{type: command, command: 'sleep 9', timeout: 1s}", 0, None),
    ],
)
def test_a_failed_agent_is_recorded_and_graded(tmp_path: Path, agent: str, code: int, exit_code: int | None) -> None:
    """1.1: "A non-zero exit or a timeout is recorded and shown; grading goes on, unless `must_exit_zero: true`"; 5.1:
    "`must_exit_zero` broken (composite 0, the checks still run and are shown)"."""
    called = run_spec(tmp_path, spec(agent))
    assert (called.code, called.cells[0]["agent"]["exit_code"]) == (code, exit_code)
    assert called.cells[0]["agent"]["timed_out"] is (exit_code is None)
    assert (called.cells[0]["composite"], called.checks["it_holds"]["status"]) == (float(1 - code), "pass")


def test_a_change_that_takes_the_agent_away_has_failed(tmp_path: Path) -> None:
    """5.1: "A `python` agent that raises … is an agent that failed: recorded and graded"; its module is the change's
    own, so that what it lacks is not a mistake of the spec."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def answers(input):\n    open('made', 'w').close()\n    return 'x'\n")
    agent, check = "{type: python, entrypoint: 'mine:answer', dir: code}", "{type: file_exists, path: made}"
    called = run_spec(tmp_path, spec(agent, check))
    assert (called.code, called.document["verdict"], called.cells[0]["verdict"]) == (1, "fail", "fail"), called.err
    told = "keystone.yaml:4:35: there is no 'answer' in mine.py, did you mean 'answers'?"
    assert told in called.err
    assert any(told in one for one in called.document["notices"])
    assert called.cells[0]["agent"]["exit_code"] == 1
    said = "the agent raised AttributeError: module 'mine' has no attribute 'answer', did you mean 'answers'?"
    assert said in called.cells[0]["notices"]
    validated = keystone("validate", "keystone.yaml", directory=tmp_path)
    assert (validated.code, told in validated.err) == (0, True)


@pytest.mark.parametrize(
    "agent", ["{type: cli, binary: no-such-program}", "{type: command, command: [no-such-program]}"]
)
def test_a_program_that_does_not_exist_is_an_error_that_says_what_to_do(tmp_path: Path, agent: str) -> None:
    """5.1: "Exit 3: … a binary of a list or `cli` agent that doesn't exist"."""
    called = run_spec(tmp_path, spec(agent))
    assert (called.code, called.cells[0]["verdict"], called.cells[0]["composite"]) == (3, "error", None)
    assert "no-such-program is not in this sandbox; install" in called.cells[0]["error"]
