"""One supervisor for each command: it starts the command, reads its streams, watches it, and ends all that it left.

It lives in a process of its own, forked by the launcher before it is needed, and already has forked the process that
will become the command: what an order then costs is an exec, not three forks. Its life hangs on the socket to us: when
our end closes, everything below it is killed. Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import NoReturn, cast

from keystone_action.sandbox import confine, killing, processtree, wire
from keystone_action.sandbox.killing import User
from keystone_action.sandbox.streams import Stream
from keystone_action.sandbox.watching import FIRST_LOOK, Watch
from keystone_action.sandbox.wire import Message, Request

PR_SET_CHILD_SUBREAPER = 36
_LOG_LIMIT = 64 << 20
_LOG_PAUSE = 1.0

libc = ctypes.CDLL(None, use_errno=True)


def stand_by(orders: socket.socket) -> NoReturn:
    """The life of a supervisor: fork the child, wait for one order, carry it out, go."""
    code = 1
    try:
        os.setsid()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.closerange(3, orders.fileno())
        os.closerange(orders.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        child = Child()
        mark, passed = wire.receive_descriptors(orders)
        code = _carry_out(child, socket.socket(fileno=passed[0]), passed[1:]) if mark else 0
    finally:
        os._exit(code)


def _carry_out(child: Child, channel: socket.socket, passed: list[int]) -> int:
    request = cast(Request | None, wire.receive(channel))
    if request is None:
        return 0
    supervisor = None
    try:
        supervisor = Supervisor(child, channel, request, passed)
        report, blob = supervisor.run()
    except BaseException as error:  # noqa: BLE001 - whatever it was, it is told, and nothing is left running
        gone = supervisor is None or supervisor.end()
        report, blob = {"broken": f"{type(error).__name__}: {error}", "gone": gone}, b""
    channel.setblocking(True)
    with contextlib.suppress(OSError):
        channel.sendall(wire.pack(report, blob))
    return 1 if report.get("gone") is False else 0


class Child:
    """The process that waits to become the command."""

    def __init__(self) -> None:
        read_out, write_out = os.pipe2(os.O_CLOEXEC)
        read_err, write_err = os.pipe2(os.O_CLOEXEC)
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(write_out, 1)
            os.dup2(write_err, 2)
            os.closerange(3, theirs.fileno())
            os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
            confine.stand_by(theirs)
        for descriptor in (write_out, write_err):
            os.close(descriptor)
        theirs.close()
        self.socket = ours
        self.stdout = read_out
        self.stderr = read_err
        os.set_blocking(read_out, False)
        os.set_blocking(read_err, False)


class Supervisor:
    """One command, from its start to its report."""

    def __init__(self, child: Child, channel: socket.socket, request: Request, passed: list[int]) -> None:
        self._child = child
        self._channel = channel
        self._request = request
        uid, guard = request["uid"], request["guard"]
        self._user = User(uid, guard) if uid is not None and guard is not None else None
        self._watch = Watch(request, self._user)
        self._stdout = Stream(child.stdout, request["head"], request["tail"])
        self._stderr = Stream(child.stderr, request["head"], request["tail"])
        self._wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self._status: int | None = None
        self._refusal: Message | None = None
        self._timed_out = False
        self._limit: str | None = None
        self._abandoned = False
        self._ended: float | None = None
        self._leftovers = 0
        self._log = passed[1] if request["service"] else None
        self._started = time.monotonic()
        self._next_log_check = self._started + _LOG_PAUSE
        self._order_child(passed[: 2 if request["service"] else 1])
        self._poller = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._listen(self._wakeup, self._child_signal)
        self._listen(child.socket.fileno(), self._child_message)
        self._listen(channel.fileno(), self._channel_message)
        for stream in (self._stdout, self._stderr):
            self._listen(stream.descriptor, lambda stream=stream: self._output(stream))  # type: ignore[misc]

    def _order_child(self, passed: list[int]) -> None:
        socket.send_fds(self._child.socket, [wire.MARK], passed)
        self._child.socket.sendall(wire.pack(self._request))

    def _listen(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poller.register(descriptor, select.POLLIN)

    def _ignore(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None):
            self._poller.unregister(descriptor)

    def run(self) -> tuple[Message, bytes]:
        """Until the command has ended and nothing of it is left: the report, and the streams' bytes."""
        timeout = self._request["timeout"]
        deadline = self._started + timeout if timeout is not None else None
        next_look = self._started + FIRST_LOOK if self._watch.active else None
        self.reap()
        while self._status is None and not (self._timed_out or self._limit or self._abandoned):
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                self._timed_out = True
                break
            if next_look is not None and now >= next_look:
                self._limit = self._watch.look()
                next_look = time.monotonic() + self._watch.interval
                continue
            self._trim_log(now)
            self._wait(now, min((when for when in (deadline, next_look, self._log_check()) if when), default=None))
        gone = self.end()
        return self._report(gone)

    def _wait(self, now: float, until: float | None) -> None:
        milliseconds = None if until is None else max(0, until - now) * 1000 + 1
        for descriptor, _ in self._poller.poll(milliseconds):
            if handler := self._handlers.get(descriptor):
                handler()

    def _log_check(self) -> float | None:
        return self._next_log_check if self._log is not None else None

    def _trim_log(self, now: float) -> None:
        """A service's log starts anew when it gets large: only its end is ever shown."""
        if self._log is not None and now >= self._next_log_check:
            self._next_log_check = now + _LOG_PAUSE
            if os.fstat(self._log).st_size > _LOG_LIMIT:
                os.ftruncate(self._log, 0)

    def _child_signal(self) -> None:
        killing.drain(self._wakeup)
        self.reap()

    def _child_message(self) -> None:
        """Either the command has taken over, or the child says why it can't."""
        self._ignore(self._child.socket.fileno())
        self._refusal = wire.receive(self._child.socket)
        if self._refusal is None and self._request["service"]:
            self._channel.sendall(wire.pack({"started": self._child.pid}))

    def _channel_message(self) -> None:
        """Our side closed, or wants a signal sent to the service."""
        message = wire.receive(self._channel)
        if message is None:
            self._ignore(self._channel.fileno())
            self._abandoned = True
        elif self._status is None:
            os.kill(self._child.pid, message["signal"])

    def _output(self, stream: Stream) -> None:
        stream.read()
        if not stream.open:
            self._ignore(stream.descriptor)

    def reap(self) -> bool:
        """Wait for whatever has ended, orphans included. True when no child is left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._child.pid:
                self._status = status
                self._ended = time.monotonic()

    def end(self) -> bool:
        """Kill whatever is left. Returns whether that was possible."""
        if self._status is None or not self.reap():
            found = [processtree.process(pid) for pid in processtree.descendants(os.getpid())]
            self._leftovers = sum(1 for each in found if each and each.alive and each.pid != self._child.pid)
        return killing.end_descendants(self.reap, self._user, self._wakeup)

    def _report(self, gone: bool) -> tuple[Message, bytes]:
        self._stdout.drain()
        self._stderr.drain()
        if self._refusal is None and self._child.socket.fileno() in self._handlers:
            self._child.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                self._refusal = wire.receive(self._child.socket)
        status = self._status or 0
        exit_code = os.waitstatus_to_exitcode(status)
        if self._limit is None and exit_code in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ) and self._request["disk"]:
            self._limit = self._watch.final_look_at_disk()
        parts = (*self._stdout.parts(), *self._stderr.parts())
        report: Message = {
            "exit_code": exit_code if exit_code >= 0 else None,
            "signal": -exit_code if exit_code < 0 else None,
            "timed_out": self._timed_out,
            "limit": self._limit,
            "duration": (self._ended or time.monotonic()) - self._started,
            "leftovers": self._leftovers,
            "refusal": self._refusal,
            "gone": gone,
            "totals": [self._stdout.total, self._stderr.total],
            "parts": [len(part) for part in parts],
        }
        return report, b"".join(parts)
