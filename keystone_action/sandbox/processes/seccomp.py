"""Kernel objects that belong to no file, so that Landlock does not cover them: keyrings, and System V memory,
semaphores and queues. A command gives up the system calls that lead to them; to it, the kernel has none. The same for
Unix sockets, where one that we may connect to would undo the sandbox: no filter sees which one a program connects to.
And where a command of our own user has no mounts of its own: set-user-id and set-group-id bits, extended attributes and
flags, of whatever file, since no filter sees which one a path names.

A command whose network is closed makes no sockets but those that a network namespace or Landlock's rules hold: no Unix
sockets but connected pairs, and of the families only those that follow. Where Landlock alone holds them, who watches it
makes its sockets (`notify_of_sockets`).

Keyrings outlive processes, are shared by all processes of a user, and hold credentials of our own user. System V
objects outlive processes too; those of a sandbox that has a user of its own are removed with it, so only commands of
our own user do without.

Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
import sys
from typing import NamedTuple

_Range = tuple[int, int]
_IO_URING: _Range = (425, 425)


class _Numbers(NamedTuple):
    """The numbers of system calls of one kind of program."""

    arch: int
    """What the kernel calls that kind (linux/audit.h)."""
    keyrings: _Range
    """They stand together everywhere."""
    system_v: tuple[_Range, ...]
    sockets: _Sockets
    attributes: _Attributes
    other_sockets: tuple[_Range, ...] = ()
    """Of calls that make a socket unseen."""


class _Sockets(NamedTuple):
    """Calls that make sockets, and those that may connect one while they send."""

    make: int
    """socket(2)."""
    pair: int
    sending: tuple[tuple[int, int], ...]
    """With their argument that the flags are."""


def _sockets(make: int, pair: int, sendto: int, sendmsg: int, sendmmsg: int) -> _Sockets:
    return _Sockets(make, pair, ((sendto, 3), (sendmsg, 2), (sendmmsg, 3)))


class _Attributes(NamedTuple):
    """Calls that change what a file is allowed, not what is in it."""

    modes: tuple[tuple[int, int], ...]
    """Calls that set a mode, and which of their arguments the mode is."""
    extended: tuple[_Range, ...]
    """Calls that change extended attributes."""
    ioctl: int


def _attributes(modes: tuple[tuple[int, int], ...], first_set: int, first_removed: int, ioctl: int) -> _Attributes:
    extended = ((first_set, first_set + 2), (first_removed, first_removed + 2), *_NEWER_EXTENDED)
    return _Attributes((*modes, (452, 2)), extended, ioctl)


_NEWER_EXTENDED = ((463, 463), (466, 466), (469, 469))
_WITH_SOCKETCALL = ((102, 102),)
_GENERIC_ATTRIBUTES = _attributes(((52, 1), (53, 2)), 5, 14, 29)
_GENERIC_SYSTEM_V = ((186, 197),)
_GENERIC_SOCKETS = _sockets(198, 199, 206, 211, 269)
_X86_64 = _Numbers(
    0xC000003E, (248, 250), ((29, 31), (64, 71), (220, 220)), _sockets(41, 53, 44, 46, 307),
    _attributes(((90, 1), (91, 1), (268, 2)), 188, 197, 16),
)  # fmt: skip
_I386 = _Numbers(
    0x40000003, (286, 288), ((117, 117), (393, 402), (420, 420)), _sockets(359, 360, 369, 370, 345),
    _attributes(((15, 1), (94, 1), (306, 2)), 226, 235, 54), _WITH_SOCKETCALL,
)  # fmt: skip
_ARM = _Numbers(
    0x40000028, (309, 311), ((298, 308), (312, 312), (420, 420)), _sockets(281, 288, 290, 296, 374),
    _attributes(((15, 1), (94, 1), (333, 2)), 226, 235, 54),
)  # fmt: skip
_AARCH64 = _Numbers(0xC00000B7, (217, 219), _GENERIC_SYSTEM_V, _GENERIC_SOCKETS, _GENERIC_ATTRIBUTES)
_RISCV = _Numbers(0xC00000F3, (217, 219), _GENERIC_SYSTEM_V, _GENERIC_SOCKETS, _GENERIC_ATTRIBUTES)
_LOONGARCH = _Numbers(0xC0000102, (217, 219), _GENERIC_SYSTEM_V, _GENERIC_SOCKETS, _GENERIC_ATTRIBUTES)
_PPC = _Numbers(
    0xC0000015, (269, 271), ((117, 117), (392, 402)), _sockets(326, 333, 335, 341, 349),
    _attributes(((15, 1), (94, 1), (297, 2)), 209, 218, 54), _WITH_SOCKETCALL,
)  # fmt: skip
_S390 = _Numbers(
    0x80000016, (278, 280), ((117, 117), (392, 402)), _sockets(359, 360, 369, 370, 358),
    _attributes(((15, 1), (94, 1), (299, 2)), 224, 233, 54), _WITH_SOCKETCALL,
)  # fmt: skip
_MACHINES = {
    "x86_64": ((_X86_64, _I386), 317),
    "i686": ((_I386,), 354),
    "aarch64": ((_AARCH64, _ARM), 277),
    "armv7l": ((_ARM,), 383),
    "riscv64": ((_RISCV,), 277),
    "loongarch64": ((_LOONGARCH,), 277),
    "ppc64le": ((_PPC,), 358),
    "s390x": ((_S390,), 348),
}
"""The kinds of programs that a machine runs, and its number of seccomp(2)."""

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ABOVE, _IF_ANY_OF_BITS = 0x15, 0x35, 0x25, 0x45
_NUMBER_AT, _ARCH_AT = 0, 4
_FIRST_ARGUMENT_AT = 16 if sys.byteorder == "little" else 20  # its lower half
_UNIX, _INET, _NETLINK, _INET6 = 1, 2, 16, 10
_STREAM, _SEQPACKET, _KIND_OF_SOCKET = 1, 5, 0xF
_TCP = 6
_CONNECTS = 0x20000000  # MSG_FASTOPEN
_X32 = 0x40000000  # a bit of the number says that the program is of that kind
_WITHOUT_X32 = 0xBFFFFFFF
_ALLOWED = 0x7FFF0000
_NO_SUCH_CALL = 0x00050000 | errno.ENOSYS
_DENIED = 0x00050000 | errno.EACCES
_NOT_PERMITTED = 0x00050000 | errno.EPERM
_NOT_SUPPORTED = 0x00050000 | errno.EOPNOTSUPP
_ASK = 0x7FC00000  # SECCOMP_RET_USER_NOTIF
_SET_ID_BITS = 0o6000
_FLAG_CALLS = (0x40086602, 0x40046602, 0x401C5820, 0x80086602, 0x80046602, 0x801C5820)
"""FS_IOC_SETFLAGS, for programs of 64 and 32 bits, and FS_IOC_FSSETXATTR; the last three as PowerPC counts."""

_SET_FILTER = 1
_NO_MITIGATION = 4  # of speculation, which would slow down every command on older kernels
_WITH_LISTENER = 8
_JOIN_SESSION_KEYRING = 1

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def has_seccomp() -> bool:
    """Whether this kernel takes filters from us."""
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return False
    # Where a filter would be looked at, one at address 0 is a fault.
    return _libc.syscall(machine[1], _SET_FILTER, 0, None) < 0 and ctypes.get_errno() == errno.EFAULT


def give_up_system_calls(
    *, system_v: bool, unix_sockets: bool = True, attributes: bool = True, closed: str | None = None
) -> None:
    """Leave this thread, and all that it starts, no system calls for keyrings and io_uring: it does unseen what is
    refused here, and can write to files that nobody has open. Without `system_v` none for System V objects either;
    without `unix_sockets` no Unix sockets but pairs; without `attributes` no set-id bits, extended attributes and flags
    of files. closed: how its network is closed, if it is (`CommandRequest`). no_new_privileges() must have been called.
    Raises OSError."""
    kinds, _ = _MACHINES[os.uname().machine]
    _install(_filter(kinds, system_v, unix_sockets, attributes, closed))


def notify_of_sockets() -> int:
    """From here on each socket that this thread, and all that it starts, wants is asked for at the descriptor that this
    returns, and made by who answers there. Raises OSError."""
    kinds, _ = _MACHINES[os.uname().machine]
    asking = b""
    for kind in kinds:
        body = _instruction(_LOAD, _NUMBER_AT) + _instruction(_IF_EQUAL, kind.sockets.make, otherwise=1)
        body += _instruction(_RETURN, _ASK) + _instruction(_RETURN, _ALLOWED)
        asking += _instruction(_IF_EQUAL, kind.arch, otherwise=len(body) // 8) + body
    return _install(
        _instruction(_LOAD, _ARCH_AT) + asking + _instruction(_RETURN, _ALLOWED), (_WITH_LISTENER | _NO_MITIGATION,)
    )


def _install(instructions: bytes, choices: tuple[int, ...] = (_NO_MITIGATION, 0)) -> int:
    _, number = _MACHINES[os.uname().machine]
    program = _Program(len(instructions) // 8, instructions)
    for flags in choices:
        result: int = _libc.syscall(number, _SET_FILTER, flags, ctypes.byref(program))
        if result >= 0:
            return result
    code = ctypes.get_errno()
    raise OSError(code, f"giving up system calls: {os.strerror(code)}")


def leave_session_keyring() -> None:
    """Give this thread, and all that it starts, a session keyring of its own. Where the kernel has none, or a container
    lets nobody at them, there is nothing to leave."""
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return
    keyctl = machine[0][0].keyrings[1]
    if _libc.syscall(keyctl, _JOIN_SESSION_KEYRING, None) >= 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.ENOSYS, errno.EPERM):
        raise OSError(code, f"leaving the session keyring: {os.strerror(code)}")


@functools.cache
def _filter(
    kinds: tuple[_Numbers, ...], system_v: bool, unix_sockets: bool, attributes: bool, closed: str | None
) -> bytes:
    """The program that the kernel runs at each system call."""
    blocks = b"".join(_block(kind, system_v, unix_sockets, attributes, closed) for kind in kinds)
    return _instruction(_LOAD, _ARCH_AT) + blocks + _instruction(_RETURN, _ALLOWED)


def _block(kind: _Numbers, system_v: bool, unix_sockets: bool, attributes: bool, closed: str | None) -> bytes:
    """For programs of one kind: refuse what is given up, allow everything else."""
    ranges = [kind.keyrings, _IO_URING]
    ranges += [*(() if system_v else kind.system_v), *(() if unix_sockets and not closed else kind.other_sockets)]
    tests = b"".join(_refuse(first, last, _NO_SUCH_CALL) for first, last in ranges)
    if not attributes:
        tests += _without_attributes(kind.attributes)
    if closed:
        tests += _without_ways_out(kind.sockets, closed, unix_sockets)
    elif not unix_sockets:
        tests += _without_unix_sockets(kind.sockets.make)
    number = _instruction(_LOAD, _NUMBER_AT)
    if closed:  # the numbers of x32 are others for some calls that send
        number += _instruction(_IF_ANY_OF_BITS, _X32, otherwise=1) + _instruction(_RETURN, _NO_SUCH_CALL)
    body = number + _instruction(_AND, _WITHOUT_X32) + tests + _instruction(_RETURN, _ALLOWED)
    return _instruction(_IF_EQUAL, kind.arch, otherwise=len(body) // 8) + body


def _refuse(first: int, last: int, answer: int) -> bytes:
    return (
        _instruction(_IF_AT_LEAST, first, otherwise=2)
        + _instruction(_IF_ABOVE, last, then=1)
        + _instruction(_RETURN, answer)
    )


def _without_attributes(calls: _Attributes) -> bytes:
    tests = b"".join(_refuse(first, last, _NOT_SUPPORTED) for first, last in calls.extended)
    for number, argument in calls.modes:
        tests += (
            _instruction(_IF_EQUAL, number, otherwise=4)
            + _instruction(_LOAD, _FIRST_ARGUMENT_AT + 8 * argument)
            + _instruction(_IF_ANY_OF_BITS, _SET_ID_BITS, otherwise=1)
            + _instruction(_RETURN, _NOT_PERMITTED)
            + _instruction(_RETURN, _ALLOWED)
        )
    flags = b"".join(
        _instruction(_IF_EQUAL, request, otherwise=1) + _instruction(_RETURN, _NOT_SUPPORTED) for request in _FLAG_CALLS
    )
    body = _instruction(_LOAD, _FIRST_ARGUMENT_AT + 8) + flags + _instruction(_RETURN, _ALLOWED)
    return tests + _instruction(_IF_EQUAL, calls.ioctl, otherwise=len(body) // 8) + body


def _without_unix_sockets(socket: int) -> bytes:
    return (
        _instruction(_IF_EQUAL, socket, otherwise=4)
        + _instruction(_LOAD, _FIRST_ARGUMENT_AT)
        + _instruction(_IF_EQUAL, _UNIX, otherwise=1)
        + _instruction(_RETURN, _DENIED)
        + _instruction(_RETURN, _ALLOWED)
    )


def _without_ways_out(calls: _Sockets, closed: str, unix_sockets: bool) -> bytes:
    """No sockets but those that what closes the network holds, and Unix ones only where a program of ours meets us at
    one. Each of a pair of datagram sockets could send to any Unix socket, and nobody sees the address."""
    family, kind, protocol = (_instruction(_LOAD, _FIRST_ARGUMENT_AT + 8 * argument) for argument in range(3))
    kind += _instruction(_AND, _KIND_OF_SOCKET)
    pair = family + _only(_UNIX) + kind + _only(_STREAM, _SEQPACKET)
    more = (_UNIX,) if unix_sockets else ()
    if closed == "namespace":
        made = family + _only(_INET, _INET6, _NETLINK, *more)
    else:
        made = family + _only(_INET, _INET6, *more) + kind + _only(_STREAM) + protocol + _only(0, _TCP)
    tests = _of_call(calls.make, made) + _of_call(calls.pair, pair)
    if closed == "namespace":
        return tests
    for number, argument in calls.sending:  # Landlock does not see a connection in this
        flags = _instruction(_LOAD, _FIRST_ARGUMENT_AT + 8 * argument)
        flags += _instruction(_IF_ANY_OF_BITS, _CONNECTS, otherwise=1) + _instruction(_RETURN, _NOT_SUPPORTED)
        tests += _of_call(number, flags)
    return tests


def _only(*values: int) -> bytes:
    """Go on with these, refuse others."""
    tests = (_instruction(_IF_EQUAL, value, then=len(values) - at) for at, value in enumerate(values))
    return b"".join(tests) + _instruction(_RETURN, _DENIED)


def _of_call(number: int, tests: bytes) -> bytes:
    body = tests + _instruction(_RETURN, _ALLOWED)
    return _instruction(_IF_EQUAL, number, otherwise=len(body) // 8) + body


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
