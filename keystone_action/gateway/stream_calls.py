"""Calls of tools in streams of OpenAI's APIs that go their own way, put apart as the most lenient client would do it
(contract, 5.6 "What counts")."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.builder import mapping, objects, text
from keystone_action.gateway.api_values import (
    Fields,
    Text,
    append,
    begins_again,
    join_fields,
    json_objects,
    kind,
    settled,
    text_of,
)
from keystone_action.gateway.api_values import written as written_as_json

WRITTEN_IN_CHAT = {"function": "arguments", "custom": "input"}
"""Kinds of calls, and under which name of theirs stands what the model wrote."""
WRITTEN_ITEMS = {
    "function_call": ("arguments", "function_call_arguments"),
    "mcp_call": ("arguments", "mcp_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "code_interpreter_call": ("code", "code_interpreter_call_code"),
}
"""Items that a model writes as a text: under which name, and what the events about it are called."""
_WRITING = {f"response.{events}": (name, field) for name, (field, events) in WRITTEN_ITEMS.items()}
_OBJECTS = {"function_call", "mcp_call"}
"""Items whose arguments are a JSON object, written as a text."""

LEGACY = "function_call"
"""Where a message has the older form of a call, which has no id and no index."""


class ChatCalls:
    """The calls of one choice, put apart as the most lenient client would do it: a new id, a new name or arguments that
    begin again are a further call, whatever the index says."""

    def __init__(self) -> None:
        self._all: list[_Call] = []
        self._latest: dict[Any, _Call] = {}
        """By the index, else by the place in its list."""
        self._by_id: dict[str, _Call] = {}
        self._is_unsure = False
        self._fragments: list[tuple[str, _Call]] = []

    def add(self, choice: Mapping[str, Any]) -> None:
        """The next piece of the choice: a `delta`, or a `message`, which has its calls whole."""
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
        """Whether two clients may make different calls of the same pieces."""
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
            call = None  # two calls in one piece, without arguments
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
        """The call that a piece continues; None where it begins a further one."""
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
    """A call as its pieces come.

    written: whether its arguments have begun. begins_again: whether they may have begun a second time. repeated: how
    often its name came again, without its id, since its arguments last grew. Each of these may be a further call
    without arguments. (Where a server repeats the name in each piece, arguments follow.)
    """

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
            if name in WRITTEN_IN_CHAT and isinstance(value, dict):
                self._write(name, value)
            elif name != "index":
                join_fields(self.fields, {name: value})
        self.id = text(self.fields, "id")

    def _write(self, kind: str, told: Mapping[str, Any]) -> None:
        known = self.fields.get(kind)
        made = known if isinstance(known, Fields) else Fields()
        self.fields[kind] = made
        field = WRITTEN_IN_CHAT[kind]
        join_fields(made, {name: value for name, value in told.items() if name not in {"name", field}})
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
        """The call, and as many further ones as its arguments begin again."""
        found = settled(self.fields)
        function = mapping(found, "function")
        whole = json_objects(text(function, "arguments"))
        if len(whole) < 2:
            return [found]
        return [{**found, "function": {**function, "arguments": one}} for one in whole]


def _listed(value: Any) -> list[Mapping[str, Any]]:
    """The calls of a list, or the one that stands there alone. Some servers have no inner object for name and
    arguments."""
    found = _objects(value)
    return [_with_function(one) if "name" in one and not WRITTEN_IN_CHAT.keys() & one.keys() else one for one in found]


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
    kind = next((kind for kind in WRITTEN_IN_CHAT if mapping(told, kind)), "function")
    made = mapping(told, kind)
    return text(made, "name"), _text(made.get(WRITTEN_IN_CHAT[kind]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else written_as_json(settled(value))


class ResponseItems:
    """The items of a response.

    A stream tells them three times: when they are added and written, when they are done, and in the response at the
    end. Each kind of client reads another telling. The last one decides, but a call that is told anywhere counts.
    is_unsure, set by `all`: whether a call that was added and one that was done, with other ids in the same place, may
    be one call or two.
    """

    def __init__(self) -> None:
        self.is_unsure = False
        self._added: list[_Item] = []
        self._done: list[Any] = []
        self._places: list[Any] = []
        """Of those that are done."""
        self._in_response: list[Any] = []

    def event(self, data: Mapping[str, Any]) -> None:
        """The next event; it may be about no item."""
        name = text(data, "type")
        if name == "response.output_item.added":
            self._added.append(_Item(data, mapping(data, "item")))
        elif name == "response.output_item.done":
            self._done.append(data.get("item"))
            self._places.append(data.get("output_index"))
        elif objects(mapping(data, "response"), "output"):
            self._in_response = data["response"]["output"]
        elif (written := _WRITING.get(name.rpartition(".")[0])) is not None:
            self._item_of(data, written).write(data, written[1])

    def _item_of(self, data: Mapping[str, Any], written: tuple[str, str]) -> _Item:
        """The last item that was added with this id, else in this place, else at all."""
        for name, key in (("item_id", "id"), ("output_index", "place")):
            told = data.get(name)
            known = [one for one in self._added if told is not None and getattr(one, key) == told]
            if known:
                return known[-1]
        if not self._added or "item_id" in data or "output_index" in data:
            kind, _ = written
            self._added.append(_Item(data, {"type": kind, "id": text(data, "item_id"), "name": text(data, "name")}))
        return self._added[-1]

    def all(self) -> list[tuple[Any, bool]]:
        """The items, each with whether it came whole."""
        found = [*(self._in_response or self._done)]
        counted = Counter(map(_telling, found))
        if self._in_response:
            found += _further(self._done, counted)
        told = [item for item in (*self._in_response, *self._done) if isinstance(item, dict)]
        ids = {one for item in told for one in _ids(item)}
        written: list[Any] = []
        further = self._never_done(found)
        for one in self._added:
            items = one.items()
            # The text of a custom tool that was written differs from the one that is told elsewhere: it counts, too.
            has_text = one.field and any(text(item, one.field) and kind(item) not in _OBJECTS for item in items)
            if ids & one.ids and not has_text and not any(map(_has_arguments, items)):
                continue  # it was told with its arguments elsewhere
            if one in further or any(_is_alike(items[0], item, one.field) for item in told):
                continue
            written += items
        open_ones = _further(written, counted) + [one.items()[0] for one in further]
        whole = [(part, True) for item in found for part in _parted(item)]
        return whole + [(part, _has_arguments(part)) for item in open_ones for part in _parted(item)]

    def _never_done(self, found: Iterable[Any]) -> list[_Item]:
        """Calls that were added by name alone and are not among those told elsewhere. A call that was told elsewhere
        stands for one that was added."""
        free = [item for item in found if isinstance(item, dict)]
        bare = []
        for one in self._added:
            first = one.items()[0]
            known = "" if one.is_only_named else _telling(first)
            same = next((item for item in free if _ids(item) & one.ids or known == _telling(item)), None)
            if same is not None:
                free.remove(same)
            elif one.is_only_named:
                bare.append((one, first))
        further = []
        self.is_unsure = False
        for one, first in bare:
            alike = next((item for item in free if _is_alike(first, item, one.field)), None)
            if alike is None and any(_is_alike(first, item, one.field) for item in found):
                further.append(one)
            elif alike is not None:
                free.remove(alike)
                if one.ids and _ids(alike):  # other ones: a further call, or a server that makes an id anew each time
                    further.append(one)
                    self.is_unsure = self.is_unsure or one.place in (None, self._place_of(alike))
        return further

    def _place_of(self, item: Mapping[str, Any]) -> Any:
        """The place of an item that is done, or that is in the response."""
        for place, done in zip(self._places, self._done, strict=True):
            if done == item:
                return place
        return self._in_response.index(item) if item in self._in_response else None


class _Item:
    """An item that was added. field: under which name the model writes in it; empty where it doesn't."""

    def __init__(self, event: Mapping[str, Any], item: Mapping[str, Any]) -> None:
        self._item = dict(item)
        self.place, self.id = event.get("output_index"), text(item, "id")
        self.ids = _ids(item)
        self.field, _ = WRITTEN_ITEMS.get(kind(item), ("", ""))
        self._pieces: list[str] = []
        self._whole = ""

    def write(self, event: Mapping[str, Any], field: str) -> None:
        """What was written in it goes on, or is told whole."""
        self.field = self.field or field
        if text(event, "type").endswith(".delta"):
            self._pieces.append(text(event, "delta"))
        else:
            self._whole = text(event, field) or self._whole
            if text(event, "name") and not text(self._item, "name"):
                self._item = {**self._item, "name": event["name"]}

    @property
    def is_only_named(self) -> bool:
        """Whether nothing was told of its arguments."""
        written = self._pieces or self._whole or self._item.get(self.field)
        return bool(self.field and text(self._item, "name") and not written)

    def items(self) -> list[Any]:
        """It, once for each way in which its arguments were told."""
        if not self.field:
            return [self._item]
        tellings = [self._whole, "".join(self._pieces), self._item.get(self.field)]
        said = list(dict.fromkeys(one for one in tellings if isinstance(one, str) and one))
        found = [{**self._item, self.field: one} for one in said]
        readable = [one for one in found if _has_arguments(one)]
        return readable or found[:1] or [self._item]


def _further(items: Iterable[Any], counted: Counter[str]) -> list[Any]:
    """The calls among these that are not among those counted, or more often here."""
    here: Counter[str] = Counter()
    found = []
    for item in items:
        if not kind(item).endswith("_call"):
            continue
        here[_telling(item)] += 1
        if here[_telling(item)] > counted[_telling(item)]:
            found.append(item)
    counted |= here
    return found


def _ids(item: Any) -> set[tuple[str, str]]:
    return {(name, item[name]) for name in ("id", "call_id") if text(item, name)} if isinstance(item, dict) else set()


def _telling(item: Any) -> str:
    """What an item says, by which two tellings of it are equal. Ids differ between them on some servers."""
    if not isinstance(item, dict):
        return ""
    field, _ = WRITTEN_ITEMS.get(kind(item), ("", ""))
    said = item.get(field) if field else item.get("action") or item.get("operation")
    try:
        said = json.loads(said) if isinstance(said, str) and kind(item) in _OBJECTS else said
        return json.dumps([kind(item), item.get("name"), said], sort_keys=True)
    except (ValueError, RecursionError):
        return f"{kind(item)} {item.get('name')!r:.200} {said!r}"


def _is_alike(item: Mapping[str, Any], other: Mapping[str, Any], field: str) -> bool:
    """Whether an item may be the other one, where only its name or only its arguments were told."""
    if kind(item) != kind(other):
        return False
    if not text(item, field):
        return text(item, "name") == text(other, "name")
    return not text(item, "name") and _telling({**item, "name": other.get("name")}) == _telling(other)


def _has_arguments(item: Any) -> bool:
    """Whether the arguments of a call are a whole object."""
    said = item.get("arguments") if isinstance(item, dict) else None
    return kind(item) in _OBJECTS and (isinstance(said, dict) or bool(isinstance(said, str) and json_objects(said)))


def _parted(item: Any) -> list[Any]:
    """An item, and as many further ones as its arguments begin again."""
    said = text(item, "arguments") if kind(item) in _OBJECTS else ""
    parts = json_objects(said)
    return [{**item, "arguments": one} for one in parts] if len(parts) > 1 else [item]
