"""`type: none`: no agent, the workspace is graded as it is."""

from __future__ import annotations

from keystone_action.evidence.model import AgentRun


def run_none() -> AgentRun:
    """Nothing ran: no exit code, no output, no problem."""
    return AgentRun()
