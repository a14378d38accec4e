"""A command in a container that is talked to while it runs: through programs of the image's own that are started beside
it, so that also what listens for itself alone is reached, in a network without any way in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from keystone_action.engine.calls import engine_errors
from keystone_action.errors import SandboxError
from keystone_action.sandbox.dialing import DIALER, IN_AN_IMAGE, await_connection
from keystone_action.sandbox.protocol import TABLES, RunningCommand, listeners

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.container import ContainerRun
    from keystone_action.engine.streams import AttachedStreams
    from keystone_action.sandbox.protocol import ServedConnection
    from keystone_action.system.command import Completed

_HEADER = struct.Struct("!BxxxI")
"""Of a frame: its stream, and its length (Docker Engine API, "Attach to a container", stream format)."""
_STDOUT = 1
_CHUNK = 1 << 16
_ROWS_LIMIT = 1 << 16
_LOOK_SECONDS = 10.0
_END_SECONDS = 5.0
_START_PAUSE = 0.02

# It waits for a line first: what an engine sends together with its answer is lost on some clients.
_LOOK = (
    'read -r go; for table in $2; do [ -r "$table" ] || continue; while read -r row; do '
    'case "$row" in *":$1 "*" 0A "*) echo "$row";; esac; done <"$table"; done'
)
_PYTHON = """
import socket, sys, threading
far = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def back():
    while data := far.recv(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
threading.Thread(target=lambda: [far.sendall(data) for data in iter(lambda: sys.stdin.buffer.read1(65536), b"")],
                 daemon=True).start()
back()
sys.stdout.buffer.flush()
import os
os._exit(0)
"""
_BASH = 'exec 3<>"/dev/tcp/$1/$2" 4<&0 || exit 1; cat <&4 >&3 & cat <&3; kill $!'
_TUNNEL = f"""
if command -v python3 >/dev/null 2>&1; then exec python3 -I -S -c '{_PYTHON}' "$1" "$2"; fi
if command -v bash >/dev/null 2>&1; then exec bash -c '{_BASH}' bash "$1" "$2"; fi
exec nc "$1" "$2"
"""
_HAS_TUNNEL = "read -r go; command -v python3 || command -v bash || command -v nc"


class ContainerCommand(RunningCommand):
    """See `RunningCommand`. user: who it runs as, and programs beside it too. search_path: where the image has its own
    programs."""

    def __init__(
        self, completed: asyncio.Future[Completed], client: EngineClient, user: int, search_path: str, run: ContainerRun
    ) -> None:
        super().__init__(completed)
        self._run = run
        self._client = client
        self._user = user
        self._search_path = search_path
        self._has_tunnel = False

    async def addresses(self, port: int) -> tuple[str, ...]:
        """See `RunningCommand.addresses`."""
        if self._run.identifier is None or self.has_ended:
            return ()
        rows = await self._answer(_LOOK, f"{port:04X}", " ".join(TABLES))
        found = listeners(rows.splitlines(), port)
        return tuple(dict.fromkeys(address for one in found for address in one.addresses))

    async def connect(self, address: str, port: int) -> ServedConnection:
        """See `RunningCommand.connect`."""
        if not self._has_tunnel:
            self._has_tunnel = bool(await self._answer(_HAS_TUNNEL))
        if not self._has_tunnel:
            if self.has_ended:
                raise ConnectionRefusedError("it has ended")
            raise SandboxError(
                "a server in a container of this image can't be reached: the image has neither python3 nor bash nor nc",
                help="set base to an image that has one of them",
            )
        return await self._tunnel(_TUNNEL, address, str(port))

    async def dial(self, host: str, port: int) -> ServedConnection:
        """See `Sandbox.dial`. Raises CannotDial, SandboxError."""
        while self._run.identifier is None and not self.has_ended:  # noqa: ASYNC110 - a thread starts it
            await asyncio.sleep(_START_PAUSE)
        if self.has_ended:
            raise SandboxError(f"the container for a connection could not be started: {(await self.stop()).failure()}")
        connection = await self._tunnel(IN_AN_IMAGE, host, str(port), DIALER)
        connection[1].write(b"go\n")
        return await await_connection(connection, host, port)

    async def _tunnel(self, script: str, *arguments: str) -> ServedConnection:
        """The streams of a program beside the command. Raises OSError, SandboxError."""
        try:
            connection = await asyncio.to_thread(self._beside, script, *arguments)
        except SandboxError:
            if await self._ends():
                raise ConnectionRefusedError("it has ended") from None
            raise
        ours, theirs = socket.socketpair()
        for pump in (partial(_bring, connection, theirs), partial(_take, connection, theirs)):
            threading.Thread(target=pump, name="keystone-docker-tunnel", daemon=True).start()
        return await asyncio.open_connection(sock=ours)

    async def _answer(self, script: str, *arguments: str) -> str:
        """What a short script beside the command prints: as much as anybody needs. Empty when the container is gone."""

        def ask() -> str:
            connection = self._beside(script, *arguments)
            try:
                connection.sendall(b"go\n")
                return _read(connection).decode("utf-8", "replace")
            except OSError:
                return ""
            finally:
                connection.close()

        try:
            return await asyncio.to_thread(ask)
        except SandboxError:
            if await self._ends():
                return ""
            raise

    async def _ends(self) -> bool:
        """Whether the container has just ended: an engine refuses programs in it a little before we hear of that."""
        await asyncio.wait([self._completed], timeout=_END_SECONDS)
        return self.has_ended

    def _beside(self, script: str, *arguments: str) -> AttachedStreams:
        """A program beside the command: the connection that is its streams, in frames. Blocks. Raises SandboxError."""
        with engine_errors("can't run a program beside a server"):
            assert self._run.identifier is not None
            streams = self._client.start_beside(
                self._run.identifier,
                ["/bin/sh", "-c", script, "sh", *arguments],
                user=f"{self._user}:{self._user}",
                environment={"PATH": self._search_path},
                directory="/",
            )
        streams.settimeout(None)
        return streams

    async def _end(self) -> None:
        self._run.finish()


def _exactly(connection: AttachedStreams, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _read(connection: AttachedStreams) -> bytes:
    """What comes on stdout: at most so much, and at most so long."""
    deadline = time.monotonic() + _LOOK_SECONDS
    found = bytearray()
    with contextlib.suppress(EOFError):
        while len(found) < _ROWS_LIMIT and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            kind, size = _HEADER.unpack(_exactly(connection, _HEADER.size))
            while size:
                piece = connection.recv(min(size, _CHUNK))
                if not piece:
                    break
                size -= len(piece)
                if kind == _STDOUT and len(found) < _ROWS_LIMIT:
                    found += piece
                if len(found) >= _ROWS_LIMIT:
                    break
    return bytes(found)


def _bring(connection: AttachedStreams, near: socket.socket) -> None:
    """What the far end says, taken out of its frames, until one of the two hangs up."""
    with contextlib.suppress(OSError, EOFError):
        while True:
            kind, size = _HEADER.unpack(_exactly(connection, _HEADER.size))
            while size:
                piece = connection.recv(min(size, _CHUNK))
                if not piece:
                    raise EOFError
                size -= len(piece)
                if kind == _STDOUT:
                    near.sendall(piece)
    _hang_up(connection, near)


def _take(connection: AttachedStreams, near: socket.socket) -> None:
    """What we say."""
    with contextlib.suppress(OSError):
        while piece := near.recv(_CHUNK):
            connection.sendall(piece)
    _hang_up(connection, near)


def _hang_up(connection: AttachedStreams, near: socket.socket) -> None:
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_RDWR)
    connection.close()
