"""What was replayed, in words: for the first line of a report, and for a line of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from keystone_action.report import words
from keystone_action.report.escape import first_line
from keystone_action.scoring.results import RunResult, TraceInfo

_MAX_DIFFERENCE = 200
_MISFITS = {"changed": "from a changed recording", "stale": "stale", "unused": "with nothing asked"}


def replay_warning(run: RunResult) -> str:
    """`replayed; 2 of 3 cells stale`; empty where all that was replayed fitted exactly."""
    cells = sum(len(spec.cells) for spec in run.specs)
    found = Counter[str | None](trace.replayed for trace in _replayed(run))
    said = [
        f"{found[fit]:,} of {words.count(cells, 'cell')} {what}" if cells > 1 else what
        for fit, what in _MISFITS.items()
        if found[fit]
    ]
    return "; ".join(["replayed", *said]) if said else ""


def replay_note(run: RunResult) -> str:
    """How many cells were replayed, from when, and how well that fitted; empty where none was."""
    found = list(_replayed(run))
    if not found:
        return ""
    days = sorted({trace.recorded_at[:10] for trace in found if trace.recorded_at})
    of_days = f" of {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    fits = Counter[str | None](trace.replayed for trace in found)
    fitted = ", ".join(f"{fits[fit]:,} {fit}" for fit in (*_MISFITS, "exact") if fits[fit])
    differs = next((first_line(trace.differs, _MAX_DIFFERENCE) for trace in found if trace.differs), "")
    first = f"; the first that differs: {differs}" if differs else ""
    return f"Replayed, no model was asked: {words.count(len(found), 'cell')} from recordings{of_days} ({fitted}){first}"


def _replayed(run: RunResult) -> Iterator[TraceInfo]:
    return (cell.trace for spec in run.specs for cell in spec.cells if cell.trace.replayed is not None)
