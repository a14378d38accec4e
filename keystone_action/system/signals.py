"""SIGINT and SIGTERM, from the first line of the program until its last file is written.

After the first of them the process is gone within `END_SECONDS`, even if its threads hang. Three things see to it, each
for when the one before it can't: the main thread, which ends the run, writes what it has and returns; a thread, which
ends the process with 130 when the main thread hangs; and a watchdog, a process of its own, which kills us when code in
C keeps the interpreter's lock. The interpreter tells the watchdog through its wake-up descriptor, which needs no lock.

What a signal does depends on how far the program is:

    take_over()  →  it ends the process at once, with a word: there is nothing yet to clean up
    interrupt()  →  it raises KeyboardInterrupt in the main thread, once, but not within an import and the like
    hold()       →  it is only remembered: results are being made or written; the code that does so asks `requested`
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

TYPE_CHECKING = False  # `typing` takes 5 ms to import
if TYPE_CHECKING:
    from types import FrameType
    from typing import Literal, NoReturn

    _Phase = Literal["leave", "interrupt", "hold"]

EXIT_CANCELLED = 130
END_SECONDS = 7.0
"""From a signal to the end of our process, at most. A runner gives 7.5 s before it sends the next one."""
RUN_SECONDS = 5.0
"""From a signal until a run that has not ended is left to itself, and what it has come to is written."""
_EXIT_SECONDS = 6.3
_KILL_SECONDS = 6.8
_ENDING = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.005
_SOON = 1.0
"""Seconds from a signal after which what usually ends soon hangs."""
_NOT_TO_BE_INTERRUPTED = (
    "<frozen importlib",
    "/pydantic/",
    "/tempfile.py",
    "/files/run_lock.py",
    "/files/temporary.py",
)
"""Parts of the names of files whose functions end soon, and where an exception that nobody foresaw does harm: a module
stays half made, pydantic_core takes the interpreter for broken (it panics), a temporary file is not removed."""
_WORD = b"keystone: cancelled\n"
_NOT_IN_TIME = b"keystone: cancelled; what still ran did not end in time\n"


class _State:
    """Of this process; signals are the process's, too. ours: whether the handlers are set. arrived: when the first
    signal came, by the monotonic clock."""

    def __init__(self) -> None:
        self.ours = False
        self.phase: _Phase = "interrupt"
        self.arrived: float | None = None
        self.name = ""
        self.raised = False
        self.listeners: list[Callable[[], None]] = []
        self.stuck = False


_state = _State()


def take_over() -> None:
    """The first line of a program: from here on both signals are ours. One that came while they were blocked (by
    our parent, or by ourselves before an exec) is delivered now."""
    _state.ours = True
    _state.phase = "leave"
    for number in _ENDING:
        signal.signal(number, _on_signal)
    signal.signal(signal.SIGALRM, lambda _, frame: _interrupt(frame))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def block() -> None:
    """Let none arrive from here on: before an exec, whose program takes over what came meanwhile, and at the end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    signal.setitimer(signal.ITIMER_REAL, 0)  # where nobody takes its signal any more, it would kill us


def start_watchdog() -> None:
    """Fork the process that kills us when we don't end in time. Before any thread is started, and before there is a
    secret in our memory. Without one (the machine has no process left) the rest still holds."""
    _fill_standard_streams()
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    try:
        child = os.fork()
    except OSError:
        os.close(heard)
        os.close(tell)
        return
    if child == 0:
        _watch(os.getppid(), heard)
    os.close(heard)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)


def _fill_standard_streams() -> None:
    """A stream that the caller closed (`2>&-`) leads nowhere: else the next file that is opened would become it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one


def _watch(parent: int, heard: int) -> NoReturn:
    """The watchdog. It ends with us, and holds none of our files open meanwhile."""
    try:
        for number in (*_ENDING, signal.SIGHUP):  # a terminal sends these to all of a job
            signal.signal(number, signal.SIG_IGN)
        os.dup2(heard, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        if os.geteuid() != 0:
            _hide_memory()
        if os.read(0, 1):
            deadline = time.monotonic() + _KILL_SECONDS
            while (left := deadline - time.monotonic()) > 0 and not _has_hung_up(left):
                pass
            if os.getppid() == parent:
                os.kill(parent, signal.SIGKILL)
    finally:
        os._exit(0)


def _has_hung_up(seconds: float) -> bool:
    """Whether our process ends within so many seconds. Further signals are bytes that nobody needs."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    for _, event in poll.poll(seconds * 1000):
        return not (event & select.POLLIN and os.read(0, 4096))
    return False


def _hide_memory() -> None:
    """Agents that run as our own user must not read it."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _state.arrived is None:
        _state.arrived = time.monotonic()
        _state.name = signal.Signals(number).name
        if _state.phase == "leave":
            say(_WORD)
            os._exit(EXIT_CANCELLED)
        if _state.ours:
            # Not `threading`: the main thread may hold one of its locks just now. Without it there is the watchdog.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(_exit_later, ())
    for listener in list(_state.listeners):
        listener()
    _interrupt(frame)


def _interrupt(frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt where the main thread is now, or try again in a moment."""
    if _state.phase != "interrupt" or _state.raised:
        return
    ends_soon = _state.ours and seconds_left(_SOON)
    while ends_soon and frame is not None:
        if any(name in frame.f_code.co_filename for name in _NOT_TO_BE_INTERRUPTED):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            return
        frame = frame.f_back
    _state.raised = True
    raise KeyboardInterrupt


def _exit_later() -> None:
    time.sleep(_EXIT_SECONDS)
    say(_NOT_IN_TIME)
    os._exit(EXIT_CANCELLED)


def say(sentence: bytes) -> None:
    """On stderr, if that takes it just now; takes no lock, which a thread that hangs might hold."""
    with contextlib.suppress(OSError):
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if any(event & select.POLLOUT for _, event in poll.poll(0)):
            os.write(2, sentence)


def interrupt() -> None:
    """From here on a signal raises KeyboardInterrupt, which the front doors turn into exit 130."""
    if _state.phase == "leave":
        _state.phase = "interrupt"


def hold() -> None:
    """From here on, until the end, a signal breaks nothing off by itself."""
    _state.phase = "hold"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """While this lasts, a signal raises KeyboardInterrupt again, though everything around it is held."""
    before = _state.phase
    _state.phase = "interrupt"
    try:
        yield
    finally:
        _state.phase = before


@contextlib.contextmanager
def holding() -> Iterator[None]:
    """As `hold`; where the signals are not ours (we are a library of somebody's), they are ours as long as this
    lasts."""
    if _state.ours or threading.current_thread() is not threading.main_thread():
        hold()
        yield
        return
    before = {number: signal.signal(number, _on_signal) for number in _ENDING}
    hold()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _forget()


def _forget() -> None:
    global _state  # noqa: PLW0603 - of the process, as signals are
    _state = _State()


@contextlib.contextmanager
def listening(listener: Callable[[], None]) -> Iterator[None]:
    """Has each signal call it, in the main thread, as long as this lasts; one that came before calls it now."""
    _state.listeners.append(listener)
    try:
        if stop_signal():
            listener()
        yield
    finally:
        _state.listeners.remove(listener)


def stop_signal() -> str:
    """The signal that asked us to end; empty when none did."""
    return _state.name


def seconds_left(seconds: float = END_SECONDS) -> float:
    """How much of so many seconds after the signal is left; all of them when none came."""
    return seconds if _state.arrived is None else max(0.0, _state.arrived + seconds - time.monotonic())


def leave_behind() -> None:
    """A thread of ours hangs: our process must not wait for it when it ends."""
    _state.stuck = True


def left_behind() -> bool:
    """Whether one does."""
    return _state.stuck


def finish(code: int, *, cancelled: int = EXIT_CANCELLED) -> int:
    """The last line of a program: its exit code, another one when a signal came. None interrupts us from here on.

    Does not return where a thread would keep the process alive that nobody waits for.
    """
    if not _state.ours:
        return code
    hold()
    block()
    code = cancelled if stop_signal() else code
    if _state.stuck or any(not one.daemon for one in threading.enumerate() if one is not threading.main_thread()):
        leave(code)
    return code


def leave(code: int) -> NoReturn:
    """End the process now, with what is registered for its end, but without its other threads."""
    import atexit

    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
