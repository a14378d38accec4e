"""Stands in for the package `agenticassure` (0.4.0) where it is not installed: what adapters and scorers import of it,
under its import paths."""

from __future__ import annotations

from .adapters.base import AgentAdapter
from .model import ValidationError
from .results import AgentResult, RunResult, ScenarioRunResult, ScoreResult, TokenUsage, ToolCall
from .scenario import Scenario, Suite, SuiteConfig
from .scorers.base import Scorer, get_scorer, list_scorers, register_scorer

__version__ = "0.4.0"

__all__ = [
    "AgentAdapter",
    "AgentResult",
    "RunResult",
    "Scenario",
    "ScenarioRunResult",
    "ScoreResult",
    "Scorer",
    "Suite",
    "SuiteConfig",
    "TokenUsage",
    "ToolCall",
    "ValidationError",
    "__version__",
    "get_scorer",
    "list_scorers",
    "register_scorer",
]
