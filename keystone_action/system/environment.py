"""Our own environment, where no other process can read it.

What a program is started with stands in `/proc/<pid>/environ` as long as it lives: taking a variable out of
`os.environ` changes nothing there. A job's tokens and keys are variables. So a front door overwrites, as the first
thing it does, the memory that the kernel shows there, up to names that are harmless; the values go down as a mapping.

Where that can't be done, and as a container's process 1, the program starts itself anew with the harmless names, and
the rest goes along in a file that exists in memory only. Process 1 becomes an init then, with us below it. Where the
memory is closed and no new start works, `not_enforced` says so.

Standard library only, and little of it: this runs before anything else is imported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence

# ruff: noqa: PTH123 - pathlib is a heavy import here
TYPE_CHECKING = False  # `typing` takes 5 ms to import
if TYPE_CHECKING:
    from typing import NoReturn

_HANDED_ON = "KEYSTONE_HANDED_ON"
"""`<descriptor> <signal>…`: where the new process finds its environment, and which signals wait for it."""
_FIRST_DESCRIPTOR = 10
_ENV_START = 50 - 3
"""Where /proc/self/stat says, counted from the field after the program's name, at which address the variables stand."""
_FILE = "keystone-environment"
_NEVER_RUN = 0x8
"""MFD_NOEXEC_SEAL, which Python does not name. A kernel may demand it (`vm.memfd_noexec`); older ones refuse it."""
_STILL_SHOWN = (
    "secrets in Keystone's own environment stay readable in /proc/<pid>/environ, for root and for its own user:"
    " its memory can't be overwritten here, and it could not start anew"
)
_INIT = "/usr/bin/tini"
"""Forwards signals and reaps orphans where we were started as process 1, as the action's image starts us."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_HARMLESS = re.compile(
    # What the interpreter, libc and the loader read when they start,
    "PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|_|HOSTNAME|TZ|TMPDIR|LANG|LANGUAGE|LC_[A-Z]+|PYTHON[A-Z0-9]+"
    "|VIRTUAL_ENV|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_[A-Z_]+"
    # the terminal,
    "|TERM|COLORTERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|TERM_PROGRAM"
    # and places that libraries and the rooms below look up by themselves.
    "|SSL_CERT_(FILE|DIR)|GIT_SSL_CA(INFO|PATH)|XDG_(RUNTIME_DIR|CACHE_HOME|CONFIG_HOME)"
    "|DOCKER_(HOST|TLS_VERIFY|CERT_PATH|CONFIG|CONTEXT|API_VERSION)|CONTAINER_HOST|GITHUB_WORKSPACE"
)
_LOOKED_UP = re.compile(r"(?i:(https?|all|no)_proxy)|TOUCHSTONE_FIXTURES_REPO")
"""What is looked up like those, but may hold a password: put back into `os.environ`, which `/proc` does not show."""

_waiting: list[int] = []
not_enforced: list[str] = []
"""Sentences for the report's head."""


def take(words: Sequence[str]) -> dict[str, str]:
    """The environment that this program was started with. Afterwards `/proc` shows harmless names alone; `os.environ`
    has these and what libraries look up. Where the program starts anew, with the same arguments, this does not return.

    words: the program's arguments. Signals that come meanwhile wait for `let_signals_in`. Ends the process with a
    sentence where it was started anew and can't receive its environment.
    """
    environ = _receive()
    if environ is None:
        environ = dict(os.environ)
        init = [_INIT, "--"] if os.getpid() == 1 and os.access(_INIT, os.X_OK) else []
        # First, since a new start may fail; `os.environ` has the values still.
        erased = _erase_secrets()
        if (init or not erased) and _can_be_repeated(words):
            with contextlib.suppress(OSError):
                _start_anew(init)
            let_signals_in()
        if not erased:
            not_enforced.append(_STILL_SHOWN)
    for name in environ:
        # One without a name, as `env =x=1` makes it, can't be taken out: nobody can look it up either.
        if name and not _HARMLESS.fullmatch(name):
            os.environ.pop(name, None)
    os.environ.update({name: value for name, value in environ.items() if _LOOKED_UP.fullmatch(name)})
    return environ


def let_signals_in() -> None:
    """Deliver the signals that have waited since before the program was started anew."""
    if _waiting:
        signals, _waiting[:] = list(_waiting), []
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _erase_secrets() -> bool:
    """Whether `/proc` shows none any more."""
    try:
        with open("/proc/self/environ", "rb") as file:
            shown = file.read()
        entries = shown.split(b"\0")
        erased = b"\0".join(entry if _is_harmless(entry) else bytes(len(entry)) for entry in entries)
        if erased == shown:
            return True
        with open("/proc/self/stat", "rb") as file:
            env_start = int(file.read().rpartition(b")")[2].split()[_ENV_START])
        with open("/proc/self/mem", "r+b", buffering=0) as file:
            file.seek(env_start)
            file.write(erased)
        with open("/proc/self/environ", "rb") as file:
            return file.read() == erased
    except (OSError, ValueError, IndexError):
        return False


def _is_harmless(entry: bytes) -> bool:
    name, equals, _ = entry.partition(b"=")
    return not entry or bool(equals and _HARMLESS.fullmatch(os.fsdecode(name)))


def _can_be_repeated(words: Sequence[str]) -> bool:
    """Whether the interpreter's own arguments lead here again: they don't in a fork of another program."""
    count = len(sys.orig_argv) - len(words)
    before, after = sys.orig_argv[:count], sys.orig_argv[count:]
    is_module = len(before) > 1 and before[-2] == "-m"
    return after == list(words) and (is_module or before[-1:] == sys.argv[:1])


def _start_anew(init: Sequence[str]) -> None:
    """Become the same program, below the init if there is one, without a secret in its environment. Raises OSError."""
    import fcntl

    _waiting[:] = set(_SIGNALS) - signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory")
    memory = _create_memory()
    with open(memory, "wb", closefd=False) as file:
        file.write(b"\0".join(name + b"=" + value for name, value in os.environb.items()))
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    # Not one of the numbers of the standard streams, which may be closed.
    descriptor = fcntl.fcntl(memory, fcntl.F_DUPFD, _FIRST_DESCRIPTOR)
    harmless = {name: value for name, value in os.environ.items() if _HARMLESS.fullmatch(name)}
    harmless[_HANDED_ON] = " ".join(map(str, [descriptor, *map(int, _waiting)]))
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        command = [*init, sys.executable, *sys.orig_argv[1:]]
        os.execve(command[0], command, harmless)  # noqa: S606 - this very program
    finally:
        os.close(descriptor)
        os.close(memory)


def _create_memory() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(_FILE, flags | _NEVER_RUN)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(_FILE, flags)


def _receive() -> dict[str, str] | None:
    """What the program that started this one handed on; None when there is nothing of the kind."""
    if _HANDED_ON not in os.environ:
        return None
    import fcntl

    try:
        descriptor, *signals = map(int, os.environ[_HANDED_ON].split())
        # Only a file in memory has a seal, and ours has this one: nothing else is emptied. `/proc` may not be there.
        # The kernel may have added one that forbids to run the file.
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW:
            _end(f"descriptor {descriptor} is not what Keystone hands over")
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read()
            os.ftruncate(descriptor, 0)  # an init that started us still has the file open
    except (OSError, ValueError, OverflowError) as error:
        _end(str(error))
    del os.environ[_HANDED_ON]
    _waiting[:] = signals
    return dict(_pairs(content))


def _end(reason: str) -> NoReturn:
    """Without its environment a program would take its call for another one; and it would start itself for ever."""
    from keystone_action.errors import EXIT_ERROR

    if sys.stderr is not None:
        sys.stderr.write(
            f"keystone: what Keystone handed over when it started itself anew can't be read: {reason}\n"
            f"  → {_HANDED_ON} is a variable of Keystone's own; if you set it, don't\n"
        )
    sys.exit(EXIT_ERROR)


def _pairs(content: bytes) -> Mapping[str, str]:
    pairs = (pair.partition(b"=") for pair in content.split(b"\0") if pair)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def own_search_path() -> str:
    """Our PATH without its relative entries (an empty one too means the current directory): some programs are run by us
    where an agent left its files, and `.` would find its `git` there."""
    places = [place for place in os.environ.get("PATH", DEFAULT_PATH).split(":") if place.startswith("/")]
    return ":".join(places) or DEFAULT_PATH
