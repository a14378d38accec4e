"""The blocks that summary and comment share, as Markdown of our own: what is printed in them is escaped."""

from __future__ import annotations

from typing import Any

from keystone_action.report.compared import baseline_view, gate_view
from keystone_action.report.templating import markdown_environment
from keystone_action.scoring.results import RunResult

TEMPLATE = "changes.j2"


def gate_markdown(run: RunResult) -> str:
    """What this change does to its own gate; empty when nothing is to say."""
    return str(_macros().gate_block(gate_view(run.spec_changes))).strip()


def baseline_markdown(run: RunResult) -> str:
    """The run beside its baseline; empty without one."""
    return str(_macros().baseline_block(baseline_view(run.baseline, run))).strip()


def _macros() -> Any:
    return markdown_environment().get_template(TEMPLATE).module
