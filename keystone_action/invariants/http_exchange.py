"""What is expected of an HTTP response. A probe asks again until a response is as expected or the tries are used up."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from keystone_action.evidence.requests import Missing
from keystone_action.invariants.check import Outcome, failed, passed
from keystone_action.invariants.command_output import seconds
from keystone_action.invariants.json_values import Expected, Values, problems_of, read_document, wrong_values
from keystone_action.invariants.operators import Operators
from keystone_action.sandbox.http_client import BadResponse, HttpResponse
from keystone_action.spec.models.fields import StrictModel


def _valid_status(value: Any) -> Any:
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


def _valid_body(value: Any) -> Any:
    """A text is to be equalled; a mapping is of operators."""
    if isinstance(value, str | Operators):
        return value
    if not isinstance(value, dict):
        expected = "a text, or a mapping of operators such as contains"
        raise PydanticCustomError("body", "expected {expected}", {"expected": expected, "found": repr(value)[:80]})
    return Operators.model_validate(value, by_alias=True, by_name=False)


class ExpectedResponse(StrictModel):
    """What is expected of a response; all of it must hold."""

    status: Annotated[Operators | Any, BeforeValidator(_valid_status)] = None
    """A status, a list of allowed ones, or operators; without it, 200 to 299.

    Example: `201`
    Example: `[200, 204]`
    """
    headers: dict[str, Expected] = Field(default_factory=dict)
    """By name, in any case: the value, or operators that must hold of it.

    Example: `{Content-Type: {contains: json}}`
    """
    body: Annotated[Operators | Any, BeforeValidator(_valid_body)] = None
    """Operators that must hold of the body as text, or the whole text.

    Example: `{contains: Ada}`
    """
    json_: Values = Field(default_factory=dict, alias="json")
    """The body is JSON, and at these paths are these values, as in the check `json`.

    Example: `{"customers[0].name": Ada}`
    """

    def problems(self, response: HttpResponse, deadline: float) -> Iterator[str]:
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

    def _status_problems(self, response: HttpResponse, deadline: float) -> Iterator[str]:
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


_PAUSE = 1.0
_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What the last try of a probe got."""

    response: HttpResponse | None
    """None where there was none."""
    problems: tuple[str, ...]
    """What is wrong with it: sentences without full stops."""
    tries: int

    def outcome(self, what: str, more: str = "", log: str = "", **details: Any) -> Outcome:
        """The outcome of the check. what: who was asked for what. more: for the message of a failure. log: what the
        server printed."""
        details = {"tries": self.tries, **details}
        if self.response is not None:
            details = {"status": self.response.status, **details}
            head = "\n".join(f"{name}: {value}" for name, value in self.response.headers.items())
            body = self.response.text()
            cut = f"\n[… {len(body) - _SHOWN:,} characters cut …]" if len(body) > _SHOWN else ""
            log = f"--- response ---\n{self.response.status}\n{head}\n\n{body[:_SHOWN]}{cut}\n{log}"
        if not self.problems:
            return passed(f"{what} answered as expected.", log=log, **details)
        tried = f" (tried {self.tries} times)" if self.tries > 1 else ""
        found = "\n".join(f"{problem}." for problem in self.problems)
        return failed(f"{what} did not answer as expected{tried}:\n{found}{more}", log=log, **details)


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks a server until its response is as expected, or the tries are used up."""

    expect: ExpectedResponse
    retries: int
    deadline: float
    """In `time.monotonic()` seconds. Each try gets an even share of the time that is left."""

    async def run(
        self, ask: Callable[[], Awaitable[HttpResponse]], ended: Callable[[], bool] = lambda: False
    ) -> ProbeAnswer:
        """The answer of the last try. ended: whether the server is gone, so that no further try can succeed. Raises
        SandboxError."""
        for number in range(1, self.retries + 2):
            answer = await self._try(ask, number)
            if not answer.problems or ended() or self.deadline - time.monotonic() <= _PAUSE:
                break
            if number <= self.retries:
                await anyio.sleep(_PAUSE)
        return answer

    async def _try(self, ask: Callable[[], Awaitable[HttpResponse]], number: int) -> ProbeAnswer:
        share = max(self.deadline - time.monotonic(), 0.001) / (self.retries + 2 - number)
        try:
            with anyio.move_on_after(share) as limit:
                response = await ask()
        except BadResponse as problem:
            return ProbeAnswer(None, (f"the server {problem}",), number)
        except OSError as error:
            return ProbeAnswer(None, (f"it could not be reached: {error.strerror or error}",), number)
        if limit.cancelled_caught:
            return ProbeAnswer(None, (f"no whole response came within {seconds(round(share, 1))}",), number)
        problems = await anyio.to_thread.run_sync(
            lambda: tuple(self.expect.problems(response, self.deadline)), abandon_on_cancel=True
        )
        return ProbeAnswer(response, problems, number)
