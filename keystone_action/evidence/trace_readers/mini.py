"""mini-swe-agent's trajectory file (seen: 2.4.6, `mini-swe-agent-1.1`): one JSON document.

Its messages have one of three forms, by the class of the model: Chat Completions with `tool_calls`, a whole answer of
Responses (`object: response`), or plain text whose commands stand in `extra.actions` alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.trace import Usage
from keystone_action.evidence.trace_readers.builder import (
    CallStatus,
    TraceBuilder,
    TraceReader,
    amount,
    as_arguments,
    as_text,
    identifier,
    mapping,
    objects,
    text,
    token_count,
)

_TOOL = "bash"
_SUBMITTED = "Submitted"
"""How a run ends that came to its end; all else is a limit or an exception."""
_NOT_EXECUTED = "action was not executed"
"""What a command got that the agent ended with: `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`."""


class MiniReader(TraceReader):
    """Tokens are those of all answers that it kept; it forgets those that it asked for again."""

    has_ids_of_api = True

    def __init__(self, builder: TraceBuilder) -> None:
        self._trace = builder
        self._read: list[int] = []
        self._written: list[int] = []
        self._cost: float | None = None
        self._unnamed: deque[str] = deque()
        self._made = 0

    def event(self, event: Mapping[str, Any]) -> bool:
        """Take a whole trajectory; False when it is none. Raises MalformedTrace."""
        info = event.get("info")
        if not isinstance(info, dict) or not isinstance(event.get("messages"), list):
            return False
        self._trace.forget_open()
        for message in objects(event, "messages"):
            self._message(message)
        cost = amount(mapping(info, "model_stats"), "instance_cost")
        # Of a model without a price it says 0.
        self._cost = cost or self._cost
        ended = text(info, "exit_status")
        self._trace.stop_reason, self._trace.failure = ended, "" if ended == _SUBMITTED else ended
        self._trace.final_output = text(info, "submission") or self._trace.final_output
        return True

    def _message(self, message: Mapping[str, Any]) -> None:
        extra = mapping(message, "extra")
        self._count(mapping(mapping(extra, "response"), "usage"))
        role = text(message, "role")
        if message.get("object") == "response":
            self._response(message)
        elif role == "assistant":
            self._chat(message, extra)
        elif role == "tool" or message.get("type") == "function_call_output":
            name = "tool_call_id" if role == "tool" else "call_id"
            said = as_text(message.get("content") if role == "tool" else message.get("output"))
            self._trace.result(identifier(message, name), _status(extra), text(extra, "raw_output") or said)
        elif "returncode" in extra and self._unnamed:
            self._trace.result(self._unnamed.popleft(), _status(extra), text(extra, "raw_output"))
        else:
            self._trace.message("system" if role == "exit" else role or "user", as_text(message.get("content")))

    def _chat(self, message: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        self._trace.message("thought", text(message, "reasoning_content"))
        self._say(as_text(message.get("content")))
        calls = objects(message, "tool_calls")
        for call in calls:
            function = mapping(call, "function")
            self._trace.call(identifier(call, "id"), text(function, "name"), as_arguments(function.get("arguments")))
        self._unnamed.clear()
        for action in objects(extra, "actions") if not calls else []:
            self._made += 1
            place = f"action {self._made}"
            self._trace.call(place, _TOOL, {"command": text(action, "command")})
            self._unnamed.append(place)

    def _response(self, message: Mapping[str, Any]) -> None:
        self._count(mapping(message, "usage"))
        for item in objects(message, "output"):
            match item.get("type"):
                case "message":
                    self._say("".join(text(block, "text") for block in objects(item, "content")))
                case "reasoning":
                    self._trace.message("thought", "\n".join(text(one, "text") for one in objects(item, "summary")))
                case "function_call":
                    self._trace.call(
                        identifier(item, "call_id"), text(item, "name"), as_arguments(item.get("arguments"))
                    )
                case kind:
                    self._trace.skip(f"item of an unknown type in an answer: {str(kind)[:40]!a}")

    def _say(self, said: str) -> None:
        self._trace.message("assistant", said)
        self._trace.final_output = said or self._trace.final_output

    def _count(self, usage: Mapping[str, Any]) -> None:
        for counted, names in (
            (self._read, ("prompt_tokens", "input_tokens")),
            (self._written, ("completion_tokens", "output_tokens")),
        ):
            found = [number for name in names if (number := token_count(usage, name)) is not None]
            counted.extend(found[:1])

    def finish(self) -> None:
        """The usage of all answers together."""
        self._trace.usage = Usage(
            sum(self._read) if self._read else None, sum(self._written) if self._written else None, self._cost
        )


def _status(extra: Mapping[str, Any]) -> CallStatus | None:
    if text(extra, "exception_info") == _NOT_EXECUTED:
        return None
    return "ok" if extra.get("returncode") == 0 else "error"
