"""What a new process does to itself before it becomes the command: it gives up everything that is not the command's.

Only the standard library: the launcher's children import this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
from typing import NoReturn, cast

from keystone_action.sandbox import landlock, wire
from keystone_action.sandbox.wire import Message, Request

_PR_SET_PDEATHSIG = 1
_UNREACHABLE = 127
_NOT_EXECUTABLE = 126
_FIRST_FREE = 3

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):  # noqa: N818 - not an error of ours: the command can't be started, and why
    """The command can't be started. code: what a shell would exit with. not_found: there is no such program."""

    def __init__(self, message: str, code: int, *, not_found: bool) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.not_found = not_found


def die_with_parent() -> None:
    """Be killed when the process that forked this one ends. A change of user clears it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def stand_by(orders: socket.socket) -> NoReturn:
    """The life of a child: wait for a request, confine itself by it, become the command.

    Standard output and error are connected already. With the request come standard input and, for services, the log
    that takes both streams. The socket closes when the command has taken over; before, it carries one message with
    why that could not be.
    """
    try:
        die_with_parent()
        os.setsid()
        mark, passed = wire.receive_descriptors(orders)
        if not mark:
            os._exit(0)
        request = cast(Request | None, wire.receive(orders))
        if request is None:
            os._exit(0)
        _become(request, passed, orders)
    except Refused as refused:
        _say(orders, {"refused": refused.message, "code": refused.code, "not_found": refused.not_found})
    except BaseException as error:  # noqa: BLE001 - whatever it was: this process must never run on
        _say(orders, {"broken": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(_UNREACHABLE)


def _say(orders: socket.socket, message: Message) -> None:
    with contextlib.suppress(OSError):
        orders.sendall(wire.pack(message))


def _become(request: Request, passed: list[int], orders: socket.socket) -> NoReturn:
    os.dup2(passed[0], 0)
    if len(passed) > 1:
        os.dup2(passed[1], 1)
        os.dup2(passed[1], 2)
    os.closerange(_FIRST_FREE, orders.fileno())
    os.closerange(orders.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    _limit(request)
    _prefer_as_victim()
    uid = request["uid"]
    if uid is not None:
        # Pipes belong to who made them; /dev/stdout and /dev/stderr are opened anew by many a script.
        os.fchown(1, uid, uid)
        os.fchown(2, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        die_with_parent()
    os.umask(0o022)
    _enter(request["cwd"], request["inside"])
    if request["rules"] is not None:
        landlock.no_new_privileges()
        landlock.restrict(request["rules"], landlock.abi())
    elif uid is not None:
        landlock.no_new_privileges()
    # Handlers go with exec, ignored signals don't, and Python ignores these.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _execute(request["argv"], request["env"])


def _limit(request: Request) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wanted = []
    if request["disk"] is not None:
        wanted.append((resource.RLIMIT_FSIZE, request["disk"]))
    if request["uid"] is not None and request["pids"] is not None:
        # Counts the user's processes everywhere, so it needs a user that is this sandbox's alone. A little more than
        # the limit, so that reaching it is seen by who watches and said, instead of being odd failures of fork.
        wanted.append((resource.RLIMIT_NPROC, request["pids"] + max(8, request["pids"] // 8)))
    for kind, value in wanted:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # noqa: PLW2901
        resource.setrlimit(kind, (value, value))


def _prefer_as_victim() -> None:
    """When the machine runs out of memory, it shall be the agent that goes, not we."""
    with contextlib.suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, b"900")
        os.close(descriptor)


def _enter(directory: str, inside: str) -> None:
    try:
        os.chdir(directory)
        here = os.getcwd()
    except OSError as error:
        raise Refused(f"can't enter the directory {directory}: {error.strerror}", 126, not_found=False) from None
    if here != inside and not here.startswith(inside.rstrip("/") + "/"):
        raise Refused(f"the directory {directory} leads out of {inside}, to {here}", 126, not_found=False)


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    program = argv[0]
    path = env.get("PATH", "")
    places = [program] if "/" in program else [os.path.join(place or ".", program) for place in path.split(":")]  # noqa: PTH118
    denied = None
    for place in places:
        try:
            os.execve(place, argv, env)
        except OSError as error:
            if error.errno == errno.EACCES:
                denied = place
            elif error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                raise Refused(f"can't run {place}: {error.strerror}", _NOT_EXECUTABLE, not_found=False) from None
    if denied is not None:
        raise Refused(f"{denied} may not be executed by this user", _NOT_EXECUTABLE, not_found=True)
    if "/" in program:
        why = "its interpreter does not exist" if os.path.exists(program) else "no such program"  # noqa: PTH110
        raise Refused(f"{program}: {why}", _UNREACHABLE, not_found=True)
    raise Refused(f"{program}: not found in PATH ({path})", _UNREACHABLE, not_found=True)
