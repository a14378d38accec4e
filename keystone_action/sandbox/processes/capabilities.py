"""Root's powers one by one: a thread gives them all up.

A process that became another user has lost what it could do itself, not what a program could give back to it; and one
that stays root, since this machine has no second user for it, has lost nothing: root reads the memory and environment
of any process, Landlock or not, while it holds CAP_PERFMON or CAP_SYS_ADMIN. Only the standard library: the launcher
imports this.
"""

from __future__ import annotations

import ctypes
import errno
import os

_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION = 0x20080522
_MOST = 64
_Header = ctypes.c_uint32 * 2
_Sets = ctypes.c_uint32 * 6

_libc = ctypes.CDLL(None, use_errno=True)


def empty_bounding_set() -> None:
    """Let no program that this thread executes get a capability. Before becoming another user, since it takes one;
    without it there is nothing to bound. Raises OSError."""
    for number in range(_MOST):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EINVAL, errno.EPERM):
                raise OSError(code, f"prctl(PR_CAPBSET_DROP): {os.strerror(code)}")
            return


def drop_all() -> None:
    """Leave this thread no capability, nor one to hand on. With no_new_privileges, root's programs get none back.
    Raises OSError."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)  # a kernel that knows none has none
    if _libc.capset(_Header(_VERSION, 0), _Sets()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")
