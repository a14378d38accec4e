"""Asking the container engine: its client blocks, so every call goes to a thread, and its errors become sentences."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from keystone_action.engine.errors import OWN_ADVICE, own_failure
from keystone_action.errors import ServiceError

if TYPE_CHECKING:
    from docker.errors import APIError

REMOVAL_SECONDS = 10.0
"""How long an engine that does not answer may hold up the end of a cell or a run, each time it is asked to remove
something."""
_DISK_ADVICE = "Make room there (`docker system df` shows what takes it)."

Result = TypeVar("Result")


async def ask(call: Callable[[], Result], what: str, *, abandon: bool = False) -> Result:
    """Run a blocking call of the engine's client in a thread. Raises ServiceError: `what`, and what the engine said.

    A call that was begun is waited for, since what it makes must be known to be removed; with `abandon`, one that
    makes nothing is left to itself when we are cancelled.
    """
    import anyio.to_thread

    return await anyio.to_thread.run_sync(lambda: asked(call, what), abandon_on_cancel=abandon)


async def ask_within(call: Callable[[], Result], what: str, seconds: float) -> Result:
    """The same, for so long; then the call is left to itself, in a thread that does not keep our process alive.
    Raises ServiceError then, too."""
    import anyio

    outcome: Future[Result] = Future()
    answered = anyio.Event()
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            outcome.set_result(asked(call, what))
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            outcome.set_exception(error)
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(answered.set)

    threading.Thread(target=run, name="keystone-engine", daemon=True).start()
    with anyio.move_on_after(seconds):
        await answered.wait()
    if not outcome.done():
        raise ServiceError(f"{what}: the container engine did not answer within {seconds:g} s")
    return outcome.result()


def asked(call: Callable[[], Result], what: str) -> Result:
    """The same, in the caller's own thread."""
    from http.client import HTTPException

    import requests
    import urllib3
    from docker.errors import APIError, DockerException
    from docker.utils.socket import SocketError

    try:
        return call()
    except APIError as error:
        raise ServiceError(f"{what}: {sentence(error)}", help=_DISK_ADVICE if _is_full(error) else "") from None
    except (
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        HTTPException,
        DockerException,
        SocketError,
        OSError,
    ) as error:
        if own := own_failure(error):
            raise ServiceError(f"{what}: {own}", help=OWN_ADVICE) from None
        raise ServiceError(
            f"{what}: the container engine does not answer ({_short(error)})",
            help="See with `docker info` whether it runs, and whether this user may speak with it.",
        ) from None


def sentence(error: APIError) -> str:
    """The engine's own words, in one line."""
    text = " ".join(str(error.explanation or error).split())
    return f"the engine's disk is full ({text})" if _is_full(error) else text


def _is_full(error: APIError) -> bool:
    return (
        re.search("no space left on device|disk quota exceeded", str(error.explanation or error), re.IGNORECASE)
        is not None
    )


def _short(error: BaseException) -> str:
    # requests wraps urllib3 wraps http.client: the innermost text is the one that says something.
    text = " ".join(str(error).split())
    quoted = re.findall(r"(?:Error|Exception)\(\d*,? ?'([^']+)'\)", text)
    return str(quoted[-1]) if quoted else text or type(error).__name__
