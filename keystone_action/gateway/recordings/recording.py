"""What one cell's agent asked its models, and what they answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keystone_action.gateway.recordings.walking import RecordingError

__all__ = ["ANEW", "FORMAT", "SIZE_LIMIT", "Entry", "Recording", "RecordingError", "recording_path"]

FORMAT = 1
"""The version of the format. A recording of another one is refused."""
SIZE_LIMIT = 64 << 20
"""Bytes of a file."""
LINES_LIMIT = 20_000
"""Requests of a file."""
MESSAGES_LIMIT = 2_000_000
"""Of all requests together, each with all that was said before it."""
ANEW = "record anew with --gateway record"


@dataclass(frozen=True, slots=True)
class Entry:
    """One answered request. key: of the request, `gateway.ignore` applied; whole_key: without that. conversation: which
    one it is, from 0 among those with, or without, tools. turn: which answered request of it, from 0. request: in its
    normal form. status: of the answer over HTTP. answer: its document, with names for what differs from run to run.
    usage: counts of tokens by the names of `exchange.Tokens`, and `cost_usd`; what was not known is left out."""

    api: str
    model: str
    key: str
    whole_key: str
    conversation: int
    turn: int
    with_tools: bool
    request: Mapping[str, Any]
    answer: Mapping[str, Any]
    usage: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    status: int = 200


@dataclass(frozen=True, slots=True)
class Recording:
    """entries: in the order in which the requests came. product: our version that recorded it. providers: their APIs,
    by their names. date: in UTC, as `2026-11-23T14:05:00Z`."""

    entries: tuple[Entry, ...]
    spec: str
    cell: str
    product: str
    date: str
    providers: Mapping[str, str] = field(default_factory=dict)


def recording_path(folder: Path, cell_id: str) -> Path:
    """Where the recording of a cell is, in the folder of its spec's recordings."""
    return folder / f"{cell_id}.jsonl"
