"""The events of `codex exec --json` (seen: 0.169.0)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.trace import Usage
from keystone_action.evidence.trace_readers.builder import (
    CallStatus,
    TraceBuilder,
    TraceReader,
    as_arguments,
    as_text,
    identifier,
    mapping,
    text,
    token_count,
)

_STATUS: dict[str, CallStatus] = {"completed": "ok", "failed": "error", "declined": "error"}
_SHELLS = ("sh", "bash", "zsh", "dash")


class CodexReader(TraceReader):
    """Tokens are those of `turn.completed`, which counts the whole thread; there is no cost. An `error` item may be a
    mere warning: what failed says `turn.failed`."""

    usage_of_session = True

    def __init__(self, builder: TraceBuilder) -> None:
        self._trace = builder
        self._thread = ""
        self._threads: dict[str, Usage] = {}

    def event(self, event: Mapping[str, Any]) -> bool:
        """Take one; False when its type, or its item's, is unknown. Raises MalformedTrace."""
        match event.get("type"):
            case "thread.started":
                self._thread = identifier(event, "thread_id")
                self._trace.forget_open()
            case "turn.started":
                self._trace.stop_reason = self._trace.failure = ""
            case "turn.completed":
                self._read_usage(mapping(event, "usage"))
            case "turn.failed":
                said = text(mapping(event, "error"), "message")
                self._trace.stop_reason, self._trace.failure = "failed", said or "the turn failed"
                self._trace.message("system", said)
            case "error":
                self._trace.message("system", text(event, "message"))
            case "item.started" | "item.updated" | "item.completed" as kind:
                return self._item(mapping(event, "item"), ended=kind == "item.completed")
            case _:
                return False
        return True

    def _read_usage(self, usage: Mapping[str, Any]) -> None:
        self._trace.stop_reason = "completed"
        self._trace.room(self._threads, "threads")
        self._threads[self._thread] = Usage(token_count(usage, "input_tokens"), token_count(usage, "output_tokens"))

    def _item(self, item: Mapping[str, Any], *, ended: bool) -> bool:
        match item.get("type"):
            case "command_execution":
                self._call(item, "command_execution", {"command": _unwrap_shell(text(item, "command"))}, ended=ended)
            case "mcp_tool_call":
                name = f"{text(item, 'server')}.{text(item, 'tool')}"
                self._call(item, name, as_arguments(item.get("arguments")), ended=ended, name=text(item, "tool"))
            case "file_change":
                self._call(item, "file_change", {"changes": item.get("changes")}, ended=ended)
            case "web_search":
                self._call(item, "web_search", {"query": text(item, "query")}, ended=ended)
            case "agent_message" | "reasoning" | "error" as kind:
                self._read_message(kind, text(item, "text") or text(item, "message"), ended=ended)
            case kind:
                return kind == "todo_list"
        return True

    def _call(self, item: Mapping[str, Any], raw_name: str, arguments: Any, *, ended: bool, name: str = "") -> None:
        call_id, code, error = identifier(item, "id"), item.get("exit_code"), item.get("error")
        if self._trace.is_seen(call_id, raw_name, ended=False):
            self._trace.update(call_id, arguments)
        else:
            self._trace.call(call_id, raw_name, arguments, name=name)
        if not ended:
            return
        status = "error" if error or (isinstance(code, int) and code) else _STATUS.get(text(item, "status"), "ok")
        output = text(item, "aggregated_output") or as_text(error) or as_text(item.get("result"))
        self._trace.result(call_id, status, output)

    def _read_message(self, kind: str, said: str, *, ended: bool) -> None:
        if not ended:
            return
        role = {"agent_message": "assistant", "reasoning": "thought"}.get(kind, "system")
        self._trace.message(role, said)
        if role == "assistant":
            self._trace.final_output = said

    def finish(self) -> None:
        """The usage of all threads together."""
        read = [one.input_tokens for one in self._threads.values() if one.input_tokens is not None]
        written = [one.output_tokens for one in self._threads.values() if one.output_tokens is not None]
        self._trace.usage = Usage(sum(read) if read else None, sum(written) if written else None)


def _unwrap_shell(command: str) -> str:
    """What a shell was told to run: Codex writes `/usr/bin/bash -lc '…'`."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if len(words) == 3 and words[0].rpartition("/")[2] in _SHELLS and words[1] in ("-c", "-lc"):
        return words[2]
    return command
