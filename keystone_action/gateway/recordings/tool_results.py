"""What counts as equal in results of tools: durations, clock times, process ids and addresses (contract, 5.6), the
user that a sandbox happens to have, and the order in which calls that were made at once came to their ends.

Only in results of tools: in a prompt such a number may be the very thing that was asked for.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from keystone_action.gateway.recordings.recording import with_texts

# Each pattern begins with letters or digits, and looks back from there, since a search goes by how patterns begin. What
# a tool printed may be megabytes of one letter, so every repetition is bounded.


def _word(begins: str) -> str:
    """Not within a word. Some programs send results as JSON in a text: there a line ends with a backslash and a letter.
    begins: a pattern of fixed length."""
    return rf"{begins}(?:(?<!\w{begins})|(?<=\\[nrt]{begins}))"


def _number(begins: str) -> str:
    """Not within a number or a version either."""
    return rf"{begins}(?:(?<![\w.]{begins})|(?<=\\[nrt]{begins}))"


def _line(begins: str) -> str:
    """At the beginning of a line, or of what a program says is the output."""
    places = [r"\\n", r"\": \"", r"\nOutput: ", r"\\nOutput: "]
    return rf"{begins}(?:(?<![^\n]{begins})|{'|'.join(f'(?<={place}{begins})' for place in places)})"


_OPEN = r"\["
_LINE_END = r"(?:(?m:$)|(?=\\n|\"))"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[A-Z]{1,3}[SD]T|[CEW]ES?T|[+-]\d\d(?::?\d\d)?)\b)?"
_YEAR = r"(?:\s\d{4}\b)?(?:\s[+-]\d{4}\b)?"
_CLOCK = r":\d\d:\d\d(?:[.,]\d{1,9})?"
_UNIT = (
    r"(?:ns|µs|μs|us|ms|s|msecs?|secs?|mins?|hrs?|h|nanoseconds?|microseconds?|milliseconds?|seconds?|minutes?|hours?)"
)
_NAMES = "(?:duration|Duration|elapsed|Elapsed|_seconds|_ms|_time|took|Took)"
"""How names of figures without a unit end."""
_TIMES = (
    rf"\d{{4}}(?<!\d\d{{4}})-\d\d-\d\d[T _]\d\d[:-]\d\d(?:[:-]\d\d(?:[.,]\d{{1,9}})?)?{_ZONE}(?!\d)",
    rf"{_word(_MONTH)}\s{{1,2}}\d{{1,2}}\s{{1,2}}(?:\d{{4}}\s)?\d\d:\d\d(?::\d\d)?{_ZONE}{_YEAR}",
    rf"{_word('[0-9]')}\d?[\s/-]{_MONTH}[\s/-]\d{{4}}[\s:]\d{{1,2}}{_CLOCK}{_ZONE}",
    r"\d(?<!\d\d)\d?/\d{1,2}/\d{4},?\s\d{1,2}:\d\d(?::\d\d)?(?:\s?[AaPp][Mm]\b)?",
    rf"\d(?<![\d:.]\d)\d?{_CLOCK}(?:\s?[AaPp][Mm]\b)?(?![\d:])",
    rf"{_word(_DAY)}[a-z]{{0,6}},?\s{{1,2}}\{{time\}}",
)
_DURATIONS = (
    rf"{_number('[0-9]')}\d{{0,5}}(?:h\s?\d{{1,6}})?m\s?\d{{1,6}}(?:\.\d{{1,9}})?s\b",
    rf"{_number('[0-9]')}\d{{0,11}}(?:\.\d{{1,12}})?\s?{_UNIT}\b",
    rf"(?P<keep>{_NAMES}\\?[\"']?\s?[:= ]\s?)\d{{1,12}}(?:\.\d{{1,12}})?(?![\w.])",
)
_PROCESSES = (
    rf"(?P<keep>(?:{_word('pid')}|{_word('PID')}|ppid|PPID)\\?[\"']?\s{{0,3}}[:=# ]\s{{0,3}})\d{{1,7}}\b",
    r"(?P<keep>[Pp]rocess (?:id|ID) ?[:=#]? ?)\d{1,7}\b",
    r"(?P<keep>[Pp]rocess\s?[\[(#])\d{1,7}\b",
    rf"(?P<keep>{_line(_OPEN)}\d{{1,3}}\][ +-]{{1,3}})\d{{2,7}}{_LINE_END}",
    rf"{_line('[ 0-9]')}\s{{0,5}}\d{{0,7}}(?<=\d)(?=\s{{1,3}}(?:pts/\d|\?|tty\d))",
)
_ADDRESSES = (
    rf"{_word('0x')}[0-9a-fA-F]{{8,16}}\b",
    r"(?P<keep>(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::\]|\[::1\]):)\d{4,5}\b",
)
_OWNERS = (
    rf"(?P<keep>{_line('[-dlbcps]')}[rwxsStT-]{{9}}[+.@]?\s{{1,6}}\d{{1,6}}\s)[\w.-]{{1,32}}\s{{1,16}}[\w.-]{{1,32}}(?=\s)",
    rf"(?P<keep>{_word('[ug]id=')})\d{{1,10}}(?:\([\w.-]{{0,32}}\))?",
    rf"(?P<keep>{_word('groups=')})\d{{1,10}}(?:\([\w.-]{{0,32}}\))?(?:,\d{{1,10}}(?:\([\w.-]{{0,32}}\))?){{0,64}}",
)
"""As `ls -l` and `id` show the sandbox's user, who is another one in each run."""
_KINDS = {"time": _TIMES, "duration": _DURATIONS, "pid": _PROCESSES, "address": _ADDRESSES, "owner": _OWNERS}
_PATTERNS = [
    (f"{{{kind}}}", re.compile(pattern, re.ASCII)) for kind, patterns in _KINDS.items() for pattern in patterns
]


def is_result(value: Any) -> bool:
    """Whether a message, or a part of one, is the result of a tool, in the form of any API."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if isinstance(kind, str) and kind.endswith(("_output", "tool_result")):
        return True
    return value.get("role") == "tool" or "functionResponse" in value or "function_response" in value


def with_equal_results(message: Any) -> Any:
    """A message, in the form of any API, with the results of tools in it made comparable. Raises RecordingError."""
    if not isinstance(message, dict):
        return message
    kind = message.get("type")
    if isinstance(kind, str) and kind.endswith("_output") and "output" in message:
        return {**message, "output": _comparable(message["output"])}
    if message.get("role") == "tool" and "content" in message:
        return {**message, "content": _comparable(message["content"])}
    found = dict(message)
    for name in ("content", "parts"):
        if isinstance(parts := message.get(name), list):
            found[name] = _without_repeats([_part(part) for part in parts])
    return found


def _without_repeats(parts: list[Any]) -> list[Any]:
    """Gemini CLI writes a result into its session as often as the call's state changed, and gives all of them anew when
    it goes on: how often depends on the moment. The same result of the same call, told again, tells nothing."""
    kept: list[Any] = []
    for part in parts:
        told = _told_response(part)
        if told is None or "id" not in told or part not in kept:
            kept.append(part)
    return kept


def _told_response(part: Any) -> dict[str, Any] | None:
    if not isinstance(part, dict):
        return None
    told = part.get("functionResponse") or part.get("function_response")
    return told if isinstance(told, dict) else None


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if isinstance(kind, str) and kind.endswith("tool_result") and "content" in part:
        return {**part, "content": _comparable(part["content"])}
    for name in ("functionResponse", "function_response"):
        if isinstance(told := part.get(name), dict) and "response" in told:
            return {**part, name: {**told, "response": _comparable(told["response"])}}
    return part


def _comparable(value: Any) -> Any:
    return with_texts(value, _comparable_text)


def _comparable_text(text: str) -> str:
    if not any(map(str.isdigit, text)):
        return text
    for mark, pattern in _PATTERNS:
        replacement = f"\\g<keep>{mark}" if "keep" in pattern.groupindex else mark
        text = pattern.sub(replacement, text)
    return text


def with_results_in_order(messages: list[Any]) -> list[Any]:
    """A conversation, in the form of any API, in which the results of the calls made in one answer stand in the order
    of these calls: clients send them in the order in which they ended. Results of no known call stay where they are."""
    found, order = [*messages], _Order()
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        calls = list(_calls_of(message))
        if calls or message.get("role") in ("assistant", "model"):
            order.settle(found)
        for names in calls:
            order.call(names)
        for place, part, names in _results_of(message):
            order.end((number, place), part, names)
    order.settle(found)
    return found


class _Order:
    """The calls of one answer, and where the results stand that have come."""

    def __init__(self) -> None:
        self._ranks: dict[str, list[int]] = defaultdict(list)
        self._taken: Counter[str] = Counter()
        self._made = 0
        self._ended: list[tuple[tuple[int, int | None], Any, int]] = []

    def call(self, names: list[str]) -> None:
        """A call was made. names: by which its result may be known, its id first."""
        for name in names:
            self._ranks[name].append(self._made)
        self._made += 1

    def end(self, place: tuple[int, int | None], part: Any, names: list[str]) -> None:
        """A result has come."""
        for name in names:
            if ranks := self._ranks.get(name):
                self._ended.append((place, part, ranks[min(self._taken[name], len(ranks) - 1)]))
                self._taken[name] += 1
                return

    def settle(self, messages: list[Any]) -> None:
        """No more of them come: put them in order."""
        places, in_order = [place for place, _, _ in self._ended], sorted(self._ended, key=lambda one: one[2])
        for (number, part_number), (_, part, _) in zip(places, in_order, strict=True):
            if part_number is None:
                messages[number] = part
                continue
            name = "parts" if isinstance(messages[number].get("parts"), list) else "content"
            parts = [*messages[number][name]]
            parts[part_number] = part
            messages[number] = {**messages[number], name: parts}
        self._ended.clear()
        # Where calls have no ids, a tool that is called again later has new results.
        for name, count in self._taken.items():
            del self._ranks[name][:count]
        self._taken.clear()


def _calls_of(message: dict[str, Any]) -> Iterator[list[str]]:
    """Of each call in a message what its result may be known by, the better one first."""
    for _, part in ((None, message), *_parts_of(message)):
        kind, told = part.get("type"), part.get("functionCall") or part.get("function_call")
        if isinstance(told, dict):
            yield _texts_of(told, "id", "name")
        elif isinstance(kind, str) and kind.endswith(("tool_use", "_call")):
            yield _texts_of(part, "call_id", "id")
    calls = message.get("tool_calls")
    yield from (_texts_of(one, "id") for one in (calls if isinstance(calls, list) else ()) if isinstance(one, dict))


def _results_of(message: dict[str, Any]) -> Iterator[tuple[int | None, Any, list[str]]]:
    """The results in a message, each with its place in it, None for the message itself."""
    for place, part in ((None, message), *_parts_of(message)):
        kind, told = part.get("type"), part.get("functionResponse") or part.get("function_response")
        if isinstance(told, dict):
            yield place, part, _texts_of(told, "id", "name")
        elif part.get("role") == "tool":
            yield place, part, _texts_of(part, "tool_call_id")
            return
        elif isinstance(kind, str) and kind.endswith(("tool_result", "_call_output")):
            yield place, part, _texts_of(part, "tool_use_id", "call_id")


def _parts_of(message: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    found = message.get("parts") if isinstance(message.get("parts"), list) else message.get("content")
    parts = found if isinstance(found, list) else []
    yield from ((place, part) for place, part in enumerate(parts) if isinstance(part, dict))


def _texts_of(value: dict[str, Any], *names: str) -> list[str]:
    return [value[name] for name in names if isinstance(value.get(name), str)]
