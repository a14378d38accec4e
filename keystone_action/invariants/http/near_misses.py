"""When an assertion found too few requests: which ones came near, so that a typing error is seen at once."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from keystone_action.evidence.fields import Missing
from keystone_action.evidence.model import RecordedRequest
from keystone_action.evidence.request_filters import Filter, shown_found
from keystone_action.invariants.values.comparison import shown_value

_KINDS_KEPT = 1_000
_KINDS_SHOWN = 3
_WIDTH = 120


class NearMisses:
    """Takes the requests that the filters turned away; keeps how often each kind came, not the requests."""

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._filters = filters
        self._kinds: Counter[tuple[str, int]] = Counter()
        self._others = 0

    def add(self, request: RecordedRequest) -> None:
        """A request that was turned away."""
        failing = [one for one in self._filters if not one.matches(request)]
        reasons = [_reason(one, request) for one in failing if one.name not in ("method", "path")]
        line = f"{request.method} {_short(request.path)}"
        kind = (f"{line} with {', '.join(reasons)}" if reasons else line, len(failing))
        if kind in self._kinds or len(self._kinds) < _KINDS_KEPT:
            self._kinds[kind] += 1
        else:
            self._others += 1

    def sentence(self, matched: int) -> str:
        """`0 requests matched POST /api/messages; 1 request: POST /api/message`; without the full stop."""
        text = f"{_count_words(matched)} {f'matched {self._describe()}' if self._filters else 'came altogether'}"
        if not self._kinds:
            return text if matched or not self._filters else f"{text}; none came at all"
        asked = self._describe()

        def nearness(kind: tuple[tuple[str, int], int]) -> tuple[int, float]:
            (line, failing), _ = kind
            return failing, -difflib.SequenceMatcher(None, line[:200], asked[:200]).ratio()

        nearest = sorted(self._kinds.items(), key=nearness)[:_KINDS_SHOWN]
        shown = "; ".join(f"{_count_words(count)}: {line}" for (line, _), count in nearest)
        rest = sum(self._kinds.values()) + self._others - sum(count for _, count in nearest)
        return f"{text}; {shown}" + (f"; and {rest:,} more" if rest else "")

    def _describe(self) -> str:
        wanted = {one.name: one.wanted for one in self._filters}
        line = " ".join(str(wanted.pop(name)) for name in ("method", "path") if name in wanted)
        others = ", ".join(f"{name}={_short(shown_value(value))}" for name, value in wanted.items())
        return _short(" with ".join(part for part in (line, others) if part))


def _reason(one: Filter, request: RecordedRequest) -> str:
    found = one.find(request)
    if isinstance(found, Missing):
        return found.reason
    return f"{one.name}={_short(shown_value(shown_found(found)))}"


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _count_words(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"
