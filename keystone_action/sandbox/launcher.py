"""The launcher: a small process that forks supervisors for us, so that no command pays for the size of our own.

Started once a run, without our environment and with nothing but the standard library. It gets one datagram for each
command, with the supervisor's end of a socket, and hands it to a supervisor that stands by. Orphans of a supervisor
that was itself killed come to it, and it ends them. When our end closes, however that came, it sees to it that
everything is gone, and goes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from keystone_action.sandbox import killing, landlock, processtree, supervisor, wire
from keystone_action.sandbox.killing import User

_PR_SET_DUMPABLE = 4
_STANDING_BY = 2
_PATIENCE = 12.0


class Supervisor:
    """What the launcher knows of a supervisor: where it takes its order and, once it has one, for whom it works.

    channel: a copy of the supervisor's own end. While it is open, we don't see the end of a supervisor that was
    killed; so it stays open until what that one left is gone.
    """

    def __init__(self, pid: int, orders: socket.socket) -> None:
        self.pid = pid
        self.orders = orders
        self.channel: int | None = None
        self.user: User | None = None


class Launcher:
    """Owns the supervisors."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._supervisors: dict[int, Supervisor] = {}
        self._idle: list[Supervisor] = []
        self._wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the control socket closes, then leave nothing behind."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wakeup, select.POLLIN)
        while True:
            while len(self._idle) < _STANDING_BY:
                self._fork()
            for descriptor, _ in poller.poll():
                if descriptor == self._wakeup:
                    self._children_ended()
                elif not self._hand_over():
                    self._finish()
                    return

    def _fork(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            supervisor.stand_by(theirs)
        theirs.close()
        self._supervisors[pid] = each = Supervisor(pid, ours)
        self._idle.append(each)

    def _hand_over(self) -> bool:
        """Pass one order on. False when there will be no more."""
        data, passed = wire.receive_descriptors(self._control, wire.ORDER_SIZE)
        if not data:
            return False
        message = json.loads(data)
        while True:
            if not self._idle:
                self._fork()
            each = self._idle.pop(0)
            with contextlib.suppress(OSError):  # one that was killed while it stood by
                socket.send_fds(each.orders, [wire.MARK], passed)
                break
        each.orders.close()
        each.channel = passed[0]
        if message["uid"] is not None:
            each.user = User(message["uid"], message["guard"])
        for descriptor in passed[1:]:
            os.close(descriptor)
        return True

    def _children_ended(self) -> None:
        killing.drain(self._wakeup)
        self._reap()

    def _reap(self) -> bool:
        """Wait for whatever has ended, and after supervisors that failed, end what they left."""
        orphans_of: list[Supervisor] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended = self._supervisors.pop(pid, None)
            if ended is None:
                continue
            if ended in self._idle:
                self._idle.remove(ended)
                ended.orders.close()
            if status:
                orphans_of.append(ended)
            elif ended.channel is not None:
                os.close(ended.channel)
        for failed in orphans_of:
            self._end_orphans(failed.user)
            if failed.channel is not None:
                os.close(failed.channel)
        return not self._supervisors

    def _end_orphans(self, user: User | None) -> None:
        """Whatever is a child of ours and no supervisor has lost its own."""

        def reap() -> bool:
            # Supervisors that end meanwhile keep their status for the next round: only orphans are waited for here.
            for pid in self._orphans():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            return not self._orphans()

        killing.end_descendants(reap, user, self._wakeup, spare=frozenset(self._supervisors))

    def _orphans(self) -> list[int]:
        return [pid for pid in processtree.children(os.getpid()) if pid not in self._supervisors]

    def _finish(self) -> None:
        """Our end has closed: supervisors see the same on their own sockets; wait for them, then make sure."""
        for each in self._idle:
            each.orders.close()
        deadline = time.monotonic() + _PATIENCE
        while not self._reap() and time.monotonic() < deadline:
            select.select([self._wakeup], [], [], 0.05)
            killing.drain(self._wakeup)
        for pid, each in list(self._supervisors.items()):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self._supervisors[pid]
            self._end_orphans(each.user)


def _probe() -> dict[str, object]:
    """What this machine lets us do, found by doing it in a process of its own: {landlock: ABI, setuid: bool}."""
    return {
        "landlock": landlock.abi() if _succeeds(_confine_to_nothing) else 0,
        "setuid": os.geteuid() == 0 and _succeeds(_become_another),
    }


def _succeeds(action: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if action() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _confine_to_nothing() -> bool:
    landlock.no_new_privileges()
    landlock.restrict([], landlock.abi())
    try:
        os.listdir("/")  # noqa: PTH208
    except PermissionError:
        return True
    return False


def _become_another() -> bool:
    uid = int(sys.argv[2])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid + 1, uid, uid + 1)
    return os.geteuid() == uid


def main() -> None:
    """argv: the control socket's descriptor, a user to probe with, a directory to remove at the end (or nothing)."""
    control = socket.socket(fileno=int(sys.argv[1]))
    supervisor.libc.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Nobody but root may look into our memory or environment, whatever user the sandbox has.
    supervisor.libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    control.sendall(wire.pack(_probe()))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    Launcher(control).run()
    if sys.argv[3]:
        import shutil

        shutil.rmtree(sys.argv[3], ignore_errors=True)
