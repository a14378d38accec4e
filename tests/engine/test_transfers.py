"""What goes wrong on our side of a transfer is told as ours, never as an engine that does not answer."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from support.docker_world import IMAGE, need_image

from keystone_action.engine import archives as transfers
from keystone_action.engine.calls import ask_here, engine_errors
from keystone_action.engine.client import EngineClient
from keystone_action.engine.connection import EngineConnection
from keystone_action.engine.container import ContainerPlan, ContainerRun
from keystone_action.errors import SandboxError, ServiceError

OURS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO]
OF_FILES = [*OURS, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ESTALE]
"""Some of them are also what a connection fails with: from our own files they mean our own files."""


class OneArchive(BaseHTTPRequestHandler):
    """As much of an engine as a transfer needs: it takes everything, and gives a megabyte."""

    def do_PUT(self) -> None:
        while (size := int(self.rfile.readline().strip() or b"0", 16)) > 0:
            self.rfile.read(size + 2)
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 20))
        self.end_headers()
        self.wfile.write(bytes(1 << 20))

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def client_of(port: int) -> EngineClient:
    return EngineClient(EngineConnection(f"tcp://127.0.0.1:{port}", version="1.41", timeout=20))


@pytest.fixture
def client() -> Iterator[EngineClient]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OneArchive)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = client_of(server.server_port)
    yield made
    made.close()
    server.shutdown()
    server.server_close()


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code), "/our/file")

    return fail


def is_ours(error: SandboxError | ServiceError, code: int) -> bool:
    return (
        error.message.endswith(f": this machine failed: {os.strerror(code)} (/our/file)")
        and "this machine, not the engine's" in error.help
    )


@pytest.mark.parametrize("code", OF_FILES)
def test_a_file_that_can_t_be_read_while_it_is_sent(client: EngineClient, code: int) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(1 << 19)
        failing(code)()

    with pytest.raises(SandboxError) as caught:
        transfers.put_archive(client, "some", pieces())
    assert is_ours(caught.value, code)


def test_what_can_be_read_arrives(client: EngineClient) -> None:
    transfers.put_archive(client, "some", [bytes(1 << 19)])
    with closing(transfers.fetch_archive(client, "some", "/x")) as pieces:
        assert sum(map(len, pieces)) == 1 << 20


@pytest.mark.parametrize("code", OF_FILES)
def test_a_file_that_can_t_be_written_while_it_is_fetched(client: EngineClient, code: int) -> None:
    """The one who writes it tells: `fetch` translates only what the engine did."""

    def write(pieces: Generator[bytes, None, None]) -> None:
        with closing(pieces):
            for _ in pieces:
                failing(code)()

    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        write(transfers.fetch_archive(client, "some", "/x"))
    assert caught.value.errno == code


@pytest.mark.parametrize("send", [True, False])
def test_an_engine_that_is_gone_is_told_as_one(send: bool) -> None:
    with (
        closing(client_of(1)) as gone,
        pytest.raises(SandboxError, match="the container engine does not answer"),
    ):
        transfers.put_archive(gone, "some", [b"x"]) if send else list(transfers.fetch_archive(gone, "some", "/x"))


@pytest.mark.parametrize("code", OF_FILES)
def test_what_this_machine_lacks_is_told_of_sandboxes_and_services(code: int) -> None:
    with pytest.raises(SandboxError) as sandbox, engine_errors("can't ask"):
        failing(code)()
    with pytest.raises(ServiceError) as service:
        ask_here(failing(code), "can't ask")
    assert is_ours(sandbox.value, code)
    assert is_ours(service.value, code)
    assert sandbox.value.message == service.value.message


@pytest.mark.docker
@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENOSPC])
@pytest.mark.parametrize("part", ["prepare", "collect", "look"])
def test_what_fails_around_a_container_is_told_as_ours(engine: Any, part: str, code: int) -> None:
    need_image(engine)
    plan = ContainerPlan(
        IMAGE, ("sleep", "3" if part == "look" else "0"), 65532, "/", {"keystone.run": "test-transfers"}
    )
    with pytest.raises(SandboxError) as caught:
        ContainerRun(engine, plan, **{part: failing(code)}).execute()
    assert is_ours(caught.value, code)
    assert engine.api.containers(all=True, filters={"label": "keystone.run=test-transfers"}) == []
