"""What spec.md says of checks, sentence by sentence, by the real command."""

from __future__ import annotations

from pathlib import Path

from support.command_line import run_spec, spec

ENDLESS = "{type: file_content, path: a, pattern: '^(a|a)*$'}"


def test_a_regex_that_hits_its_time_limit_fails(tmp_path: Path) -> None:
    """5.1: "`fail`: … a regex that hits its time limit"."""
    text = spec("{type: command, command: ['sh', '-c', 'printf %040d! 0 | tr 0 a > a']}", ENDLESS)
    called = run_spec(tmp_path, text.replace("it_holds: {", "it_holds: {timeout: 1s, "))
    assert (called.code, called.checks["it_holds"]["status"]) == (1, "fail")
    assert "limit" in called.checks["it_holds"]["message"] or "took longer" in called.checks["it_holds"]["message"]


def test_a_workspace_that_the_agent_made_unreadable_fails(tmp_path: Path) -> None:
    """5.1: "`fail`: … a workspace the agent made unreadable or deleted"; whether we are root or not."""
    agent = "{type: command, command: 'chmod 000 .'}"
    called = run_spec(tmp_path, spec(agent))
    assert (called.code, called.cells[0]["verdict"], called.cells[0]["composite"]) == (1, "fail", 0.0)
    assert "can't be read" in called.cells[0]["reason"]


def test_an_emptied_workspace_fails_the_checks_that_need_it(tmp_path: Path) -> None:
    """5.1: "`fail`: … a workspace the agent made unreadable or deleted"."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "x").touch()
    agent = "{type: command, command: 'rm -rf \"$KEYSTONE_WORKSPACE\"'}"
    called = run_spec(tmp_path, spec(agent, "{type: file_exists, path: x}", workspace="start"))
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail")
