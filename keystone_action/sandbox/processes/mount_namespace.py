"""A view of the machine's files in which only what belongs to a sandbox can be changed: for sandboxes of our own user.

Landlock covers neither modes, times, owners, attributes nor sockets, and the modes of our own user's files keep nobody
out who is that user. So a supervisor enters a user namespace, for good, where every user may make mounts; each command
gets mounts of its own there, all of them read-only but those of its workspace, HOME and TMPDIR. The directory for
temporary files, where other cells are, is another one for it. Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from keystone_action.sandbox.processes import landlock

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_RECURSIVE, _PRIVATE = 0x4000, 0x40000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""Numbers of system calls, the same on all machines."""
_CLONE, _CLOEXEC, _EMPTY_PATH, _AND_BELOW = 1, os.O_CLOEXEC, 0x1000, 0x8000
_FROM_DESCRIPTOR = 4  # MOVE_MOUNT_F_EMPTY_PATH
_HERE = -100  # AT_FDCWD
_READ_ONLY = struct.pack("QQQQ", 1, 0, 0, 0)  # struct mount_attr
_PR_SET_DUMPABLE = 4
_PROBED = "/usr", "lib"

_libc = ctypes.CDLL(None, use_errno=True)


def enter_user_namespace() -> None:
    """Enter, for good, a user namespace in which this process may make mounts; it must have one thread. Its user and
    group stay what they are. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEW_USER), "unshare(CLONE_NEWUSER)")
    # Our memory is closed, and with it these files, to our own user too.
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
    finally:
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def shut_in(rules: list[tuple[str, int]], others: str) -> None:
    """Give this thread, and what it starts, mounts of its own: what Landlock rules let it write to stays as it is, all
    else is read-only, and of the directory `others` only what rules name is there. Raises OSError."""
    _check(_libc.unshare(_NEW_MOUNTS), "unshare(CLONE_NEWNS)")
    _check(_libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None), "mount(MS_PRIVATE)")
    seen: list[tuple[str, int]] = []
    try:
        for path, access in sorted(rules):
            writable = bool(access & landlock.MAKE_REG)
            if os.path.exists(path) and (writable or path.startswith(f"{others}/")):  # noqa: PTH110
                tree = _call(_OPEN_TREE, _HERE, path.encode(), _CLONE | _CLOEXEC | _AND_BELOW)
                seen.append((path, tree))
                if not writable:
                    _protect(tree, b"", _EMPTY_PATH | _AND_BELOW)
        _protect(_HERE, b"/", _AND_BELOW)
        _check(_libc.mount(b"tmpfs", others.encode(), b"tmpfs", 0, b"mode=0755"), "mount(tmpfs)")
        for path, tree in seen:
            _make_place(path, tree)
            _call(_MOVE_MOUNT, tree, b"", _HERE, path.encode(), _FROM_DESCRIPTOR)
        _protect(_HERE, others.encode(), 0)
    finally:
        for _, tree in seen:
            os.close(tree)


def _make_place(path: str, tree: int) -> None:
    """Something of the same kind for what is to be mounted there, where `others` is empty now."""
    place = Path(path)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(f"/proc/self/fd/{tree}").is_dir():
            place.mkdir()
        else:
            place.touch()


def _protect(directory: int, path: bytes, flags: int) -> None:
    _call(_MOUNT_SETATTR, directory, path, flags, _READ_ONLY, ctypes.c_size_t(len(_READ_ONLY)))


def works() -> bool:
    """Whether this machine lets us do that, found by doing it: this process is of no other use afterwards."""
    enter_user_namespace()
    place, name = _PROBED
    shut_in([(f"{place}/{name}", landlock.READ)], place)
    return bool(os.statvfs("/").f_flag & os.ST_RDONLY) and [path.name for path in Path(place).iterdir()] == [name]


def _call(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return _check(_libc.syscall(number, *words), f"system call {number}")


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
