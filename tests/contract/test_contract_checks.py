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
