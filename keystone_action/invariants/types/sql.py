"""`sql`: the state that the agent left in a database, asked read-only with a role of our own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import Database, QueryFailed, QueryResult
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, with_notices
from keystone_action.invariants.comparison import contains, describe, equal, json_value, order, shown_value, text_form
from keystone_action.invariants.operators import PatternTimeout, search_pattern
from keystone_action.spec.models.fields import RegexPattern, ServiceName

Bound = int | float | str
_OPERATORS = ("equals", "not_equals", "gt", "gte", "lt", "lte", "contains", "matches", "rows")
_ORDERED: Mapping[str, tuple[str, Callable[[int], bool]]] = {
    "gt": ("more than", lambda sign: sign > 0),
    "gte": ("at least", lambda sign: sign >= 0),
    "lt": ("less than", lambda sign: sign < 0),
    "lte": ("at most", lambda sign: sign <= 0),
}


class Sql(Check):
    """Asks a database service and compares what it answers, to check the state that the agent left.

    The query runs in a read-only transaction, with a role of our own that may only SELECT. On a server that somebody
    else runs (`type: external`) that role is made for each query and dropped after it; where the user of the URL may
    not make roles, or they could not read all that it reads, that user asks itself, and the report says so.
    Give at least one operator; all that are given must hold. All but `rows` look at one value, the first column of the
    first row: a query without rows gives null, and of one with several rows a notice says how many there were. `rows`
    compares the whole result.

    Numbers compare by value and never with text. A boolean is not a number, except in MySQL and SQLite, which have 0
    and 1 only. Dates, UUIDs and decimals compare by their ISO or numeric value. A failure shows both values with their
    types.

    A table or column that does not exist fails the check: the agent was to make it. So does a query that reads, through
    views too, what stood there before the agent and is something else by now: a table that is a view, or has a new
    rule, policy or generated column, or a column whose values compare otherwise by another type or collation, a view or
    function with another definition. `redefined: allow` reads it all the same. A query that is still busy at its time
    limit is ended; it fails the check when it reads what the agent made, filled or redefined. Any other failure of the
    query (its syntax, a permission, an attempt to write, a lost connection, the time limit) is an error of the check.
    """

    type_name: ClassVar[str] = "sql"
    origin: ClassVar[str] = "Keystone"
    default_timeout: ClassVar[float] = 30.0

    service: Annotated[str, ServiceName(kinds="database")]
    """The entry of `services` that is asked: PostgreSQL, MySQL, MariaDB, SQLite, or an external one.

    Example: `db`
    """
    query: Annotated[str, Field(min_length=1)]
    """The query, one SQL statement that reads.

    Example: `SELECT count(*) FROM customers`
    """
    equals: Any = None
    """The value that is expected; `null` is one, too.

    Example: `42`
    """
    not_equals: Any = None
    """A value that must not be found.

    Example: `null`
    """
    gt: Bound | None = None
    """The value found must be greater.

    Example: `0`
    """
    gte: Bound | None = None
    """The value found must be greater or equal.

    Example: `1`
    """
    lt: Bound | None = None
    """The value found must be less.

    Example: `100`
    """
    lte: Bound | None = None
    """The value found must be less or equal.

    Example: `99.5`
    """
    contains: Bound | None = None
    """A text that must be in the text found, or an element of the list found.

    Example: `Ada`
    """
    matches: Annotated[str, RegexPattern()] | None = None
    """A regular expression that must match somewhere in the text found.

    Example: `'^A'`
    """
    rows: list[list[Any] | dict[str, Any]] | None = None
    """The whole result in its order; each row a list in the order of the columns, or a mapping of all columns.

    Example: `[[1, Ada], [2, Grace]]`
    Example: `[{id: 1, name: Ada}]`
    """
    redefined: Literal["deny", "allow"] = "deny"
    """`allow`: what the query reads may be something else than before the agent, such as a view in the place of a
    table. For a task that asks for that.

    Example: `allow`
    """

    @model_validator(mode="after")
    def _has_an_operator(self) -> Self:
        if not self._given_operators():
            raise PydanticCustomError("missing_operator", f"expected at least one of {', '.join(_OPERATORS)}")
        return self

    def _given_operators(self) -> list[str]:
        # `equals: null` is an operator too, so what was written counts, not what is None.
        return [
            name
            for name in _OPERATORS
            if name in self.model_fields_set and (name in ("equals", "not_equals") or getattr(self, name) is not None)
        ]

    def depends_on(self, service: str) -> bool:
        """See Check."""
        return service == self.service

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        database = context.evidence.database(self.service)
        if database is None:
            return broken(f"the service {self.service} is not a database that sql can ask")
        return await anyio.to_thread.run_sync(self._evaluate, database, context.timeout, abandon_on_cancel=True)

    def _evaluate(self, database: Database, timeout: float) -> Outcome:
        deadline = time.monotonic() + timeout
        try:
            result = database.query(self.query, timeout=timeout, redefined=self.redefined == "allow")
            problems = [
                problem for name in self._given_operators() if (problem := self._problem(name, result, deadline))
            ]
        except QueryFailed as problem:
            details: dict[str, Any] = {"query": self.query, "service": self.service}
            return (failed if problem.by_agent else broken)(f"{self.service}: {problem}", **details)
        except PatternTimeout as problem:
            return failed(f"{problem}.", query=self.query)
        details = {"query": self.query, "columns": list(result.columns), "found": _first_rows(result)}
        if problems:
            return with_notices(failed("\n".join(problems), **details), self._notices(result))
        answered = f"{self.service} answered {_summary(result, whole=self.rows is not None)}."
        return with_notices(passed(answered, **details), self._notices(result))

    def _notices(self, result: QueryResult) -> list[str]:
        """That an operator looked at the first of several rows, whose order may be chance."""
        if len(result.rows) < 2 or self._given_operators() == ["rows"]:
            return []
        return [f"the query gave {_how_many(result)} rows, and only the first counts; `rows` compares them all"]

    def _problem(self, operator: str, result: QueryResult, deadline: float) -> str | None:
        """What is wrong with this operator, as a sentence; None when it holds."""
        wanted = getattr(self, operator)
        if operator == "rows":
            return _rows_problem(wanted, result)
        found = result.rows[0][0] if result.rows and result.rows[0] else None
        seen = f"found {describe(found)}" if result.rows else "the query gave no rows (null)"
        if operator == "equals":
            holds = equal(wanted, found, boolean_as_number=result.boolean_as_number)
            advice = " `rows` compares rows." if isinstance(wanted, list) and not isinstance(found, list) else ""
            return None if holds else f"expected {describe(wanted)}, {seen}.{advice}"
        if operator == "not_equals":
            holds = not equal(wanted, found, boolean_as_number=result.boolean_as_number)
            return None if holds else f"expected anything but {describe(wanted)}, {seen}."
        if operator == "contains":
            return None if contains(wanted, found) else f"expected something that contains {describe(wanted)}, {seen}."
        if operator == "matches":
            text = text_form(found)
            if text is None:
                return f"expected a text that matches {wanted!r}, {seen}."
            return (
                None if search_pattern(wanted, text, deadline=deadline) else f"expected a match of {wanted!r}, {seen}."
            )
        words, holds_for = _ORDERED[operator]
        sign = order(wanted, found)
        if sign is None:
            return f"expected {words} {describe(wanted)}, {seen}: the two have no order."
        return None if holds_for(sign) else f"expected {words} {describe(wanted)}, {seen}."


def _rows_problem(wanted: list[list[Any] | dict[str, Any]], result: QueryResult) -> str | None:
    if len(wanted) != len(result.rows) or result.more:
        return f"expected {len(wanted):,} rows, found {_how_many(result)}: {shown_value(_first_rows(result)[:5])}."
    for number, (row, found) in enumerate(zip(wanted, result.rows, strict=True), start=1):
        if isinstance(row, dict):
            if len(set(result.columns)) != len(result.columns):
                return f"columns {', '.join(result.columns)} are not distinct; write the rows as lists."
            values: object = dict(zip(result.columns, found, strict=True))
        else:
            values = found
        if not equal(row, values, boolean_as_number=result.boolean_as_number):
            return f"row {number}: expected {_with_types(row)}, found {_with_types(values)}."
    return None


def _how_many(result: QueryResult) -> str:
    """Its rows, counted as far as they were read."""
    return f"more than {len(result.rows):,}" if result.more else f"{len(result.rows):,}"


def _with_types(row: object) -> str:
    if isinstance(row, Mapping):
        return "{" + ", ".join(f"{key}: {describe(value)}" for key, value in row.items()) + "}"
    return "[" + ", ".join(describe(value) for value in row) + "]"  # type: ignore[attr-defined]


def _first_rows(result: QueryResult, *, limit: int = 20) -> list[Any]:
    return [json_value(row) for row in result.rows[:limit]]


def _summary(result: QueryResult, *, whole: bool) -> str:
    if whole:
        return f"{len(result.rows):,} rows as expected"
    return describe(result.rows[0][0]) if result.rows and result.rows[0] else "no rows (null)"
