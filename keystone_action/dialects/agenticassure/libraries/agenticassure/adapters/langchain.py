"""An agent that is an AgentExecutor of LangChain."""

from __future__ import annotations

import time
from typing import Any

from ..results import AgentResult, ToolCall


class LangChainAdapter:
    """Invokes an executor. Tool calls are seen where it was made with `return_intermediate_steps=True`."""

    def __init__(self, agent_executor: Any) -> None:
        if not callable(getattr(agent_executor, "invoke", None)):
            raise TypeError(f"expected an AgentExecutor, found {type(agent_executor).__name__}")
        self.agent_executor = agent_executor

    def run(self, input: str, context: dict[str, Any] | None = None) -> AgentResult:  # noqa: A002
        """The executor's answer."""
        started = time.perf_counter()
        answer = self.agent_executor.invoke({"input": input, **(context or {})})
        calls, steps = [], []
        for action, observation in answer.get("intermediate_steps", ()):
            arguments = action.tool_input if isinstance(action.tool_input, dict) else {"input": action.tool_input}
            calls.append(ToolCall(name=action.tool, arguments=arguments, result=str(observation)))
            steps.append(f"{action.tool}: {observation}")
        return AgentResult(
            output=answer.get("output", ""),
            tool_calls=calls,
            reasoning_trace=steps or None,
            latency_ms=(time.perf_counter() - started) * 1000,
        )
