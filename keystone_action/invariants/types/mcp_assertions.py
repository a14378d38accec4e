"""`mcp_assertions`: were the tools of this mock called the right way? (spec 1.7)"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from keystone_action.evidence.calls import FILTERS, compile_call_filters, is_typed, parse_call_field, read_call_field
from keystone_action.evidence.requests import Filter
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken
from keystone_action.invariants.comparison import equal
from keystone_action.invariants.recorded_assertions import Grammar, RecordAssertion, evaluate_assertions
from keystone_action.spec.loading.diagnostics import nearest
from keystone_action.spec.models.fields import ServiceName

_GRAMMAR = Grammar(
    noun="call",
    count="call_count",
    heads=("call_count", "last_call", "calls[0]"),
    heading=("tool",),
    parse=parse_call_field,
    read=read_call_field,
    is_typed=is_typed,
)


def _filter_name(name: str) -> str:
    if name not in FILTERS:
        message = f"{name!r} is not a filter of calls: expected one of {', '.join(FILTERS)}"
        meant = nearest(name, FILTERS) or ""
        advice = f"of an argument, write arguments: {{{name}: …}}"
        raise PydanticCustomError("filter_name", "{message}", {"message": message, "suggestion": meant, "help": advice})
    return name


class CallAssertion(RecordAssertion):
    """One thing that must hold of the calls that pass `filters`. Give at least one operator; all that are given must
    hold.

    Arguments, `is_error` and values of `result.a.b` keep their types (numbers compare by value, never with text).
    `result` and `tool` are text.
    """

    grammar: ClassVar[Grammar] = _GRAMMAR

    field: Annotated[str, AfterValidator(_GRAMMAR.check_field)]
    """What is looked at: `call_count`; `last_call` or `calls[N]` (from 0), alone or with `.tool`, `.arguments`,
    `.arguments.a.b`, `.result` (the text of the answer), `.result.a.b` (its JSON) or `.is_error`.

    Example: `call_count`
    Example: `last_call.arguments.id`
    """
    filters: dict[Annotated[str, AfterValidator(_filter_name)], Any] = Field(default_factory=dict)
    """Which calls count. `tool`: its name; `arguments`: a mapping of paths in the arguments to values; `is_error`.

    Example: `{tool: get_order, arguments: {id: 7}}`
    """

    def compiled_filters(self) -> tuple[Filter, ...]:
        """Raises ValueError with a sentence."""
        return compile_call_filters(self.filters, equal)


class McpAssertions(Check):
    """Passes when the tools of an MCP mock were called as its assertions say.

    Of each assertion, `filters` come first: `call_count`, `last_call` and `calls[N]` count among the calls that are
    left. A call that isn't there fails every operator but `exists: false`. The message names the calls that came
    closest. A call of a tool that is not there, or with arguments that do not fit its schema, is a call too, with
    `is_error: true`. Score 1 when every assertion holds, else 0.
    """

    type_name: ClassVar[str] = "mcp_assertions"
    late_fails: ClassVar[bool] = True

    service: Annotated[str, ServiceName(kinds="calls")]
    """An entry of `services` of type `mcp_mock` that records.

    Example: `desk`
    """
    assertions: Annotated[list[CallAssertion], Field(min_length=1)]
    """What must hold of the recorded calls, all of it.

    Example: `[{field: call_count, filters: {tool: get_order}, equals: 1}]`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        log = context.evidence.call_log(self.service)
        if log is None:
            return broken(f"the service {self.service} records no calls; it needs type: mcp_mock with record: true")
        return await anyio.to_thread.run_sync(
            lambda: evaluate_assertions(self.assertions, log.calls(), self.service, context.timeout),
            abandon_on_cancel=True,
        )
