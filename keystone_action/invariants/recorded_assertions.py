"""Assertions about what a mock recorded: requests, or calls of tools. Filters come first, then the operators."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, overload

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.requests import Field, Filter, Missing, names_in, shown_found
from keystone_action.invariants.check import Outcome, broken, failed, passed, with_notices
from keystone_action.invariants.comparison import describe, json_value, shown_value
from keystone_action.invariants.operators import Operators, PatternTimeout, problem_with
from keystone_action.spec.loading.diagnostics import nearest

_SHOWN = 2_000
_NUMERIC = frozenset({"equals", "not_equals", "gt", "gte", "lt", "lte", "exists"})
_KINDS_KEPT = 1_000
_KINDS_SHOWN = 3
_WIDTH = 120
_NAMES_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Grammar:
    """How records of one kind are spoken of."""

    noun: str
    """What one of them is called."""
    count: str
    """The field that is their number."""
    heads: tuple[str, ...]
    """How fields begin, for suggestions."""
    heading: tuple[str, ...]
    """The filters that name a record on one line."""
    parse: Callable[[str], Field]
    """Raises ValueError with a sentence."""
    read: Callable[[Field, Sequence[Any]], Any | Missing]
    is_typed: Callable[[Field], bool]
    """Whether the values of a field have types of their own; else they are text."""

    def check_field(self, text: str) -> str:
        """The text of a field that can be read. Raises PydanticCustomError."""
        if "{{" in text:  # read when the expression has its value
            return text
        try:
            self.parse(text)
        except ValueError as error:
            head, dot, rest = text.partition(".")
            close = nearest(head, self.heads) or (self.heads[-1] if head.startswith(self.noun) else "")
            suggestion = f"{close}{dot}{rest}" if close and close != head else ""
            context = {"message": str(error), "suggestion": suggestion}
            raise PydanticCustomError(f"field_of_{self.noun}s", "{message}", context) from None
        return text


class RecordAssertion(Operators):
    """The base of assertions, which have `field` and `filters`."""

    grammar: ClassVar[Grammar]

    @property
    def asked(self) -> str:
        """The text of `field`."""
        return str(self.field)  # type: ignore[attr-defined]

    @property
    def wanted(self) -> dict[str, Any]:
        """`filters`."""
        return dict(self.filters)  # type: ignore[attr-defined]

    def compiled_filters(self) -> tuple[Filter, ...]:
        """Raises ValueError with a sentence."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        count = self.grammar.count
        if self.asked == count and (odd := sorted(self.operators().keys() - _NUMERIC)):
            raise PydanticCustomError(
                "operator_of_number",
                f"{count} is a number: expected {', '.join(sorted(_NUMERIC))}, found {', '.join(odd)}",
            )
        try:
            self.compiled_filters()
        except ValueError as error:
            if not _has_expression(self.wanted):
                raise PydanticCustomError("filter", "{message}", {"message": str(error)}) from None
        return self


def _has_expression(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_expression, value.values()))
    return any(map(_has_expression, value)) if isinstance(value, list) else isinstance(value, str) and "{{" in value


def evaluate_assertions(
    assertions: Sequence[RecordAssertion], records: Sequence[Any], service: str, timeout: float
) -> Outcome:
    """Whether all hold of what a service recorded. Reading may take long: the agent decides how many records there are
    and how large."""
    deadline = time.monotonic() + timeout
    try:
        views = [_View(assertion, records) for assertion in assertions]
    except ValueError as error:  # only what an expression gave
        return broken(f"{error}")
    for index, record in enumerate(records):
        for view in views:
            view.see(index, record)
    results = [view.result(deadline) for view in views]
    problems = [f"{result['field']}: {result['message']}" for result in results if not result["passed"]]
    noun = assertions[0].grammar.noun
    details: dict[str, Any] = {"service": service, f"{noun}s": len(records), "assertions": results}
    held = "1 assertion holds" if len(results) == 1 else f"all {len(results)} assertions hold"
    outcome = failed("\n".join(problems), **details) if problems else passed(f"{service}: {held}.", **details)
    return with_notices(outcome, (notice for view in views for notice in view.notices()))


class _Selection(Sequence[Any]):
    """Some of the recorded requests, each read when it is asked for."""

    def __init__(self, requests: Sequence[Any]) -> None:
        self._requests = requests
        self.indices: list[int] = []

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any | list[Any]:
        if isinstance(index, slice):
            return [self._requests[number] for number in self.indices[index]]
        return self._requests[self.indices[index]]

    def __iter__(self) -> Iterator[Any]:
        return (self._requests[number] for number in self.indices)


class _View:
    """One assertion and the requests that pass its filters."""

    def __init__(self, assertion: RecordAssertion, requests: Sequence[Any]) -> None:
        """Raises ValueError with a sentence."""
        self._assertion = assertion
        self._grammar = assertion.grammar
        self._field = self._grammar.parse(assertion.asked)
        self._filters = assertion.compiled_filters()
        self._requests = requests
        self._selected = _Selection(requests)
        self._near = NearMisses(self._filters, self._grammar)
        self._undecided = 0
        self._unseen = [one for one in self._filters if one.reads == "any"] if requests else []

    def see(self, index: int, request: Any) -> None:
        self._unseen = [one for one in self._unseen if not one.may_be_named_in(request)]
        unsure = [one for one in self._filters if not one.is_sure(request)]
        if unsure and all(one.matches(request) for one in self._filters if one not in unsure):
            self._undecided += 1
        if all(one.matches(request) for one in self._filters):
            self._selected.indices.append(index)
        else:
            self._near.add(request)

    def result(self, deadline: float) -> dict[str, Any]:
        """Everything about the outcome, as results.json has it."""
        assertion, matched = self._assertion, len(self._selected)
        found = self._read(self._selected)
        problems = self._problems(found, deadline)
        message = "; ".join(problems)
        if problems and (self._field.request == "count" or isinstance(found, Missing)):
            message += f". {self._near.sentence(matched)}"
        unsure = self._unsure(holds=not problems)
        if unsure:
            problems.append(unsure)
            message = f"{message}. {unsure}" if message else unsure
        if (
            not problems
            and self._unseen
            and self._problems(self._grammar.read(self._field, self._without_unseen()), deadline)
        ):
            names = " and ".join(repr(one.name) for one in self._unseen)
            message = (
                f"it holds only because {self._none_had(names)}; write headers: or json: where a name is meant that no"
                " request has to have"
            )
            problems.append(message)
        return {
            "field": assertion.asked,
            "filters": json_value(assertion.wanted),
            "operators": json_value(assertion.operators()),
            "matched": matched,
            "found": None if isinstance(found, Missing) else _bound(found),
            "passed": not problems,
            "message": f"{message}." if problems else f"holds: found {_describe(found)}",
        }

    def _read(self, selected: _Selection) -> Any | Missing:
        return self._grammar.read(self._field, selected)

    def _problems(self, found: Any | Missing, deadline: float) -> list[str]:
        problems: list[str] = []
        typed = self._grammar.is_typed(self._field)
        for operator, operand in self._assertion.operators().items():
            try:
                problem = problem_with(operator, operand, found, typed=typed, deadline=deadline)
            except PatternTimeout as error:
                problem = str(error)
            if problem is not None:
                problems.append(problem)
        return problems

    def _without_unseen(self) -> _Selection:
        """What would pass without the filters that are neither header nor field of any request."""
        selected, filters = _Selection(self._requests), [one for one in self._filters if one not in self._unseen]
        selected.indices = [
            index for index, request in enumerate(self._requests) if all(one.matches(request) for one in filters)
        ]
        return selected

    def notices(self) -> Iterator[str]:
        """Of each filter that is neither header nor field of any request."""
        if not self._unseen:
            return
        names: dict[str, None] = {}
        for request in self._requests:
            names.update(dict.fromkeys(names_in(request)))
            if len(names) > _NAMES_KEPT:
                break
        for one in self._unseen:
            close = nearest(one.name, list(names)[:_NAMES_KEPT])
            yield self._none_had(repr(one.name)) + (f", did you mean {_shorten(close)!r}?" if close else "")

    def _none_had(self, names: str) -> str:
        return f"none of the {len(self._requests):,} recorded requests had a header or a field {names}"

    def _unsure(self, *, holds: bool) -> str:
        """Why what was kept of the requests can't answer; empty when it can."""
        if self._undecided:
            requests = "1 request" if self._undecided == 1 else f"{self._undecided:,} requests"
            return f"not all of the body of {requests} was kept, so the filters can't tell"
        cut = self._cut()
        # What is found in a part is in the whole.
        found = holds and self._field.part == "body" and self._assertion.operators().keys() <= {"contains", "exists"}
        return f"{cut:,} bytes of that request's body were not kept" if cut and not found else ""

    def _cut(self) -> int:
        index = len(self._selected) - 1 if self._field.request == "last" else self._field.request
        if not isinstance(index, int) or self._field.part not in (None, "body", "json"):
            return 0
        return self._selected[index].cut if 0 <= index < len(self._selected) else 0


def _describe(found: Any) -> str:
    return found.reason if isinstance(found, Missing) else describe(found)


def _bound(value: Any) -> Any:
    """The value itself while it is small: results.json is for people and tools, bodies are in the journal."""
    document = json_value(value)
    text = document if isinstance(document, str) else str(document)
    return document if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


class NearMisses:
    """Takes the requests that the filters turned away; keeps how often each kind came, not the requests."""

    def __init__(self, filters: Sequence[Filter], grammar: Grammar) -> None:
        self._filters, self._grammar = filters, grammar
        self._kinds: Counter[tuple[str, int]] = Counter()
        self._others = 0

    def add(self, request: Any) -> None:
        """A request that was turned away."""
        failing = [one for one in self._filters if not one.matches(request)]
        reasons = [_describe_mismatch(one, request) for one in failing if one.name not in self._grammar.heading]
        line = _shorten(request.headline)
        kind = (f"{line} with {', '.join(reasons)}" if reasons else line, len(failing))
        if kind in self._kinds or len(self._kinds) < _KINDS_KEPT:
            self._kinds[kind] += 1
        else:
            self._others += 1

    def sentence(self, matched: int) -> str:
        """`0 requests matched POST /api/messages; 1 request: POST /api/message`; without the full stop."""
        noun = self._grammar.noun
        matching = f"matched {self._describe()}" if self._filters else "came altogether"
        text = f"{_count_words(matched, noun)} {matching}"
        if not self._kinds:
            return text if matched or not self._filters else f"{text}; none came at all"
        asked = self._describe()

        def nearness(kind: tuple[tuple[str, int], int]) -> tuple[int, float]:
            (line, failing), _ = kind
            return failing, -difflib.SequenceMatcher(None, line[:200], asked[:200]).ratio()

        nearest = sorted(self._kinds.items(), key=nearness)[:_KINDS_SHOWN]
        shown = "; ".join(f"{_count_words(count, noun)}: {line}" for (line, _), count in nearest)
        rest = sum(self._kinds.values()) + self._others - sum(count for _, count in nearest)
        return f"{text}; {shown}" + (f"; and {rest:,} more" if rest else "")

    def _describe(self) -> str:
        wanted = {one.name: one.wanted for one in self._filters}
        line = " ".join(str(wanted.pop(name)) for name in self._grammar.heading if name in wanted)
        others = ", ".join(f"{name}={_shorten(shown_value(value))}" for name, value in wanted.items())
        return _shorten(" with ".join(part for part in (line, others) if part))


def _describe_mismatch(one: Filter, request: Any) -> str:
    found = one.find(request)
    if isinstance(found, Missing):
        return found.reason
    return f"{one.name}={_shorten(shown_value(shown_found(found)))}"


def _shorten(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _count_words(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"
