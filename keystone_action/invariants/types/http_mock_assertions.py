"""`http_mock_assertions`: was this mock called the right way? (`000_66edd30c29bbac31.txt`, spec 5.3)"""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Self, overload

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import RecordedRequest
from keystone_action.evidence.requests import (
    NAMES,
    Filter,
    Missing,
    compile_filters,
    names_in,
    parse_field,
    read_field,
    shown_found,
)
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, with_notices
from keystone_action.invariants.comparison import describe, equal, json_value, shown_value
from keystone_action.invariants.operators import Operators, PatternTimeout, problem_with
from keystone_action.spec.loading.diagnostics import nearest, slip_of
from keystone_action.spec.models.fields import ServiceName

_SHOWN = 2_000
_HEADS = ("request_count", "last_request", "requests[0]")
_NUMERIC = frozenset({"equals", "not_equals", "gt", "gte", "lt", "lte", "exists"})
_KINDS_KEPT = 1_000
_KINDS_SHOWN = 3
_WIDTH = 120
_NAMES_KEPT = 1_000


def _readable_field(text: str) -> str:
    if "{{" in text:  # read when the expression has its value
        return text
    try:
        parse_field(text)
    except ValueError as error:
        head, dot, rest = text.partition(".")
        close = nearest(head, _HEADS) or ("requests[0]" if head.startswith("request") else "")
        suggestion = f"{close}{dot}{rest}" if close and close != head else ""
        context = {"message": str(error), "suggestion": suggestion}
        raise PydanticCustomError("field_of_requests", "{message}", context) from None
    return text


def _filter_name(name: str) -> str:
    """A misspelt filter would be the name of a header that no request has, and let nothing through."""
    meant = slip_of(name, NAMES)
    if meant:
        message = f"the filter {name!r} looks like {meant}, misspelt"
        advice = f"if it is a name, write headers: {{{name}: …}} or json: {{{name}: …}}"
        raise PydanticCustomError("filter_name", "{message}", {"message": message, "suggestion": meant, "help": advice})
    return name


class Assertion(Operators):
    """One thing that must hold of the requests that pass `filters`. Give at least one operator; all that are given must
    hold.

    Values of `.json` keep their types (numbers compare by value, never with text). All else in a request is text, and a
    number or boolean of the spec is compared with it by its own text; `gt` and the like read it as a number.
    """

    field: Annotated[str, AfterValidator(_readable_field)]
    """What is looked at: `request_count`; `last_request` or `requests[N]` (from 0), alone or with `.method`, `.path`,
    `.query`, `.headers`, `.headers.<Name>`, `.body`, `.json` or `.json.a.b`.

    Example: `request_count`
    Example: `last_request.json.amount`
    """
    filters: dict[Annotated[str, AfterValidator(_filter_name)], Any] = Field(default_factory=dict)
    """Which requests count. `method`; `path` (as it is, or with `*` and `**`); `query` (a mapping of names to a text,
    or a list where a name is repeated); `body` (a text in it); `headers` (a mapping of names); `json` (a mapping of
    paths in a JSON body, such as `items[0].id`). Any other key is a header, in any case, or else a top-level field of a
    JSON or form body.

    Example: `{method: POST, path: "/orders/*"}`
    """

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.field == "request_count" and (odd := sorted(self.operators().keys() - _NUMERIC)):
            raise PydanticCustomError(
                "operator_of_number",
                f"request_count is a number: expected {', '.join(sorted(_NUMERIC))}, found {', '.join(odd)}",
            )
        try:
            self.compiled_filters()
        except ValueError as error:
            if not _has_expression(self.filters):
                raise PydanticCustomError("filter", "{message}", {"message": str(error)}) from None
        return self

    def compiled_filters(self) -> tuple[Filter, ...]:
        """Raises ValueError with a sentence."""
        return compile_filters(self.filters, equal)


def _has_expression(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_expression, value.values()))
    return any(map(_has_expression, value)) if isinstance(value, list) else isinstance(value, str) and "{{" in value


class HttpMockAssertions(Check):
    """Passes when a mock service was called as its assertions say.

    Of each assertion, `filters` come first: `request_count`, `last_request` and `requests[N]` count among the requests
    that are left. A request that isn't there fails every operator but `exists: false`. The message names the requests
    that came closest. Score 1 when every assertion holds, else 0.
    """

    type_name: ClassVar[str] = "http_mock_assertions"
    origin: ClassVar[str] = "Keystone"
    late_fails: ClassVar[bool] = True

    service: Annotated[str, ServiceName(kinds="recording")]
    """An entry of `services` of type `http_mock` with `record: true`.

    Example: `shop`
    """
    assertions: Annotated[list[Assertion], Field(min_length=1)]
    """What must hold of the recorded requests, all of it.

    Example: `[{field: request_count, filters: {method: POST}, equals: 1}]`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        log = context.evidence.request_log(self.service)
        if log is None:
            return broken(f"the service {self.service} records nothing; it needs type: http_mock with record: true")
        deadline = time.monotonic() + context.timeout
        # Reading may take long: the agent decides how many requests there are and how large.
        return await anyio.to_thread.run_sync(lambda: self._evaluate(log.requests(), deadline), abandon_on_cancel=True)

    def _evaluate(self, requests: Sequence[RecordedRequest], deadline: float) -> Outcome:
        try:
            views = [_View(assertion, requests) for assertion in self.assertions]
        except ValueError as error:  # only what an expression gave
            return broken(f"{error}")
        for index, request in enumerate(requests):
            for view in views:
                view.see(index, request)
        results = [view.result(deadline) for view in views]
        problems = [f"{result['field']}: {result['message']}" for result in results if not result["passed"]]
        details: dict[str, Any] = {"service": self.service, "requests": len(requests), "assertions": results}
        held = "1 assertion holds" if len(results) == 1 else f"all {len(results)} assertions hold"
        outcome = failed("\n".join(problems), **details) if problems else passed(f"{self.service}: {held}.", **details)
        return with_notices(outcome, (notice for view in views for notice in view.notices()))


class _Selection(Sequence[RecordedRequest]):
    """Some of the recorded requests, each read when it is asked for."""

    def __init__(self, requests: Sequence[RecordedRequest]) -> None:
        self._requests = requests
        self.indices: list[int] = []

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> RecordedRequest: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordedRequest]: ...
    def __getitem__(self, index: int | slice) -> RecordedRequest | list[RecordedRequest]:
        if isinstance(index, slice):
            return [self._requests[number] for number in self.indices[index]]
        return self._requests[self.indices[index]]

    def __iter__(self) -> Iterator[RecordedRequest]:
        return (self._requests[number] for number in self.indices)


class _View:
    """One assertion and the requests that pass its filters."""

    def __init__(self, assertion: Assertion, requests: Sequence[RecordedRequest]) -> None:
        """Raises ValueError with a sentence."""
        self._assertion = assertion
        self._field = parse_field(assertion.field)
        self._filters = assertion.compiled_filters()
        self._requests = requests
        self._selected = _Selection(requests)
        self._near = NearMisses(self._filters)
        self._undecided = 0
        self._unseen = [one for one in self._filters if one.reads == "any"] if requests else []

    def see(self, index: int, request: RecordedRequest) -> None:
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
        found = read_field(self._field, self._selected)
        problems = self._problems(found, deadline)
        message = "; ".join(problems)
        if problems and (self._field.request == "count" or isinstance(found, Missing)):
            message += f". {self._near.sentence(matched)}"
        unsure = self._unsure(holds=not problems)
        if unsure:
            problems.append(unsure)
            message = f"{message}. {unsure}" if message else unsure
        if not problems and self._unseen and self._problems(read_field(self._field, self._without_unseen()), deadline):
            names = " and ".join(repr(one.name) for one in self._unseen)
            message = (
                f"it holds only because {self._none_had(names)}; write headers: or json: where a name is meant that no"
                " request has to have"
            )
            problems.append(message)
        return {
            "field": assertion.field,
            "filters": json_value(assertion.filters),
            "operators": json_value(assertion.operators()),
            "matched": matched,
            "found": None if isinstance(found, Missing) else _bound(found),
            "passed": not problems,
            "message": f"{message}." if problems else f"holds: found {_describe(found)}",
        }

    def _problems(self, found: Any | Missing, deadline: float) -> list[str]:
        problems: list[str] = []
        for operator, operand in self._assertion.operators().items():
            try:
                problem = problem_with(operator, operand, found, typed=self._field.part == "json", deadline=deadline)
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

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._filters = filters
        self._kinds: Counter[tuple[str, int]] = Counter()
        self._others = 0

    def add(self, request: RecordedRequest) -> None:
        """A request that was turned away."""
        failing = [one for one in self._filters if not one.matches(request)]
        reasons = [_describe_mismatch(one, request) for one in failing if one.name not in ("method", "path")]
        line = f"{request.method} {_shorten(request.path)}"
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
        others = ", ".join(f"{name}={_shorten(shown_value(value))}" for name, value in wanted.items())
        return _shorten(" with ".join(part for part in (line, others) if part))


def _describe_mismatch(one: Filter, request: RecordedRequest) -> str:
    found = one.find(request)
    if isinstance(found, Missing):
        return found.reason
    return f"{one.name}={_shorten(shown_value(shown_found(found)))}"


def _shorten(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _count_words(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"
