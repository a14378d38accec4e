"""Where a request differs from the nearest recorded one, for people to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keystone_action.gateway.recordings.ids import CONVERSATIONS
from keystone_action.gateway.recordings.recording import Entry

PLACES_SHOWN = 3
_AROUND = 40
"""Characters shown on either side of the first one that differs."""
_NAMES_SHOWN = 5


def difference(wanted: Mapping[str, Any], entries: Sequence[Entry]) -> str:
    """The first places in which a request, in its normal form, differs from the recorded one that is most like it, as
    `messages[3].content: recorded "…", asked "…"`."""
    if not entries:
        return "the recording holds no request"
    nearest = max(entries, key=lambda entry: _likeness(wanted, entry.request))
    found = _places(nearest.request, wanted)
    shown = [place for _, place in zip(range(PLACES_SHOWN + 1), found, strict=False)]
    if not shown:
        return f"the API or the model: recorded {_shown(nearest.api)} and {_shown(nearest.model)}"
    return "; ".join([*shown[:PLACES_SHOWN], *(["and more"] if len(shown) > PLACES_SHOWN else [])])


def _likeness(wanted: Mapping[str, Any], recorded: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Equal messages at the beginning, in all, equal fields, and how near the numbers of messages are."""
    ours, theirs = _messages(wanted), _messages(recorded)
    equal = [one == other for one, other in zip(ours, theirs, strict=False)]
    first = equal.index(False) if False in equal else len(equal)
    fields = sum(name in recorded and recorded[name] == value for name, value in wanted.items())
    return first, fields, sum(equal), -abs(len(ours) - len(theirs))


def _messages(request: Mapping[str, Any]) -> list[Any]:
    return next((value for name in CONVERSATIONS if isinstance(value := request.get(name), list)), [])


def _places(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """What a request is about comes first: its model, its tools, what was said."""
    names = dict.fromkeys(["model", "tools", *recorded, *asked])
    for name in names:
        if name not in recorded and name not in asked:
            continue
        if name not in recorded:
            yield f"{name}: not recorded, asked {_shown(asked[name])}"
        elif name not in asked:
            yield f"{name}: recorded {_shown(recorded[name])}, not asked"
        elif name == "tools" and (change := _tools(recorded[name], asked[name])):
            yield change
        else:
            yield from _differences(name, recorded[name], asked[name])


def _tools(recorded: Any, asked: Any) -> str:
    before, now = _tool_names(recorded), _tool_names(asked)
    gone, new = [one for one in before if one not in now], [one for one in now if one not in before]
    parts = [f"recorded and not asked: {_listed(gone)}"] if gone else []
    parts += [f"asked and not recorded: {_listed(new)}"] if new else []
    return f"tools: {'; '.join(parts)}" if parts else ""


def _tool_names(tools: Any, depth: int = 4) -> dict[str, None]:
    """Of tools as each API has them, namespaces of tools included."""
    found: dict[str, None] = {}
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict):
            continue
        function = tool.get("function")
        inner = [tool.get(name) for name in ("tools", "functionDeclarations", "function_declarations")]
        name = (function.get("name") if isinstance(function, dict) else None) or tool.get("name") or tool.get("type")
        if isinstance(name, str):
            found[name] = None
        for one in inner if depth else []:
            found |= _tool_names(one, depth - 1)
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(_shown(name) for name in names[:_NAMES_SHOWN]) + more


def _differences(place: str, recorded: Any, asked: Any) -> Iterator[str]:
    if recorded is asked or (recorded == asked and type(recorded) is type(asked)):
        return
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in dict.fromkeys([*recorded, *asked]):
            here = f"{place}.{_name(name)}"
            if name not in recorded:
                yield f"{here}: not recorded, asked {_shown(asked[name])}"
            elif name not in asked:
                yield f"{here}: recorded {_shown(recorded[name])}, not asked"
            else:
                yield from _differences(here, recorded[name], asked[name])
    elif isinstance(recorded, list) and isinstance(asked, list):
        for index, (one, other) in enumerate(zip(recorded, asked, strict=False)):
            yield from _differences(f"{place}[{index}]", one, other)
        if len(recorded) != len(asked):
            yield f"{place}: recorded {len(recorded):,}, asked {len(asked):,}"
    elif isinstance(recorded, str) and isinstance(asked, str):
        at = max(0, _common(recorded, asked) - _AROUND)
        yield f"{place}: recorded {_window(recorded, at)}, asked {_window(asked, at)}"
    else:
        yield f"{place}: recorded {_shown(recorded)}, asked {_shown(asked)}"


def _common(one: str, other: str) -> int:
    """How many characters at the beginnings of two texts are equal."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _name(name: str) -> str:
    """The beginning of a field's name, on one line."""
    return name if name.isidentifier() and len(name) <= _AROUND else _window(name, 0)


def _window(text: str, at: int) -> str:
    end = at + 2 * _AROUND
    return json.dumps(f"{'…' if at else ''}{text[at:end]}{'…' if end < len(text) else ''}", ensure_ascii=False)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return _window(value, 0)
    text = _bounded(value)
    return text if len(text) <= 2 * _AROUND else f"{text[: 2 * _AROUND]}…"


def _bounded(value: Any) -> str:
    """JSON of about as much as is shown."""
    if isinstance(value, list):
        return f"{len(value):,} items" if value else "an empty list"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(_name, list(value)[:_NAMES_SHOWN]))}" if value else "{}"
    return json.dumps(value)[: 2 * _AROUND + 1]
