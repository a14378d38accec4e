"""What spec.md says of secrets, sentence by sentence, by the real command."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run_spec, spec

SHOW = "{type: command, command: 'printf %s \"$T\" | rev', env: {T: '{{ secrets.TOK }}'}}"
"""Backwards, since the value itself is masked."""
ENVIRON = {"OTHER": "from-other", "WHICH": "kept.txt"}


@pytest.mark.parametrize(
    ("secret", "value"),
    [
        ("{name: TOK, source: 'env:OTHER'}", "from-other"),
        ("{name: TOK, source: 'file:kept.txt'}", "from-file"),
        ("{name: TOK, source: 'command:echo from-command'}", "from-command"),
        ("{name: TOK, from: 'static://from-spec'}", "from-spec"),
        ("{name: TOK, from: 'static://a-{{ env.OTHER }}'}", "a-from-other"),
        ("{name: TOK, source: 'file:{{ env.WHICH }}'}", "from-file"),
        ("{name: TOK, optional: true}", ""),
    ],
)
def test_secrets_come_from_where_the_spec_says(tmp_path: Path, secret: str, value: str) -> None:
    """1.4: "source: env|env:OTHER|file:path|command:…, from: static://…|generated", "optional"; 1: "`env.NAME` (host
    environment, in `agent.env` and `secrets` only)"; 5.1: "`optional: true` yields an empty string"."""
    (tmp_path / "kept.txt").write_text("from-file\n", "utf-8")
    called = run_spec(tmp_path, spec(SHOW, secrets=f"[{secret}]"), environ=ENVIRON)
    assert called.code == 0, called.err
    assert called.cells[0]["agent"]["output"] == value[::-1]


@pytest.mark.parametrize(
    "secret",
    [
        "TOK",
        "{name: TOK, source: 'env:EMPTY'}",
        "{name: TOK, source: 'file:none'}",
        "{name: TOK, source: 'command:false'}",
        "{name: TOK, from: 'static://{{ env.NOT_THERE }}'}",
    ],
)
def test_what_can_not_be_resolved_is_an_error_naming_it(tmp_path: Path, secret: str) -> None:
    """1.4: "Unresolvable (an empty value too) = error naming it, never silence"; 5.1: exit 3."""
    called = run_spec(tmp_path, spec(SHOW, secrets=f"[{secret}]"), environ={"EMPTY": ""})
    assert (called.code, called.cells[0]["verdict"]) == (3, "error")
    assert "secret TOK can't be resolved" in called.cells[0]["error"]


def test_values_are_masked_wherever_we_write(tmp_path: Path) -> None:
    """1.4: "Values are masked wherever we write"."""
    agent = SHOW.replace("| rev", '| tee leaked; printf %s "$T" >&2')
    check = "{type: command_exit, command: 'cat leaked; exit 1'}"
    called = run_spec(tmp_path, spec(agent, check, secrets="[TOK]"), environ={"TOK": "hunter2-hunter2"})
    assert called.code == 1
    written = [path for path in called.output.rglob("*") if path.is_file()]
    assert not [path for path in written if b"hunter2" in path.read_bytes()]
    assert "hunter2" not in called.out + called.err
    assert called.cells[0]["agent"]["output"] == "***"


def test_short_values_are_not_masked_with_a_warning(tmp_path: Path) -> None:
    """5.1: "Values under 4 characters are not masked, with a warning"."""
    called = run_spec(tmp_path, spec(SHOW, secrets="[TOK]"), environ={"TOK": "aba"})
    assert called.cells[0]["agent"]["output"] == "aba"
    assert "TOK has fewer than 4 characters" in called.err
