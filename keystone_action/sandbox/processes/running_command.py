"""A command of a process sandbox that is talked to while it runs, over this machine's loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import SandboxError
from keystone_action.sandbox.base import RunningCommand
from keystone_action.sandbox.listeners import TABLES, Listener, listeners

if TYPE_CHECKING:
    from keystone_action.command import Completed
    from keystone_action.sandbox.base import Connection
    from keystone_action.sandbox.processes.client import Channel


class Stopper:
    """Ends a command before its time, with its report: the first process is killed, and then all that is left."""

    def __init__(self) -> None:
        self.has_sent = False
        self._asked = False
        self._channel: Channel | None = None

    async def begin(self, channel: Channel) -> None:
        """Its supervisor has the command."""
        self._channel = channel
        if self._asked:
            await self._send()

    def finish(self) -> None:
        """Its report has come: the supervisor may serve somebody else."""
        self._channel = None

    async def stop(self) -> None:
        """Kill it now, or as soon as it has been started."""
        self._asked = True
        await self._send()

    async def _send(self) -> None:
        if self._channel is not None and not self.has_sent:
            self.has_sent = True
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
        found = list(_look(port))
        own = [one for one in found if self._uid is None or one.uid == self._uid]
        if found and not own:
            raise SandboxError(f"port {port} of this machine was taken by another program", help="run it again")
        return tuple(dict.fromkeys(address for one in own for address in one.addresses))

    async def connect(self, address: str, port: int) -> Connection:
        """See `RunningCommand.connect`."""
        return await asyncio.open_connection(address, port)

    async def _end(self) -> None:
        await self._stopper.stop()


def _look(port: int) -> list[Listener]:
    rows: list[str] = []
    for table in TABLES:
        with contextlib.suppress(OSError):  # no IPv6 here
            rows += Path(table).read_text(encoding="ascii").splitlines()
    return list(listeners(rows, port))
