"""Asking a server until its response is as expected, or the tries are used up."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from keystone_action.invariants.base import Outcome, failed, passed
from keystone_action.invariants.captured import seconds
from keystone_action.invariants.http.exchange import BadResponse, Response
from keystone_action.invariants.http.expected import Expect

_PAUSE = 1.0
_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The last response, None where there was none, and what is wrong with it: sentences without full stops."""

    response: Response | None
    problems: tuple[str, ...]
    tries: int

    def outcome(self, what: str, more: str = "", log: str = "", **details: Any) -> Outcome:
        """what: who was asked for what. more: for the message of a failure. log: what the server printed."""
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
    """deadline: in `time.monotonic()` seconds; each try gets an even share of what is left."""

    expect: Expect
    retries: int
    deadline: float

    async def run(
        self, ask: Callable[[], Awaitable[Response]], ended: Callable[[], bool] = lambda: False
    ) -> ProbeAnswer:
        """ended: whether nobody is left to be asked. Raises SandboxError."""
        for number in range(1, self.retries + 2):
            answer = await self._try(ask, number)
            if not answer.problems or ended() or self.deadline - time.monotonic() <= _PAUSE:
                break
            if number <= self.retries:
                await anyio.sleep(_PAUSE)
        return answer

    async def _try(self, ask: Callable[[], Awaitable[Response]], number: int) -> ProbeAnswer:
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
