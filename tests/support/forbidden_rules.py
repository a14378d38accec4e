"""Cells with forbidden rules, and what these came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.command_line import Called

TOKEN = "tok-0123456789-abcdef"
API = {"name": "api", "type": "http_mock", "routes": [{"path": "/**", "response": "ok"}]}


def spec_of(script: str, forbidden: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A spec whose agent runs this with python."""
    return {
        "version": 1,
        "id": "rules",
        "task": {"prompt": "do it"},
        "agent": {"type": "command", "command": ["python3", "-c", script], **fields.pop("agent", {})},
        "forbidden": forbidden,
        "invariants": {"ran": {"check": {"type": "file_absent", "path": "never"}}},
        **fields,
    }


def judged(called: Called) -> dict[str, Any]:
    """The one rule of the one cell, once it was judged."""
    (cell,) = called.cells
    (rule,) = cell["forbidden"]
    if rule["violated"]:
        assert (called.code, cell["verdict"], cell["composite"]) == (1, "fail", 0.0)
        assert f"forbidden.{rule['rule']} was violated" in cell["reason"]
    else:
        assert (called.code, cell["verdict"], rule["details"]) == (0, "pass", ""), cell["error"]
    return rule


WORKSPACE = {"src/a.py": "a = 1\n", "docs/b.md": "b\n", "tool.sh": "true\n"}


def with_workspace(folder: Path) -> dict[str, Any]:
    for name, text in WORKSPACE.items():
        path = folder / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"workspace": "work"}
