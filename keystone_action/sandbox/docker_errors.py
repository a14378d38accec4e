"""What the engine's client raises, as sentences."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from keystone_action.errors import SandboxError

LONGEST_EXPLANATION = 500


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
        raise SandboxError(
            f"{what}: the Docker engine does not answer any more: {explanation(error)}",
            help="see that the engine (DOCKER_HOST, else /var/run/docker.sock) is still running",
        ) from error


def is_not_found(error: Exception) -> bool:
    """Whether an engine said that there is no such thing."""
    return status_of(error) == 404


def status_of(error: Exception) -> int | None:
    """The HTTP status of an engine's refusal."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None
