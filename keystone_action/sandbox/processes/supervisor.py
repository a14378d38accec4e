"""One supervisor for each command at a time: it starts it, reads its streams, watches it, and ends all that it left.

It lives in a process of its own, forked by the launcher, and serves one command after another. Its life hangs on the
socket to us: when our end closes, everything below it is killed. Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import NoReturn, cast

from keystone_action.files.kept_output import Stream
from keystone_action.sandbox.processes import closed_network, confine, process_tree, system_v, wire
from keystone_action.sandbox.processes.credentials import User
from keystone_action.sandbox.processes.watch import FIRST_LOOK, PAUSE, ProcessWatch, SeenProcesses
from keystone_action.sandbox.processes.wire import CommandRequest, WireMessage
from keystone_action.system import shortage

PR_SET_CHILD_SUBREAPER = 36
_LOG_LIMIT = 64 << 20
_LOG_PAUSE = 1.0
_BULKY = 4 << 20
PATIENCE = 10.0
"""Seconds for which a process that the machine refuses is tried again."""
_PAUSE = 0.02

libc = ctypes.CDLL(None, use_errno=True)


def serve(channel: socket.socket) -> NoReturn:
    """The life of a supervisor: one command after another, until the channel closes or something was odd."""
    code = 1
    try:
        os.setsid()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.closerange(3, channel.fileno())
        os.closerange(channel.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        while _serve_one(channel, wakeup):
            pass
        code = 0
    finally:
        os._exit(code)


class _Stuck(Exception):  # noqa: N818 - ends the supervisor, nobody catches it
    """Some processes could not be killed; the program that takes over tries again."""


def _serve_one(channel: socket.socket, wakeup: int) -> bool:
    """Whether it can serve another one."""
    mark, passed = wire.receive_descriptors(channel)
    message = wire.receive(channel) if mark else None
    if message is None:
        return False
    if "probe" in message:
        channel.sendall(wire.pack({"closed": _probe_network()}))
        return False
    request = cast(CommandRequest, message)
    supervisor = Supervisor(channel, wakeup, request)
    try:
        supervisor.start(passed)
        report, blob = supervisor.run()
    except BaseException as error:  # noqa: BLE001 - each is told, and nothing is left running
        report, blob = {"broken": _why(error), "gone": supervisor.end()}, b""
    for descriptor in passed:
        os.close(descriptor)
    # One that held much output is not worth keeping: the next is forked from the small one.
    again = "broken" not in report and len(blob) < _BULKY and not supervisor.abandoned and not request["service"]
    report["again"] = again
    channel.setblocking(True)
    with contextlib.suppress(OSError):
        channel.sendall(wire.pack(report, blob))
    if not report["gone"]:
        raise _Stuck
    if again:
        confine.prepare_for_another(request)
    return again


def _probe_network() -> list[str]:
    """The ways to close a command's network that this machine has, found by trying them, the better one first."""
    if not confine.HAS_SECCOMP:
        return []
    ways = {"namespace": closed_network.can_make_namespace, "ports": closed_network.can_close_ports}
    return [way for way, action in ways.items() if process_tree.succeeds(action, PATIENCE)]


def _why(error: BaseException) -> str:
    """The sentence for a command that could not be started or looked after."""
    if isinstance(error, confine.NoRoom):
        return shortage.process_shortage(error.code)
    return f"the sandbox's supervisor failed: {type(error).__name__}: {error}"


class Supervisor:
    """One command, from its start to its report."""

    def __init__(self, channel: socket.socket, wakeup: int, request: CommandRequest) -> None:
        self.abandoned = False
        self._channel = channel
        self._request = request
        self._wakeup = wakeup
        uid, guard = request["uid"], request["guard"]
        self._user = User(uid, guard) if uid is not None and guard is not None else None
        self._watch = ProcessWatch(request, self._user)
        self._seen = SeenProcesses() if request["lists_processes"] else None
        self._streams: list[Stream] = []
        self._pid = 0
        self._spawned: confine.Spawned | None = None
        self._doorway: socket.socket | None = None
        """Where we are given what there is of a network namespace."""
        self._status: int | None = None
        self._refusal: WireMessage | None = None
        self._timed_out = False
        self._limit: str | None = None
        self._end_time: float | None = None
        self._ending = False
        self._leftovers = 0
        self._reaped: set[int] = set()
        """Processes of a service that ended as ours."""
        self._log: int | None = None
        self._spawn_time = self._start_time = time.monotonic()
        self._next_log_check = self._start_time + _LOG_PAUSE
        self._poller = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def start(self, passed: list[int]) -> None:
        """Start the command. passed: its standard input; for a service, the log; for a network namespace, where we are
        given what there is of it; last, where all of a stream goes.

        Raises OSError, also where these could not be had.
        """
        if not passed:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if self._request["service"]:
            self._log = passed[1]
            self._spawn(passed[0], passed[1], passed[1])
        else:
            with contextlib.ExitStack() as stack:
                wanted = self._request["whole"]
                first_copy = len(passed) - sum(one is not None for one in wanted)
                copies = iter(passed[first_copy:])
                if self._request["closed"] == "namespace":
                    self._doorway = socket.socket(fileno=os.dup(passed[first_copy - 1]))
                writers = [self._pipe(stack, one and (next(copies), *one)) for one in wanted]
                self._spawn(passed[0], *writers)
        self._listen(self._wakeup, self._child_signal)
        self._listen(self._channel.fileno(), self._channel_message)
        if self._log is not None and self._refusal is None:
            self._channel.sendall(wire.pack({"started": self._pid}))

    def _pipe(self, stack: contextlib.ExitStack, copy: tuple[int, int, int] | None) -> int:
        """The end to write to. copy: where all of the stream goes, above and up to how many bytes."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, writer)
        os.set_blocking(reader, False)
        if self._user:
            # Pipes belong to who made them; /dev/stdout and /dev/stderr are opened anew by many a script.
            os.fchown(writer, self._user.uid, self._user.uid)
        request = self._request
        place, above, limit = copy or (None, 0, 0)
        stream = Stream(reader, request["head"], request["tail"], copy=place, above=above, limit=limit)
        self._streams.append(stream)
        self._listen(reader, lambda: self._output(stream))
        return writer

    def _spawn(self, stdin: int, stdout: int, stderr: int) -> None:
        """Start it, however long the machine has no room for it (another sandbox may be full of processes), for a
        while. Raises NoRoom."""
        confine.take_on_for_good(self._request)
        given_up = self._start_time + PATIENCE
        while True:
            self._spawn_time = time.monotonic()
            try:
                self._spawned = confine.spawn(self._request, stdin, stdout, stderr)
                self._pid = self._spawned.pid
                self._open_network(self._spawned)
            except confine.CommandRefused as refused:
                self._refusal = {"refused": refused.message, "code": refused.code, "not_found": refused.not_found}
            except confine.NoRoom:
                if time.monotonic() > given_up or self._has_hung_up():
                    raise
                time.sleep(_PAUSE)
                continue
            self._start_time = time.monotonic()
            if self._seen is not None and self._refusal is None:
                self._seen.start(self._pid, self._request["argv"])
            return

    def _open_network(self, spawned: confine.Spawned) -> None:
        if spawned.namespace is not None and self._doorway is not None:
            with contextlib.suppress(OSError):  # nobody waits for the command any more
                socket.send_fds(self._doorway, [wire.MARK], spawned.namespace.passed)
        if (notices := spawned.notices) is not None:
            self._listen(notices, lambda: self._answer_notice(notices))

    def _answer_notice(self, notices: int) -> None:
        if not closed_network.answer_notice(notices, self._request["uid"]):
            self._ignore(notices)

    def _pass_socket(self, family: int) -> None:
        """We want to connect to what listens in the command's network namespace."""
        if self._spawned is None or self._spawned.namespace is None or self._doorway is None:
            return
        with contextlib.suppress(OSError):  # then we are told nothing, and wait no longer than for an answer
            made = closed_network.make_socket_in(self._spawned.namespace.place, family)
            try:
                socket.send_fds(self._doorway, [wire.MARK], [made])
            finally:
                os.close(made)

    def _close_network(self) -> None:
        if self._doorway is not None:
            self._doorway.close()
        if self._spawned is not None and self._spawned.namespace is not None:
            self._spawned.namespace.close()
        if self._spawned is not None and self._spawned.notices is not None:
            os.close(self._spawned.notices)
        self._spawned = None

    def _has_hung_up(self) -> bool:
        """Whether nobody waits for the command any more."""
        try:
            return not self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:  # it broke off
            return True

    def _listen(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poller.register(descriptor, select.POLLIN)

    def _ignore(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None):
            self._poller.unregister(descriptor)

    def run(self) -> tuple[WireMessage, bytes]:
        """Until the command has ended and nothing of it is left: the report, and the streams' bytes."""
        timeout = self._request["timeout"]
        deadline = self._start_time + timeout if timeout is not None else None
        next_look = self._start_time + FIRST_LOOK if self._watch.active else None
        next_list = self._start_time if self._seen is not None else None
        self.reap()
        while self._is_going():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                self._timed_out = True
                break
            if next_look is not None and now >= next_look:
                with contextlib.suppress(OSError):  # no descriptor or memory for it: the next look may have more luck
                    self._limit = self._watch.look()
                next_look = time.monotonic() + self._watch.interval
                continue
            if self._seen is not None and next_list is not None and now >= next_list:
                with contextlib.suppress(OSError):
                    self._seen.look()
                next_list = time.monotonic() + PAUSE
            self._trim_log(now)
            times = (deadline, next_look, next_list, self._log_check())
            self._wait(now, min((when for when in times if when), default=None))
        gone = self.end()
        if gone and self._request["service"]:
            uid = self._request["uid"]
            # Without a guard it runs as a user that others have, too. Nobody is signalled here.
            system_v.remove_made_by(self._reaped, self._user or (User(uid, guard=0) if uid is not None else None))
        try:
            return self._report(gone)
        finally:
            for stream in self._streams:
                os.close(stream.descriptor)

    def _is_going(self) -> bool:
        ended = self._refusal is not None or self._status is not None
        return not (ended or self._timed_out or self._limit or self.abandoned)

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
        process_tree.drain(self._wakeup)
        self.reap()

    def _channel_message(self) -> None:
        """Our side closed, or wants a signal sent to the service."""
        message = wire.receive(self._channel)
        if message is None:
            self._ignore(self._channel.fileno())
            self.abandoned = True
        elif "socket" in message:
            self._pass_socket(message["socket"])
        elif self._status is None:
            os.kill(self._pid, message["signal"])

    def _output(self, stream: Stream) -> None:
        stream.read()
        if not stream.open:
            self._ignore(stream.descriptor)

    def reap(self) -> bool:
        """Wait for processes that have ended, orphans included. True when no child is left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if self._seen is not None:
                self._seen.reaped(pid, status)
            if self._request["service"]:
                # The first process has children that make such memory, too: initdb's servers.
                self._reaped.add(pid)
            if pid == self._pid:
                self._status = status
                self._end_time = time.monotonic()
            elif self._ending and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                self._leftovers += 1

    def end(self) -> bool:
        """Kill all that is left, without looking first how much that is. Returns whether that was possible."""
        if self._status is None or not self.reap():
            self._ending = True
        gone = process_tree.end_descendants(self.reap, self._user, self._wakeup)
        self._close_network()
        self._limit = self._limit or self._watch.judge_processes(self._leftovers)
        return gone

    def _report(self, gone: bool) -> tuple[WireMessage, bytes]:
        for stream in self._streams:
            stream.drain()
        exit_code = os.waitstatus_to_exitcode(self._status or 0)
        if self._limit is None and exit_code in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ) and self._request["disk"]:
            self._limit = self._watch.final_look_at_disk()
        parts = [part for stream in self._streams for part in stream.kept.parts()]
        report: WireMessage = {
            "exit_code": exit_code if exit_code >= 0 else None,
            "signal": -exit_code if exit_code < 0 else None,
            "timed_out": self._timed_out,
            "limit": self._limit,
            # A short command may have ended before we run again, so its time begins before it was spawned.
            "duration": (self._end_time or time.monotonic()) - self._spawn_time,
            "leftovers": self._leftovers,
            "refusal": self._refusal,
            "gone": gone,
            "totals": [stream.kept.total for stream in self._streams],
            "parts": [len(part) for part in parts],
        }
        if self._seen is not None:
            report["processes"], report["processes_left_out"] = self._seen.found, self._seen.left_out
        return report, b"".join(parts)
