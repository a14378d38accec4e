"""What the engine's client raises, as sentences."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from keystone_action.errors import SandboxError

LONGEST_EXPLANATION = 500
OWN_ADVICE = "See what this machine, not the engine's, has run out of."
_OURS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
)


def explanation(error: Exception) -> str:
    """What an engine said, on one line and not without end."""
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return text if len(text) <= LONGEST_EXPLANATION else f"{text[:LONGEST_EXPLANATION]} …"


@contextlib.contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Turns whatever the client raises inside into a SandboxError that begins with `what`."""
    import docker.errors
    import requests.exceptions
    import urllib3.exceptions

    try:
        yield
    except docker.errors.APIError as error:
        raise SandboxError(f"{what}: the Docker engine refused: {explanation(error)}") from error
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        if own := own_failure(error):
            raise SandboxError(f"{what}: {own}", help=OWN_ADVICE) from error
        raise SandboxError(
            f"{what}: the Docker engine does not answer any more: {explanation(error)}",
            help="see that the engine (DOCKER_HOST, else /var/run/docker.sock) is still running",
        ) from error


def own_failure(error: Exception) -> str:
    """What of this machine made a request fail, the place included where it is known; empty when it was the engine or
    the way to it."""
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno in _OURS:
            place = f" ({os.fsdecode(cause.filename)})" if isinstance(cause.filename, str | bytes) else ""
            return f"this machine failed: {os.strerror(cause.errno)}{place}"
    return ""


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything that it was made from: the client's libraries wrap by four different ways."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, tuple):
            waiting += one
        elif isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]


def is_not_found(error: Exception) -> bool:
    """Whether an engine said that there is no such thing."""
    return status_of(error) == 404


def status_of(error: Exception) -> int | None:
    """The HTTP status of an engine's refusal."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None
