"""Why a replay does not show what models would answer now. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keystone_action.scoring.results import TraceInfo

UNCOMPARED = "whether this change touched the recording that was replayed is not known"
_MISFITS = {
    "stale": "stale",
    "changed": "of a recording that this change touched",
    "unused": "of a recording that nothing was asked of",
}


def misfit(trace: TraceInfo) -> str:
    """A sentence without its end; empty where the recording fitted exactly, or nothing was replayed."""
    if trace.replayed is None or trace.replayed == "exact":
        return ""
    if trace.replayed == "changed" and trace.differs.startswith(UNCOMPARED):
        return trace.differs
    return f"the replay was {_MISFITS[trace.replayed]}{f': {trace.differs}' if trace.differs else ''}"
