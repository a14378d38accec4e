"""What agents return and scorers say."""

from __future__ import annotations

import datetime
import uuid
from typing import Any, ClassVar

from .model import Field, Model, anything, boolean, mapping, number, optional, several, share, text, whole
from .scenario import Scenario


class ToolCall(Model):
    """One call of a tool by the agent."""

    name: str
    arguments: dict[str, Any]
    result: Any

    fields: ClassVar[dict[str, Field]] = {
        "name": Field(text),
        "arguments": Field(mapping, dict),
        "result": Field(anything, None),
    }


class TokenUsage(Model):
    """Tokens that the agent spent."""

    prompt_tokens: int
    completion_tokens: int

    fields: ClassVar[dict[str, Field]] = {"prompt_tokens": Field(whole, 0), "completion_tokens": Field(whole, 0)}

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


def tool_call(value: Any) -> ToolCall:
    """A call; a text is one by its name alone."""
    return ToolCall(name=value) if isinstance(value, str) else ToolCall.model_validate(value)


class AgentResult(Model):
    """The agent's answer and what it did. `tools_called`, as the documents call it, is another word for tool_calls."""

    output: str
    tool_calls: list[ToolCall]
    reasoning_trace: list[str] | None
    latency_ms: float
    token_usage: TokenUsage | None
    raw_response: Any

    fields: ClassVar[dict[str, Field]] = {
        "output": Field(text),
        "tool_calls": Field(several(tool_call), list),
        "reasoning_trace": Field(optional(several(text)), None),
        "latency_ms": Field(number, 0.0),
        "token_usage": Field(optional(TokenUsage.model_validate), None),
        "raw_response": Field(anything, None),
    }
    names: ClassVar[dict[str, str]] = {"tools_called": "tool_calls"}

    @property
    def tools_called(self) -> list[str]:
        """The names of the tools, in the order of the calls."""
        return [call.name for call in self.tool_calls]


def _details(value: Any) -> Any:
    if value is None or isinstance(value, (str, dict)):
        return value
    raise TypeError(f"Input should be a dictionary or a text, found {type(value).__name__}")


class ScoreResult(Model):
    """What a scorer found."""

    scenario_id: str
    scorer_name: str
    score: float
    passed: bool
    explanation: str
    details: Any

    fields: ClassVar[dict[str, Field]] = {
        "scenario_id": Field(text),
        "scorer_name": Field(text),
        "score": Field(share),
        "passed": Field(boolean),
        "explanation": Field(text, ""),
        "details": Field(_details, None),
    }


class ScenarioRunResult(Model):
    """A scenario with what became of it."""

    fields: ClassVar[dict[str, Field]] = {
        "scenario": Field(Scenario.model_validate),
        "agent_result": Field(AgentResult.model_validate),
        "scores": Field(several(ScoreResult.model_validate), list),
        "passed": Field(boolean, False),
        "duration_ms": Field(number, 0.0),
        "error": Field(optional(text), None),
        "retry_count": Field(whole, 0),
    }


class RunResult(Model):
    """A suite with what became of it."""

    fields: ClassVar[dict[str, Field]] = {
        "run_id": Field(text, lambda: str(uuid.uuid4())),
        "timestamp": Field(anything, lambda: datetime.datetime.now(datetime.UTC)),
        "suite_name": Field(text),
        "scenario_results": Field(several(ScenarioRunResult.model_validate), list),
        "aggregate_score": Field(number, 0.0),
        "pass_rate": Field(number, 0.0),
        "total_duration_ms": Field(number, 0.0),
        "model_info": Field(optional(mapping), None),
    }
