"""Asks an agent that is a service: one HTTP request, over a connection that a process of the sandbox makes.

Whose fault it is (contract, 5.7): any answer but 2xx, one that is cut or late, one without the text that was asked for
is an agent that failed. A name that does not resolve, a connection that is refused, a certificate that is not trusted
is an error: nothing is known of the agent then. An agent that is a container of the cell's answered in its first turn:
where it can't be reached later, or has ended by itself, that is its own doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, urlsplit

import anyio.to_thread

from keystone_action.agents.http_answer import HttpAnswer, read_http_answer
from keystone_action.agents.program import ANSWER, STDOUT, keep_whole
from keystone_action.errors import HarnessError
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.sandbox.dialing import CannotDial, plain_address
from keystone_action.sandbox.http_client import BadRequest, BadResponse, HttpResponse, HttpTarget, encode, exchange
from keystone_action.spec.expressions import Reference, parse_expression, resolve_reference
from keystone_action.system.command import WHOLE_LIMIT

if TYPE_CHECKING:
    from keystone_action.agents.program import AgentCall
    from keystone_action.sandbox.protocol import Sandbox, ServedConnection
    from keystone_action.spec.models.agents import HttpAgent

_HEAD_LIMIT = 64 << 10
_FORM = "application/x-www-form-urlencoded"
Encoding = Callable[[Any], str]


class _AgentFailed(Exception):  # noqa: N818 - an outcome
    """The agent is at fault; str() says why. received: what it had answered until then. is_cut: whether its connection
    ended first."""

    def __init__(self, problem: str, received: bytes = b"", *, is_cut: bool = False) -> None:
        super().__init__(problem)
        self.received, self.is_cut = received, is_cut


async def run_http(agent: HttpAgent, sandbox: Sandbox, task: AgentCall) -> AgentRun:
    """Ask it, and read its answer. Raises HarnessError where that is not the agent's fault."""
    target, request = _request(agent, task)
    started = time.monotonic()
    limit = agent.timeout
    reached = asyncio.Event()
    asking = asyncio.ensure_future(_ask(sandbox, target, request, reached))
    stopping = asyncio.ensure_future(task.stop.wait()) if task.stop is not None else None
    try:
        await asyncio.wait({one for one in (asking, stopping) if one}, timeout=limit, return_when="FIRST_COMPLETED")
    finally:
        in_time = asking.done()
        await _end(asking, stopping)
    duration = time.monotonic() - started
    stopped = task.stop is not None and task.stop.is_set()
    if not in_time:
        if stopped:
            return AgentRun(exit_code=1, duration_s=duration)
        problem = f"the agent's answer was not complete after {limit:g} s"
        if not reached.is_set():
            problem = f"no connection to {target.host}:{target.port} in {limit:g} s"
            if not await _is_gone(task):
                raise HarnessError(f"the agent can't be asked: {problem}")
            problem = f"the agent is gone: {problem}"
        return AgentRun(timed_out=True, duration_s=duration, problem=problem)
    try:
        response = asking.result()
    except CannotDial as problem:
        # The name of a container that has ended goes with it.
        if problem.obstacle not in ("name", "refused") or not await _is_gone(task):
            advice = _ADVICE.get(problem.obstacle, "")
            raise HarnessError(f"the agent can't be asked: {problem}", help=advice) from None
        gone = HttpAnswer(problem=f"the agent is gone: {problem}")
        return await _recorded(HttpResponse(0, {}, b""), gone, task, duration)
    except _AgentFailed as failed:
        if failed.is_cut:
            await _has_ended(task)  # so that the container's own end is known when it is asked for
        body = HttpResponse(0, {}, failed.received)
        return await _recorded(body, HttpAnswer(problem=str(failed)), task, duration)
    answer = await anyio.to_thread.run_sync(read_http_answer, response, agent)
    return await _recorded(response, answer, task, duration)


async def _end(*futures: asyncio.Future[Any] | None) -> None:
    """Cancel what is still under way, and wait until it has cleaned up."""
    running = [one for one in futures if one is not None and not one.done()]
    for one in running:
        one.cancel()
    if running:
        with anyio.CancelScope(shield=True):
            await asyncio.wait(running)


async def _recorded(response: HttpResponse, answer: HttpAnswer, task: AgentCall, duration: float) -> AgentRun:
    """The run, with what was answered in place of what a program prints."""

    def keep() -> AgentRun:
        private = task.private
        stdout, long_stdout = keep_whole(response.text(), private and private / STDOUT)
        output, long_output = keep_whole(answer.output, private and private / ANSWER)
        return AgentRun(
            exit_code=1 if answer.problem else 0,
            duration_s=duration,
            output=output,
            long_output=long_output,
            stdout=stdout,
            stdout_bytes=len(response.body),
            long_stdout=long_stdout,
            tool_calls=answer.tool_calls,
            problem=answer.problem,
            calls_problem=answer.calls_problem,
            session=answer.conversation or _conversation(task),
        )

    try:
        return await anyio.to_thread.run_sync(keep)
    except OSError as error:
        raise HarnessError(f"the agent's answer can't be kept: {error.strerror or error}") from error


def _conversation(task: AgentCall) -> str:
    """What the agent has called this conversation; empty before it did."""
    session = task.earlier[-1].session if task.earlier else ""
    return session if isinstance(session, str) else ""


def _request(agent: HttpAgent, task: AgentCall) -> tuple[HttpTarget, bytes]:
    """Where the request goes, and its bytes. Raises HarnessError."""
    names = {**task.names, "turn": task.prompt, "conversation": _conversation(task)}
    headers = {name: _fill(text, names, _plain) for name, text in agent.headers.items()}
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    body: Any = agent.body
    if isinstance(body, str):
        encoding = _encoding_of(body, kind)
        if not kind:
            headers["Content-Type"] = "application/json" if encoding is _in_json else "text/plain; charset=utf-8"
        body = _fill(body, names, encoding)
    elif body is not None:
        body = _fill_values(body, names)
    try:
        target = HttpTarget.of(_fill(agent.url, names, _in_url))
        if not target.host.isascii():
            target = replace(target, host=target.host.encode("idna").decode())
        _require_no_service(target, task)
        return target, encode(agent.method, target, headers, body)
    except (BadRequest, UnicodeError) as bad:
        raise HarnessError(f"the agent can't be asked: {bad}") from None


def _require_no_service(target: HttpTarget, task: AgentCall) -> None:
    """Raises HarnessError where a URL leads to a container that nobody took for the agent, as it was not known in time:
    it was there in setup, and what it does is not held to be the agent's doing."""
    host = target.host.lower().removesuffix(".")
    name = task.services.get(host) or task.services.get(f"{plain_address(host)}:{target.port}")
    if name is not None:
        raise HarnessError(
            f"the agent can't be asked: agent.url leads to the service {name}, and does not say so",
            help=f"write its host as {{{{ services.{name}.url }}}}, so that this container is the agent",
        )


def _encoding_of(body: str, kind: str) -> Encoding:
    """How texts are written into a body that is a text itself. kind: its content type; empty where none is given."""
    if kind:
        return _in_json if "json" in kind.lower() else _in_form if kind.lower().startswith(_FORM) else _plain
    start = body.lstrip()[:2]
    return _in_json if start[:1] in ("[", '"') or (start[:1] == "{" and start != "{{") else _plain


def _fill(text: str, names: Mapping[str, Any], encoding: Encoding) -> str:
    """Every expression replaced by its value, as its place needs it. Raises ExpressionError."""
    pieces = parse_expression(text) if "{{" in text else [text]
    return "".join(
        encoding(_value(piece, names)) if isinstance(piece, Reference) else _writable(piece) for piece in pieces
    )


def _fill_values(value: Any, names: Mapping[str, Any]) -> Any:
    """In a mapping: a text that is one expression becomes its value."""
    if isinstance(value, str):
        pieces = parse_expression(value) if "{{" in value else [value]
        if len(pieces) == 1 and isinstance(pieces[0], Reference):
            found = _value(pieces[0], names)
            return None if pieces[0].name == "conversation" and not found else found
        return _fill(value, names, _plain)
    if isinstance(value, Mapping):
        return {key: _fill_values(item, names) for key, item in value.items()}
    return [_fill_values(item, names) for item in value] if isinstance(value, list | tuple) else value


def _value(reference: Reference, names: Mapping[str, Any]) -> Any:
    found = resolve_reference(reference, names)
    return _writable(found) if isinstance(found, str) else found


def _writable(text: str) -> str:
    """Without halves of surrogate pairs, which no request can hold."""
    return text.encode("utf-8", "replace").decode()


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _in_json(value: Any) -> str:
    """Within the quotes of a text of JSON; what is not a text stands for itself."""
    written = json.dumps(value, ensure_ascii=False)
    return written[1:-1] if isinstance(value, str) else written


def _in_url(value: Any) -> str:
    return quote(_plain(value), safe="")


def _in_form(value: Any) -> str:
    return quote_plus(_plain(value))


async def _ask(sandbox: Sandbox, target: HttpTarget, request: bytes, reached: asyncio.Event) -> HttpResponse:
    """reached: set once there is a connection. Raises _AgentFailed, CannotDial, HarnessError."""
    try:
        async with _connected(sandbox, target) as connection:
            reached.set()
            return await exchange(connection, request, limit=WHOLE_LIMIT)
    except BadResponse as bad:
        raise _AgentFailed(f"the agent {bad}", bad.received, is_cut=bad.is_cut) from None
    except OSError as error:
        raise _AgentFailed(f"the agent cut the connection ({error.strerror or error})", is_cut=True) from None


async def _is_gone(task: AgentCall) -> bool:
    """Whether an agent that can't be reached is a container that was there, and is so itself at fault. Raises
    HarnessError."""
    return task.is_own_service and (await _has_ended(task) or task.turn > 1)


async def _has_ended(task: AgentCall) -> bool:
    """Whether it is a container that has ended. Raises HarnessError."""
    return task.has_ended is not None and await anyio.to_thread.run_sync(task.has_ended)


_ADVICE = {
    "name": "agent.url names a host that the sandbox does not know; a service of the spec is {{ services.NAME.url }}",
    "refused": "see that the agent listens at agent.url, on all addresses of its machine, before the cell starts",
    "program": "take another `base`, or none: the process sandbox needs nothing",
}


@contextlib.asynccontextmanager
async def _connected(sandbox: Sandbox, target: HttpTarget) -> AsyncIterator[ServedConnection]:
    """By the proxy, where the sandbox has one and this host is not beside it; with TLS where the URL says so. Raises
    CannotDial, HarnessError, OSError."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(plain_address(target.host))
        if address.is_link_local:
            raise CannotDial("link-local", target.host, target.port)
    proxy = _proxy(sandbox.environment, target.host)
    place = target if proxy is None else proxy
    async with sandbox.dial(place.host, place.port) as connection:
        if proxy is not None:
            await _pass_proxy(connection, target)
        if target.tls:
            await _start_tls(connection, target)
        yield connection


def _proxy(environment: Mapping[str, str], host: str) -> HttpTarget | None:
    url = environment.get("HTTPS_PROXY")
    if not url or host.lower() in environment.get("NO_PROXY", "").lower().split(","):
        return None
    parts = urlsplit(url)
    return HttpTarget(str(parts.hostname), parts.port or 80, "/")


async def _pass_proxy(connection: ServedConnection, target: HttpTarget) -> None:
    """Have our own proxy connect to the target. Raises HarnessError where the policy denies it, or nobody is there."""
    reader, writer = connection
    host = f"[{target.host}]" if ":" in target.host else target.host
    writer.write(f"CONNECT {host}:{target.port} HTTP/1.1\r\nHost: {host}:{target.port}\r\n\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        status, _, phrase = head.split(b"\r\n")[0].partition(b" ")[2].decode("latin-1").partition(" ")
        said = "" if status == "200" else await _said(reader) or phrase
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        status, said = "", "the proxy hung up"
    if status != "200":
        raise HarnessError(f"the agent can't be asked: {said}", help="network.egress.allow lists what may be reached.")


async def _said(reader: asyncio.StreamReader) -> str:
    """The sentence of a refusal."""
    return " ".join((await reader.read(_HEAD_LIMIT)).decode("utf-8", "replace").split())


async def _start_tls(connection: ServedConnection, target: HttpTarget) -> None:
    """Raises HarnessError, OSError."""
    try:
        await connection[1].start_tls(ssl.create_default_context(), server_hostname=target.host)
    except ssl.SSLCertVerificationError as error:
        raise HarnessError(
            f"the agent can't be asked: the certificate of {target.host} is not trusted ({error.verify_message})",
            help="SSL_CERT_FILE in Keystone's own environment names the authorities that it trusts.",
        ) from None
    except ssl.SSLError as error:
        raise HarnessError(
            f"the agent can't be asked: {target.host}:{target.port} does not speak TLS ({error})"
        ) from None
