"""What `{{ env.NAME }}` gives an agent is masked wherever we write when its name says that it is a key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.command_line import Called, run_spec
from support.hostile import everything_written

VALUE = "sk-0123456789abcdef"
SAYS = """
import os, sys
value = os.environ["GIVEN"]
print("the value is", value)
print("on stderr", value, file=sys.stderr)
open(value + ".txt", "w").write(value)
"""


def run(folder: Path, name: str) -> Called:
    document = {
        "version": 1,
        "id": "keys",
        "task": {"prompt": "do it"},
        "agent": {"type": "command", "command": ["python3", "-c", SAYS], "env": {"GIVEN": f"{{{{ env.{name} }}}}"}},
        "invariants": {
            "said": {"check": {"type": "regex", "pattern": "never said"}},
            "left": {"check": {"type": "diff", "max_files": 0}},
        },
    }
    return run_spec(folder, json.dumps(document), environ={name: VALUE})


@pytest.mark.parametrize(
    "name", ["PROVIDER_API_KEY", "my_token", "SOME_SECRET", "DB_PASSWORD", "APP_CREDENTIALS", "KEY"]
)
@hostile(
    "secrets", "prints a key that the spec hands it by env", held_by="masked by the variable's name", sandbox="none"
)
def test_a_key_stands_in_nothing_that_is_written(tmp_path: Path, name: str) -> None:
    called = run(tmp_path, name)
    assert called.code == 1, called.err
    assert "the value is ***" in called.cells[0]["agent"]["output"]
    shown = [where for where, data in everything_written(called).items() if VALUE.encode() in data]
    assert shown == []


@honest("secrets", "prints a key that the spec hands it by env", sandbox="none")
def test_other_variables_are_shown(tmp_path: Path) -> None:
    assert f"the value is {VALUE}" in run(tmp_path, "BUILD_LABEL").cells[0]["agent"]["output"]


@pytest.mark.parametrize("text", ["${PROVIDER_KEY}", "$PROVIDER_KEY"])
def test_a_variable_that_no_shell_fills_in_is_a_warning_with_its_place(tmp_path: Path, text: str) -> None:
    document = (
        "version: 1\nid: keys\ntask: {prompt: do it}\n"
        f'agent: {{type: command, command: "true", env: {{KEY: "{text}"}}}}\n'
        "invariants: {a: {check: {type: file_absent, path: x}}}\n"
    )
    called = run_spec(tmp_path, document, environ={"PROVIDER_KEY": VALUE})
    assert called.code == 0, called.err
    assert "keystone.yaml:4:" in called.err
    assert "no shell fills in the values of env" in called.err
    assert "use {{ env.PROVIDER_KEY }}" in called.err


@pytest.mark.parametrize("text", ["cost: $5", "a $b c", "{{ env.PROVIDER_KEY }}", "$$", "${A}-x"])
def test_other_dollars_are_no_warning(tmp_path: Path, text: str) -> None:
    document = (
        "version: 1\nid: keys\ntask: {prompt: do it}\n"
        f'agent: {{type: command, command: "true", env: {{KEY: "{text}"}}}}\n'
        "invariants: {a: {check: {type: file_absent, path: x}}}\n"
    )
    called = run_spec(tmp_path, document, environ={"PROVIDER_KEY": VALUE})
    assert called.code == 0, called.err
    assert "no shell" not in called.err
