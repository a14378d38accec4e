"""The line that says how to run it again does: by the real command, it comes to the same cells."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import NO_ENGINE, Called, keystone

from keystone_action.report.again import command_again
from keystone_action.scoring.document import run_from_document

CHECK = {"fine": {"check": {"type": "file_exists", "path": "fine"}}}
SCENARIOS = [{"id": name, "input": name} for name in ("add", "add.more", "rename_it")]


def spec_of(bad: str, **more: Any) -> dict[str, Any]:
    """A spec whose agent fails where this test of a shell holds."""
    environment = {"REPLICA": "{{ cell.replica }}", "ID": "{{ cell.id }}"} | more.pop("env", {})
    agent = {"type": "command", "command": f"if {bad}; then exit 1; else touch fine; fi", "env": environment}
    return {"version": 1, "id": "again", "task": {"prompt": "{{ record.input }}"}, "agent": agent} | {
        "invariants": CHECK,
        **more,
    }


MATRIX: Mapping[str, Any] = {
    "env": {"MODEL": "{{ params.model }}"},
    "scenarios": SCENARIOS,
    "parallelism": {"replicas": 2, "matrix": {"model": ["a|b $x", "it's", 7]}},
}
SIZES: Mapping[str, Any] = {
    **MATRIX,
    "env": {"MODEL": "{{ params.model }}", "SIZE": "{{ params.size }}"},
    "scenarios": [{**one, "params": {"size": "small" if one["id"] == "rename_it" else "large"}} for one in SCENARIOS],
}
REPLICAS: Mapping[str, Any] = {"parallelism": {"replicas": 3}, "task": {"prompt": "x"}}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], int]] = {
    "one of several replicas": (spec_of('[ "$REPLICA" = 1 ]', **REPLICAS), (), 1),
    "a value of the matrix": (spec_of('[ "$MODEL" = "a|b \\$x" ]', **MATRIX), (), 6),
    "a number of the matrix": (spec_of('[ "$MODEL" = 7 ]', **MATRIX), (), 6),
    "a scenario whose name begins another": (spec_of('[ "$KEYSTONE_PROMPT" = add ]', **MATRIX), (), 6),
    "both": (spec_of('[ "$KEYSTONE_PROMPT" = add.more ] && [ "$MODEL" = "it\'s" ]', **MATRIX), (), 2),
    "what a scenario sets": (spec_of('[ "$SIZE" = large ] && [ "$MODEL" != 7 ]', **SIZES), (), 18),
    "nothing in common": (spec_of('[ "$REPLICA" = 1 ]', **MATRIX), (), 18),
    "a given parameter": (spec_of('[ "$REPLICA" = 0 ]', **MATRIX), ("--param", "model=7"), 6),
}


def failed(called: Called) -> set[str]:
    return {cell["id"] for cell in called.cells if cell["verdict"] != "pass"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_the_command_runs_what_did_not_pass(name: str, tmp_path: Path) -> None:
    spec, words, cells = CASES[name]
    (tmp_path / "it's a spec.yaml").write_text(json.dumps(spec))
    first = keystone("run", "it's a spec.yaml", *words, "--output", "out", directory=tmp_path, environ=NO_ENGINE)
    assert first.code == 1, first.err
    wanted = failed(first)
    command = command_again(run_from_document(first.document))
    program, *again = shlex.split(command)
    (tmp_path / "out").rename(tmp_path / "first")
    second = keystone(*again, "--output", "out", directory=tmp_path, environ=NO_ENGINE)
    assert program == "keystone"
    assert failed(second) == wanted, command
    assert len(second.cells) == cells, command
