"""The launcher: a small process that forks supervisors for us, so that none of them is of our size.

Started once a run, without our environment and with nothing but the standard library. For every datagram it gets with
the end of a socket, it forks a supervisor that serves that socket. Orphans of a supervisor that was itself killed come
to it, and it ends them. When our end closes, however that came, it sees to it that everything is gone, and goes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path

from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.processes import confine, landlock, process_tree, supervisor, wire
from keystone_action.sandbox.processes.credentials import User
from keystone_action.system import shortage

_PR_SET_DUMPABLE = 4
_PATIENCE = 12.0
_PAUSE = 0.02
_OWN_DESCRIPTORS = 32


class Launcher:
    """Owns the supervisors.

    It keeps a copy of each one's socket: while that is open, we don't see the end of a supervisor that was killed; so
    we see it only when what that one left is gone.
    """

    def __init__(self, control: socket.socket, users: range, guards: int) -> None:
        """users: the numbers that sandboxes may run as; adding `guards` to one gives its guard."""
        self._control = control
        self._users = users
        self._guards = guards
        self._supervisors: dict[int, int] = {}
        self._orders: deque[tuple[int, float]] = deque()
        self._wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the control socket closes, then leave nothing behind."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wakeup, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll(_PAUSE * 1000 if self._orders else None):
                if descriptor == self._wakeup:
                    self._on_child_end()
                elif not self._take_order():
                    self._finish()
                    return
            while self._orders and self._fork(*self._orders[0]):
                self._orders.popleft()

    def _take_order(self) -> bool:
        """Take one order for a supervisor. False when there will be no more."""
        mark, passed = wire.receive_descriptors(self._control)
        if not mark:
            return False
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_DESCRIPTORS
        for channel in passed:  # none where no descriptor was free: who ordered sees the socket close
            if len(self._supervisors) + len(self._orders) < most:
                self._orders.append((channel, time.monotonic()))
            else:
                _refuse(channel, "the sandbox's launcher has no descriptor left (`ulimit -n`) for one more command")
        return True

    def _fork(self, channel: int, since: float) -> bool:
        """Fork the supervisor that serves this socket. False when the machine refuses it: it is to be tried again."""
        try:
            pid = os.fork()
        except OSError as error:
            if time.monotonic() < since + supervisor.PATIENCE:
                return False
            _refuse(channel, shortage.process_shortage(error.errno or 0))
            return True
        if pid == 0:
            supervisor.serve(socket.socket(fileno=channel))
        self._supervisors[pid] = channel
        return True

    def _on_child_end(self) -> None:
        process_tree.drain(self._wakeup)
        self._reap()

    def _reap(self) -> bool:
        """Wait for ended children, and after supervisors that failed, end what they left. True when all have ended."""
        failed: list[int] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                channel = self._supervisors.pop(pid, None)
                if channel is not None and status:
                    failed.append(channel)
                elif channel is not None:
                    os.close(channel)
        if failed:
            self._end_orphans()
        for channel in failed:
            os.close(channel)
        return not self._supervisors

    def _end_orphans(self) -> None:
        """End the children of ours that are not supervisors: their own supervisor is gone."""

        def reap() -> bool:
            # Supervisors that end meanwhile keep their status for the next round: only orphans are waited for here.
            for pid in self._orphans():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            return not self._orphans()

        def owners() -> set[int]:
            found = [process_tree.owner(pid) for pid in self._orphans()]
            return {uid for uid in found if uid is not None and uid in self._users}

        while uids := owners():
            uid = uids.pop()
            if not process_tree.end_descendants(
                lambda uid=uid: reap() or uid not in owners(),  # type: ignore[misc]
                User(uid, uid + self._guards),
                self._wakeup,
                spare=frozenset(self._supervisors),
            ):
                break
        process_tree.end_descendants(reap, None, self._wakeup, spare=frozenset(self._supervisors))

    def _orphans(self) -> list[int]:
        return [pid for pid in process_tree.children(os.getpid()) if pid not in self._supervisors]

    def _finish(self) -> None:
        """Our end has closed: supervisors see the same on their own sockets; wait for them, then make sure."""
        deadline = time.monotonic() + _PATIENCE
        while not self._reap() and time.monotonic() < deadline:
            select.select([self._wakeup], [], [], 0.05)
            process_tree.drain(self._wakeup)
        for pid in self._supervisors:
            with contextlib.suppress(OSError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self._supervisors.clear()
        self._end_orphans()


def _refuse(channel: int, sentence: str) -> None:
    """Tell who ordered a supervisor that there will be none, and why."""
    with contextlib.suppress(OSError), socket.socket(fileno=channel) as end:
        end.sendall(wire.pack({"broken": sentence, "again": False, "gone": True}))


def _probe(first: int, count: int) -> dict[str, object]:
    """What this machine lets us do, found by doing it in a process of its own: {landlock: ABI, setuid: bool,
    seccomp: bool, mounts: bool}."""
    setuid = count > 0 and process_tree.succeeds(
        lambda: confine.can_change_user(first + count - 1), supervisor.PATIENCE
    )
    return {
        "landlock": landlock.abi() if process_tree.succeeds(_confine_to_nothing, supervisor.PATIENCE) else 0,
        "seccomp": confine.HAS_SECCOMP,
        "setuid": setuid,
        "mounts": not setuid and process_tree.succeeds(landlock.can_make_mounts, supervisor.PATIENCE),
    }


def _confine_to_nothing() -> bool:
    landlock.no_new_privileges()
    landlock.restrict([], landlock.abi())
    try:
        os.listdir("/")  # noqa: PTH208
    except PermissionError:
        return True
    return False


def main() -> None:
    """argv: the control socket's descriptor; the users of sandboxes as first number and count (0: none), their guards
    lie as far above; a directory to remove at the end, or nothing."""
    number, first, count = map(int, sys.argv[1:4])
    control = socket.socket(fileno=number)
    supervisor.libc.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Nobody but root may look into our memory or environment, also where sandboxes run as our own user.
    supervisor.libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        control.sendall(wire.pack(_probe(first, count)))
    except OSError as error:
        control.sendall(wire.pack({"broken": shortage.process_shortage(error.errno or 0)}))
        return
    # Handled, not ignored: exec gives handled signals back to the command, ignored ones stay so.
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    confine.default_signals()
    confine.take_priority()
    gc.collect()
    gc.freeze()
    Launcher(control, range(first, first + count), count).run()
    if sys.argv[4]:
        remove_tree(Path(sys.argv[4]))
