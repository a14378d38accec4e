"""What services ask of a process sandbox: programs that run on until they are stopped, and a confined world for a
program that reads what an agent wrote."""

from __future__ import annotations

import os
import pwd
import re
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from keystone_action.errors import ServiceError
from keystone_action.files.removal import remove_tree

if TYPE_CHECKING:
    from keystone_action.sandbox.own_programs import OwnPython
    from keystone_action.sandbox.protocol import Sandbox
    from keystone_action.system.command import CommandLimits

ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
"""All that a server gets of an environment: nothing of ours (keys, tokens) is inherited."""

SERVER_TAIL_CHARACTERS = 4000
"""How much is shown of what a server printed last."""


class ServerProcess(Protocol):
    """A program that was started."""

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""

    async def wait(self) -> int:
        """Its exit code, once it and all its descendants have ended."""

    def tail(self) -> str:
        """What it printed last."""

    async def stop(self, timeout: float = ..., number: int = ...) -> int:
        """Ask it by a signal to end, and kill it after `timeout` seconds."""


class Spawner(Protocol):
    """What starts servers: a process sandbox. They end with us, however we end."""

    async def spawn_service(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        uid: bool | int = ...,
        writable: Sequence[Path] = ...,
        name: str = ...,
    ) -> ServerProcess:
        """uid: True gives it a user of its own, a number that user; `writable` directories are given to it. Where we
        are not root, it runs as us. Raises SandboxError."""


class ScriptHost(Protocol):
    """What confines a program of ours: a process sandbox. See `SandboxProvider`, which has the same methods."""

    @property
    def root(self) -> Path:
        """A directory of ours that the users of sandboxes may pass through and not list."""

    async def open_host(self, directory: Path, *, limits: CommandLimits) -> Sandbox:
        """`directory` is given to the sandbox's user. Raises SandboxError."""

    async def host_python(self) -> OwnPython:
        """Our interpreter, as a program in there finds it. Raises SandboxError."""


class Provider(Spawner, ScriptHost, Protocol):
    """A process sandbox, as far as services need it. root: below it, directories are passable for servers' users."""


def named_user() -> int:
    """A user other than root that has a name: `nobody` where there is one. Raises OSError."""
    users = sorted(pwd.getpwall(), key=lambda entry: (entry.pw_name != "nobody", -entry.pw_uid))
    for entry in users:
        if entry.pw_uid != 0:
            return entry.pw_uid
    raise OSError("no user but root has a name on this machine")


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


LOOPBACK = "127.0.0.1"
_PORT_ATTEMPTS = 5
_POLL_SECONDS = 0.02
_STOP_SECONDS = 5.0
_SIGNAL = re.compile(r"(?:terminated by signal|got signal|ended by signal) (\d{1,2})\b")


class OwnServer(ABC):
    """A database server on the loopback of this machine: a directory and a port of its own, nothing of our environment.

    what: what it is, in messages. directory: what this server may have for its own; its parent is ours, and the
    server's user may pass through it. ends_by: the signal that ends it at once."""

    what = "the server"
    ends_by: int = signal.SIGTERM

    def __init__(self, name: str, directory: Path, spawner: Spawner) -> None:
        self.name = name
        self.port = 0
        self._directory = directory
        self._spawner = spawner
        self._process: ServerProcess | None = None

    @abstractmethod
    async def _prepare(self) -> None:
        """Make what it starts from; the directory is there. Raises ServiceError."""

    @abstractmethod
    def _command(self) -> list[str]:
        """What starts it, at `port`."""

    @abstractmethod
    def _ask(self) -> bool:
        """Whether it answers by now, and what is to be set was set. Blocking."""

    async def start(self, ready_timeout: float) -> None:
        """Ready when a query is answered. Raises ServiceError with what the server printed last."""
        import anyio

        try:
            with anyio.move_on_after(ready_timeout) as limit:
                await self._start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise
        if limit.cancelled_caught:
            problem = self.failure(f"was not ready within {ready_timeout:g} s")
            await self.stop()
            raise problem

    async def _start(self) -> None:
        self._directory.mkdir(mode=0o700)
        await self._prepare()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self.port = _free_port()
            self._process = await self._spawn(self._command(), user=True)
            if await self._answers():
                return
            # Somebody took the port between our look and the server's; anything else is a failure.
            if attempt == _PORT_ATTEMPTS or "in use" not in self._process.tail():
                raise self.failure(f"ended with exit code {await self._process.wait()} before it was ready")

    async def _answers(self) -> bool:
        """True when it is ready, False when it ended."""
        import anyio
        import anyio.to_thread

        while self._process is not None and self._process.is_running:
            if await anyio.to_thread.run_sync(self._ask):
                return True
            await anyio.sleep(_POLL_SECONDS)
        return False

    async def _run(self, argv: Sequence[str], *, user: bool | int) -> int:
        """Run a program that prepares it; its exit code."""
        self._process = await self._spawn(argv, user=user)
        return await self._process.wait()

    async def _spawn(self, argv: Sequence[str], *, user: bool | int) -> ServerProcess:
        return await self._spawner.spawn_service(
            argv,
            {**ENVIRONMENT, "HOME": str(self._directory), "TMPDIR": str(self._directory)},
            self._directory,
            uid=user,
            writable=[self._directory],
            name=f"service {self.name}",
        )

    async def stop(self) -> None:
        """End it at once: its data is not kept. Never raises."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop(_STOP_SECONDS, self.ends_by)
        remove_tree(self._directory)

    def failure(self, problem: str) -> ServiceError:
        """A ServiceError about this service, with what it printed last."""
        printed = self._process.tail()[-SERVER_TAIL_CHARACTERS:].strip() if self._process is not None else ""
        shown = without_statements(printed)
        last = f"; it printed last:\n{shown}" if shown else ""
        return ServiceError(f"service {self.name}: {self.what} {problem}{signal_told(printed)}{last}")


def signal_told(printed: str) -> str:
    """` (SIGSEGV)`, the last signal by which a process of a server ended, as far as it printed that; else empty."""
    found = _SIGNAL.findall(printed)
    try:
        return f" ({signal.Signals(int(found[-1])).name})" if found else ""
    except ValueError:
        return f" (signal {found[-1]})"


_KIND = re.compile(r"\b(LOG|ERROR|FATAL|PANIC|WARNING|NOTICE|DETAIL|STATEMENT|CONTEXT|QUERY|HINT):  ")
_PRIMARY = frozenset({"LOG", "ERROR", "FATAL", "PANIC", "WARNING", "NOTICE"})
_QUOTING = frozenset({"STATEMENT", "CONTEXT", "QUERY"})
_QUOTED = re.compile(r'".*')
_OF_CRASHES = re.compile(r"^Query \((?:(?!^Connection ID)[\s\S])*", re.MULTILINE)
_AFTER_QUERY = re.compile(r"^Connection ID \(thread ID\)", re.MULTILINE)


def without_statements(printed: str) -> str:
    """What a database server printed last, without what it quotes: statements that failed, or ran when it crashed, can
    hold rows of anybody's fixtures."""
    if len(printed) >= SERVER_TAIL_CHARACTERS:
        printed = printed.partition("\n")[2]  # its first line began before
    after = _AFTER_QUERY.search(printed)
    if after is not None and "Query (" not in printed[: after.start()]:
        printed = printed[after.start() :]
    kept: list[str] = []
    kind, primary = "STATEMENT", ""
    for line in _OF_CRASHES.sub("Query: …\n", printed).split("\n"):
        if not line.startswith("\t"):
            found = _KIND.search(line)
            kind = found[1] if found is not None else ""
            primary = kind if kind in _PRIMARY else primary
        elif primary == "ERROR":
            continue
        if kind in _QUOTING or (kind == "DETAIL" and primary != "FATAL"):
            continue
        kept.append(_QUOTED.sub("…", line) if kind == "ERROR" else line)
    return "\n".join(kept).strip()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
    return port
