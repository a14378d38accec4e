"""Calls of the container engine: made in a thread, because its client blocks, and their failures told in sentences.

The client raises `Refused` where the engine refuses and `NoAnswer` where it does not answer. Any other OSError is a
failure of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from keystone_action.errors import HarnessError, SandboxError, ServiceError

LONGEST_EXPLANATION = 500
_ENGINE_ADVICE = (
    "See with `docker info` whether it (DOCKER_HOST, else /var/run/docker.sock) runs, and whether this user may speak "
    "with it."
)
_FULL_ADVICE = "Make room there (`docker system df` shows what takes it)."
_OWN_ADVICE = "See what this machine, not the engine's, has run out of."
_FULL = re.compile("no space left on device|disk quota exceeded", re.IGNORECASE)
_OURS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
)
"""No connection fails with one of these because of its other end."""


class Refused(Exception):  # noqa: N818 - an answer, which may be the one that is wanted
    """The engine does not do what it was asked. status: of its HTTP answer. said: its own words."""

    def __init__(self, status: int | None, said: str) -> None:
        super().__init__(said)
        self.status = status
        self.said = said

    @property
    def sentence(self) -> str:
        """What it said, on one line and not without end."""
        return _one_line(self.said)


class NoAnswer(OSError):  # noqa: N818 - as above
    """The engine, or the way to it, failed."""


class UnusableLogin(Exception):  # noqa: N818 - as above
    """What `docker login` kept for our user can't be read."""


@contextlib.contextmanager
def engine_errors(what: str, kind: type[HarnessError] = SandboxError) -> Iterator[None]:
    """Raises an error of this kind that begins with `what` in place of what goes wrong inside with the engine or
    with our own files."""
    try:
        yield
    except Refused as error:
        if _FULL.search(error.said):
            raise kind(f"{what}: the engine's disk is full ({error.sentence})", help=_FULL_ADVICE) from error
        raise kind(f"{what}: the container engine refused: {error.sentence}") from error
    except NoAnswer as error:
        raise kind(f"{what}: the container engine does not answer ({error})", help=_ENGINE_ADVICE) from error
    except OSError as error:
        raise kind(f"{what}: {_own_sentence(error)}", help=_OWN_ADVICE) from error


@contextlib.contextmanager
def unless_refused(*statuses: int) -> Iterator[None]:
    """Ends the block without an error where the engine refused with one of these HTTP statuses (404 = not there)."""
    try:
        yield
    except Refused as error:
        if error.status not in statuses:
            raise


def connection_error(error: Exception) -> OSError:
    """What a failed request means: an OSError of this machine where one made it fail, else NoAnswer."""
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno in _OURS:
            return OSError(cause.errno, os.strerror(cause.errno), cause.filename)
    return NoAnswer(_innermost(error))


def _one_line(said: str) -> str:
    text = " ".join(said.split())
    return text if len(text) <= LONGEST_EXPLANATION else f"{text[:LONGEST_EXPLANATION]} …"


def _innermost(error: Exception) -> str:
    """requests wraps urllib3 wraps http.client: the innermost text is the one that says something."""
    quoted = re.findall(r"(?:Error|Exception)\(\d*,? ?'([^']+)'\)", str(error))
    return _one_line(quoted[-1] if quoted else str(error)) or type(error).__name__


def _own_sentence(error: OSError) -> str:
    place = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
    return f"this machine failed: {os.strerror(error.errno) if error.errno else error}{place}"


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything that it was made from: the client's libraries wrap by four different ways."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, tuple):
            waiting += one
        elif isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]


REMOVAL_SECONDS = 10.0
"""How long an engine that does not answer may hold up the end of a cell or a run, each time it is asked to remove
something."""

Result = TypeVar("Result")


async def ask_engine(call: Callable[[], Result], what: str, *, abandon: bool = False) -> Result:
    """Run a blocking call of the engine's client in a thread. Raises ServiceError: `what`, and what the engine said.

    A call that was begun is waited for, since what it makes must be known to be removed; with `abandon`, one that
    makes nothing is left to itself when we are cancelled.
    """
    import anyio.to_thread

    return await anyio.to_thread.run_sync(lambda: ask_here(call, what), abandon_on_cancel=abandon)


async def ask_within(call: Callable[[], Result], what: str, seconds: float) -> Result:
    """The result of a call that takes no longer than this; a longer one is left to itself, in a thread that does not
    keep our process alive. Raises ServiceError then, too."""
    import anyio

    answered = anyio.Event()
    loop = asyncio.get_running_loop()

    def tell(_: Future[Result]) -> None:
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(answered.set)

    outcome = aside(lambda: ask_here(call, what))
    outcome.add_done_callback(tell)
    with anyio.move_on_after(seconds):
        await answered.wait()
    if not outcome.done():
        raise ServiceError(f"{what}: the container engine did not answer within {seconds:g} s")
    return outcome.result()


def ask_here(call: Callable[[], Result], what: str) -> Result:
    """The result of a call in the caller's own thread. Raises ServiceError."""
    with engine_errors(what, ServiceError):
        return call()


def aside(function: Callable[[], Result]) -> Future[Result]:
    """Do it in a thread of its own, which does not keep our process alive."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - for the caller who asks for the result
            future.set_exception(error)

    threading.Thread(target=work, name="keystone-engine", daemon=True).start()
    return future
