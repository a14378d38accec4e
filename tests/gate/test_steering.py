"""Files of a workspace that steer a known agent: a change of them is said, and of all else in the workspace nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.repositories import make_change

from keystone_action.gate import base_commit
from keystone_action.gate.base_commit import BaseCommit
from keystone_action.gate.change_base import ChangeBase
from keystone_action.gate.compare import gated_specs
from keystone_action.options.model import Options

SPEC = """
version: 1
id: small
task: {prompt: "do it"}
workspace: example
agent: {type: claude-code}
invariants:
  x: {check: {type: file_exists, path: a}}
"""
SETTINGS = {"env": {"A": "1"}, "model": "opus", "hooks": {}}
BASE: dict[str, str] = {
    "evals/keystone.yaml": SPEC,
    "evals/example/.claude/settings.json": json.dumps(SETTINGS),
    "evals/example/CLAUDE.md": "Be kind.\n",
    "evals/example/app.py": "print(1)\n",
}
FOLDER = "evals/example"


def told(tmp_path: Path, change: dict[str, str | None]) -> list[str]:
    made = make_change(tmp_path, BASE, change)
    (tmp_path / "work").mkdir()
    checkout = made.check_out(tmp_path / "work")
    found = gated_specs(Options.of(specs=("evals",), directory=checkout), ChangeBase(BaseCommit(made.base, "main")))
    assert found.changes is not None
    return [text for one in found.changes.specs for text in one.differences]


def settings(**changed: object) -> str:
    return json.dumps({**SETTINGS, **changed}, indent=2)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({f"{FOLDER}/app.py": "print(2)\n"}, None),
        ({f"{FOLDER}/AGENTS.md": "of another program"}, None),
        (
            {f"{FOLDER}/.claude/settings.json": settings(env={}, hooks={"Stop": []})},
            ".claude/settings.json (env, hooks)",
        ),
        ({f"{FOLDER}/.claude/settings.json": None}, ".claude/settings.json (env, model, hooks)"),
        ({f"{FOLDER}/.mcp.json": '{"mcpServers": {}}'}, ".mcp.json (mcpServers)"),
        ({f"{FOLDER}/.claude/settings.json": settings()}, ".claude/settings.json (+7 −1)"),
        ({f"{FOLDER}/CLAUDE.md": "Be quick.\n"}, "CLAUDE.md (+1 −1)"),
        ({f"{FOLDER}/CLAUDE.md": None, f"{FOLDER}/sub/CLAUDE.md": "x"}, "CLAUDE.md (deleted), sub/CLAUDE.md (added)"),
        ({f"{FOLDER}/.claude/settings.json": "{"}, ".claude/settings.json (+1 −1)"),
    ],
    ids=["code", "another's", "keys", "gone", "server", "layout", "text", "moved", "broken"],
)
def test_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str | None], said: str | None, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(base_commit, "WHOLE_FILES", 0)
    assert told(tmp_path, change) == ([] if said is None else [f"changes what steers the agent: {said}"])
