"""Reaching an engine, or saying why not: against sockets that are there, closed, silent, or something else."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from keystone_action.engine import connect as docker_client
from keystone_action.engine.connect import connect, engine_address
from keystone_action.errors import SandboxError


def http(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@contextlib.contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """The address of something that gives everybody this answer; None = keeps silent."""
    server = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                held.append(connection)
                if answer is not None:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(timeout=10)
        for connection in held:
            connection.close()


def refusal(address: str, **environ: str) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        connect({"DOCKER_HOST": address, **environ})
    assert caught.value.message.startswith(f"can't reach a Docker engine at {address}: ")
    assert caught.value.help
    return caught.value


@pytest.mark.docker
def test_an_engine_answers(engine: DockerClient) -> None:
    client = connect(os.environ, timeout=77)
    with contextlib.closing(client):
        assert client.engine_version()["ApiVersion"] == engine.version()["ApiVersion"]
        assert client._connection.timeout == 77


@pytest.mark.docker
def test_certificates_are_for_tcp(engine: DockerClient) -> None:
    with contextlib.closing(connect({"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/does/not/exist"})) as client:
        assert client.facts()


def test_an_empty_address_is_the_default() -> None:
    assert engine_address({}) == engine_address({"DOCKER_HOST": " "}) == "unix:///var/run/docker.sock"


def test_no_socket(tmp_path: Path) -> None:
    found = refusal(f"unix://{tmp_path}/none.sock")
    assert "there is no such socket" in found.message
    assert "Docker" in found.help


def test_a_file_that_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "nothing listens" in refusal(f"unix://{tmp_path}/file").message
    assert "no such socket" in refusal(f"unix://{tmp_path}/file/below").message


def test_a_socket_that_nobody_serves(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    assert "nothing listens" in refusal(f"unix://{tmp_path}/s").message


def test_a_socket_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0)
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)
        message, advice = _as_nobody(f"unix://{path}")
    assert message.endswith("permission denied")
    assert "docker" in advice


def _as_nobody(address: str) -> tuple[str, str]:
    """What a user without rights is told; as root, in a child that gives its rights away."""
    if os.geteuid() != 0:
        found = refusal(address)
        return found.message, found.help
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            found = refusal(address)
            os.write(writing, f"{found.message}\0{found.help}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    message, _, advice = said.partition("\0")
    return message, advice


def test_nothing_at_that_port() -> None:
    assert refusal("tcp://127.0.0.1:1").message.endswith("connection refused")


def test_a_name_that_nobody_knows() -> None:
    assert "name is not known" in refusal("tcp://engine.invalid:2375").message


def test_something_that_keeps_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_client, "_FIRST_ANSWER", 1)
    with listening(None) as address:
        assert "no answer within 1 s" in refusal(address).message


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        http("hello"),
        http("{}"),
        http("[]"),
        http('{"ApiVersion": 7}'),
        http('{"ApiVersion": "x"}'),
        http('{"ApiVersion": "1.41"}'),
    ],
)
def test_something_else_answers(answer: bytes) -> None:
    with listening(answer) as address:
        assert "not as a Docker engine" in refusal(address).message


def test_an_engine_that_refuses() -> None:
    with listening(http("who are you", "403 Forbidden")) as address:
        assert "refuses us: who are you" in refusal(address).message


def test_an_engine_that_is_too_old() -> None:
    with listening(http('{"ApiVersion": "1.12"}')) as address:
        assert "too old" in refusal(address).message


def test_an_engine_that_wants_tls() -> None:
    with listening(http("Client sent an HTTP request to an HTTPS server.", "400 Bad Request")) as address:
        found = refusal(address)
    assert "speaks TLS" in found.message
    assert "DOCKER_TLS_VERIFY" in found.help


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    found = refusal("tcp://127.0.0.1:1", DOCKER_TLS_VERIFY="1", DOCKER_CERT_PATH=str(tmp_path))
    assert "certificates can't be used" in found.message
    assert "DOCKER_CERT_PATH" in found.help


def test_an_engine_that_speaks_no_tls() -> None:
    with listening(http("hello")) as address:
        assert "TLS" in refusal(address.replace("tcp:", "https:")).message


@pytest.mark.parametrize("address", ["engine", "tcp://", "ftp://x:1", "tcp://127.0.0.1:99999", "tcp://[::1", "fd://"])
def test_what_is_no_address(address: str) -> None:
    assert "not the address of an engine" in refusal(address).message


def test_ssh_is_refused_with_a_way_out() -> None:
    assert "SSH" in refusal("ssh://user@host").message


def test_docker_s_library_is_known_to_one_room_and_its_private_parts_to_one_file() -> None:
    package = Path(docker_client.__file__).parents[1]
    code = {path.relative_to(package): path.read_text("utf-8") for path in package.rglob("*.py")}
    speaking = {path for path, text in code.items() if re.search(r"^\s*(from|import) docker\b", text, re.MULTILINE)}
    assert {path.parts[0] for path in speaking} == {"engine"}
    whole = {path.name for path in speaking if re.search(r"\b(APIClient|DockerClient)\b", code[path])}
    assert whole == {"connection.py"}
