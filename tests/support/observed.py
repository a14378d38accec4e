"""What was observed of an agent, made by hand: the evidence that checks of outputs and traces read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.agent_run import AgentRun
from keystone_action.evidence.trace import ToolCall, ToolKind, Trace


def call(name: str, kind: ToolKind = "other", /, *, raw_name: str = "", **arguments: Any) -> ToolCall:
    """A call whose result was seen."""
    return ToolCall("1", raw_name or name, name, kind, arguments, "ok")


def unreadable_call(name: str, kind: ToolKind = "other") -> ToolCall:
    """A call whose arguments could not be read."""
    return ToolCall("1", name, name, kind, None)


def traced(*calls: ToolCall, **fields: Any) -> Trace:
    """A trace that tells of exactly these calls."""
    return Trace(source="keystone", tool_calls=calls, **fields)


def evidence(output: str = "Done.", trace: Trace | None = None, **agent: Any) -> Mapping[str, Any]:
    """The fields of Evidence, for `grade`."""
    return {"agent": AgentRun(exit_code=0, output=output, stdout=output, **agent), "observed": trace}
