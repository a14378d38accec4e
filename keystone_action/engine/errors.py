"""What goes wrong with an engine, as sentences: whether it refused, does not answer, or this machine failed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from keystone_action.errors import HarnessError, SandboxError

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


@contextlib.contextmanager
def engine_errors(what: str, kind: type[HarnessError] = SandboxError) -> Iterator[None]:
    """Raises an error of this kind that begins with `what` in place of whatever the engine's client raises inside."""
    from http.client import HTTPException

    import docker.errors
    import docker.utils.socket
    import requests.exceptions
    import urllib3.exceptions

    try:
        yield
    except docker.errors.APIError as error:
        said = explanation(error)
        if _FULL.search(said):
            raise kind(f"{what}: the engine's disk is full ({said})", help=_FULL_ADVICE) from error
        raise kind(f"{what}: the container engine refused: {said}") from error
    except (
        docker.errors.DockerException,
        docker.utils.socket.SocketError,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        HTTPException,
        OSError,
    ) as error:
        if own := _own_failure(error):
            raise kind(f"{what}: {own}", help=_OWN_ADVICE) from error
        raise kind(
            f"{what}: the container engine does not answer ({_innermost(error)})", help=_ENGINE_ADVICE
        ) from error


@contextlib.contextmanager
def own_errors(what: str) -> Iterator[None]:
    """For what touches our own files alone, also on behalf of the engine's client: raises SandboxError in place of
    every OSError, so that none is taken for one of the way to the engine."""
    try:
        yield
    except OSError as error:
        raise SandboxError(f"{what}: {_own_sentence(error)}", help=_OWN_ADVICE) from error


def explanation(error: Exception) -> str:
    """What an engine said, on one line and not without end."""
    return _one_line(str(getattr(error, "explanation", None) or error))


def _one_line(said: str) -> str:
    text = " ".join(said.split())
    return text if len(text) <= LONGEST_EXPLANATION else f"{text[:LONGEST_EXPLANATION]} …"


def _innermost(error: Exception) -> str:
    """requests wraps urllib3 wraps http.client: the innermost text is the one that says something."""
    quoted = re.findall(r"(?:Error|Exception)\(\d*,? ?'([^']+)'\)", str(error))
    return _one_line(quoted[-1] if quoted else str(error)) or type(error).__name__


def _own_failure(error: Exception) -> str:
    """What of this machine made a request fail; empty when it was the engine or the way to it."""
    ours = (cause for cause in causes(error) if isinstance(cause, OSError) and cause.errno in _OURS)
    return next(map(_own_sentence, ours), "")


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


def is_not_found(error: Exception) -> bool:
    """Whether an engine said that there is no such thing."""
    return status_of(error) == 404


def status_of(error: Exception) -> int | None:
    """The HTTP status of an engine's refusal."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None
