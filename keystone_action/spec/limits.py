"""Limits that whoever writes a number and whoever reads it share."""

from __future__ import annotations

MOST_COUNTED = 2**63
"""Of seconds, tokens, calls and dollars of one cell. What says more is malformed wherever it is read: in a transcript,
in an agent's result, in a journal."""
