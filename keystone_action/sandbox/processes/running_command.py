"""A command of the process sandbox that is talked to while it runs, over this machine's loopback interface or that of
its own network namespace; and one that makes a connection for us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import SandboxError
from keystone_action.sandbox.dialing import DIALER, CannotDial, await_connection
from keystone_action.sandbox.protocol import TABLES, RunningCommand, listeners
from keystone_action.system.command import Command

if TYPE_CHECKING:
    from keystone_action.sandbox.own_programs import OwnPython
    from keystone_action.sandbox.processes.client import Channel
    from keystone_action.sandbox.processes.network import NamespaceRelay
    from keystone_action.sandbox.protocol import ServedConnection
    from keystone_action.system.command import Completed


class Stopper:
    """Ends a command before its time, with its report: the first process is killed, and then all that is left."""

    def __init__(self) -> None:
        self.has_sent = False
        self.relay: NamespaceRelay | None = None
        """Of the command's network namespace, if it has one."""
        self._asked = False
        self._is_stopped = False
        self._channel: Channel | None = None

    async def begin(self, channel: Channel) -> None:
        """Its supervisor has the command."""
        self._channel = channel
        if self._asked:
            await self._send()

    def finish(self) -> None:
        """Its report has come: the supervisor may serve somebody else."""
        self._channel = None

    async def send(self, message: object) -> None:
        """To its supervisor, which serves nobody else afterwards: the message may come after its report. Raises
        OSError."""
        if self._channel is None:
            raise ConnectionAbortedError("the command has ended")
        self.has_sent = True
        await self._channel.send(message)

    async def stop(self) -> None:
        """Kill it now, or as soon as it has been started."""
        self._asked = True
        await self._send()

    async def _send(self) -> None:
        if self._channel is not None and not self._is_stopped:
            self._is_stopped = self.has_sent = True
            with contextlib.suppress(OSError):  # it ended meanwhile
                await self._channel.send({"signal": int(signal.SIGKILL)})


class SupervisedCommand(RunningCommand):
    """See `RunningCommand`. uid: whose sockets count, None where all processes are of our own user."""

    def __init__(self, completed: asyncio.Future[Completed], stopper: Stopper, uid: int | None) -> None:
        super().__init__(completed)
        self._stopper = stopper
        self._uid = uid

    async def addresses(self, port: int) -> tuple[str, ...]:
        """See `RunningCommand.addresses`. Raises SandboxError when the port is somebody else's: another program took it
        since it was found free."""
        relay = self._stopper.relay
        found = list(listeners(_own_rows() if relay is None else relay.rows(), port))
        own = [one for one in found if self._uid is None or one.uid == self._uid]
        if found and not own:
            raise SandboxError(f"port {port} of this machine was taken by another program", help="run it again")
        return tuple(dict.fromkeys(address for one in own for address in one.addresses))

    async def connect(self, address: str, port: int) -> ServedConnection:
        """See `RunningCommand.connect`."""
        if (relay := self._stopper.relay) is not None:
            return await asyncio.open_connection(sock=await relay.connect(self._stopper, address, port))
        return await asyncio.open_connection(address, port)

    async def _end(self) -> None:
        await self._stopper.stop()


def _own_rows() -> list[str]:
    rows: list[str] = []
    for table in TABLES:
        with contextlib.suppress(OSError):  # no IPv6 here
            rows += Path(table).read_text(encoding="ascii").splitlines()
    return rows


@contextlib.asynccontextmanager
async def dialed(
    host: str,
    port: int,
    *,
    python: OwnPython,
    folder: Path,
    run: Callable[[Command, Stopper], Awaitable[Completed]],
) -> AsyncIterator[ServedConnection]:
    """A connection that our Python makes as a command of a sandbox; see `Sandbox.dial`. folder: one of the sandbox's,
    for the socket that we meet it at. run: runs the command. Raises CannotDial, SandboxError."""
    import anyio

    name = f".keystone-{secrets.token_hex(8)}"
    with _listening(folder, name) as listener:
        argv = (python.program, "-I", "-S", "-c", DIALER, host, str(port), str(folder), name)
        libraries = {} if python.libraries is None else {"LD_LIBRARY_PATH": str(python.libraries)}
        stopper = Stopper()
        completed = asyncio.ensure_future(run(Command(argv, env=libraries), stopper))
        coming = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
        try:
            await asyncio.wait({completed, coming}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise CannotDial("refused", host, port, (await completed).failure())
            near = coming.result()[0]
            connection = await asyncio.open_connection(sock=near)
            try:
                yield await await_connection(connection, host, port)
            finally:
                connection[1].transport.abort()
        finally:
            coming.cancel()
            with anyio.CancelScope(shield=True):
                await stopper.stop()
                await asyncio.wait([completed])
            completed.exception()  # the caller that waited for it has been told


@contextlib.contextmanager
def _listening(folder: Path, name: str) -> Iterator[socket.socket]:
    """A Unix socket in a folder that nobody but us and the sandbox's user can enter. Raises SandboxError."""
    with contextlib.ExitStack() as ours:
        try:
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            ours.callback(os.close, place)
            listener = ours.enter_context(socket.socket(socket.AF_UNIX))
            listener.setblocking(False)
            # By its descriptor: the path of a socket may have 107 bytes.
            listener.bind(f"/proc/self/fd/{place}/{name}")
            ours.callback(_unlink, name, place)
            os.chmod(name, 0o777, dir_fd=place)  # noqa: S103 - see above
            listener.listen(1)
        except OSError as error:
            raise SandboxError(f"the sandbox's process can't be met: {error.strerror or error}") from error
        yield listener


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
