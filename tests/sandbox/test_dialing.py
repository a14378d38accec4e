"""Connections that a process of a sandbox makes for us."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.docker_world import world as docker_world
from support.process_world import run, world

from keystone_action.sandbox.dialing import DIALER, IN_AN_IMAGE, CannotDial, plain_address

REFUSALS = {
    "name.invalid": "name",
    "169.254.169.254": "link-local",
    "0xa9fea9fe": "link-local",
    "fe80::1": "link-local",
    "::ffff:169.254.169.254": "link-local",
}
TOOLS = {"python3": ("python3",), "bash": ("bash", "cat", "getent"), "nc": ("nc", "getent")}


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """A server that answers each connection with what it says, in capitals; its port."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(connection.recv(100).upper())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def left(*folders: str | Path) -> list[Path]:
    return [entry for folder in folders for entry in Path(folder).iterdir()]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def obstacles(sandbox: Any) -> dict[str, str]:
    found = {}
    for host in (*REFUSALS, "127.0.0.1"):
        try:
            async with sandbox.dial(host, closed_port()):
                found[host] = "connected"
        except CannotDial as problem:
            found[host] = problem.obstacle
    return found


@pytest.mark.sandbox
def test_a_process_of_the_process_sandbox_connects() -> None:
    async def main() -> None:
        with echo() as port:
            async with world() as (_, sandbox):
                for host in ("127.0.0.1", "localhost"):
                    async with sandbox.dial(host, port) as (reader, writer):
                        writer.write(b"hello")
                        assert await reader.read() == b"HELLO"
                assert await obstacles(sandbox) == {**REFUSALS, "127.0.0.1": "refused"}
                assert left(sandbox.environment["TMPDIR"], sandbox.workspace) == []

    run(main)


@pytest.mark.sandbox
def test_its_connection_ends_with_the_block() -> None:
    async def main() -> None:
        ended = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(100)
            ended.set()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, daemon=True).start()
            async with world() as (_, sandbox):
                async with sandbox.dial("127.0.0.1", listener.getsockname()[1]):
                    assert sandbox.is_running
                assert not sandbox.is_running
            assert ended.wait(30)

    run(main)


@pytest.mark.docker
def test_a_process_of_a_container_connects(engine: Any) -> None:
    async def main() -> None:
        async with docker_world(engine) as (_, sandbox):
            assert await obstacles(sandbox) == {**REFUSALS, "127.0.0.1": "refused"}

    run(main)


def in_an_image(folder: Path, tools: tuple[str, ...], host: str, port: int) -> subprocess.CompletedProcess[bytes]:
    """What the script for images does where these are all programs."""
    for tool in tools:
        if (place := shutil.which(tool)) is None:
            pytest.skip(f"there is no {tool} here")
        (folder / tool).symlink_to(sys.executable if tool == "python3" else place)
    command = ["/bin/sh", "-c", IN_AN_IMAGE, "sh", plain_address(host), str(port), DIALER]
    return subprocess.run(
        command, input=b"go\nhello", env={"PATH": str(folder)}, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize("tools", TOOLS.values(), ids=TOOLS)
def test_each_program_of_an_image_connects(tmp_path: Path, tools: tuple[str, ...]) -> None:
    with echo() as port:
        for host in ("127.0.0.1", "localhost"):
            folder = tmp_path / host
            folder.mkdir()
            assert in_an_image(folder, tools, host, port).stdout == b"connected\nHELLO"


@pytest.mark.parametrize("host", [*REFUSALS, "127.0.0.1"])
@pytest.mark.parametrize("tools", TOOLS.values(), ids=TOOLS)
def test_each_program_of_an_image_says_why_not(tmp_path: Path, tools: tuple[str, ...], host: str) -> None:
    said = in_an_image(tmp_path, tools, host, closed_port()).stdout.decode()
    assert said.partition(" ")[0].strip() == REFUSALS.get(host, "refused")


def test_an_image_without_any_says_so(tmp_path: Path) -> None:
    assert in_an_image(tmp_path, (), "127.0.0.1", 1).stdout == b"program\n"
    (tmp_path / "bash").symlink_to("/bin/bash")
    assert in_an_image(tmp_path, (), "a.example", 1).stdout == b"program\n"
