"""What keeps a command from the machine's files: Landlock, and for sandboxes of our own user mounts that are read-only.

Landlock: a process gives up, for itself and all that it starts, every file that no rule names. The interface:
https://docs.kernel.org/userspace-api/landlock.html (system calls without wrappers in libc).

Mounts: Landlock covers neither modes, times, owners, attributes nor sockets, and the modes of our own user's files keep
nobody out who is that user. So a supervisor enters a user namespace, for good, where every user may make mounts; each
command gets mounts of its own there, read-only but for its workspace, HOME and TMPDIR, and another folder for temporary
files, where other cells are. Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13  # ABI 2: link and rename between directories
TRUNCATE = 1 << 14  # ABI 3
IOCTL_DEV = 1 << 15  # ABI 5

READ = EXECUTE | READ_FILE | READ_DIR
"""Read and run what lies there."""
WRITE = (1 << 16) - 1 - MAKE_CHAR - MAKE_BLOCK
"""Everything but making device files."""
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
"""Use a device file."""
SHARED_MEMORY = READ_FILE | WRITE_FILE | TRUNCATE | MAKE_REG | REMOVE_FILE
"""Make and open files by name in a directory that is not to be listed."""

_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # ABI 6

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 2
_CONNECT_TCP = 2
WITH_PORTS = 4
"""The version of the interface that has rules for TCP."""
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)

_Target = tuple[int, bool]
"""A descriptor, and whether it is a directory's."""
_kept: dict[str, _Target | None] = {}


class _Prepared(NamedTuple):
    """A ruleset that no command has had yet."""

    lasting: list[tuple[str, int]]
    ruleset: int


_prepared: _Prepared | None = None


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def no_new_privileges() -> None:
    """From here on no setuid program gives anything to this process. Raises OSError."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def abi() -> int:
    """The version of the kernel's interface, 0 where there is none (old kernel, switched off, filtered)."""
    version: int = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(version, 0)


def _handled_rights(version: int) -> int:
    if version >= 5:
        return (1 << 16) - 1
    return {1: (1 << 13) - 1, 2: (1 << 14) - 1}.get(version, (1 << 15) - 1)


def restrict(
    rules: list[tuple[str, int]],
    version: int,
    lasting: list[tuple[str, int]] | None = None,
    ports: list[int] | None = None,
) -> None:
    """Leave this thread, for good, no files but those below the rules' paths, with the access given there.

    Paths that don't exist are skipped. What `lasting` rules name is opened once and kept open. With ABI 6 and later it
    can't signal processes outside either, nor connect to their abstract sockets. ports: those that it may connect to
    by TCP, None without a limit. no_new_privileges() must have been called. Raises OSError.
    """
    global _prepared
    handled = _handled_rights(version)
    if ports is None and _prepared is not None and _prepared.lasting == (lasting or []):
        ruleset, _prepared = _prepared.ruleset, None
    else:
        ruleset = _new_ruleset(lasting or [], version, ports)
    try:
        for path, access in rules:
            target = _open(path)
            _add_rule(ruleset, path, target, access & handled)
            if target:
                os.close(target[0])
        _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def prepare_ruleset(lasting: list[tuple[str, int]], version: int) -> None:
    """Make what the next `restrict` with these lasting rules begins with, while nobody waits for it. Raises OSError."""
    global _prepared  # noqa: PLW0603
    if _prepared is None:
        _prepared = _Prepared(lasting, _new_ruleset(lasting, version))


def _new_ruleset(lasting: list[tuple[str, int]], version: int, ports: list[int] | None = None) -> int:
    """A ruleset with the lasting rules, which takes further ones: each is for one command alone."""
    handled = _handled_rights(version)
    if version >= 6:
        attributes = struct.pack("QQQ", handled, 0, _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    else:
        attributes = struct.pack("Q", handled)
    if ports is not None:
        attributes = struct.pack("QQ", handled, _CONNECT_TCP) + attributes[16:]
    ruleset = _check(
        _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset"
    )
    try:
        for path, access in lasting:
            if path not in _kept:
                _kept[path] = _open(path)
            _add_rule(ruleset, path, _kept[path], access & handled)
        for port in ports or ():
            rule = struct.pack("=QQ", _CONNECT_TCP, port)
            _check(_libc.syscall(_ADD_RULE, ruleset, _RULE_NET_PORT, rule, 0), f"landlock_add_rule for port {port}")
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _open(path: str) -> _Target | None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    return descriptor, stat.S_ISDIR(os.fstat(descriptor).st_mode)


def _add_rule(ruleset: int, path: str, target: _Target | None, access: int) -> None:
    if target is None:
        return
    descriptor, is_directory = target
    rule = struct.pack("=Qi", access if is_directory else access & _ON_FILES, descriptor)
    _check(_libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule for {path}")


_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_RECURSIVE, _PRIVATE = 0x4000, 0x40000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""Numbers of system calls, the same on all machines."""
_CLONE, _CLOEXEC, _EMPTY_PATH, _AND_BELOW = 1, os.O_CLOEXEC, 0x1000, 0x8000
_FROM_DESCRIPTOR = 4  # MOVE_MOUNT_F_EMPTY_PATH
_HERE = -100  # AT_FDCWD
_READ_ONLY = struct.pack("QQQQ", 1, 0, 0, 0)  # struct mount_attr
_SHARED_PLACE, _ONLY_DATA = "/dev/shm", 2 | 4 | 8  # noqa: S108 - nosuid, nodev, noexec
_PR_SET_DUMPABLE = 4
_PROBED = "/usr", "lib"


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


def shut_in(rules: list[tuple[str, int]], others: str) -> list[tuple[str, int]]:
    """Give this thread, and what it starts, mounts of its own: what Landlock rules let it write to stays as it is, all
    else is read-only, and of the directory `others` only what rules name is there. Returns a rule for shared memory of
    its own, which goes with the last process, unless something that it sees lies there. Raises OSError."""
    _check(_libc.unshare(_NEW_MOUNTS), "unshare(CLONE_NEWNS)")
    _check(_libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None), "mount(MS_PRIVATE)")
    seen: list[tuple[str, int]] = []
    try:
        for path, access in sorted(rules):
            writable = bool(access & MAKE_REG)
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
        return _make_shared_memory([others, *(path for path, _ in rules)])
    finally:
        for _, tree in seen:
            os.close(tree)


def _make_shared_memory(taken: list[str]) -> list[tuple[str, int]]:
    in_use = any(path == _SHARED_PLACE or path.startswith(f"{_SHARED_PLACE}/") for path in taken)
    if in_use or not os.path.isdir(_SHARED_PLACE):  # noqa: PTH112
        return []
    options = b"mode=1777,size=64m,nr_inodes=16k"
    _check(_libc.mount(b"tmpfs", _SHARED_PLACE.encode(), b"tmpfs", _ONLY_DATA, options), "mount(tmpfs)")
    return [(_SHARED_PLACE, SHARED_MEMORY)]


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


def can_make_mounts() -> bool:
    """Whether this machine lets us enter a user namespace and make mounts there, found by doing it. The process can do
    nothing else afterwards."""
    enter_user_namespace()
    place, name = _PROBED
    shut_in([(f"{place}/{name}", READ)], place)
    return bool(os.statvfs("/").f_flag & os.ST_RDONLY) and [path.name for path in Path(place).iterdir()] == [name]


def _call(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return _check(_libc.syscall(number, *words), f"system call {number}")
