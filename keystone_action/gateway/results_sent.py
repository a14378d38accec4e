"""Which results of tools in a request are new ones, of calls that a provider made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from keystone_action.evidence.trace_readers.builder import TEXT_LIMIT
from keystone_action.gateway.exchange import Answer, ModelCall, ToolResult

Key = tuple[str, str, str]
"""API, what a call is joined with its result by (`id`, `name`), and that."""


def key_of(api: str, call: ModelCall) -> Key:
    """What its result is found by. Some APIs have no ids."""
    return (api, "id", call.id) if call.id else (api, "name", call.name)


def keys_of(api: str, result: ToolResult) -> tuple[Key, Key]:
    """What a result may be joined by, the better one first."""
    return (api, "id", result.call), (api, "name", result.name)


class OpenCalls:
    """Calls without a result. A request repeats all earlier results of its conversation and may invent some; only what
    answers an open call is kept, so memory does not grow with the square of a conversation."""

    def __init__(self) -> None:
        self._open: Counter[Key] = Counter()

    def add(self, api: str, answer: Answer) -> None:
        """A provider made these calls."""
        self._open.update(_awaited(api, answer))

    def take(self, api: str, results: Sequence[ToolResult], under_way: Iterable[Answer]) -> tuple[ToolResult, ...]:
        """Those that end an open call, cut to what a trace keeps. Where an id or a name came before, the last results
        in the request are the new ones. under_way: answers that are still coming; an agent may be faster than their
        end."""
        if not results:
            return ()
        coming: Counter[Key] = Counter(key for answer in under_way for key in _awaited(api, answer))
        found: dict[Key, list[ToolResult]] = defaultdict(list)
        for result in results:
            for key in keys_of(api, result):
                if self._open[key] + coming[key] > 0:
                    found[key].append(result)
                    break
        kept = []
        for key, sent in found.items():
            new = sent[-(self._open[key] + coming[key]) :]
            self._open[key] -= len(new)
            kept += [_cut(key, result) for result in new]
        return tuple(kept)


def _awaited(api: str, answer: Answer) -> list[Key]:
    """Of the calls whose results an agent sends."""
    return [key_of(api, call) for call in answer.calls if not call.by_provider]


def _cut(key: Key, result: ToolResult) -> ToolResult:
    text = result.text[: TEXT_LIMIT + 1]  # one more, so that the trace says that it was cut
    _, kind, value = key
    return ToolResult(value if kind == "id" else "", text, result.status, value if kind == "name" else "")
