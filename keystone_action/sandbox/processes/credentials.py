"""Who a thread is to the kernel: becoming a user for good, or acting for one for a moment; giving up root's powers.

A process that became another user has lost what it could do itself, not what a program could give back to it; and one
that stays root, since this machine has no second user for it, has lost nothing: root reads the memory and environment
of any process, Landlock or not, while it holds CAP_PERFMON or CAP_SYS_ADMIN.

Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)


class _Calls(NamedTuple):
    """Numbers of system calls. The wrappers in libc change all threads; these change the one that calls."""

    setgroups: int
    setresgid: int
    setresuid: int


_GENERIC = _Calls(159, 149, 147)
_OLD_32_BIT = _Calls(206, 210, 208)
_CALLS = {
    "x86_64": _Calls(116, 119, 117),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64le": _Calls(81, 169, 164),
    "s390x": _OLD_32_BIT,
    "armv7l": _OLD_32_BIT,
    "i686": _OLD_32_BIT,
}

_UNCHANGED = 0xFFFFFFFF
_CAPABILITY_VERSION = 0x20080522
_MOST_CAPABILITIES = 64
_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CapabilitySets = ctypes.c_uint32 * 6
"""(effective, permitted, inheritable) twice: of the lower 32 capabilities, and of the others."""

_TRIES = 200
_PAUSE = 0.01


class User(NamedTuple):
    """The user of a sandbox."""

    uid: int
    guard: int
    """A second user, which nothing runs as."""


def become(uid: int, groups: Sequence[int] = ()) -> None:
    """Make this thread that user and group, in no other group than `groups`, for good. Raises OSError."""
    calls = _CALLS[os.uname().machine]
    what = f"becoming user {uid}"
    others = (ctypes.c_uint32 * len(groups))(*groups)
    _call(what, calls.setgroups, len(groups), ctypes.addressof(others) if groups else None)
    _call(what, calls.setresgid, uid, uid, uid)
    _call(what, calls.setresuid, uid, uid, uid)


def empty_bounding_set() -> None:
    """Let no program that this thread executes get a capability. Before becoming another user, since it takes one;
    without it there is nothing to bound. Raises OSError."""
    for number in range(_MOST_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            if ctypes.get_errno() not in (errno.EINVAL, errno.EPERM):
                raise _failure("prctl(PR_CAPBSET_DROP)")
            return


def drop_all_capabilities() -> None:
    """Leave this thread no capability, nor one to hand on. With no_new_privileges, root's programs get none back.
    Raises OSError."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)  # a kernel that knows none has none
    if _libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), _CapabilitySets()) != 0:
        raise _failure("capset")


@contextlib.contextmanager
def acting_for(user: User) -> Iterator[None]:
    """Let this thread, which is root, signal processes of this user and nobody else, while none of them can signal it.

    The kernel lets a signal through when the sender's real or effective user is the target's real or saved one. So
    the thread is effectively the sandbox's user, while its real user is the guard and its saved user is root. Not even
    a recycled process number can then hit one of ours, and nothing in the sandbox can hit the thread. Root's
    capabilities are out of effect meanwhile. The saved user gives everything back.

    No process is made for this: a machine that refuses one more process is when it matters most. Raises OSError.
    """
    calls = _CALLS[os.uname().machine]
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    held = _CapabilitySets()
    if _libc.capget(header, held) != 0:
        raise _failure("reading capabilities")
    permitted_only = _CapabilitySets(*held)
    permitted_only[0] = permitted_only[3] = 0
    what = f"acting for user {user.uid}"
    try:
        _call(what, calls.setresgid, _UNCHANGED, user.uid, _UNCHANGED)
        _call(what, calls.setresuid, user.guard, user.uid, 0)
        # The kernel has done that already, unless its secure bits say otherwise.
        if _libc.capset(header, permitted_only) != 0:
            raise _failure(what)
        yield
    finally:
        what = "becoming root again"
        _insist(lambda: _call(what, calls.setresuid, 0, 0, 0))
        if _libc.capset(header, held) != 0:
            raise _failure(what)
        _insist(lambda: _call(what, calls.setresgid, _UNCHANGED, 0, _UNCHANGED))


def _call(what: str, number: int, *arguments: int | None) -> None:
    words = [word if word is None else ctypes.c_ulong(word) for word in arguments]
    if _libc.syscall(number, *words) != 0:
        raise _failure(what)


def _failure(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def _insist(action: Callable[[], None]) -> None:
    """Do what only a machine short of memory refuses. Raises OSError when it does so for seconds."""
    for left in reversed(range(_TRIES)):
        try:
            action()
        except OSError as error:
            if left == 0 or error.errno not in (errno.EAGAIN, errno.ENOMEM):
                raise
            time.sleep(_PAUSE)
        else:
            return
