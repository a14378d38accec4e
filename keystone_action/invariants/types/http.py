"""`http`: start what the agent built, and ask it; or ask a service of the spec."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

import anyio
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.invariants.check import Check, CheckContext, Outcome, Phase, broken, failed
from keystone_action.invariants.command_output import describe_ending, full_log, seconds, tails
from keystone_action.invariants.http_exchange import ExpectedResponse, Probe
from keystone_action.invariants.test_runs.graded_copy import CannotPrepare, GradedCopy, prepare_copy
from keystone_action.sandbox.http_client import BadRequest, BadResponse, HttpResponse, HttpTarget, encode, exchange
from keystone_action.sandbox.programs import sentence_on_missing, started_program
from keystone_action.sandbox.protocol import RunningCommand
from keystone_action.spec.models.fields import Duration, ShellCommand, StrictModel, Template, Text, TextOrList
from keystone_action.system.command import Command, Completed

_PORT = Template(later=("port",))
_EXPRESSION = re.compile(r"(\\?)\{\{(\s*port\s*\}\})?")
_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - compared with, never bound to
_LOOK_PAUSE = 0.1
_LONGER = 5.0
"""Seconds that the server may outlive its last try: one that ends at the same moment has hung up, it seems."""
_NOT_FOUND = 127
_NonEmpty = Annotated[str, Field(min_length=1)]


class HttpRequest(StrictModel):
    """What is asked. `{{ port }}` is the port of the server that `start` started."""

    method: str = "GET"
    """The method of the request.

    Example: `POST`
    """
    url: Annotated[str, Field(min_length=1), _PORT]
    """With `start`: a path like `/health`, or `http://localhost:{{ port }}/health`. Without it the URL of a service of
    the spec: `{{ services.shop.url }}/health`.

    Example: `/health`
    """
    headers: dict[str, Annotated[Text, _PORT]] = Field(default_factory=dict)
    """Headers of the request, by name.

    Example: `{Accept: application/json}`
    """
    body: Annotated[Any, _PORT] = None
    """The body of the request: a text is sent as it is, everything else as JSON.

    Example: `{name: Ada}`
    """


class Http(Check):
    """Starts what the agent built, sends it one HTTP request, and compares the response.

    `start` runs in a sandbox on a fresh copy of the workspace and has to stay in the foreground. It gets a free port as
    `PORT` and as `{{ port }}`, and is asked once something of it listens there; when nothing does within
    `ready_timeout`, when it ends before that, or answers with something else than HTTP, the check fails. It is reached
    where it runs, so one that listens on localhost alone is fine, in a container too. All processes that it started
    are gone afterwards. Without `start` the request goes to a service of the spec.

    A redirect is a response like any other and never followed. Of a response at most 64 KiB of headers and 8 MiB of a
    body are read, and unpacked. Score 1 when everything that is expected holds, else 0.
    """

    type_name: ClassVar[str] = "http"
    phase: ClassVar[Phase] = "fresh_copy"
    default_timeout: ClassVar[float] = 120.0
    late_fails: ClassVar[bool] = True

    start: (
        Annotated[TextOrList[_NonEmpty, Annotated[list[_NonEmpty], Field(min_length=1)]], ShellCommand(), _PORT] | None
    ) = None
    """The command that starts the server; a string is run by `sh -c`.

    Example: `python3 server.py`
    """
    request: HttpRequest
    """The request that is sent.

    Example: `{url: /health}`
    """
    expect: ExpectedResponse = Field(default_factory=ExpectedResponse)
    """What is expected of the response. Without it, any status from 200 to 299.

    Example: `{status: 200, body: {contains: ok}}`
    """
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    """How many more times it is asked, a second apart, until everything expected holds.

    Example: `3`
    """
    ready_timeout: Duration = 30.0
    """How long the server may take until it listens.

    Example: `10s`
    """

    @model_validator(mode="after")
    def _has_somebody_to_ask(self) -> Self:
        url = self.request.url
        has_port = any(match[2] and not match[1] for match in _EXPRESSION.finditer(url))
        if self.start is None and ("{{" not in url or has_port):
            message = "without start the request goes to a service: expected a url like {{ services.NAME.url }}/path"
            raise PydanticCustomError("http_url", "{message}", {"message": message})
        return self

    async def evaluate(self, context: CheckContext) -> Outcome:
        deadline = time.monotonic() + context.timeout
        try:
            if self.start is None:
                return await self._ask_service(context, deadline)
            return await self._ask_started(context, deadline)
        except BadRequest as problem:
            return broken(f"request: {problem}.")
        except CannotPrepare as problem:
            return failed(f"{problem}.")

    async def _ask_service(self, context: CheckContext, deadline: float) -> Outcome:
        host_url, target = _service(self.request.url, context), HttpTarget.of(self.request.url)
        request = self._encode(target, None)
        reached = HttpTarget.of(host_url)

        async def ask() -> HttpResponse:
            return await exchange(
                await asyncio.open_connection(reached.host, reached.port, ssl=True if reached.tls else None),
                request if reached.path == target.path else self._encode(reached, None),
            )

        result = await Probe(self.expect, self.retries, deadline).run(ask)
        return result.outcome(f"{self._show_request()}")

    async def _ask_started(self, context: CheckContext, deadline: float) -> Outcome:
        assert self.start is not None
        port = _free_port()
        target = self._own_target(port)
        request = self._encode(target, port)
        copy = await prepare_copy(context, {}, ())
        limit = max(deadline - time.monotonic(), 0.001)
        command = _fill_port(self.start, port)
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        environment = {**context.check_environment, "PORT": str(port)}
        async with copy.sandbox.serve(Command(argv, env=environment, timeout=limit + _LONGER)) as server:
            addresses = await _ready(server, port, min(self.ready_timeout, limit))
            if not addresses:
                by_itself = server.has_ended
                completed = await server.stop()
                return self._never_listened(completed, context, copy, port, min(self.ready_timeout, limit), by_itself)
            result = await Probe(self.expect, self.retries, deadline).run(
                lambda: _ask(server, port, request), lambda: server.has_ended
            )
            completed = await server.stop()
        ended = f"\nThe server was stopped at a limit: {completed.limit}." if completed.limit else ""
        what = f"{self._show_request()}, of what `start` started,"
        return result.outcome(what, f"{ended}\n{tails(completed)}", full_log(completed), **copy.details)

    def _own_target(self, port: int) -> HttpTarget:
        """Raises BadRequest for a URL that leads elsewhere than to the started server."""
        url = _fill_port(self.request.url, port)
        target = HttpTarget.of(f"http://localhost:{port}{url}" if url.startswith("/") else url)
        if target.host not in _OWN_HOSTS or target.port != port or target.tls:
            raise BadRequest(
                "with start the url leads to the started server: expected a path, or "
                f"http://localhost:{{{{ port }}}}/…, found {self.request.url!r}"
            )
        return target

    def _encode(self, target: HttpTarget, port: int | None) -> bytes:
        request = self.request
        headers = {name: _fill_port(value, port) for name, value in request.headers.items()}
        return encode(request.method, target, headers, _fill_port(request.body, port))

    def _never_listened(
        self, completed: Completed, context: CheckContext, copy: GradedCopy, port: int, given: float, by_itself: bool
    ) -> Outcome:
        assert self.start is not None
        program = started_program(self.start)
        missing = completed.not_found or completed.shell_code == _NOT_FOUND
        if missing and program is not None and program in context.missing_programs:
            return broken(sentence_on_missing(program, context.missing_programs[program]), log=full_log(completed))
        if completed.limit is not None:
            why = f"was stopped at a limit ({completed.limit}) before it listened on its port"
        elif by_itself and not completed.timed_out:
            why = f"{describe_ending(completed)} before it listened on its port; it must stay in the foreground"
        else:
            why = (
                f"did not listen on port {port} within {seconds(round(given, 1))}; "
                "it gets the port as PORT and as {{ port }}"
            )
        return failed(f"`start` {why}.\n{tails(completed)}", log=full_log(completed), port=port, **copy.details)

    def _show_request(self) -> str:
        return f"{self.request.method.upper()} {urlsplit(self.request.url).path or '/'}"


def _fill_port(value: Any, port: int | None) -> Any:
    r"""With `{{ port }}` replaced at any depth, and `\{{` as two braces."""
    if isinstance(value, str):

        def fill(match: re.Match[str]) -> str:
            if match[1]:
                return "{{" + (match[2] or "")
            return str(port) if match[2] and port is not None else match[0]

        return _EXPRESSION.sub(fill, value)
    if isinstance(value, list | tuple):
        return [_fill_port(item, port) for item in value]
    if isinstance(value, Mapping):
        return {key: _fill_port(item, port) for key, item in value.items()}
    return value


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _ready(server: RunningCommand, port: int, limit: float) -> tuple[str, ...]:
    """Where it listens; nothing when it ends or does not within the limit."""
    with anyio.move_on_after(limit):
        while not server.has_ended:
            if found := await server.addresses(port):
                return found
            await anyio.sleep(_LOOK_PAUSE)
    return ()


async def _ask(server: RunningCommand, port: int, request: bytes) -> HttpResponse:
    """By the first address that answers at all. Raises BadResponse, OSError, SandboxError."""
    problem: Exception = BadResponse("does not listen any more")
    for address in await server.addresses(port):
        try:
            return await exchange(await server.connect(address, port), request)
        except (BadResponse, OSError) as error:
            problem = error
    raise problem


def _service(url: str, context: CheckContext) -> str:
    """The same URL as we reach it. Raises BadRequest for one that is not a service's."""
    target = HttpTarget.of(url)
    for service in context.evidence.services.values():
        address, ours = service.for_agent, service.for_host.as_mapping()
        base = address.url.rstrip("/")
        if base.startswith("http") and ours.get("url") and (url == base or url.startswith((f"{base}/", f"{base}?"))):
            return str(ours["url"]).rstrip("/") + url.removeprefix(base)
        if (address.host, address.port) == (target.host, target.port) and ours.get("port"):
            parts = urlsplit(url)
            host = f"[{ours['host']}]" if ":" in str(ours["host"]) else ours["host"]
            return parts._replace(netloc=f"{host}:{ours['port']}").geturl()
    raise BadRequest(f"{url!r} is not a service of this spec; declare it, as `type: external` where it is elsewhere")
