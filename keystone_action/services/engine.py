"""Asking the container engine: its client blocks, so every call goes to a thread, and its errors become sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from keystone_action.errors import ServiceError

if TYPE_CHECKING:
    from docker.errors import APIError

RUN_LABEL = "keystone.run"
KIND_LABEL = "keystone.kind"
NAME_LABEL = "keystone.service"

Result = TypeVar("Result")


def labels(run_id: str, kind: str, **more: str) -> dict[str, str]:
    """What marks everything of a run as ours: `keystone.run`, `keystone.kind`, and further `keystone.…` labels."""
    return {RUN_LABEL: run_id, KIND_LABEL: kind, **{f"keystone.{name}": value for name, value in more.items()}}


async def ask(call: Callable[[], Result], what: str, *, abandon: bool = False) -> Result:
    """Run a blocking call of the engine's client in a thread. Raises ServiceError: `what`, and what the engine said.

    A call that was begun is waited for, since what it makes must be known to be removed; with `abandon`, one that
    makes nothing is left to itself when we are cancelled.
    """
    import anyio.to_thread

    return await anyio.to_thread.run_sync(lambda: asked(call, what), abandon_on_cancel=abandon)


def asked(call: Callable[[], Result], what: str) -> Result:
    """The same, in the caller's own thread."""
    import requests
    from docker.errors import APIError, DockerException

    try:
        return call()
    except APIError as error:
        raise ServiceError(f"{what}: {sentence(error)}") from None
    except (requests.exceptions.RequestException, DockerException, OSError) as error:
        raise ServiceError(
            f"{what}: the container engine does not answer ({_short(error)})",
            help="See with `docker info` whether it runs, and whether this user may speak with it.",
        ) from None


def sentence(error: APIError) -> str:
    """The engine's own words, in one line."""
    text = str(error.explanation or error)
    if "no space left on device" in text:
        return f"the engine's disk is full ({' '.join(text.split())})"
    return " ".join(text.split())


def _short(error: BaseException) -> str:
    # requests wraps urllib3 wraps http.client: the innermost text is the one that says something.
    text = " ".join(str(error).split())
    quoted = re.findall(r"(?:Error|Exception)\(\d*,? ?'([^']+)'\)", text)
    return str(quoted[-1]) if quoted else text or type(error).__name__
