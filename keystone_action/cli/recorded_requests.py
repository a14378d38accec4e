"""A recording as people read it: of each request what was new in it, and what was answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from keystone_action.gateway.recordings.recording import CONVERSATIONS, documents_of
from keystone_action.gateway.registry import provider_for
from keystone_action.report import words

if TYPE_CHECKING:
    from keystone_action.gateway.api import ModelApi
    from keystone_action.gateway.exchange import Answer
    from keystone_action.gateway.recordings.recording import Entry, Recording

_LONGEST = 2_000
"""Characters of one text that are shown."""
_SHORT = 200
"""Of a field that holds no text for people."""
_INSTRUCTIONS = ("system", "instructions")
"""How the names of fields begin that say how the model is to behave."""
_TEXTS = ("text", "content", "parts", "output")
"""Under which names messages and their blocks have what was said."""


def documents(recording: Recording) -> list[dict[str, Any]]:
    """What stands in the lines of its file."""
    return list(documents_of(recording.entries))


def lines(recording: Recording) -> Iterator[str]:
    """Not yet escaped."""
    pairs = zip(recording.entries, documents_of(recording.entries), strict=True)
    for number, (entry, document) in enumerate(pairs, 1):
        provider = _provider(entry)
        tools = "with tools" if entry.with_tools else "without tools"
        yield ""
        place = f"conversation {entry.conversation + 1} {tools}, turn {entry.turn + 1}"
        yield f"request {number:,} to {entry.model or 'no model'} ({provider.title}; {place})"
        yield from _asked(document, provider)
        yield f"  answered in {words.duration(entry.seconds)}" + ("" if entry.status == 200 else f" ({entry.status})")
        yield from _answered(entry, provider.whole(entry.answer))


def _provider(entry: Entry) -> ModelApi:
    return provider_for(entry.api if entry.api in ("anthropic", "gemini") else "openai", _reader(entry))


def _reader(entry: Entry) -> str:
    return "responses" if "input" in entry.request else "chat"


def _asked(document: Mapping[str, Any], provider: ModelApi) -> Iterator[str]:
    request: Mapping[str, Any] = document["request"]
    for field, value in request.items():
        if field == "tools":
            yield f"  tools: {', '.join(provider.asked(request, '').tools) or 'none'}"
        elif field in CONVERSATIONS and isinstance(value, list):
            for message in value:
                yield from _message(message)
        elif field != "model":
            yield from _field(field, value)
    if gone := document.get("without"):
        yield f"  no longer: {', '.join(gone)}"


def _message(message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield from _field("message", message)
        return
    name = str(message.get("role") or message.get("type") or "message")
    rest = {field: value for field, value in message.items() if field not in ("role", *_TEXTS)}
    said = [part for field in _TEXTS if field in message for part in _parts(message[field])]
    yield from _field(name, "\n".join(said))
    if rest.keys() - {"type"}:
        yield from _field(f"{name} with", rest)


def _parts(value: Any) -> Iterator[str]:
    """What was said, in texts; a block that is none, as JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict) and isinstance(value.get("text"), str):
        yield value["text"]
    elif isinstance(value, dict) and isinstance(inner := value.get("parts") or value.get("content"), str | list):
        yield from _parts(inner)
    else:
        yield _json(value)


def _field(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        texts = list(_parts(value)) if name.startswith(_INSTRUCTIONS) else [_cut(_json(value), _SHORT)]
        value = "\n".join(texts)
    first, *others = _cut(value if isinstance(value, str) else _json(value), _LONGEST).split("\n")
    yield f"  {name}: {first}".rstrip()
    yield from (f"    {line}" for line in others)


def _answered(entry: Entry, answer: Answer) -> Iterator[str]:
    if answer.problem:
        yield from _field("problem", answer.problem)
    if answer.thought:
        yield from _field("thought", answer.thought)
    if answer.text:
        yield from _field("said", answer.text)
    for call in answer.calls:
        yield from _field("called", f"{call.name} {_json(call.arguments)}")
    if not (answer.problem or answer.thought or answer.text or answer.calls):
        yield from _field("answer", entry.answer)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… and {len(text) - limit:,} characters more"
