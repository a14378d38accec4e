"""Calls that a transcript tells of, beside those that passed the gateway."""

from __future__ import annotations

import pytest

from keystone_action.evidence.trace import GATEWAY, ToolCall, Trace
from keystone_action.gateway.trace import calls_elsewhere, with_declared


def calls(*named: tuple[str, str], source: str = GATEWAY) -> Trace:
    """By their ids and tools."""
    made = tuple(ToolCall(call, name, name, "execute", {"command": "ls"}) for call, name in named)
    return Trace(source=source, tool_calls=made)


@pytest.mark.parametrize(
    ("source", "seen", "told", "elsewhere"),
    [
        ("claude", [("a", "Bash")], [("a", "Bash")], 0),
        ("claude", [("a", "Bash"), ("b", "Bash")], [("a", "Bash")], 0),
        ("claude", [("a", "Bash")], [("x", "Bash")], 1),
        ("claude", [("a", "Bash")], [("a", "Bash"), ("x", "Bash"), ("y", "Bash")], 2),
        ("gemini", [("a", "run_shell_command")], [("run_shell_command__a", "run_shell_command")], 0),
        ("gemini", [("a", "run_shell_command")], [("run_shell_command__x", "run_shell_command")], 1),
        ("gemini", [("", "run_shell_command")], [("run_shell_command-17-b", "run_shell_command")], 0),
        ("mini", [("a", "bash")], [("a", "bash"), ("action 1", "bash")], 1),
        ("codex", [("a", "exec_command")], [("item_1", "command_execution")], 0),
        ("codex", [("a", "exec_command")], [("item_1", "command_execution"), ("item_2", "command_execution")], 1),
        ("codex", [("a", "exec")], [("item_1", "command_execution"), ("item_2", "command_execution")], 0),
        ("otel", [], [("1", "Bash")], 1),
        ("agent_result", [("a", "Bash")], [("1", "Bash"), ("2", "Bash")], 1),
    ],
)
def test_how_many_calls_went_elsewhere(
    source: str, seen: list[tuple[str, str]], told: list[tuple[str, str]], elsewhere: int
) -> None:
    found, declared = calls(*seen), calls(*told, source=source)
    assert calls_elsewhere(found, declared) == elsewhere
    assert bool(with_declared(found, declared).calls_unsure) == bool(elsewhere)
