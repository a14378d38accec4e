"""Starting a command that has given up everything that is not its own.

Who a process is, what Landlock lets it touch and whether it may gain privileges belong, in the kernel, to a *thread*.
So a thread of the supervisor gives all that up, for good, starts the command by vfork, and ends. Nothing of Python runs
between fork and exec, no page of the supervisor is copied, and the supervisor stays who it was. What none of its
commands may have, it gives up itself, once. While the thread lives, a process of the same user could end it, and so the
supervisor: that is an error of the cell, never a result. It can't look into it: the supervisor's memory is closed to
all but root (the launcher sees to that).
Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

from keystone_action.errors import caused_by_agent
from keystone_action.sandbox.processes import closed_network, landlock, process_tree, seccomp
from keystone_action.sandbox.processes.credentials import become, drop_all_capabilities, empty_bounding_set
from keystone_action.sandbox.processes.wire import CommandRequest
from keystone_action.system import shortage

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_ROOM_FOR_OTHERS = 4096
_QUEUES = "/dev/mqueue"

# (rt_sigaction, rt_sigprocmask): libc keeps two signals for itself, and its wrappers won't touch them.
_SIGNAL_CALLS = {
    "x86_64": (13, 14),
    "ppc64le": (173, 174),
    "s390x": (174, 175),
    "armv7l": (174, 175),
    "i686": (174, 175),
}
_GENERIC_SIGNAL_CALLS = (134, 135)
_SET_MASK = 2
_SIGNAL_SET_BYTES = ctypes.c_size_t(8)

_libc = ctypes.CDLL(None, use_errno=True)
_priority = 0
_taken_on = False
_landlock_abi = landlock.abi()
HAS_SECCOMP = seccomp.has_seccomp()


def take_priority() -> None:
    """Who watches must not starve among thousands of processes; where we may, supervisors come first."""
    global _priority  # noqa: PLW0603 - of this process, like the priority itself
    _priority = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _priority - 10)


class CommandRefused(Exception):  # noqa: N818 - not an error of ours: the command can't be started, and why
    """The command can't be started. code: what a shell would exit with. not_found: there is no such program."""

    def __init__(self, message: str, code: int, *, not_found: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.not_found = not_found


class NoRoom(Exception):  # noqa: N818 - an outcome: it may be tried again
    """The machine had no process, memory or descriptor left for the command. code: of the system call that failed."""

    def __init__(self, code: int) -> None:
        super().__init__(os.strerror(code))
        self.code = code


class Spawned(NamedTuple):
    """A command that was started, and what closes its network."""

    pid: int
    namespace: closed_network.Namespace | None
    notices: int | None
    """Where it asks for sockets."""


def spawn(request: CommandRequest, stdin: int, stdout: int, stderr: int) -> Spawned:
    """Start the command. Raises CommandRefused, NoRoom, or OSError where confining it failed."""
    outcome: list[Spawned | BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def life() -> None:
        namespace = notices = None
        try:
            _unblock_signals()
            namespace = _leave_network(request)
            notices = _confine(request)
            outcome.append(Spawned(_start(request, stdin, stdout, stderr), namespace, notices))
        except BaseException as error:  # noqa: BLE001 - raised again below
            if namespace is not None:
                namespace.close()
            if notices is not None:
                os.close(notices)
            outcome.append(error)
        finally:
            done.release()

    try:
        _thread.start_new_thread(life, ())  # half the price of a threading.Thread
    except RuntimeError:  # it knows no errno
        raise NoRoom(errno.EAGAIN) from None
    done.acquire()
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    _prefer_as_victim(result.pid)
    return result


def prepare_for_another(request: CommandRequest) -> None:
    """Do now what a further request that is like this one would have to wait for."""
    if request["rules"] is not None and request["closed"] != "ports":
        with contextlib.suppress(OSError):  # then the next one does it, and tells
            landlock.prepare_ruleset(request["lasting_rules"], _landlock_abi)


def can_change_user(uid: int) -> bool:
    """Whether this thread can become another user; it is one afterwards."""
    try:
        become(uid)
    except OSError:
        return False
    return True


def _leave_network(request: CommandRequest) -> closed_network.Namespace | None:
    if request["closed"] != "namespace":
        return None
    return closed_network.enter_namespace([(host, port) for host, port in request["reachable"]])


def _confine(request: CommandRequest) -> int | None:
    """What is of one command, and of its thread alone; the rest was taken on by the supervisor. Returns where it asks
    for sockets, if it does."""
    os.setpriority(os.PRIO_PROCESS, 0, _priority)  # a thread's own, too
    if not _is_filtered(request):
        seccomp.leave_session_keyring()
    if request["uid"] is not None:
        become(request["uid"], request["groups"])
    rules = request["rules"]
    if request["others"] is not None and rules is not None:
        rules = [*rules, *landlock.shut_in([*rules, *request["lasting_rules"]], request["others"])]
    if _is_confined(request):
        drop_all_capabilities()
    by_port = request["closed"] == "ports"
    if rules is not None:
        ports = [port for _, port in request["reachable"]] if by_port else None
        landlock.restrict(rules, _landlock_abi, request["lasting_rules"], ports)
    return seccomp.notify_of_sockets() if by_port else None


def _is_confined(request: CommandRequest) -> bool:
    return request["uid"] is not None or request["rules"] is not None


def _is_filtered(request: CommandRequest) -> bool:
    """Whether some system calls are none to the command."""
    return HAS_SECCOMP and (not request["service"] if _is_confined(request) else not request["unix_sockets"])


def default_signals() -> None:
    """Take back the default for signals that our parent ignored, since exec keeps ignored what is ignored: a shell
    ignores two for what it starts in the background, GNU make the two that libc keeps for itself. (Those that Python
    ignores, subprocess gives back.)"""
    action = _SIGNAL_CALLS.get(os.uname().machine, _GENERIC_SIGNAL_CALLS)[0]
    for number in set(range(1, 65)) - {signal.SIGPIPE, signal.SIGXFSZ}:
        current = (ctypes.c_void_p * 8)()
        found = _libc.syscall(action, number, None, ctypes.byref(current), _SIGNAL_SET_BYTES)
        if found == 0 and current[0] == signal.SIG_IGN:
            _libc.syscall(action, number, ctypes.byref((ctypes.c_void_p * 8)()), None, _SIGNAL_SET_BYTES)


def _unblock_signals() -> None:
    """A command starts with no signal blocked, those that libc keeps for itself among them."""
    number = _SIGNAL_CALLS.get(os.uname().machine, _GENERIC_SIGNAL_CALLS)[1]
    _libc.syscall(number, _SET_MASK, ctypes.byref(ctypes.c_uint64(0)), None, _SIGNAL_SET_BYTES)


def _start(request: CommandRequest, stdin: int, stdout: int, stderr: int) -> int:
    _check_directory(request["cwd"], request["inside"])
    program, path = request["argv"][0], request["env"].get("PATH", "")
    try:
        # SIM115, S603: it outlives this function, and running what we are told to is what we are for.
        process = subprocess.Popen(
            request["argv"],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=request["cwd"],
            env=request["env"],
            start_new_session=True,
            umask=0o022,
        )
    except OSError as error:
        raise _refusal(error, request, program, path) from None
    process.returncode = 0  # the supervisor reaps it
    return process.pid


def _refusal(error: OSError, request: CommandRequest, program: str, path: str) -> CommandRefused | NoRoom:
    """What it means that the command could not be started."""
    if isinstance(error, FileNotFoundError):
        if "/" not in program:
            return CommandRefused(f"{program}: not found in PATH ({path})", NOT_FOUND, not_found=True)
        there = (Path(request["cwd"]) / program).exists()
        why = "its interpreter does not exist" if there else "no such program"
        return CommandRefused(f"{program}: {why}", NOT_FOUND, not_found=True)
    if isinstance(error, PermissionError):
        return CommandRefused(f"{program} may not be executed by this user", NOT_EXECUTABLE, not_found=True)
    if error.errno == errno.EAGAIN and _has_its_share(request):
        return CommandRefused(f"can't run {program}: its {request['pids']} processes are all running", NOT_EXECUTABLE)
    if error.errno is not None and error.errno in shortage.OUT_OF_SOMETHING:
        return NoRoom(error.errno)
    return CommandRefused(f"can't run {program}: {error.strerror}", NOT_EXECUTABLE)


def _has_its_share(request: CommandRequest) -> bool:
    """Whether as many processes run as the sandbox may have, started by another of its commands."""
    uid, allowed = request["uid"], request["pids"]
    return uid is not None and allowed is not None and process_tree.count_of_user(uid) >= allowed


def _check_directory(directory: str, inside: str) -> None:
    try:
        real = os.path.realpath(directory, strict=True)
    except OSError as error:
        if not caused_by_agent(error):
            raise
        raise CommandRefused(f"can't enter the directory {directory}: {error.strerror}", NOT_EXECUTABLE) from None
    if real != inside and not real.startswith(inside.rstrip("/") + "/"):
        raise CommandRefused(f"the directory {directory} leads out of {inside}, to {real}", NOT_EXECUTABLE)
    if not os.access(real, os.X_OK, effective_ids=True):
        raise CommandRefused(f"can't enter the directory {directory}: permission denied", NOT_EXECUTABLE)


def take_on_for_good(request: CommandRequest) -> None:
    """Take on, in the supervisor itself, what its commands inherit: limits, which set from outside would come too late
    on a busy machine, and what takes the kernel long to give up. None of it can be taken back, so a supervisor serves
    requests only that agree in it (`wire.lasting_part`)."""
    global _taken_on  # noqa: PLW0603 - of this process, like what it takes on
    if not _taken_on:
        _limit(request)
        _give_up(request)
        _taken_on = True


def _give_up(request: CommandRequest) -> None:
    """Capabilities that a program could give back, setuid programs, and system calls.

    The supervisor leaves the session keyring before the calls that would lead back to one are gone: its commands can
    neither look into its own nor put anything there."""
    seccomp.leave_session_keyring()
    if request["others"] is not None or (request["closed"] == "namespace" and os.geteuid() != 0):
        landlock.enter_user_namespace()
    confined, filtered = _is_confined(request), _is_filtered(request)
    if confined:
        empty_bounding_set()
    if confined or filtered:
        landlock.no_new_privileges()
    if filtered:
        of_our_user = confined and request["uid"] is None
        seccomp.give_up_system_calls(
            system_v=not of_our_user,
            unix_sockets=request["unix_sockets"],
            attributes=not of_our_user or request["others"] is not None,
            closed=request["closed"],
        )


def _limit(request: CommandRequest) -> None:
    wanted = []
    if _queues_would_stay(request):
        wanted.append((resource.RLIMIT_MSGQUEUE, 0))
    if request["disk"] is not None:
        wanted.append((resource.RLIMIT_FSIZE, request["disk"]))
    if request["pids"] is not None:
        wanted.append((resource.RLIMIT_NPROC, _most_processes(request["uid"], request["pids"])))
    for kind, value in wanted:
        hard = resource.getrlimit(kind)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _queues_would_stay(request: CommandRequest) -> bool:
    """Whether POSIX message queues that the command makes could be found by another sandbox: of our own user nobody
    can tell whose they are, and where no directory shows them, they can't be removed."""
    if request["uid"] is None:
        return request["rules"] is not None
    return not os.path.ismount(_QUEUES)


def _most_processes(uid: int | None, allowed: int) -> int:
    """For RLIMIT_NPROC, which counts the processes that a user has everywhere.

    A little more than what is allowed, so that reaching that is seen by who watches, and said, instead of being odd
    failures of fork. Without a user of its own (and unless we are root, whom it doesn't bind) it is only there to keep
    a bomb small enough to be watched: everything else of this user, and some thousands for what may come.
    """
    if uid is not None:
        return allowed + max(8, allowed // 8)
    return allowed + process_tree.count_of_user(os.geteuid()) + _ROOM_FOR_OTHERS


def _prefer_as_victim(pid: int) -> None:
    """When the machine runs out of memory, it shall be the agent that goes, not we."""
    with contextlib.suppress(OSError):
        descriptor = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, b"900")
        os.close(descriptor)
