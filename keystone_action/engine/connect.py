"""The connection to a container engine: where it is, and in sentences why it can't be had."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.engine.calls import causes
from keystone_action.errors import SandboxError

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.connection import EngineConnection

DEFAULT_SOCKET = "/var/run/docker.sock"
VARIABLES = frozenset({"DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"})
"""Of our environment, what says where an engine is."""

_DEFAULT = f"unix://{DEFAULT_SOCKET}"
_ABSENT = (FileNotFoundError, NotADirectoryError, ConnectionRefusedError)
_FIRST_ANSWER = 20
"""Seconds for the first answer: an address that swallows everything must not hold up a run for as long as a request
of a busy engine may."""
_LONGEST_QUOTE = 300
_HOST_ADVICE = "see that the engine runs and that DOCKER_HOST is its address, or unset DOCKER_HOST"
_TLS_ADVICE = "see that DOCKER_CERT_PATH holds ca.pem, cert.pem and key.pem for this engine, and that it speaks TLS"
_PERMISSION_ADVICE = (
    "`sudo usermod -aG docker $USER` and a new login give this user access to the engine, and with it root's rights; "
    "or run rootless Docker and set DOCKER_HOST to its socket"
)


class NoEngine(SandboxError):  # noqa: N818 - what is the matter, in the words of those who have none
    """None is where engines usually are, and nobody named another place."""


def connect(environ: Mapping[str, str], *, timeout: int = 120) -> EngineClient:
    """A client of the engine that DOCKER_HOST names, else of the one behind /var/run/docker.sock; it has answered once.

    environ: where DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH are read. timeout: seconds that it may think
    about one request. Blocks. The caller closes the client. Raises SandboxError: nothing there (NoEngine, where that is
    the usual place), no permission, refused, no answer, wrong certificates, an answer that is not an engine's; its
    help says what to do about it.
    """
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env, parse_host
    from requests.exceptions import RequestException

    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.connection import EngineConnection

    address = engine_address(environ)
    try:
        parse_host(address)
    except (DockerException, ValueError) as error:
        raise SandboxError(
            f"can't reach a Docker engine at {address}: that is not the address of an engine",
            help="write unix:///path or tcp://host:port into DOCKER_HOST, or unset it",
        ) from error
    if address.startswith("ssh://"):
        raise SandboxError(
            f"can't reach a Docker engine at {address}: connections by SSH are not supported",
            help="forward its socket (`ssh -L`) and set DOCKER_HOST to that, or use tcp:// with TLS",
        )
    connection = None
    try:
        given = {name: environ[name] for name in VARIABLES if environ.get(name)}
        tls = kwargs_from_env(given).get("tls") if given and not _is_socket(address) else None
        connection = EngineConnection(address, timeout=min(timeout, _FIRST_ANSWER), tls=tls or False)
        _ping(connection)
    except (DockerException, RequestException, OSError, ValueError, TypeError) as error:
        # ValueError: an answer that is not JSON. TypeError: JSON, but no object.
        if connection is not None:
            connection.close()
        raise _unreachable(address, error) from error
    connection.timeout = timeout
    return EngineClient(connection)


def _ping(connection: EngineConnection) -> None:
    if not connection.ping():
        raise ValueError("its answer to a ping is not that of an engine")


def engine_address(environ: Mapping[str, str]) -> str:
    """Where the engine is looked for, as DOCKER_HOST has it."""
    return environ.get("DOCKER_HOST", "").strip() or _DEFAULT


def _is_socket(address: str) -> bool:
    return address.startswith(("unix:", "http+unix:"))


def _unreachable(address: str, error: Exception) -> SandboxError:
    reasons = list(causes(error))
    found = (
        (_of_sockets(address, reasons) if _is_socket(address) else None)
        or _of_tls(reasons)
        or _of_networks(reasons)
        or _of_answers(reasons)
        or (_quote(error), _HOST_ADVICE)
    )
    absent = address == _DEFAULT and any(isinstance(cause, _ABSENT) for cause in reasons)
    kind = NoEngine if absent else SandboxError
    return kind(f"can't reach a Docker engine at {address}: {found[0]}", help=found[1])


def _of_sockets(address: str, causes: Sequence[BaseException]) -> tuple[str, str] | None:
    for cause in causes:
        if isinstance(cause, FileNotFoundError | NotADirectoryError):
            return "there is no such socket", _start_one(address)
        if isinstance(cause, PermissionError):
            return "permission denied", _PERMISSION_ADVICE
        if isinstance(cause, ConnectionRefusedError) or getattr(cause, "errno", None) == errno.ENOTSOCK:
            return "nothing listens on that socket", _start_one(address)
    return None


def _of_tls(causes: Sequence[BaseException]) -> tuple[str, str] | None:
    from docker.errors import TLSParameterError

    for cause in causes:
        if isinstance(cause, TLSParameterError):
            return f"its certificates can't be used: {str(cause.msg).rstrip('.')}", _TLS_ADVICE
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {_quote(cause)}", _TLS_ADVICE
        if "HTTP request to an HTTPS server" in str(cause):
            return "it speaks TLS and we did not", f"set DOCKER_TLS_VERIFY=1; {_TLS_ADVICE}"
    return None


def _of_networks(causes: Sequence[BaseException]) -> tuple[str, str] | None:
    from requests.exceptions import Timeout
    from urllib3.exceptions import TimeoutError as SlowAnswer

    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused", _HOST_ADVICE
        if isinstance(cause, socket.gaierror):
            return "its name is not known", _HOST_ADVICE
        if isinstance(cause, OSError) and cause.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}:
            return "there is no route to it", _HOST_ADVICE
    # Last, since urllib3 derives its error for any failed connection from the one for slow ones.
    if any(isinstance(cause, TimeoutError | Timeout | SlowAnswer) for cause in causes):
        return f"no answer within {_FIRST_ANSWER} s", _HOST_ADVICE
    return None


def _of_answers(causes: Sequence[BaseException]) -> tuple[str, str] | None:
    from docker.errors import APIError, InvalidVersion

    for cause in causes:
        if isinstance(cause, InvalidVersion):
            return f"it is too old ({_quote(cause).rstrip('.')})", "use Docker 20.10 or newer"
        if isinstance(cause, APIError):
            return f"it answers, but refuses us: {_quote(cause)}", _HOST_ADVICE
        if isinstance(cause, HTTPException | ValueError | TypeError | KeyError | ConnectionResetError):
            return "it answers, but not as a Docker engine", _HOST_ADVICE
        if "Version parameter" in str(cause):
            return "it answers, but not as a Docker engine", _HOST_ADVICE
    return None


def _start_one(address: str) -> str:
    if Path("/.dockerenv").exists():
        return (
            "this container was given no engine: use a runner with Docker (in Kubernetes mode runners have none); "
            f"with `docker run`, add -v {DEFAULT_SOCKET}:{DEFAULT_SOCKET}"
        )
    other = next((path for path in _other_sockets() if f"unix://{path}" != address and path.is_socket()), None)
    if other is not None:
        return f"there is a socket at {other}: set DOCKER_HOST=unix://{other}"
    return (
        "start Docker (`sudo systemctl start docker`), or set DOCKER_HOST to where its engine is; in a workflow, use a "
        "runner with Docker"
    )


def _other_sockets() -> Iterator[Path]:
    """Where engines of a user's own, or other brands, listen."""
    yield Path(DEFAULT_SOCKET)
    yield Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "docker.sock"
    for name in (".docker/run/docker.sock", ".docker/desktop/docker.sock", ".colima/default/docker.sock"):
        yield Path("~", name).expanduser()


def _quote(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]} …"
