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

from keystone_action.sandbox.processes import process_tree as processtree
from keystone_action.sandbox.processes.credentials import User, acting_for

DEADLINE = 10.0
"""Seconds after which a process that won't go (stuck in the kernel) is reported instead of waited for."""

_TREE_PASSES_BEFORE_ALL = 5


def _kill_tree(root: int, spare: frozenset[int]) -> None:
    """Kill every process below `root`, by their process groups: one call ends a group, however fast it forks.

    Every command starts in a session of its own, and a process can only join groups of its own session: so the groups
    found below `root` hold nobody else. A number counts only if its parent is known too: it may have been recycled.
    """
    list_children = processtree.child_lister()
    family = {root}
    killed = {0, os.getpgid(root)}
    waiting = [root]
    while waiting:
        for pid in list_children(waiting.pop()):
            if pid in spare or pid in family or pid == os.getpid():
                continue
            found = processtree.process(pid)
            if found is None or found.parent not in family:
                continue
            family.add(pid)
            waiting.append(pid)
            if found.group not in killed:
                killed.add(found.group)
                with contextlib.suppress(OSError):  # it ended by itself, or is not ours to signal
                    os.killpg(found.group, signal.SIGKILL)


def _kill_everything() -> None:
    # One system call, atomic against fork: the kernel walks all processes under the lock that fork needs.
    with contextlib.suppress(OSError):  # nobody is left
        os.kill(-1, signal.SIGKILL)


def end_descendants(
    reap: Callable[[], bool], user: User | None, wakeup: int, *, spare: frozenset[int] = frozenset()
) -> bool:
    """Kill and reap all descendants of this process; it must be their subreaper.

    reap: waits for processes that have ended and says whether no child is left (beside `spare`). wakeup: a descriptor
    that gets readable when a child ends. Returns False if some were still there after DEADLINE seconds.

    Without descendants left, there can be none elsewhere: an orphan becomes a child of its nearest subreaper.
    Neither processes nor threads are made here, and what the machine refuses is tried again.
    """
    root = os.getpid()
    start = time.monotonic()
    passes = 0
    while not reap():
        if time.monotonic() - start > DEADLINE:
            return False
        with contextlib.suppress(OSError):  # no memory or descriptor for it: the next pass may have more luck
            if user is None:
                _kill_tree(root, spare)
            else:
                with acting_for(user):
                    # By tree first: another command of the same sandbox may be running.
                    _kill_tree(root, spare) if passes < _TREE_PASSES_BEFORE_ALL else _kill_everything()
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
