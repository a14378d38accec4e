"""What the readers of all formats share: their base class, the builder that they write a trace into, and values of a
transcript.

The builder joins calls with their results, keeps memory bounded and counts what was not understood. Every value of a
transcript is hostile: the functions for values bring it into a form that can be counted with, kept and written.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from keystone_action.evidence.audit import shown_time
from keystone_action.evidence.trace import TOOL_KINDS, Message, Permission, ToolCall, ToolKind, Trace, Usage
from keystone_action.spec.limits import MOST_COUNTED

NAME_LIMIT = 200
"""Characters of a name or of an identifier that are kept."""
_DEPTH = 64
_EARLIEST = datetime(2001, 9, 9, tzinfo=UTC)


class MalformedTrace(Exception):  # noqa: N818 - an outcome: `Trace.problem`
    """The transcript can't be counted with; the message says what was expected and what was found."""


def amount(source: Mapping[str, Any], name: str) -> float | None:
    """A number under `name`, None where there is none or null. Raises MalformedTrace for anything that is not a finite
    number of at least 0 (contract, 5.3)."""
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedTrace(f"expected a number under `{name}`, found {json_kind(value)}")
    if not 0 <= value < MOST_COUNTED:  # NaN and infinity are not, either
        raise MalformedTrace(f"expected a finite number of at least 0 under `{name}`, found {value!r:.40}")
    return value


def token_count(source: Mapping[str, Any], name: str) -> int | None:
    """A whole number under `name`, else as `amount`."""
    value = amount(source, name)
    if value is not None and value != int(value):
        raise MalformedTrace(f"expected a whole number under `{name}`, found {value!r:.40}")
    return None if value is None else int(value)


def mapping(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under `name`; an empty one where there is none."""
    value = source.get(name)
    return value if isinstance(value, dict) else {}


def event_time(event: Mapping[str, Any]) -> str:
    """When an event happened by its `ts` or `timestamp`, in UTC as evidence has it: text of ISO 8601 with a zone, or
    seconds since 1970. Empty for anything else, and for a time before 2001."""
    told = event.get("ts", event.get("timestamp"))
    try:
        found = datetime.fromisoformat(told) if isinstance(told, str) else datetime.fromtimestamp(told, UTC)
        if found.tzinfo is not None and found >= _EARLIEST:
            return shown_time(found.astimezone(UTC))
    except (TypeError, ValueError, OverflowError, OSError):
        pass
    return ""


def objects(source: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of the list under `name`."""
    value = source.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(source: Mapping[str, Any], name: str) -> str:
    """The text under `name`; an empty one where there is none."""
    value = source.get(name)
    return value if isinstance(value, str) else ""


def identifier(source: Mapping[str, Any], name: str) -> str:
    """The text under `name`, when it joins a call with its result; a very long one is replaced by its digest, which
    tells it apart too."""
    value = text(source, name)
    if len(value) > NAME_LIMIT:
        return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()
    return kept_text(value, NAME_LIMIT)


def as_text(value: Any) -> str:
    """What a tool gave back: a text as it is, the texts of content blocks one after the other, else JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and value and all(isinstance(block, dict) and "type" in block for block in value):
        return "\n".join(text(block, "text") or f"[{text(block, 'type')}]" for block in value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "[nested too deep]"


def as_arguments(value: Any) -> Mapping[str, Any] | None:
    """Arguments as an object, also where they were sent as JSON text; None when they could not be read."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def bound_value(value: Any, limit: int, depth: int = _DEPTH) -> Any:
    """The value with every text at most `limit` characters long (an ellipsis says the cut), fit for strict JSON and
    UTF-8. Raises MalformedTrace when it is nested deeper than anything sane."""
    if isinstance(value, str):
        return kept_text(value, limit)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise MalformedTrace(f"the arguments of a tool call are nested deeper than {_DEPTH} levels")
    if isinstance(value, dict):
        return {kept_text(key, limit): bound_value(item, limit, depth - 1) for key, item in value.items()}
    return [bound_value(item, limit, depth - 1) for item in value]


def kept_text(value: str, limit: int) -> str:
    """At most `limit` characters, the cut said by an ellipsis; lone surrogates replaced."""
    if len(value) > limit:
        value = value[:limit] + "…"
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def size_of(value: Any) -> int:
    """How many characters of text a JSON value holds, names and a little for each entry included."""
    if isinstance(value, str):
        return len(value) + 8
    if isinstance(value, dict):
        return 8 + sum(len(key) + 8 + size_of(item) for key, item in value.items())
    return 8 + sum(size_of(item) for item in value) if isinstance(value, list) else 8


def json_kind(value: Any) -> str:
    """What a JSON value is, in words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return next((words for kind, words in kinds.items() if isinstance(value, kind)), "a number")


ENTRIES_LIMIT = 100_000
"""Calls, messages, permissions or requests to a model in one trace; with more it is refused, never miscounted."""
TEXT_LIMIT = 16 << 10
"""Characters kept of one result, message or final output."""
ARGUMENT_LIMIT = 128 << 10
"""Characters kept of each text in the arguments of a call: as long as Linux lets one argument of a command be, so no
command that ran is cut."""
TEXTS_LIMIT = 8 << 20
ARGUMENTS_LIMIT = 16 << 20
"""Characters kept of all results and messages, and of all arguments, of one trace."""
CUT_ARGUMENTS = "tool call whose arguments were kept only in part"
"""Stands among what was not understood."""
_LITTLE = 256
"""Characters of a text or of a call's arguments that are kept even when the limit for all of them is reached."""
_UNKNOWN_NAMES = 20
_UNKNOWN_LENGTH = 60

CallStatus = Literal["ok", "error"]
_NAMES: dict[ToolKind, str] = {
    "read": "Read NotebookRead ReadFile read_file read_many_files view view_image zoom_image cat open_file "
    "get_file_contents",
    "write": "Write Edit MultiEdit NotebookEdit write_file edit_file create_file delete_file move_file replace "
    "str_replace str_replace_editor str_replace_based_edit_tool insert apply_patch file_change delete move "
    "notebook_edit",
    "execute": "Bash BashOutput KillShell KillBash shell local_shell exec exec_command command_execution "
    "run_shell_command run_command run_terminal_cmd python code_execution code_interpreter",
    "search": "Glob Grep LS search_files search_file_content list_dir list_directory list_files find ripgrep "
    "grep_search",
    "fetch": "WebFetch WebSearch web_fetch web_search google_web_search http_request browser",
    "other": "think",
}
_KINDS = {name.lower(): kind for kind, names in _NAMES.items() for name in (*names.split(), kind)}
_KINDS |= {name.replace("_", ""): kind for name, kind in _KINDS.items()}


@dataclass(slots=True)
class _Call:
    id: str
    raw_name: str
    name: str
    told_kind: Any
    arguments: Mapping[str, Any] | None
    status: CallStatus | None = None
    result: str = ""
    ended: bool = False
    ts: str = ""
    ended_at: str = ""

    def freeze(self) -> ToolCall:
        kind = tool_kind(self.raw_name, self.told_kind)
        if kind == "other":
            kind = tool_kind(self.name, self.told_kind)
        known = self.arguments, self.status, self.result, self.ts, self.ended_at
        return ToolCall(self.id, self.raw_name, self.name, kind, *known)


@dataclass(slots=True)
class _Asked:
    tool_call_id: str
    allowed: bool | None = None


@dataclass
class TraceBuilder:
    """The trace while it is read. Readers set the first eight fields, and give identifiers as `identifier` returns
    them."""

    source: str
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = ""
    final_output: str = ""
    failure: str = ""
    calls_known: bool = True
    """Whether this source says which tools were called."""
    permissions_known: bool = False
    """Whether it says which permissions were asked for."""
    ts: str = ""
    """When the thing that is added next happened; empty where that is not known."""
    understood: int = 0
    """How many events were understood."""
    _timeline: list[_Call | Message] = field(default_factory=list)
    _open: dict[str, _Call] = field(default_factory=dict)
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _skipped: Counter[str] = field(default_factory=Counter)
    _unknown: set[str] = field(default_factory=set)
    _texts: int = 0
    _arguments: int = 0
    notes: list[str] = field(default_factory=list)

    def skip_line(self, why: str) -> None:
        """Count a line that could not be read, or only with losses."""
        self._skipped[f"line {why}"] += 1

    def skip_event(self, kind: Any) -> None:
        """Count an event that this format is not known to have. kind: as it names itself."""
        name = json.dumps(kind)[:_UNKNOWN_LENGTH] if isinstance(kind, str) else "none"
        if name in self._unknown or len(self._unknown) < _UNKNOWN_NAMES:
            self._unknown.add(name)
            self._skipped[f"event of an unknown type: {name}"] += 1
        else:
            self._skipped["further event of an unknown type"] += 1

    def skip(self, what: str) -> None:
        """Count something else that was left out; what: in the singular."""
        self._skipped[what] += 1

    def room(self, entries: Sized, what: str) -> None:
        """Raise MalformedTrace when there are too many to count them in bounded memory."""
        if len(entries) >= ENTRIES_LIMIT:
            raise MalformedTrace(f"there are more than {ENTRIES_LIMIT:,} {what}")

    def message(self, role: str, text: str) -> None:
        """Somebody said something; nothing is not kept."""
        if text:
            self.room(self._timeline, "messages and tool calls")
            self._timeline.append(Message(kept_text(role, NAME_LIMIT), self._text(text), self.ts))

    def call(self, id: str, raw_name: str, arguments: Any, *, name: str = "", kind: Any = None) -> None:  # noqa: A002
        """A tool was called. One with an id that is open already is another call, too."""
        self.room(self._timeline, "messages and tool calls")
        if arguments is not None:
            arguments = self._bound(arguments)
        raw_name, name = kept_text(raw_name, NAME_LIMIT), kept_text(name or raw_name, NAME_LIMIT)
        call = _Call(id, raw_name, name, kind, arguments, ts=self.ts)
        self._timeline.append(call)
        self._open[call.id] = call

    def is_seen(self, id: str, raw_name: str, *, ended: bool) -> bool:  # noqa: A002
        """Whether the latest call with this id is one of this tool; ended: also when its result was seen."""
        known = self._open.get(id)
        return known is not None and known.raw_name == kept_text(raw_name, NAME_LIMIT) and (ended or not known.ended)

    def update(self, id: str, arguments: Any) -> None:  # noqa: A002
        """The latest call with this id, which was seen, has these arguments."""
        self._open[id].arguments = self._bound(arguments)

    def same_call(self, id: str, raw_name: str, arguments: Any) -> bool:  # noqa: A002
        """Whether this very call was seen already."""
        known = self._open.get(id)
        if known is None or known.raw_name != kept_text(raw_name, NAME_LIMIT):
            return False
        return bool(known.arguments == bound_value(arguments, ARGUMENT_LIMIT))

    def result(self, id: str, status: CallStatus | None, text: str) -> None:  # noqa: A002
        """What became of a call; a result of no call that was seen is counted as not understood."""
        call = self._open.get(id)
        if call is None:
            self._skipped["result of a tool call that was not seen"] += 1
            return
        call.status, call.ended, call.ended_at = status or call.status, True, self.ts
        if text:
            call.result = self._text(text)

    def forget_open(self) -> None:
        """Ids start anew from here."""
        self._open.clear()

    def ask(self, request_id: str, tool_call_id: str) -> None:
        """Permission was asked for."""
        self.room(self._asked, "requests for permission")
        request_id = request_id if request_id and request_id not in self._asked else f"{request_id}#{len(self._asked)}"
        self._asked[request_id] = _Asked(tool_call_id)

    def answer(self, request_id: str, allowed: bool | None) -> None:
        """Permission was given or denied; one that nobody asked for is counted as not understood."""
        asked = self._asked.get(request_id)
        if asked is None:
            self._skipped["answer to a request for permission that was not seen"] += 1
        elif asked.allowed is not False:  # a denial stays one
            asked.allowed = allowed

    def finish(self) -> Trace:
        """The trace as far as it was read."""
        timeline = tuple(entry.freeze() if isinstance(entry, _Call) else entry for entry in self._timeline)
        calls = tuple(entry for entry in timeline if isinstance(entry, ToolCall))
        asked = tuple(Permission(one.tool_call_id, one.allowed) for one in self._asked.values())
        return Trace(
            source=self.source,
            tool_calls=calls if self.calls_known else None,
            messages=tuple(entry for entry in timeline if isinstance(entry, Message)),
            permissions=asked if self.permissions_known else None,
            usage=self.usage,
            stop_reason=kept_text(self.stop_reason, TEXT_LIMIT),
            final_output=kept_text(self.final_output, TEXTS_LIMIT),
            not_understood=self.not_understood,
            timeline=timeline,
            failure=" ".join(kept_text(self.failure, TEXT_LIMIT).split()),
        )

    @property
    def not_understood(self) -> tuple[str, ...]:
        """Sentences, each with how often."""
        counted = (f"{number} × {what}" for what, number in self._skipped.items())
        return (*counted, *self.notes)

    def _text(self, text: str) -> str:
        limit = TEXT_LIMIT if self._texts < TEXTS_LIMIT else _LITTLE
        if len(text) > limit:
            self._skipped["result or message that was kept only in part"] += 1
        text = kept_text(text, limit)
        self._texts += len(text)
        return text

    def _bound(self, arguments: Any) -> Any:
        bounded = bound_value(arguments, ARGUMENT_LIMIT)
        size = size_of(bounded)
        if self._arguments + size > ARGUMENTS_LIMIT and size > _LITTLE:
            # Half of them could hide what a check looks for: none can't.
            self._skipped["tool call whose arguments were left out, there being too many"] += 1
            return None
        self._arguments += size
        if size < size_of(arguments):
            self._skipped[CUT_ARGUMENTS] += 1
        return bounded


class TraceReader(ABC):
    """One format: reads into the builder it was made with. Its file has the format's name; `reading.py` finds it
    there."""

    tells_answer: ClassVar[bool] = True
    """Whether such a transcript holds the agent's final answer."""
    usage_of_session: ClassVar[bool] = False
    """Whether the figures of a resumed session count what was used before."""
    has_ids_of_api: ClassVar[bool] = False
    """Whether its calls have the ids that the model's API gave them."""

    @abstractmethod
    def __init__(self, builder: TraceBuilder) -> None: ...

    @abstractmethod
    def event(self, event: Mapping[str, Any]) -> bool:
        """Take one event; False when it is not understood. Raises MalformedTrace."""

    @abstractmethod
    def finish(self) -> None:
        """Called once, after the last event. Raises MalformedTrace."""


def tool_kind(name: str, told: Any = None) -> ToolKind:
    """The kind: what the transcript tells, when it is one of ours or of the Agent Client Protocol's, else by the
    tool's name, in any case; `other` for names that nobody knows, those of MCP servers included."""
    if isinstance(told, str):
        for kind in TOOL_KINDS:
            if told == kind:
                return kind
        if told in _KINDS:
            return _KINDS[told]
    return _KINDS.get(name.lower(), "other")
