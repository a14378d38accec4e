"""Servers in containers, reached where they listen, with our files mounted and with copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support.docker_world import left, run_bounded, shell, world
from support.process_world import run

from keystone_action.sandbox.protocol import RunningCommand
from keystone_action.system.command import Command

pytestmark = pytest.mark.docker

SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 8123))
open("left", "w").write("by the server")
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.1)


async def listening(serving: RunningCommand) -> tuple[str, ...]:
    while not (found := await serving.addresses(8123)):
        assert not serving.has_ended
        await asyncio.sleep(0.1)
    return found


@pytest.mark.parametrize("mode", ["auto", "copy"])
def test_it_is_found_asked_and_ended(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode, network="none") as (_, sandbox):
            async with sandbox.serve(Command(("python3", "-c", SERVER))) as serving:
                assert await listening(serving) == ("127.0.0.1",)
                for text in (b"hello", b"again"):
                    reader, writer = await serving.connect("127.0.0.1", 8123)
                    writer.write(text)
                    assert await reader.read() == text.upper()
                    writer.close()
                reader, _ = await serving.connect("127.0.0.1", 8124)
                assert await reader.read() == b""
                completed = await serving.stop()
                assert serving.has_ended
                assert await serving.addresses(8123) == ()
            assert completed.stdout.text() == "listening\n"
            assert completed.signal == 9
            assert (sandbox.workspace / "left").read_text() == "by the server"
            assert (await sandbox.run(shell("cat left"))).stdout.text() == "by the server"

    run_bounded(main)


def test_what_ends_by_itself_is_reported(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (_, sandbox), sandbox.serve(shell("echo out; sleep 600 & exit 4")) as serving:
            await until(lambda: serving.has_ended)
            completed = await serving.stop()
            assert (completed.exit_code, completed.stdout.text()) == (4, "out\n")

    run_bounded(main)


def test_nothing_is_left_when_it_is_cancelled(engine: Any) -> None:
    async def main() -> None:
        async with world(engine, run_id="test-serving-cancelled") as (_, sandbox):
            with anyio.move_on_after(2):
                async with sandbox.serve(Command(("python3", "-c", SERVER))) as serving:
                    await listening(serving)
                    await anyio.sleep(600)
            assert left(engine, "test-serving-cancelled") == []

    run(main)


@pytest.mark.parametrize("mode", ["auto", "copy"])
def test_a_command_is_ended_at_a_sign_and_what_it_left_is_kept(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode, network="none") as (_, sandbox):
            stop = asyncio.Event()
            task = asyncio.create_task(sandbox.run(shell("echo before; echo text > left; sleep 1000"), stop))
            await asyncio.sleep(1.0)
            stop.set()
            completed = await task
            assert completed.exit_code in (None, 137)
            assert not completed.timed_out
            assert completed.stdout.text() == "before\n"
            assert (sandbox.workspace / "left").read_text() == "text\n"

    run(main)
