"""The models under the path that the documents import them from."""

from __future__ import annotations

from .results import AgentResult, RunResult, ScenarioRunResult, ScoreResult, TokenUsage, ToolCall
from .scenario import Scenario, Suite, SuiteConfig

__all__ = [
    "AgentResult",
    "RunResult",
    "Scenario",
    "ScenarioRunResult",
    "ScoreResult",
    "Suite",
    "SuiteConfig",
    "TokenUsage",
    "ToolCall",
]
