"""What an agent that is a service answered: its output, its tool calls and the name of its conversation.

Everything in it is data of a hostile author. An answer is one document of JSON, a stream of events (SSE), a document of
JSON in each line (NDJSON), or plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from keystone_action.agents.result import MalformedResult, read_json, read_tool_calls
from keystone_action.evidence.requests import Missing, descend, parse_path
from keystone_action.evidence.trace_readers.builder import json_kind

if TYPE_CHECKING:
    from keystone_action.sandbox.http_client import HttpResponse
    from keystone_action.spec.models.agents import HttpAgent

_MOST_EVENTS = 1_000_000
_SHOWN = 300
_LINE = re.compile(r"\r\n|\r|\n")
_BREAKS_A_HEADER = re.compile(r"[\r\n\0]")
_EVENTS = "text/event-stream"
_LINES = re.compile(r"application/(?:x-)?(?:ndjson|jsonl|json-?lines|json-seq)|application/stream\+json")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    output: str = ""
    problem: str = ""
    """Why the agent failed: a sentence without its full stop; empty when it did not."""
    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    calls_problem: str = ""
    """Why the tool calls that were asked for can't be had."""
    conversation: str = ""
    """By what name the agent knows it; empty where it names none."""


def read_http_answer(response: HttpResponse, agent: HttpAgent) -> HttpAnswer:
    """Blocks for a while where it is long."""
    if not 200 <= response.status < 300:
        return HttpAnswer(problem=_refusal(response))
    answer = HttpAnswer(response.text() if agent.output_path is None else "")
    if agent.output_path is None and agent.tool_calls_path is None and agent.conversation_path is None:
        return answer
    try:
        documents = list(_documents(response, agent.output_path))
    except MalformedResult as malformed:
        return replace(answer, problem=f"the agent's answer can't be read: {malformed}")
    if agent.output_path is not None:
        answer = _with_output(answer, documents, agent.output_path)
    if agent.tool_calls_path is not None and not answer.problem:
        answer = _with_calls(answer, documents, agent.tool_calls_path)
    if agent.conversation_path is not None:
        named = (_text(value) for value in _found(documents, agent.conversation_path))
        name = next((one for one in named if one), "")
        if _BREAKS_A_HEADER.search(name):
            what = f"the name of the conversation at {agent.conversation_path} (agent.conversation_path)"
            return replace(answer, problem=answer.problem or f"{what} of the agent's answer has a line break or a NUL")
        answer = replace(answer, conversation=name)
    return answer


def _refusal(response: HttpResponse) -> str:
    said = " ".join(response.text().split())[:_SHOWN]
    if 300 <= response.status < 400 and "location" in response.headers:
        target = response.headers["location"][:_SHOWN]
        return f"the agent answered {response.status}, a redirect to {target!r}, which is not followed"
    return f"the agent answered {response.status}" + (f": {said}" if said else "")


def _documents(response: HttpResponse, path: str | None) -> Iterator[Any]:
    """The documents of JSON in an answer, in order. path: of the output. Raises MalformedResult, also for a stream one
    of whose documents has an `error` in place of output."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _EVENTS:
        for document in _events(response.text()):
            yield _no_error(document, path)
    elif _LINES.fullmatch(kind):
        lines = [line.strip("\x1e \t") for line in _LINE.split(response.text())]
        _bound(len(lines))
        yield from (_no_error(read_json(line.encode()), path) for line in lines if line)
    else:
        yield read_json(response.text().encode())


def _events(text: str) -> Iterator[Any]:
    """The data of events that are JSON. Raises MalformedResult for one that reports an error."""
    count, name, data = 0, "", list[str]()
    for line in (*_LINE.split(text.removeprefix("\ufeff")), ""):
        field, _, value = line.partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
        elif field == "event":
            name = value.strip()
        elif not line and data:
            count += 1
            _bound(count)
            joined = "\n".join(data)
            if name == "error":
                raise MalformedResult(f"its stream reports an error: {' '.join(joined.split())[:_SHOWN]}")
            name, data = "", []
            try:
                yield read_json(joined.encode())
            except MalformedResult:
                continue  # as `data: [DONE]` at the end


def _no_error(document: Any, path: str | None) -> Any:
    error = document.get("error") if isinstance(document, dict) else None
    if error is None or (path is not None and next(_found([document], path), None) is not None):
        return document
    said = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    raise MalformedResult(f"its stream reports an error: {' '.join(said.split())[:_SHOWN]}")


def _bound(count: int) -> None:
    if count > _MOST_EVENTS:
        raise MalformedResult(f"it has more than {_MOST_EVENTS:,} events")


def _found(documents: list[Any], path: str) -> Iterator[Any]:
    """What documents have at a path, null left out."""
    steps = parse_path(path)
    found = (descend(document, steps, "the answer") for document in documents)
    return (value for value in found if value is not None and not isinstance(value, Missing))


def _with_output(answer: HttpAnswer, documents: list[Any], path: str) -> HttpAnswer:
    found = list(_found(documents, path))
    if not found:
        return replace(answer, problem=f"the agent's answer has nothing at {path} (agent.output_path)")
    wrong = next((value for value in found if not isinstance(value, str)), None)
    if wrong is not None:
        problem = f"expected text at {path} (agent.output_path) of the agent's answer, found {json_kind(wrong)}"
        return replace(answer, problem=problem)
    return replace(answer, output="".join(found))


def _with_calls(answer: HttpAnswer, documents: list[Any], path: str) -> HttpAnswer:
    steps = parse_path(path)
    found = [descend(document, steps, "the answer") for document in documents]
    there = [value for value in found if not isinstance(value, Missing)]
    what = f"the agent's tool calls at {path} (agent.tool_calls_path)"
    if not there:
        return replace(answer, calls_problem=f"{what}: there is nothing")
    try:
        calls = [call for value in there for call in read_tool_calls(_with_arguments(value)) or ()]
    except MalformedResult as malformed:
        return replace(answer, calls_problem=f"{what}: {malformed}")
    return replace(answer, tool_calls=tuple(calls))


def _with_arguments(calls: Any) -> Any:
    """With arguments that are the text of a mapping as that mapping. Raises MalformedResult."""
    if not isinstance(calls, list):
        return calls
    found = []
    for call in calls:
        arguments = call.get("arguments") if isinstance(call, dict) else None
        found.append({**call, "arguments": read_json(arguments.encode())} if isinstance(arguments, str) else call)
    return found


def _text(value: Any) -> str:
    """A name that may be written as a number."""
    return value if isinstance(value, str) else str(value) if type(value) is int else ""
