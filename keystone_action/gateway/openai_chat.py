"""OpenAI's Chat Completions API, which many other providers and routers have.

Answers of OpenAI's Chat Completions API, and of those who have one like it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.builder import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.api import AnswerReader, Assembler, OpenAiApi, Rendered
from keystone_action.gateway.api_values import (
    Fields,
    Items,
    Pieces,
    Text,
    append,
    begins_again,
    count,
    join,
    json_objects,
    model_of,
    names_of,
    openai_tokens,
    present,
    rendered_document,
    rendered_stream,
    replace,
    settled,
    split,
    text_of,
    typed_otherwise,
)
from keystone_action.gateway.api_values import written as written_as_json
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, ToolResult
from keystone_action.gateway.request_body import reaches_out
from keystone_action.pricing import Extras

_TEXTS = ("reasoning", "reasoning_content", "content", "refusal")
"""What a message says, in the order in which it is streamed."""
_NOT_KEPT = {"choices", "obfuscation"}
"""Of a chunk: what is put together elsewhere, and noise that hides the lengths of texts from who listens."""
_IN_EACH_CHUNK = ("id", "created", "model", "service_tier", "system_fingerprint")
_WRITTEN = {"function": "arguments", "custom": "input"}
"""Kinds of calls, and under which name of theirs stands what the model wrote."""


class CompletionAssembler(Assembler):
    """Puts a `chat.completion` together."""

    def __init__(self) -> None:
        self._completion = Fields()
        self._choices: dict[int, _Choice] = {}

    def event(self, data: Mapping[str, Any]) -> None:
        replace(self._completion, {name: value for name, value in data.items() if name not in _NOT_KEPT})
        for choice in objects(data, "choices"):
            number = _number(choice, 0)
            self._choices.setdefault(number, _Choice(number)).add(choice)

    def document(self) -> dict[str, Any]:
        choices = [choice.document() for choice in self._choices.values()]
        return {**self._completion, "object": "chat.completion", "choices": choices}


class _Choice:
    def __init__(self, number: int) -> None:
        self._fields = Fields(index=number)
        self._message = Fields()
        self._calls = ChatCalls()

    def add(self, choice: Mapping[str, Any]) -> None:
        replace(self._fields, {k: v for k, v in choice.items() if k not in {"index", "delta", "message", "logprobs"}})
        join(self._fields, {"logprobs": choice["logprobs"]} if "logprobs" in choice else {})
        # Some servers tell a choice of a stream as if it came in one piece.
        delta = mapping(choice, "delta") or mapping(choice, "message")
        calls = {"tool_calls", *(["function_call"] if delta.get("function_call") else [])}
        join(self._message, {name: value for name, value in delta.items() if name not in {"content", *calls}})
        self._say(delta.get("content"))
        self._calls.add(choice)

    def _say(self, content: Any) -> None:
        """Some providers write parts first, of what was thought, then plain text."""
        known = self._message.get("content")
        if isinstance(content, list) and isinstance(known, str | Text) and known:
            known = self._message["content"] = Items([{"type": "text", "text": settled(known)}])
        if isinstance(content, list) or not isinstance(known, Items):
            join(self._message, {"content": content})
        elif isinstance(content, str) and content:
            known.append({"type": "text", "text": content})

    def document(self) -> dict[str, Any]:
        message = Fields({"role": "assistant", "content": None, **self._message})
        calls, legacy = self._calls.documents()
        if calls:
            message["tool_calls"] = calls
        if legacy:
            message["function_call"] = legacy[0] if len(legacy) == 1 else legacy
        found: dict[str, Any] = settled(Fields({**self._fields, "message": message}))
        return found


LEGACY = "function_call"
"""Where a message has the older form of a call, which has no id and no index."""


class ChatCalls:
    """The calls of one choice, put apart as the most lenient client would do it: a new id, a new name or arguments that
    begin again are a further call, whatever the index says.

    is_unsure: two clients may make different calls of the same pieces.
    """

    def __init__(self) -> None:
        self._all: list[_Call] = []
        self._latest: dict[Any, _Call] = {}
        """By the index, else by the place in its list."""
        self._by_id: dict[str, _Call] = {}
        self._is_unsure = False
        self._fragments: list[tuple[str, _Call]] = []

    def add(self, choice: Mapping[str, Any]) -> None:
        """The next piece of the choice, as a `delta`; a `message` has its calls whole."""
        delta, message = mapping(choice, "delta"), mapping(choice, "message")
        touched: set[Any] = set()
        for place, told in enumerate(_listed(delta.get("tool_calls"))):
            self._piece(told, told.get("index"), place, touched)
        for told in _objects(delta.get(LEGACY)):
            self._piece({"function": told}, LEGACY, LEGACY, set())
        known = [settled(call.fields) for call in self._all] if message else []
        for told, slot in _whole_calls(message):
            if told in known:
                known.remove(told)  # pieces told it before
            else:
                self._begin(slot, told)

    @property
    def is_unsure(self) -> bool:
        """See the class."""
        return self._is_unsure or any(call.repeated or (call.begins_again and call.is_open()) for call in self._all)

    def documents(self) -> tuple[list[Any], list[Any]]:
        """The calls, and those in the older form, as a message has them."""
        calls = [one for call in self._all if not call.is_legacy for one in call.documents()]
        return calls, [one["function"] for call in self._all if call.is_legacy for one in call.documents()]

    def other_readings(self) -> list[tuple[str, Any]]:
        """Calls that another client may make of the same pieces, each with its name: of names that may have come in
        pieces, and of names that were repeated with no arguments after them."""
        places = ((name, self._all.index(call) + 1) for name, call in self._fragments)
        joined = [(name, self._all[place].documents()[0]) for name, place in places if place < len(self._all)]
        repeated = [
            (call.name, {"id": call.id, "function": {"name": call.name, "arguments": ""}})
            for call in self._all
            for _ in range(call.repeated)
        ]
        return joined + repeated

    def _piece(self, told: Mapping[str, Any], index: Any, place: Any, touched: set[Any]) -> None:
        has_index = isinstance(index, int | str) and not isinstance(index, bool)
        slot = ("index", index) if has_index else ("place", place)
        id_, name, written = text(told, "id"), *_made(told)
        call = self._continued(slot, id_, name, written, has_index=has_index)
        if call is not None and name and slot in touched and not (written or call.written):
            call = None  # two in one piece, neither of which takes arguments
        touched.add(slot)
        if call is None:
            self._begin(slot, told)
            return
        is_named_again = name != "" and name == call.name and not (id_ and id_ == call.id)
        call.repeated = 0 if written else call.repeated + is_named_again
        call.add(told)
        self._latest[slot] = self._by_id[call.id] = call

    def _begin(self, slot: Any, told: Mapping[str, Any]) -> None:
        call = self._latest[slot] = _Call(is_legacy=LEGACY in slot)
        call.add(told)
        self._all.append(call)
        self._by_id[call.id] = call

    def _continued(self, slot: Any, id_: str, name: str, written: str, *, has_index: bool) -> _Call | None:
        """The call that a piece goes on with; None where it begins a further one."""
        here, known = self._latest.get(slot), self._by_id.get(id_) if id_ else None
        # The index of some servers is another one in each piece.
        is_known = known is not None and known is not here and name in ("", known.name)
        if is_known and (not has_index or (written and not name)):
            return known
        if here is None:
            return None
        if id_ and here.id not in ("", id_):
            # Some servers make an id anew for each piece. Arguments in the middle go on with those that have begun.
            in_the_middle = not begins_again(written) and here.written and here.is_open()
            begins = not name and not here.written
            return here if written and name in ("", here.name) and (in_the_middle or begins) else None
        if name and here.name not in ("", name):
            if not here.written:
                self._is_unsure = True
                self._fragments.append((here.name + name, here))
            return None
        if not (has_index or id_ or name) and sum(call.is_open() for call in self._all) > 1:
            self._is_unsure = True
        return here


class _Call:
    """written: whether its arguments have begun. begins_again: whether they may have begun once more. repeated: how
    often its name came again, without its id, since its arguments last grew: each time may be a further call without
    arguments. (Some servers repeat the name in each piece; there arguments follow.)"""

    def __init__(self, *, is_legacy: bool) -> None:
        self.fields = Fields()
        self.is_legacy = is_legacy
        self.name = self.id = ""
        self.written = self.begins_again = False
        self.repeated = 0
        self._is_text = False
        self._is_open: bool | None = True
        """None where its last piece may have ended it and nobody has looked yet: a look at each piece would cost too
        much."""

    def add(self, told: Mapping[str, Any]) -> None:
        """Its next piece."""
        for name, value in told.items():
            if name in _WRITTEN and isinstance(value, dict):
                self._write(name, value)
            elif name != "index":
                join(self.fields, {name: value})
        self.id = text(self.fields, "id")

    def _write(self, kind: str, told: Mapping[str, Any]) -> None:
        known = self.fields.get(kind)
        made = known if isinstance(known, Fields) else Fields()
        self.fields[kind] = made
        field = _WRITTEN[kind]
        join(made, {name: value for name, value in told.items() if name not in {"name", field}})
        if "name" in told and not made.get("name"):
            made["name"] = told["name"]
            self.name = text_of(told["name"])
        if field in told:
            self._is_text = kind == "custom"
            before, piece = made.get(field), told[field]
            if before in (None, ""):
                made[field] = piece
            elif piece is not None:
                made[field] = before if isinstance(before, str | Text) else _text(before)
                append(made, field, _text(piece))
            if piece:
                self.begins_again = self.begins_again or (self.written and begins_again(_text(piece)))
                self.written, self._is_open = True, None if _text(piece).rstrip().endswith("}") else True

    def is_open(self) -> bool:
        """Whether its arguments may go on: they are not a whole object."""
        if self._is_open is None:
            self._is_open = self._is_text or not json_objects(_made(settled(self.fields))[1])
        return self._is_open

    def documents(self) -> list[Any]:
        """It, and as many further ones as its arguments begin again."""
        found = settled(self.fields)
        function = mapping(found, "function")
        whole = json_objects(text(function, "arguments"))
        if len(whole) < 2:
            return [found]
        return [{**found, "function": {**function, "arguments": one}} for one in whole]


def _listed(value: Any) -> list[Mapping[str, Any]]:
    """The calls of a list; one that stands alone is one. Of some servers they have no object of their own for name and
    arguments."""
    found = _objects(value)
    return [_with_function(one) if "name" in one and not _WRITTEN.keys() & one.keys() else one for one in found]


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def _with_function(told: Mapping[str, Any]) -> Mapping[str, Any]:
    made = {name: told[name] for name in ("name", "arguments") if name in told}
    return {"function": made, **{name: value for name, value in told.items() if name not in made}}


def _whole_calls(message: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """The calls of a message in one piece, each with a slot of its own."""
    calls = _listed(message.get("tool_calls"))
    for number, told in enumerate(calls):
        yield {name: value for name, value in told.items() if name != "index"}, ("whole", number)
    both = [_made(told) for told in calls]
    for number, told in enumerate(_objects(message.get(LEGACY))):
        call = {"function": told}
        if _made(call) in both:
            both.remove(_made(call))  # a server that tells a call in both forms means one
        else:
            yield call, (LEGACY, number)


def _made(told: Mapping[str, Any]) -> tuple[str, str]:
    """The name of a call, and what was written."""
    kind = next((kind for kind in _WRITTEN if mapping(told, kind)), "function")
    made = mapping(told, kind)
    return text(made, "name"), _text(made.get(_WRITTEN[kind]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else written_as_json(settled(value))


def completion_events(document: Mapping[str, Any], *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """The completion as its stream tells it; the first chunk has all fields that nobody knows. with_usage: whether the
    request asked for the chunk about usage."""
    usage = document.get("usage") if with_usage else None
    chunk = {"object": "chat.completion.chunk", **({} if usage is None else {"usage": None})}
    head = {name: document[name] for name in _IN_EACH_CHUNK if name in document} | chunk
    first = {name: value for name, value in document.items() if name != "usage"} | chunk
    choices = [one for number, choice in enumerate(objects(document, "choices")) for one in _pieces(number, choice)]
    yield {"choices": [], **first, **({"choices": choices[:1]} if choices else {})}
    yield from ({**head, "choices": [choice]} for choice in choices[1:])
    if usage is not None:
        yield {**head, "choices": [], "usage": usage}


def _pieces(number: int, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A choice as chunks have it."""
    place = {"index": choice.get("index", number)}
    yield from ({**place, "delta": delta, "finish_reason": None} for delta in _deltas(choice.get("message")))
    yield {**place, "delta": {}, **{name: value for name, value in choice.items() if name not in {"index", "message"}}}


def _deltas(message: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(message, dict):
        return
    said = {name: value for name in _TEXTS if isinstance(value := message.get(name), str)}
    calls = message.get("tool_calls")
    later = {"tool_calls"} if isinstance(calls, list) else set()
    yield {**{name: value for name, value in message.items() if name not in later}, **dict.fromkeys(said, "")}
    if said.get("reasoning") and said.get("reasoning_content"):  # one thought under two names
        first, *rest = split(said.pop("reasoning_content"))
        yield {"reasoning_content": first, "reasoning": said.pop("reasoning")}
        yield from ({"reasoning_content": piece} for piece in rest)
    for name, value in said.items():
        yield from ({name: piece} for piece in split(value) if piece)
    for number, call in enumerate(objects(message, "tool_calls")):
        place = {"index": _number(call, number)}
        name = next((name for name in _WRITTEN if mapping(call, name)), "function")
        made, field = mapping(call, name), _WRITTEN[name]
        written = text(made, field)
        yield {"tool_calls": [{**call, **place, **({name: {**made, field: ""}} if written else {})}]}
        yield from ({"tool_calls": [{**place, name: {field: piece}}]} for piece in split(written) if piece)


def _number(source: Mapping[str, Any], otherwise: int) -> int:
    found = source.get("index")
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else otherwise


_OF_CLIENTS = ("function", "custom")
"""The types of tools that the client runs."""
_SEARCHES = ("web_search_options", "search_parameters", "plugins")
"""How OpenAI, xAI and OpenRouter are told to search the web."""


class OpenAiChat(OpenAiApi):
    """`POST /v1/chat/completions`, as a stream or in one piece. Of several choices the first one is read as the text;
    calls of all count."""

    title = "OpenAI Chat Completions"
    conversation_field = "messages"

    def asked(self, body: Mapping[str, Any], path: str) -> Asked:  # noqa: ARG002 - its model stands in the body
        messages, tools = objects(body, "messages"), objects(body, "tools")
        functions = [mapping(tool, "function") or mapping(tool, "custom") or tool for tool in tools]
        return Asked(
            model=model_of(body),
            streams=body.get("stream") is True,
            tools=names_of([*functions, *objects(body, "functions")]),
            run_by_provider=(
                *typed_otherwise(tools, _OF_CLIENTS),
                *present(body, *_SEARCHES),
                *reaches_out(body, model_of(body), "messages"),
            ),
            results=tuple(
                ToolResult(text(message, "tool_call_id"), as_text(message.get("content")), name=_called(message))
                for message in messages
                if text(message, "role") in {"tool", "function"}
            ),
            conversation=len(messages),
        )

    def whole(self, body: Any) -> Answer:
        reader = _Reader(is_whole=True)
        if isinstance(body, dict):
            reader.event(body)
        return reader.answer()

    def reader(self) -> AnswerReader:
        return _Reader()

    def assembler(self) -> Assembler:
        return CompletionAssembler()

    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:  # noqa: ARG002 - the body says it
        if body.get("stream") is not True:
            return rendered_document(document)
        with_usage = mapping(body, "stream_options").get("include_usage") is True
        return rendered_stream(completion_events(document, with_usage=with_usage), end=b"data: [DONE]\n\n")


class _Reader(AnswerReader):
    """is_whole: of an answer in one piece nothing more comes, whether it says why it stopped or not."""

    def __init__(self, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._model = self._stop = self._problem = ""
        self._text, self._thought = Pieces(), Pieces()
        self._calls: dict[int, ChatCalls] = {}
        self._usage: Mapping[str, Any] = {}
        self._tier = ""
        self._searched = False

    def event(self, data: Mapping[str, Any]) -> None:
        self._model = text(data, "model") or self._model
        self._usage = mapping(data, "usage") or self._usage
        self._tier = text(data, "service_tier") or self._tier
        if error := data.get("error"):
            told = text(error, "message") if isinstance(error, dict) else error
            self._problem = told if isinstance(told, str) and told else "an error without a message"
        for choice in objects(data, "choices"):
            self._choice(choice, mapping(choice, "delta") or mapping(choice, "message"))

    def _choice(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        number = count(choice, "index") or 0
        cited = any(text(one, "type") == "url_citation" for one in objects(delta, "annotations"))
        self._searched = self._searched or cited
        self._stop = text(choice, "finish_reason") or self._stop
        if number == 0:
            self._text.add(_said(delta))
            self._thought.add(text(delta, "reasoning_content") or text(delta, "reasoning"))
        self._calls.setdefault(number, ChatCalls()).add(choice)

    def answer(self) -> Answer:
        finished = bool(self._stop) and not self._problem
        ended = finished or self._is_whole
        made = [call for calls in self._calls.values() for call in _calls_made(calls, finished=ended)]
        # Nothing says that a call is complete, but that its arguments can be read or the answer has ended.
        whole = tuple(call for call, _ in made if ended or call.arguments is not None)
        lost = [written for call, written in made if not ended and call.arguments is None]
        return Answer(
            model=self._model,
            text=self._text.text,
            thought=self._thought.text,
            calls=whole,
            tokens=openai_tokens(self._usage, "prompt_tokens", "completion_tokens"),
            stop=self._stop,
            problem=self._problem,
            finished=finished,
            unread=sum(map(len, lost)),
            is_unsure=any(calls.is_unsure for calls in self._calls.values()),
            has_partial_call=bool(lost),
            extras=Extras(tier=self._tier, searches=int(self._searched)),
        )


def _calls_made(calls: ChatCalls, *, finished: bool) -> Iterator[tuple[ModelCall, str]]:
    """The calls of a choice, each with what was written."""
    documents, legacy = calls.documents()
    for told in (*documents, *({"function": one} for one in legacy)):
        yield _call(told, finished=finished)
    for name, told in calls.other_readings():
        call, written = _call(told, finished=finished)
        yield dataclasses.replace(call, name=name), written


def _call(told: Mapping[str, Any], *, finished: bool) -> tuple[ModelCall, str]:
    custom = mapping(told, "custom")
    written = (custom or mapping(told, "function")).get("input" if custom else "arguments")
    shown = written if isinstance(written, str) else as_text(written)
    # Many servers write nothing where a tool takes no arguments.
    arguments = {"input": shown} if custom else as_arguments(written if shown or not finished else {})
    return ModelCall(text(told, "id"), text(custom or mapping(told, "function"), "name"), arguments), shown


def _called(message: Mapping[str, Any]) -> str:
    """The older form has no ids: a result belongs to a call by its tool's name."""
    return text(message, "name") if text(message, "role") == "function" else ""


def _said(delta: Mapping[str, Any]) -> str:
    """Some providers write parts, of text and of what was thought."""
    return text(delta, "content") or "".join(text(part, "text") for part in objects(delta, "content"))
