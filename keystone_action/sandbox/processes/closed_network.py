"""A network that leads nowhere but to a few addresses: what a command's thread enters, and what its supervisor does.

`namespace`: the command gets a network namespace in which there is only a loopback interface. Sockets that listen there
at the cell's addresses are handed to us, and what connects to them we pass on.

`ports`: the command stays in this machine's network. Landlock lets it connect to the cell's ports alone, and its
supervisor makes each of its sockets, bound to the loopback interface: neither can it reach a foreign machine that
listens at such a port, nor can such a machine reach what it listens at.
Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from keystone_action.sandbox.processes import landlock, seccomp

_NEW_NETWORK = 0x40000000
_LOOPBACK = b"lo"
_SET_FLAGS, _SET_ADDRESS, _SET_MASK = 0x8914, 0x8916, 0x891C
_UP = 0x41
_TABLES = ("tcp", "tcp6")
_RECEIVE, _SEND, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103
_ANSWER = 2  # SECCOMP_ADDFD_FLAG_SEND
_NOTICE = struct.Struct("=QIIiIQ6Q")
_FOREIGN, _SOME_PORT = ("192.0.2.1", 9), 1

_libc = ctypes.CDLL(None, use_errno=True)

NetworkAddress = tuple[str, int]


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


class Namespace(NamedTuple):
    """A network namespace, held by descriptors. Who made it closes them."""

    place: int
    passed: list[int]
    """What we get of it: its sockets that listen, in the order of the addresses, and its two tables of TCP."""

    def close(self) -> None:
        """Twice does harm."""
        for descriptor in (self.place, *self.passed):
            os.close(descriptor)


def enter_namespace(addresses: list[NetworkAddress]) -> Namespace:
    """Move this thread, and what it starts, into a network namespace of its own. Raises OSError."""
    _check(_libc.unshare(_NEW_NETWORK), "unshare(CLONE_NEWNET)")
    held: list[int] = []
    try:
        _raise_loopback([host for host, _ in addresses])
        held.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        held += [socket.create_server(address, backlog=128).detach() for address in addresses]
        for table in _TABLES:
            path = f"/proc/thread-self/net/{table}"
            there = os.path.exists(path)  # noqa: PTH110 - no IPv6 here
            held.append(os.open(path if there else "/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except BaseException:
        for descriptor in held:
            os.close(descriptor)
        raise
    return Namespace(held[0], held[1:])


def _raise_loopback(hosts: list[str]) -> None:
    """Bring the interface up, and give it those addresses that are not its own anyway."""
    others = dict.fromkeys(host for host in hosts if not host.startswith("127."))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", _LOOPBACK, _UP))
        for number, host in enumerate(others):
            name = b"%s:%d" % (_LOOPBACK, number)
            for call, value in ((_SET_ADDRESS, host), (_SET_MASK, "255.255.255.255")):
                address = struct.pack("=H2x4s8x", socket.AF_INET, socket.inet_aton(value))
                fcntl.ioctl(any_socket, call, struct.pack("16s16s8x", name, address))


def make_socket_in(place: int, family: int) -> int:
    """A TCP socket of that namespace, which has not been connected. Raises OSError."""
    outcome: list[int | BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def life() -> None:
        try:
            _check(_libc.setns(place, _NEW_NETWORK), "setns")
            outcome.append(socket.socket(family, socket.SOCK_STREAM).detach())
        except BaseException as error:  # noqa: BLE001 - raised again below
            outcome.append(error)
        finally:
            done.release()

    _thread.start_new_thread(life, ())
    done.acquire()
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def answer_notice(notices: int, uid: int | None) -> bool:
    """Make the socket that a command asks for at this descriptor (`seccomp.notify_of_sockets`), for its user.

    False when nobody will ask any more. Raises OSError.
    """
    poller = select.poll()
    poller.register(notices, select.POLLIN)
    events = next((found for _, found in poller.poll(0)), 0)
    if not events & select.POLLIN:
        return not events & select.POLLHUP
    notice = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(notices, _RECEIVE, notice)
        _answer(notices, notice, uid)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINTR):  # it was killed meanwhile
            raise
    return True


def _answer(notices: int, notice: bytearray, uid: int | None) -> None:
    """What stands in the way of a socket, here or there (the command has no descriptor left), is the answer."""
    number, *_, family, kind, protocol, _, _, _ = _NOTICE.unpack(notice)
    flags = os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0
    try:
        with _loopback_socket(family, kind, protocol, uid) as made, _without_signals():
            fcntl.ioctl(notices, _ADD_DESCRIPTOR, struct.pack("=QIIII", number, _ANSWER, made.fileno(), 0, flags))
    except OSError as error:
        fcntl.ioctl(notices, _SEND, struct.pack("=QqiI", number, 0, -(error.errno or errno.EACCES), 0))


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    """A signal would break off the handing over of a socket, and the command be told that it is descriptor 0."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _loopback_socket(family: int, kind: int, protocol: int, uid: int | None) -> socket.socket:
    made = socket.socket(family & 0xFFFF, kind & ~socket.SOCK_CLOEXEC & 0xFFFFFFFF, protocol & 0xFFFF)
    try:
        if family in (socket.AF_INET, socket.AF_INET6):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK + b"\0")
        if uid is not None:
            os.fchown(made.fileno(), uid, uid)
    except BaseException:
        made.close()
        raise
    return made


def can_make_namespace() -> bool:
    """Whether this machine gives commands a network namespace, found by entering one: what listens in there is reached,
    nothing else is. The process can do nothing else afterwards."""
    if os.geteuid() != 0:
        landlock.enter_user_namespace()
    entered = enter_namespace([("127.0.0.1", _SOME_PORT)])
    try:
        with socket.create_connection(("127.0.0.1", _SOME_PORT), timeout=5):
            pass
        return _is_refused(socket.SOCK_DGRAM, _FOREIGN, errno.ENETUNREACH)
    finally:
        entered.close()


def can_close_ports() -> bool:
    """Whether Landlock's rules and made sockets close this machine's network, found by doing it. The process can do
    nothing else afterwards."""
    version = landlock.abi()
    if version < landlock.WITH_PORTS:
        return False
    with socket.create_server(("127.0.0.1", 0)) as open_one, socket.create_server(("127.0.0.1", 0)) as closed_one:
        landlock.no_new_privileges()
        seccomp.give_up_system_calls(system_v=True, closed="ports")
        outcome = _in_notified_thread(lambda: _reaches_only(open_one, closed_one, version))
    return outcome == [True]


def _reaches_only(open_one: socket.socket, closed_one: socket.socket, version: int) -> bool:
    allowed, forbidden = open_one.getsockname(), closed_one.getsockname()
    landlock.restrict([], version, ports=[allowed[1]])
    refused = _is_refused(socket.SOCK_STREAM, forbidden, errno.EACCES)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.connect(allowed)
        bound = made.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    return refused and bound.startswith(_LOOPBACK) and _is_refused(socket.SOCK_DGRAM, allowed, errno.EACCES)


def _in_notified_thread(action: Callable[[], bool]) -> list[bool]:
    """What `action` returns in a thread whose sockets this one makes; nothing where it failed."""
    found: list[bool] = []
    notices: list[int] = []
    ready, done = _thread.allocate_lock(), _thread.allocate_lock()
    ready.acquire()
    done.acquire()

    def life() -> None:
        with contextlib.suppress(OSError):
            try:
                try:
                    notices.append(seccomp.notify_of_sockets())
                finally:
                    ready.release()
                found.append(action())
            finally:
                done.release()

    _thread.start_new_thread(life, ())
    ready.acquire()
    if notices:
        poller = select.poll()
        poller.register(notices[0], select.POLLIN)
        while poller.poll() and answer_notice(notices[0], None):
            pass
    done.acquire()
    return found


def _is_refused(kind: int, address: NetworkAddress, code: int) -> bool:
    try:
        with socket.socket(socket.AF_INET, kind) as tried:
            tried.connect(address)
    except OSError as error:
        return error.errno == code
    return False
