"""AgenticAssure's `AgentResult` as a trace: tool calls without an order of anything else, tokens where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.model import AgentRun, TooMuchPrinted
from keystone_action.evidence.trace import AGENT_RESULT, Trace, Usage
from keystone_action.evidence.trace_readers.builder import TraceBuilder
from keystone_action.evidence.trace_readers.values import MalformedTrace, amount, as_arguments, as_text, text, tokens


def trace_of_result(run: AgentRun) -> Trace | None:
    """The trace of a run whose result has tool calls or tokens; None when it has neither.

    A result without tool calls can't tell of any: `tool_calls` is None then. Negative and senseless numbers make it
    a trace with a problem (contract, 5.3).
    """
    if run.tool_calls is None and run.token_usage is None:
        return None
    try:
        output = run.whole_output()
    except TooMuchPrinted:
        output = run.output
    builder = TraceBuilder(AGENT_RESULT, final_output=output, calls_known=run.tool_calls is not None)
    try:
        for number, call in enumerate(run.tool_calls or (), 1):
            _add(builder, str(number), call)
        if run.token_usage is not None:
            builder.usage = _usage(run.token_usage)
    except MalformedTrace as malformed:
        return Trace(source=AGENT_RESULT, problem=f"the agent's result is malformed: {malformed}")
    return builder.finish()


def _add(builder: TraceBuilder, number: str, call: Mapping[str, Any]) -> None:
    builder.call(number, text(call, "name"), as_arguments(call.get("arguments")))
    if call.get("result") is not None:
        builder.result(number, "ok", as_text(call["result"]))


def _usage(usage: Mapping[str, Any]) -> Usage:
    read = "input_tokens" if usage.get("input_tokens") is not None else "prompt_tokens"
    written = "output_tokens" if usage.get("output_tokens") is not None else "completion_tokens"
    return Usage(tokens(usage, read), tokens(usage, written), amount(usage, "cost_usd"))
