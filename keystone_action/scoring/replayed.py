"""Why a replay does not show what models would answer now. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keystone_action.scoring.results import TraceInfo


def misfit(trace: TraceInfo) -> str:
    """A sentence without its end; empty where the recording fitted exactly, or nothing was replayed."""
    if trace.replayed is None or trace.replayed == "exact":
        return ""
    what = "stale" if trace.replayed == "stale" else "of a recording that this change touched"
    return f"the replay was {what}{f': {trace.differs}' if trace.differs else ''}"
