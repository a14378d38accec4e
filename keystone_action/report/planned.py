"""The summary of a plan: which cells the jobs of a matrix will run, before any of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keystone_action.report import words
from keystone_action.report.escape import code

_SHOWN_SPECS = 100


@dataclass(frozen=True, slots=True)
class PlannedSpec:
    """What is planned of one spec. replicas: of each scenario and parameter set."""

    id: str
    scenarios: int
    replicas: int
    cells: int


def render_plan(specs: Sequence[PlannedSpec], jobs: int) -> str:
    """Markdown, ending in a newline: how many cells and jobs, and the cells of each spec, the most first."""
    cells = sum(spec.cells for spec in specs)
    fewest, most = cells // jobs, -(-cells // jobs)
    each = words.count(most, "cell") if fewest == most else f"{fewest:,} or {words.count(most, 'cell')}"
    lines = [
        f"## 🗓️ Planned: {words.count(cells, 'cell')} in {words.count(jobs, 'job')}",
        "",
        f"{each} a job. Nothing has run yet.",
        "",
        "| Spec | Scenarios | Replicas | Cells |",
        "|:--|--:|--:|--:|",
    ]
    shown = sorted(specs, key=lambda spec: -spec.cells)[:_SHOWN_SPECS]
    lines += [f"| {code(spec.id)} | {spec.scenarios:,} | {spec.replicas:,} | {spec.cells:,} |" for spec in shown]
    if len(specs) > _SHOWN_SPECS:
        lines += ["", f"… and {words.count(len(specs) - _SHOWN_SPECS, 'spec')} more."]
    return "\n".join(lines) + "\n"
