"""A provider of models that says what a test tells it to, over real sockets; and what it was asked."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from keystone_action.network.loop_thread import LoopThread


@dataclass(frozen=True)
class Asked:
    """A request as it arrived. target: path and query. headers: names in lower case, in order."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first one's value."""
        return next((value for one, value in self.headers if one == name), None)

    @property
    def document(self) -> Any:
        """Its body."""
        return json.loads(self.body)


@dataclass
class Says:
    """One answer. pieces: sent one by one, each after `before`, if there is one, has let it. cut: the connection ends
    after them, without the end of the answer. raw: the pieces are all that is sent, the answer's head included."""

    status: int = 200
    pieces: Sequence[bytes] = (b"{}",)
    headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),)
    cut: bool = False
    raw: bool = False
    before: Callable[[int], Awaitable[None]] | None = None


Answer = Says | Callable[[Asked], Says]


def stream(*events: dict[str, Any], **more: Any) -> Says:
    """Server-sent events."""
    pieces = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return Says(pieces=pieces, headers=(("content-type", "text/event-stream"),), **more)


def document(found: Any, status: int = 200, **more: Any) -> Says:
    """JSON in one piece."""
    return Says(status, [json.dumps(found).encode()], **more)


@dataclass
class ScriptedProvider:
    """answers: taken one by one; the last one again and again. One that can be called is told the request."""

    answers: list[Answer]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    serving: set[asyncio.Task[Any]] = field(default_factory=set)
    at_once: int = 0
    most_at_once: int = 0
    """Requests that were being answered at the same time."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    await self._answer(head, reader, writer)
                finally:
                    self.at_once -= 1
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        length = int(dict(headers).get("content-length", "0"))
        method, target, _ = first.split(" ")
        self.asked.append(Asked(method, target, headers, await reader.readexactly(length)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        says = answer if isinstance(answer, Says) else answer(self.asked[-1])
        told = "".join(f"{name}: {value}\r\n" for name, value in says.headers)
        if not says.raw:
            writer.write(f"HTTP/1.1 {says.status} X\r\n{told}transfer-encoding: chunked\r\n\r\n".encode())
        for number, piece in enumerate(says.pieces):
            if says.before is not None:
                await says.before(number)
            writer.write(piece if says.raw else f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if says.cut or says.raw:
            raise ConnectionAbortedError
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@contextmanager
def provider(*answers: Answer) -> Iterator[ScriptedProvider]:
    """It listens while the block lasts."""
    scripted, thread = (
        ScriptedProvider(list(answers) or [document({})]),
        LoopThread("scripted-provider", "the provider"),
    )
    thread.start()
    assert thread.loop is not None
    listening = socket.create_server(("127.0.0.1", 0))
    scripted.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    starting = asyncio.start_server(scripted.serve, sock=listening)
    server = asyncio.run_coroutine_threadsafe(starting, thread.loop).result(10)

    async def close() -> None:
        server.close()
        for task in scripted.serving:
            task.cancel()
        await asyncio.gather(*scripted.serving, return_exceptions=True)

    try:
        yield scripted
    finally:
        thread.stop(close)
