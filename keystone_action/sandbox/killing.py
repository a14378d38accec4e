"""Ending every descendant of a process, also when they fork as fast as they can, and never anybody else.

Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

from keystone_action.sandbox import processtree

DEADLINE = 10.0
"""Seconds after which a process that won't go (stuck in the kernel) is reported instead of waited for."""

_TREE_PASSES_BEFORE_ALL = 5
_FREEZE_ROUNDS = 10


class User:
    """The user of a sandbox. guard: a second user that nothing runs as."""

    def __init__(self, uid: int, guard: int) -> None:
        self.uid = uid
        self.guard = guard


def _acting_for(user: User, action: Callable[[], object]) -> None:
    """Run `action` in a process that can signal processes of this user and nobody else, and that none of them can.

    The kernel lets a signal through when the sender's real or effective user is the target's real or saved one. So
    the sender is effectively the sandbox's user, while its own real and saved user is the guard. Not even a recycled
    process number can then hit one of ours, and nothing in the sandbox can hit the sender.
    """
    helper = os.fork()
    if helper == 0:
        try:
            os.setgroups([])
            os.setresgid(user.uid, user.uid, user.uid)
            os.setresuid(user.guard, user.uid, user.guard)
            action()
        finally:
            os._exit(0)
    os.waitpid(helper, 0)


def _signal(pid: int, number: int, family: set[int]) -> None:
    """Signal this process if its parent is of the family: a number alone may have been recycled meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        found = processtree.process(pid)
        if found and found.parent in family:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # ended by itself, or not ours to signal
    finally:
        os.close(handle)


def _freeze_and_kill(root: int, spare: frozenset[int]) -> None:
    """Stop the whole tree first, so that nothing forks or reaps while it is being killed."""
    frozen: set[int] = set()
    for _ in range(_FREEZE_ROUNDS):
        found = processtree.descendants(root, spare | {os.getpid()} if root != os.getpid() else spare)
        fresh = [pid for pid in found if pid not in frozen]
        if not fresh:
            break
        family = {root, *found}
        for pid in fresh:
            _signal(pid, signal.SIGSTOP, family)
        frozen.update(fresh)
    found = processtree.descendants(root, spare | {os.getpid()} if root != os.getpid() else spare)
    family = {root, *found, *frozen}
    for pid in found:
        _signal(pid, signal.SIGKILL, family)


def _kill_everything() -> None:
    # One system call, atomic against fork: the kernel walks all processes under the lock that fork needs.
    with contextlib.suppress(OSError):  # nobody is left
        os.kill(-1, signal.SIGKILL)


def end_descendants(
    reap: Callable[[], bool], user: User | None, wakeup: int, *, spare: frozenset[int] = frozenset()
) -> bool:
    """Kill and reap all descendants of this process; it must be their subreaper.

    reap: waits for whatever has ended and says whether no child is left (beside `spare`). wakeup: a descriptor that
    gets readable when a child ends. Returns False if some were still there after DEADLINE seconds.

    Without descendants left, there can be none elsewhere: an orphan becomes a child of its nearest subreaper.
    """
    root = os.getpid()
    start = time.monotonic()
    passes = 0
    while not reap():
        if time.monotonic() - start > DEADLINE:
            return False
        if user is None:
            _freeze_and_kill(root, spare)
        elif passes < _TREE_PASSES_BEFORE_ALL:
            # By tree first: another command of the same sandbox may be running.
            _acting_for(user, lambda: _freeze_and_kill(root, spare))
        else:
            _acting_for(user, _kill_everything)
        passes += 1
        if not reap():
            select.select([wakeup], [], [], min(0.05, 0.001 * passes))
            drain(wakeup)
    return True


def drain(descriptor: int) -> None:
    """Empty a non-blocking pipe."""
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
