"""A program that runs on while cells come and go: a database server. Supervised as commands are, and ended with us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.errors import SandboxError
from keystone_action.sandbox.processes.wire import CommandRequest

if TYPE_CHECKING:
    from keystone_action.sandbox.processes.client import Channel, LauncherClient
    from keystone_action.sandbox.users import Lease

_TAIL = 64 << 10


class ServiceProcess:
    """A started service. pid: its first process. uid: the user it runs as, None when that is our own."""

    def __init__(
        self,
        launcher: LauncherClient,
        name: str,
        channel: Channel,
        pid: int,
        uid: int | None,
        lease: Lease | None,
        log: int,
    ) -> None:
        self._launcher = launcher
        self.name = name
        self.pid = pid
        self.uid = uid
        self._channel = channel
        self._lease = lease
        self._log = log
        self._last = b""
        self._closing = threading.Lock()
        self._exit_code = asyncio.ensure_future(self._watch())

    @classmethod
    async def start(
        cls,
        launcher: LauncherClient,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        uid: int | None,
        lease: Lease | None,
        log_directory: Path,
        name: str,
    ) -> ServiceProcess:
        """See `ProcessSandboxes.spawn_service`. Raises SandboxError."""
        with tempfile.TemporaryFile("a+b", dir=log_directory) as file:
            log = os.dup(file.fileno())
        request = CommandRequest(
            argv=list(argv), env=dict(env), cwd=str(cwd), inside="/",
            uid=uid, groups=[], guard=lease.guard if lease else None, rules=None, lasting_rules=[],
            timeout=None, memory=None, disk=None, pids=None, disk_roots=[],
            head=0, tail=0, whole=[], unix_sockets=True, service=True,
            lists_processes=False, others=None,
        )  # fmt: skip
        stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        channel = None
        try:
            channel = await launcher.supervisor(request)
            await channel.request(request, [stdin, log, *([lease.lock] if lease else [])])
            answer = await channel.receive()
            pid = _read_started(name, answer)
        except BaseException as error:
            os.close(log)
            if channel:
                channel.close()
            if isinstance(error, OSError):
                raise SandboxError(f"{name}: the service's supervisor was killed") from error
            raise
        finally:
            os.close(stdin)
        return cls(launcher, name, channel, pid, uid, lease, log)

    async def _watch(self) -> int:
        """Its exit code as a shell shows it, once it and all its descendants are gone."""
        answer = await self._channel.receive()
        with self._closing:  # a thread that reads it now must not read what gets its number next
            self._last = self._read_log()
            os.close(self._log)
            self._log = -1
        self._channel.close()
        if self._lease:
            self._lease.release()
        if answer is None or "broken" in answer[0]:
            return 128 + signal.SIGKILL
        report = answer[0]
        return int(report["exit_code"]) if report["exit_code"] is not None else 128 + int(report["signal"])

    @property
    def is_running(self) -> bool:
        """Whether it still runs (as far as the event loop has heard)."""
        return not self._exit_code.done()

    async def wait(self) -> int:
        """Until it has ended, with all its descendants: the exit code as a shell shows it, 128 + n for signal n."""
        return await asyncio.shield(self._exit_code)

    def tail(self) -> str:
        """What it printed last, on both streams: up to 64 KiB, decoded with replacement."""
        with self._closing:
            data = self._last if self._log < 0 else self._read_log()
        return data.decode("utf-8", "replace")

    def _read_log(self) -> bytes:
        size = os.fstat(self._log).st_size
        return os.pread(self._log, _TAIL, max(0, size - _TAIL))

    async def send_signal(self, number: int) -> None:
        """Send its first process a signal, if it still runs."""
        if self.is_running:
            with contextlib.suppress(OSError):  # it ended meanwhile
                await self._channel.send({"signal": int(number)})

    async def stop(self, timeout: float = 10.0, number: int = signal.SIGTERM) -> int:
        """Ask it by a signal to end; after `timeout` seconds kill it with all its descendants. Returns what wait()
        does. Twice does no harm."""
        self._launcher.wake()
        if timeout > 0:
            await self.send_signal(number)
            await asyncio.wait([self._exit_code], timeout=timeout)
        if self.is_running:
            self._channel.hang_up()
        return await self.wait()


def _read_started(name: str, answer: tuple[dict[str, Any], bytes] | None) -> int:
    if answer is None:
        raise SandboxError(f"{name}: the service's supervisor was killed")
    report = answer[0]
    if "started" in report:
        return int(report["started"])
    refusal = report.get("refusal") or {}
    raise SandboxError(f"{name} could not be started: {report.get('broken') or refusal.get('refused')}")
