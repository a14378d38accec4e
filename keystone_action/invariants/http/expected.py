"""What is expected of an HTTP response, as fields of a spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from keystone_action.evidence.fields import Missing
from keystone_action.invariants.http.exchange import Response
from keystone_action.invariants.values.json_values import Expected, Values, problems_of, read_document, wrong_values
from keystone_action.invariants.values.operator_fields import Operators
from keystone_action.spec.models.base import StrictModel


def _status(value: Any) -> Any:
    if isinstance(value, dict):
        return Operators.model_validate(value, by_alias=True, by_name=False)
    codes = value if isinstance(value, list) else [value]
    if not codes or not all(_is_status(code) for code in codes):
        expected = "a status like 200, a list of them, or a mapping of operators"
        raise PydanticCustomError("status", "expected {expected}", {"expected": expected, "found": repr(value)[:80]})
    return value


def _is_status(value: Any) -> bool:
    if isinstance(value, str):  # an expression that is filled in later
        return "{{" in value
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599


def _body(value: Any) -> Any:
    """A text is to be equalled; a mapping is of operators."""
    if isinstance(value, str | Operators):
        return value
    if not isinstance(value, dict):
        expected = "a text, or a mapping of operators such as contains"
        raise PydanticCustomError("body", "expected {expected}", {"expected": expected, "found": repr(value)[:80]})
    return Operators.model_validate(value, by_alias=True, by_name=False)


class Expect(StrictModel):
    """What is expected of a response; all of it must hold."""

    status: Annotated[Operators | Any, BeforeValidator(_status)] = None
    """A status, a list of which it is one, or operators; without it, 200 to 299.

    Example: `201`
    Example: `[200, 204]`
    """
    headers: dict[str, Expected] = Field(default_factory=dict)
    """By name, in any case: the value, or operators that must hold of it.

    Example: `{Content-Type: {contains: json}}`
    """
    body: Annotated[Operators | Any, BeforeValidator(_body)] = None
    """Operators that must hold of the body as text, or the whole text.

    Example: `{contains: Ada}`
    """
    json_: Values = Field(default_factory=dict, alias="json")
    """The body is JSON, and at these paths are these values, as in the check `json`.

    Example: `{"customers[0].name": Ada}`
    """

    def problems(self, response: Response, deadline: float) -> Iterator[str]:
        """What is wrong with a response, without full stops. deadline: in `time.monotonic()` seconds."""
        yield from self._status_problems(response, deadline)
        for name, expected in self.headers.items():
            value = response.headers.get(name.lower())
            found = Missing(f"the response has no header {name}") if value is None else value
            for problem in problems_of(expected, found, typed=False, deadline=deadline):
                yield f"header {name}: {problem}"
        if self.body is not None:
            for problem in problems_of(self.body, response.text(), typed=False, deadline=deadline):
                yield f"body: {problem}"
        if self.json_:
            try:
                document = read_document(response.body.decode("utf-8"))
            except ValueError as error:
                yield f"the body can't be used as JSON: {error}"
            else:
                yield from (f"json: {problem}" for problem in wrong_values(self.json_, document, deadline))

    def _status_problems(self, response: Response, deadline: float) -> Iterator[str]:
        found, wanted = response.status, self.status
        moved = ""
        if 300 <= found < 400 and "location" in response.headers:
            moved = f"; it redirects to {response.headers['location'][:200]!r}, which is not followed"
        if isinstance(wanted, Operators):
            for problem in problems_of(wanted, found, typed=True, deadline=deadline):
                yield f"status: {problem}{moved}"
            return
        # An expression in a list or beside text has become text.
        codes = [str(code) for code in (wanted if isinstance(wanted, list) else [wanted])]
        if str(found) in codes or (wanted is None and 200 <= found < 300):
            return
        yield f"status: expected {'200 to 299' if wanted is None else ' or '.join(codes)}, found {found}{moved}"
