"""One model for what an agent did, whoever wrote it down: our readers, Touchstone's envelope, Keystone's events, the
transcripts of known agents, AgenticAssure's `AgentResult`.

Touchstone's words (research of its 0.1.1): message, thought, tool call, tool result, usage, permission, stop; the kinds
of tools read, write, execute, search, fetch, other. What was not observed is None, which is never the same as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ToolKind = Literal["read", "write", "execute", "search", "fetch", "other"]
TOOL_KINDS: tuple[ToolKind, ...] = ("read", "write", "execute", "search", "fetch", "other")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, joined with its result. raw_name: as the agent's protocol has it; name: the portable one, where the
    transcript tells it, else raw_name. arguments: None when they could not be read. status: None = no result was
    seen."""

    id: str
    raw_name: str
    name: str
    kind: ToolKind
    arguments: Mapping[str, Any] | None = None
    status: Literal["ok", "error"] | None = None
    result: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """What was said. role: `user`, `assistant`, `system` or another; `thought` for what the model only thought."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Permission:
    """A request to be allowed something. allowed: None = nobody answered."""

    tool_call_id: str
    allowed: bool | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the whole run. None = not observed. cost in US dollars."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def tokens(self) -> int | None:
        """Both together; None when neither was observed."""
        known = [one for one in (self.input_tokens, self.output_tokens) if one is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What an agent did, in order. source: the format it was read from.

    tool_calls, permissions: None = this source can't tell. not_understood: sentences, each with how often, for events
    and lines that were skipped. problem: why a trace that was declared is missing or malformed; the checks that need it
    fail then (spec.md 5.1), with this sentence. stop_reason: empty when none was seen. timeline: messages and calls in
    the order they came in, where the source tells it. Tokens and cost are the source's own figures: Claude Code's
    input_tokens leave out what its cache held, Codex's have it in.
    """

    source: str
    tool_calls: tuple[ToolCall, ...] | None = None
    messages: tuple[Message, ...] = ()
    permissions: tuple[Permission, ...] | None = None
    usage: Usage = Usage()
    stop_reason: str = ""
    final_output: str = ""
    not_understood: tuple[str, ...] = ()
    problem: str = ""
    timeline: tuple[Message | ToolCall, ...] = ()
