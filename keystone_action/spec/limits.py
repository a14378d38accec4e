"""Limits that several rooms share."""

from __future__ import annotations

MOST_COUNTED = 2**63
"""Of seconds, tokens, calls and dollars of one cell. What says more is malformed wherever it is read: in a transcript,
in an agent's result, in a journal."""

HIDDEN_VARIABLES = ("GITHUB_", "ACTIONS_", "INPUT_")
"""What the names of variables begin with that the runner sets for us: they never reach an agent."""
