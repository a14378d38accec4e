"""Our side of the launcher: start it, hand it orders, talk to the supervisors that it forks.

`ServiceProcess` is a program that runs on while cells come and go, such as a database server. It is supervised as
commands are, and ends with us.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from keystone_action.errors import SandboxError
from keystone_action.sandbox.processes import process_tree, wire
from keystone_action.sandbox.processes.wire import CommandRequest
from keystone_action.system import shortage

if TYPE_CHECKING:
    from keystone_action.sandbox.users import Lease

_LAUNCHER = "keystone_action.sandbox.processes.launcher"
_BOOT = f"import sys; sys.path.append(sys.argv.pop(1)); from {_LAUNCHER} import main; main()"
_START_TIMEOUT = 30.0
_GREETING_SIZE = 4096
_PR_SET_DUMPABLE = 4
_PIECE = 1 << 18
_STOP_TIMEOUT = 30.0
_PAUSE = 1.0


class Channel:
    """Our end of the socket to one supervisor. When it closes, the supervisor ends its command.

    lasting_part: what the supervisor has taken on, for good, with its first request.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.lasting_part: wire.LastingPart | None = None
        self._received = bytearray()
        self._socket = end

    async def request(self, request: wire.CommandRequest, passed: list[int]) -> None:
        """Have a command started; `passed` are the descriptors that go along. Raises OSError when the supervisor is
        gone."""
        self.lasting_part = wire.lasting_part(request)
        data = wire.MARK + wire.pack(request)
        sent = socket.send_fds(self._socket, [data], passed)
        if sent < len(data):
            await asyncio.get_running_loop().sock_sendall(self._socket, data[sent:])

    async def send(self, message: object, mark: bytes = b"") -> None:
        """mark: of a first message. Raises OSError when the supervisor is gone."""
        await asyncio.get_running_loop().sock_sendall(self._socket, mark + wire.pack(message))

    async def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next message with its raw bytes, None when the supervisor is gone."""
        if not await self._fill(wire.HEADER.size):
            return None
        size, extra = wire.HEADER.unpack_from(self._received)
        start, end = wire.HEADER.size, wire.HEADER.size + size + extra
        if not await self._fill(end):
            return None
        message, blob = json.loads(self._received[start : start + size]), bytes(self._received[start + size : end])
        del self._received[:end]
        return message, blob

    async def _fill(self, count: int) -> bool:
        """Receive until there are so many bytes."""
        loop = asyncio.get_running_loop()
        while len(self._received) < count:
            try:
                data = await loop.sock_recv(self._socket, _PIECE)
            except OSError:
                return False
            if not data:
                return False
            self._received += data
        return True

    def hang_up(self) -> None:
        """Tell the supervisor to end everything; its report can still be received."""
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_WR)

    async def wait_until_closed(self) -> None:
        """Until the other side has closed, its last messages unread: then nothing of the command is left."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while await loop.sock_recv(self._socket, 1 << 16):
                pass

    def is_alive(self) -> bool:
        """Whether an idle supervisor still waits at the other end."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Hang up, and don't wait for anything."""
        self._socket.close()


class LauncherClient:
    """The launcher, as we hold it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, probed: dict[str, Any]) -> None:
        self._idle: list[Channel] = []
        self._process = process
        self._control = control
        self.landlock: int = probed["landlock"]
        self.setuid: bool = probed["setuid"]
        self.seccomp: bool = probed["seccomp"]
        self.mounts: bool = probed["mounts"]

    @classmethod
    async def start(cls, users: range, remove: Path | None) -> LauncherClient:
        """Start it. users: the numbers that sandboxes may run as. remove: a directory that it removes when all is
        over. Raises SandboxError."""
        return await Launching(users, remove).ready()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wake(self) -> None:
        """Let the launcher and its supervisors go on, which root or our own user may have stopped (SIGSTOP): what
        follows waits for them."""
        for pid in (self.pid, *process_tree.children(self.pid)):
            with contextlib.suppress(OSError):  # it has ended
                os.kill(pid, signal.SIGCONT)

    async def end(self, channel: Channel) -> None:
        """Hang up and wait until everything of a command is gone, cancelled or not."""
        import anyio

        channel.hang_up()
        with anyio.CancelScope(shield=True):
            gone = asyncio.ensure_future(channel.wait_until_closed())
            while not gone.done():
                self.wake()
                await asyncio.wait({gone}, timeout=_PAUSE)

    async def supervisor(self, request: wire.CommandRequest | None = None) -> Channel:
        """A channel to a supervisor that is free to serve this request. Raises SandboxError."""
        suited = (None, wire.lasting_part(request)) if request else ()
        for channel in [each for each in self._idle if each.lasting_part in suited]:
            self._idle.remove(channel)
            if channel.is_alive():
                return channel
            channel.close()
        ours, theirs = socket.socketpair()
        try:
            await self._pass(theirs.fileno())
        except OSError as error:
            ours.close()
            raise SandboxError("the sandbox's launcher is gone") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Channel(ours)

    def give_back(self, channel: Channel) -> None:
        """This supervisor has reported that it can serve again."""
        self._idle.append(channel)

    async def _pass(self, descriptor: int) -> None:
        while True:
            try:
                socket.send_fds(self._control, [wire.MARK], [descriptor])
            except BlockingIOError:
                await asyncio.sleep(0.001)  # its queue is full: it is forking as fast as it can
            else:
                return

    async def closed_networks(self) -> list[wire.ClosedNetworkWay]:
        """The ways to close a command's network that this machine has, found by trying them, the better one first.
        Raises SandboxError."""
        channel = await self.supervisor()
        try:
            await channel.send({"probe": "network"}, wire.MARK)
            answer = await channel.receive()
        except OSError:
            answer = None
        finally:
            channel.close()
        if answer is None:
            raise SandboxError("the sandbox's supervisor was killed")
        found: list[wire.ClosedNetworkWay] = answer[0]["closed"]
        return found

    async def close(self) -> None:
        """Let it end what is left, and wait for that. Twice does no harm."""
        if self._control.fileno() < 0:
            return
        self.wake()
        while self._idle:
            self._idle.pop().close()
        self._control.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                while await asyncio.get_running_loop().sock_recv(self._control, _GREETING_SIZE):
                    pass
        except (TimeoutError, OSError):
            self._process.kill()
        finally:
            self._control.close()
            self._process.wait()


class Launching:
    """A launcher that was started, and is either waited for (`ready`) or not wanted (`end`)."""

    def __init__(self, users: range, remove: Path | None) -> None:
        self._problem: SandboxError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = _errors_of_launcher()
        package_parent = Path(__file__).parents[3]
        command = [
            sys.executable, "-I", "-S", *(["-B"] if sys.dont_write_bytecode else []),
            "-c", _BOOT, str(package_parent),
            str(theirs.fileno()), str(users.start), str(len(users)), str(remove or ""),
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            code = error.errno or 0
            why = shortage.process_shortage(code) if code in shortage.OUT_OF_SOMETHING else str(error)
            self._problem = SandboxError(f"the sandbox's launcher could not be started: {why}")
            self._problem.__cause__ = error
        finally:
            theirs.close()

    async def ready(self) -> LauncherClient:
        """Wait for it. Raises SandboxError."""
        greeting: dict[str, Any] = {}
        if self._process is not None:
            try:
                greeting, why_not = await _greeting(self._ours, self._process, self._errors)
            except BaseException:
                self.end()
                raise
            if why_not:
                advice = f"does `{sys.executable} -I -S -c pass` work?"
                self._problem = SandboxError(f"the sandbox's launcher {why_not}", help=advice)
        if self._process is None or self._problem is not None:
            self.end()
            raise self._problem or SandboxError("the sandbox's launcher is gone")
        process, self._process = self._process, None
        self._errors.close()
        return LauncherClient(process, self._ours, greeting)

    def end(self) -> None:
        """End it, unless it was waited for. Never raises."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if not self._errors.closed:
            self._errors.close()
            self._ours.close()


async def _greeting(
    ours: socket.socket, process: subprocess.Popen[bytes], errors: IO[bytes]
) -> tuple[dict[str, Any], str]:
    """What the launcher says of the machine when it is ready; else why there is none."""
    ours.setblocking(False)
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            data = await asyncio.get_running_loop().sock_recv(ours, _GREETING_SIZE)
    except TimeoutError:
        return {}, f"did not start within {_START_TIMEOUT:.0f} s"
    if not data:
        code = process.wait()
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        return {}, f"ended at once, with exit code {code}" + (f": {said}" if said else "")
    greeting: dict[str, Any] = json.loads(data[wire.HEADER.size :])
    return greeting, f"could not be started: {greeting['broken']}" if "broken" in greeting else ""


def _errors_of_launcher() -> IO[bytes]:
    """A file in memory: the directory for temporary files may be what is broken."""
    return os.fdopen(os.memfd_create("launcher-errors", os.MFD_CLOEXEC), "w+b")


def hide_memory() -> None:
    """Keep processes of our own user from reading our memory and environment, by one more means."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


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
            lists_processes=False, others=None, closed=None, reachable=[],
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
