"""Google's Gemini API: its requests, its answers, whole or as a stream, and streams made anew."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from keystone_action.evidence.trace_readers.builder import NAME_LIMIT, as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.api import AnswerReader, ModelApi, Rendered
from keystone_action.gateway.api_values import (
    Fields,
    Items,
    Pieces,
    append,
    join_fields,
    names_of,
    present,
    rendered_document,
    rendered_stream,
    replace,
    settled,
    split,
    whole_count,
    without,
)
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, Tokens, ToolResult
from keystone_action.gateway.request_body import reaches_out
from keystone_action.pricing import Extras

_TOLD_AGAIN = {
    *("groundingMetadata", "urlContextMetadata", "citationMetadata"),
    *("grounding_metadata", "url_context_metadata", "citation_metadata"),
}
"""Of a candidate: what a piece of a stream may tell again, or add to."""
_CHANCES = {"logprobsResult", "logprobs_result"}
_PLAIN = {"text", "thought"}
"""A part with nothing but these goes on in the next one."""
_MODEL = re.compile(r"/models/([^/:]+):(\w+)\Z")
_CLIENT_TOOLS = {"functionDeclarations", "function_declarations", "computerUse", "computer_use"}
"""Every other kind of tool is run by the provider."""
_ARGUMENT = re.compile(r"\$\.(\w+)")
_VALUES = tuple(name for kind in ("string", "number", "bool") for name in (f"{kind}Value", f"{kind}_value"))
_STATES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND"}


class Gemini(ModelApi):
    """`POST …/models/M:generateContent` and `:streamGenerateContent`. Calls have ids only in newer versions; without
    one, a result belongs to a call by its tool's name."""

    name = "gemini"
    title = "Gemini"
    conversation_field = "contents"

    def asked(self, body: Mapping[str, Any], path: str) -> Asked:
        found = _MODEL.search(path)
        model, method = found.groups() if found else ("", "")
        tools, contents = objects(body, "tools"), objects(body, "contents")
        declared = [one for tool in tools for name in _CLIENT_TOOLS for one in objects(tool, name)]
        parts = [part for content in contents for part in objects(content, "parts")]
        responses = [response for part in parts if (response := _either(part, "functionResponse"))]
        return Asked(
            model=model[:NAME_LIMIT],
            streams=method == "streamGenerateContent",
            tools=names_of(declared),
            run_by_provider=(
                *(name[:NAME_LIMIT] for tool in tools for name in tool if name not in _CLIENT_TOOLS),
                *present(body, "cachedContent", "cached_content"),
                *reaches_out(body, model, "contents", "systemInstruction", "system_instruction"),
            ),
            results=tuple(_result(response) for response in responses),
            conversation=len(contents),
        )

    def whole(self, body: Any) -> Answer:
        """An answer in one piece: an object, or the array of events that a stream without `alt=sse` is."""
        reader = _Reader()
        for event in body if isinstance(body, list) else [body]:
            if isinstance(event, dict):
                reader.event(event)
        return reader.answer()

    def reader(self) -> AnswerReader:
        return _Reader()

    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:  # noqa: ARG002 - the URL says it
        if not path.endswith(":streamGenerateContent"):
            return rendered_document(document)
        events = generation_events(document)
        is_sse = ("alt", "sse") in parse_qsl(query)
        return rendered_stream(events) if is_sse else rendered_document([*events])

    def refusal(self, status: int, sentence: str) -> dict[str, Any]:
        return {"error": {"code": status, "message": sentence, "status": _STATES.get(status, "FAILED_PRECONDITION")}}

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"totalTokens": tokens}

    def one_model(self, name: str) -> dict[str, Any]:
        methods = ["generateContent", "streamGenerateContent", "countTokens"]
        return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}

    def models(self, names: Sequence[str]) -> dict[str, Any]:
        return {"models": [self.one_model(name) for name in names]}


class _Reader(AnswerReader):
    def __init__(self) -> None:
        self._model = self._stop = self._problem = ""
        self._text, self._thought = Pieces(), Pieces()
        self._calls: list[_Call] = []
        self._looked_up: dict[tuple[str, str, str], ModelCall] = {}
        self._usage: dict[str, Any] = {}
        self._response = Fields()
        self._candidates: dict[int, _Candidate] = {}

    def event(self, data: Mapping[str, Any]) -> None:
        self._model = text(data, "modelVersion") or self._model
        self._usage.update(mapping(data, "usageMetadata"))
        if self.keeps_document:
            self._keep(data)
        if "error" in data:
            self._problem = text(mapping(data, "error"), "message") or "an error without a message"
        self._stop = text(mapping(data, "promptFeedback"), "blockReason") or self._stop
        for candidate in objects(data, "candidates"):
            self._stop = text(candidate, "finishReason") or self._stop
            for part in objects(mapping(candidate, "content"), "parts"):
                self._part(part)
            grounds, pages = _either(candidate, "groundingMetadata"), _either(candidate, "urlContextMetadata")
            for query in _list(grounds, "webSearchQueries"):
                self._looks_up("web_search", "query", query)
            for page in [*objects(pages, "urlMetadata"), *objects(pages, "url_metadata")]:
                self._looks_up("web_fetch", "url", page.get("retrievedUrl") or page.get("retrieved_url"))

    def _keep(self, data: Mapping[str, Any]) -> None:
        replace(self._response, {k: v for k, v in data.items() if k not in {"candidates", "usageMetadata"}})
        for candidate in objects(data, "candidates"):
            index = candidate.get("index")
            place = index if isinstance(index, int) else 0
            self._candidates.setdefault(place, _Candidate()).add(candidate)

    def _part(self, part: Mapping[str, Any]) -> None:
        (self._thought if part.get("thought") is True else self._text).add(text(part, "text"))
        told = [part.get(name) for name in ("functionCall", "function_call")]
        for place, call in enumerate(told):
            if isinstance(call, dict) and call and call not in told[:place]:
                self._call(call)
        if ran := _either(part, "toolCall"):
            kind = text(ran, "toolType") or text(ran, "tool_type")
            self._calls.append(_Call("", kind.lower(), dict(mapping(ran, "args")), by_provider=True))
        if code := _either(part, "executableCode"):
            self._calls.append(_Call("", "code_execution", dict(code), by_provider=True))

    def _call(self, told: Mapping[str, Any]) -> None:
        """Vertex can tell the arguments of a call piece by piece."""
        goes_on = any(told.get(name) is True for name in ("willContinue", "will_continue"))
        name, arguments = text(told, "name"), told.get("args")
        before = self._calls[-1] if self._calls else None
        if before is None or not before.is_open or name or text(told, "id") not in ("", before.id):
            before = _Call(text(told, "id"), name, as_arguments({} if arguments is None else arguments))
            self._calls.append(before)
        elif isinstance(arguments, dict) and arguments and before.arguments:
            before = _Call(before.id, before.name, dict(arguments))  # they begin again
            self._calls.append(before)
        elif isinstance(arguments, dict) and arguments:
            before.arguments = dict(arguments)
        before.add([*objects(told, "partialArgs"), *objects(told, "partial_args")])
        before.is_open = goes_on

    def _looks_up(self, name: str, argument: str, value: Any) -> None:
        """Each piece of a stream may tell it again."""
        if isinstance(value, str):
            self._looked_up[name, argument, value] = ModelCall("", name, {argument: value}, by_provider=True)

    def answer(self) -> Answer:
        cached = whole_count(self._usage, "cachedContentTokenCount")
        spoken, thought = (whole_count(self._usage, f"{name}TokenCount") for name in ("candidates", "thoughts"))
        prompt = whole_count(self._usage, "promptTokenCount")
        of_tools = whole_count(self._usage, "toolUsePromptTokenCount")
        return Answer(
            model=self._model,
            text=self._text.text,
            thought=self._thought.text,
            calls=(*self._looked_up.values(), *(call.made() for call in self._calls)),
            tokens=Tokens(
                uncached=None if prompt is None else (without(prompt, cached) or 0) + (of_tools or 0),
                cache_read=cached,
                output=None if spoken is None and thought is None else (spoken or 0) + (thought or 0),
            ),
            stop=self._stop,
            problem=self._problem,
            finished=bool(self._stop) and not self._problem,
            extras=Extras(
                tier=text(self._usage, "serviceTier").lower(),
                searches=sum(name == "web_search" for name, _, _ in self._looked_up),
            ),
        )

    def document(self) -> dict[str, Any]:
        candidates = [candidate.document() for candidate in self._candidates.values()]
        found = {**self._response, **({"candidates": candidates} if candidates else {})}
        return {**found, "usageMetadata": {**self._usage}} if self._usage else found


@dataclass
class _Call:
    """A call as it comes, maybe in pieces."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    """None where they can't be read."""
    by_provider: bool = False
    is_open: bool = False
    """Whether more of the arguments is to come."""

    def add(self, pieces: list[Mapping[str, Any]]) -> None:
        """More of its arguments. Those within other ones are not put together: then they can't be read."""
        for piece in pieces:
            found = _ARGUMENT.fullmatch(text(piece, "jsonPath") or text(piece, "json_path"))
            value = next((piece[name] for name in _VALUES if name in piece), None)
            if found is None or self.arguments is None:
                self.arguments = None
                return
            known = self.arguments.get(found[1])
            joined = known + value if isinstance(known, str) and isinstance(value, str) else value
            self.arguments = {**self.arguments, found[1]: joined}

    def made(self) -> ModelCall:
        return ModelCall(self.id, self.name, self.arguments, self.by_provider)


def _either(part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Google's JSON has both spellings of a name."""
    return mapping(part, name) or mapping(part, _snake(name))


def _list(part: Mapping[str, Any], name: str) -> list[Any]:
    found = part.get(name) or part.get(_snake(name))
    return found if isinstance(found, list) else []


def _snake(name: str) -> str:
    return re.sub("([A-Z])", lambda found: f"_{found.group().lower()}", name)


def _result(response: Mapping[str, Any]) -> ToolResult:
    told = response.get("response")
    failed = isinstance(told, dict) and "error" in told
    output = told.get("output", told) if isinstance(told, dict) else told
    return ToolResult(text(response, "id"), as_text(output), "error" if failed else None, text(response, "name"))


class _Candidate:
    """A candidate as a document has it."""

    def __init__(self) -> None:
        self._fields, self._content = Fields(), Fields()
        self._told: dict[str, _Told] = {}

    def add(self, candidate: Mapping[str, Any]) -> None:
        for name, value in candidate.items():
            if name in _TOLD_AGAIN and isinstance(value, dict):
                self._told.setdefault(name, _Told()).add(value)
            elif name in _CHANCES and isinstance(value, dict):
                join_fields(self._fields, {name: value})
            elif name != "content" or not isinstance(value, dict):
                replace(self._fields, {name: value})
            else:
                replace(self._content, {k: v for k, v in value.items() if k != "parts" or not isinstance(v, list)})
                self._parts(value.get("parts"))

    def _parts(self, parts: Any) -> None:
        if not isinstance(parts, list):
            return
        known = self._content.setdefault("parts", Items())
        if not isinstance(known, Items):
            return
        for part in parts:
            last = known[-1] if known else None
            if _is_plain(part) and isinstance(last, Fields) and last.get("thought") == part.get("thought"):
                append(last, "text", part["text"])
            else:
                known.append(Fields(part) if _is_plain(part) else part)

    def document(self) -> dict[str, Any]:
        told = {name: one.document() for name, one in self._told.items()}
        content = {"content": self._content} if self._content else {}
        found: dict[str, Any] = settled(Fields({**content, **self._fields, **told}))
        return found


def _is_plain(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str) and set(part) <= _PLAIN


class _Told:
    """An object whose lists hold each item once, however often it is told."""

    def __init__(self) -> None:
        self._fields = Fields()
        self._known: dict[str, set[str]] = {}

    def add(self, told: Mapping[str, Any]) -> None:
        for name, value in told.items():
            if not isinstance(value, list):
                replace(self._fields, {name: value})
                continue
            known = self._known.setdefault(name, set())
            items = self._fields.get(name)
            if not isinstance(items, Items):
                items = self._fields[name] = Items()
            new = [(key, item) for item in value if (key := _key(item)) not in known]
            items += [item for _, item in new]
            known.update(key for key, _ in new)

    def document(self) -> Fields:
        return self._fields


def _key(item: Any) -> str:
    try:
        return json.dumps(item, sort_keys=True)
    except RecursionError:
        return str(id(item))  # nested too deep to be compared


def generation_events(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The answer as its stream tells it: piece by piece what is said, and with the last piece all the rest."""
    head = {name: document[name] for name in ("modelVersion", "responseId") if name in document}
    found = document.get("candidates")
    pieces = [piece for candidate in found for piece in _pieces(candidate)] if isinstance(found, list) else []
    for piece in pieces[:-1]:
        yield {"candidates": [piece], **head}
    yield {**document, "candidates": pieces[-1:]} if pieces else dict(document)


def _pieces(candidate: Any) -> list[Any]:
    if not isinstance(candidate, dict):
        return [candidate]
    content = mapping(candidate, "content")
    told = content.get("parts")
    parts = [piece for part in told for piece in _pieces_of_part(part)] if isinstance(told, list) else []
    place = {"index": candidate["index"]} if "index" in candidate else {}
    began = [{"content": {**content, "parts": [part]}, **place} for part in parts[:-1]]
    return [*began, {**candidate, "content": {**content, "parts": parts[-1:]}} if parts else candidate]


def _pieces_of_part(part: Any) -> list[Any]:
    return [{**part, "text": piece} for piece in split(text(part, "text"))] if _is_plain(part) else [part]
