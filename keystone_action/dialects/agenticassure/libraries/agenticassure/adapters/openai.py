"""An agent that is one call of OpenAI's chat completions, its tool calls recorded and not executed."""

from __future__ import annotations

import json
import time
from typing import Any

from ..results import AgentResult, TokenUsage, ToolCall


class OpenAIAdapter:
    """Asks a model once. Further keywords go to the request. Raises ImportError without the package openai."""

    def __init__(
        self,
        model: str = "gpt-4",
        tools: list[dict[str, Any]] | None = None,
        system_prompt: str | None = None,
        api_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        try:
            openai = __import__("openai")
        except ImportError as missing:
            raise ImportError("OpenAIAdapter needs the package openai, which this sandbox has not") from missing
        self.model, self.tools, self.system_prompt, self.kwargs = model, tools, system_prompt, kwargs
        self.client = openai.OpenAI(**({"api_key": api_key} if api_key else {}))

    def run(self, input: str, context: dict[str, Any] | None = None) -> AgentResult:  # noqa: A002, ARG002
        """The model's answer and the calls it wants made."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        request = {"model": self.model, "messages": [*system, {"role": "user", "content": input}], **self.kwargs}
        if self.tools:
            request["tools"] = self.tools
        started = time.perf_counter()
        response = self.client.chat.completions.create(**request)
        message = response.choices[0].message
        usage = response.usage
        return AgentResult(
            output=message.content or "",
            tool_calls=[
                ToolCall(name=call.function.name, arguments=json.loads(call.function.arguments or "{}"))
                for call in message.tool_calls or ()
            ],
            latency_ms=(time.perf_counter() - started) * 1000,
            token_usage=usage
            and TokenUsage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens),
            raw_response=response.model_dump(),
        )
