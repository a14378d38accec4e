"""`http_mock_assertions`: was this mock called the right way? (`000_66edd30c29bbac31.txt`, spec 5.3)"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from keystone_action.evidence.requests import NAMES, Filter, compile_filters, parse_field, read_field
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken
from keystone_action.invariants.comparison import equal
from keystone_action.invariants.recorded_assertions import Grammar, RecordAssertion, evaluate_assertions
from keystone_action.spec.loading.diagnostics import slip_of
from keystone_action.spec.models.fields import ServiceName

_GRAMMAR = Grammar(
    noun="request",
    count="request_count",
    heads=("request_count", "last_request", "requests[0]"),
    heading=("method", "path"),
    parse=parse_field,
    read=read_field,
    is_typed=lambda field: field.part == "json",
)


def _filter_name(name: str) -> str:
    """A misspelt filter would be the name of a header that no request has, and let nothing through."""
    meant = slip_of(name, NAMES)
    if meant:
        message = f"the filter {name!r} looks like {meant}, misspelt"
        advice = f"if it is a name, write headers: {{{name}: …}} or json: {{{name}: …}}"
        raise PydanticCustomError("filter_name", "{message}", {"message": message, "suggestion": meant, "help": advice})
    return name


class Assertion(RecordAssertion):
    """One thing that must hold of the requests that pass `filters`. Give at least one operator; all that are given must
    hold.

    Values of `.json` keep their types (numbers compare by value, never with text). All else in a request is text, and a
    number or boolean of the spec is compared with it by its own text; `gt` and the like read it as a number.
    """

    grammar: ClassVar[Grammar] = _GRAMMAR

    field: Annotated[str, AfterValidator(_GRAMMAR.check_field)]
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

    def compiled_filters(self) -> tuple[Filter, ...]:
        """Raises ValueError with a sentence."""
        return compile_filters(self.filters, equal)


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
        return await anyio.to_thread.run_sync(
            lambda: evaluate_assertions(self.assertions, log.requests(), self.service, context.timeout),
            abandon_on_cancel=True,
        )
