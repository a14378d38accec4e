"""Servers that answer as agents do, each connection alike, and a turn of an agent that is one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from support.context import kept
from support.worlds import world_of

from keystone_action.agents.program import AgentCall, write_inputs
from keystone_action.agents.run import call_agent
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.spec.models.agents import Agent

AGENTS: TypeAdapter[Any] = TypeAdapter(Agent)
Answer = Callable[[socket.socket], object]


class Served:
    """A server that gives each connection the same answer. requests: what it was sent, a text each."""

    def __init__(self, answer: bytes | Answer, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._context = context
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}/chat"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with contextlib.suppress(OSError):
                    if self._context is not None:
                        connection = self._context.wrap_socket(connection, server_side=True)
                    self.requests.append(_read_request(connection))
                    if callable(self._answer):
                        self._answer(connection)
                    else:
                        connection.sendall(self._answer)
                connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def body(self) -> str:
        """Of the only request."""
        (request,) = self.requests
        return request.partition("\r\n\r\n")[2]


def _read_request(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return ""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += connection.recv(65536)
    return (head + b"\r\n\r\n" + body).decode()


@contextlib.contextmanager
def serving(answer: bytes | Answer, context: ssl.SSLContext | None = None) -> Iterator[Served]:
    """A server for the block."""
    served = Served(answer, context)
    try:
        yield served
    finally:
        served.close()


def reply(body: bytes | str, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


def chunks(*pieces: str, kind: str = "text/event-stream", end: bool = True) -> bytes:
    """An answer in chunks; without its end where `end` is false."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = "".join(f"{len(piece.encode()):x}\r\n{piece}\r\n" for piece in pieces)
    return (head + body + ("0\r\n\r\n" if end else "")).encode()


def ask(
    document: Mapping[str, Any],
    *,
    prompt: str = "the prompt",
    names: Mapping[str, Any] | None = None,
    keep: Callable[[AgentRun], object] | None = None,
    stop_after: float | None = None,
    **call: Any,
) -> AgentRun:
    """One turn of such an agent in the process sandbox. keep: sees the run while its files are there."""
    agent = AGENTS.validate_python({"type": "http", **document})

    async def main() -> AgentRun:
        async with world_of(await kept().sandboxes()) as world:
            private = world.area / "private"
            private.mkdir()
            sandbox = await world.open()
            inputs = write_inputs(world.area / "task", prompt, agent, bytes)
            stop = asyncio.Event() if stop_after is not None else None
            if stop is not None:
                asyncio.get_running_loop().call_later(stop_after, stop.set)
            given = {"task": {"prompt": prompt}, **(names or {})}
            task = AgentCall(
                prompt=prompt, environment={}, inputs=inputs, private=private, names=given, stop=stop, **call
            )
            try:
                run = await call_agent(agent, sandbox, task)
                if keep is not None:
                    keep(run)
                return run
            finally:
                await sandbox.close()
                assert not list(world.workspace.iterdir())

    run: AgentRun = kept().call(main())
    return run


def answered(answer: bytes | Answer, **document: Any) -> AgentRun:
    """One turn of an agent that answers so."""
    with serving(answer) as served:
        return ask({"url": served.url, "timeout": "30s", **document})


def free_port() -> int:
    """Nobody listens there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
