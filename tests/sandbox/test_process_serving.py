"""A command that is talked to while it runs: found where it listens, and ended with all that it left."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from socket import create_server, socket

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.process_world import ROOT, alive, another, run, shell, token, world

from keystone_action.errors import SandboxError
from keystone_action.sandbox.containers.running_command import _BASH, _PYTHON
from keystone_action.sandbox.protocol import Listener, RunningCommand, listeners
from keystone_action.system.command import Command, CommandLimits, Completed

SERVER = """
import os, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.{family})
print("listening", flush=True)
{more}
while True:
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""


def free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.02)


async def listening(serving: RunningCommand, port: int) -> tuple[str, ...]:
    while not (found := await serving.addresses(port)):
        assert not serving.has_ended
        await asyncio.sleep(0.02)
    return found


def server(port: int, host: str = "127.0.0.1", family: str = "AF_INET", more: str = "") -> Command:
    return Command(("python3", "-c", SERVER.format(family=family, more=more), host, str(port)))


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", "AF_INET"), ("", "AF_INET"), ("127.0.0.7", "AF_INET")])
def test_it_is_found_asked_and_ended(host: str, family: str) -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            port = free_port()
            async with sandbox.serve(server(port, host, family)) as serving:
                addresses = await listening(serving, port)
                reader, writer = await serving.connect(addresses[0], port)
                writer.write(b"hello")
                assert await reader.read() == b"HELLO"
                writer.close()
                with socket() as silent:  # nobody else has its port, and it does not listen
                    silent.bind(("127.0.0.1", 0))
                    assert await serving.addresses(silent.getsockname()[1]) == ()
                completed = await serving.stop()
                assert serving.has_ended
                assert await serving.stop() == completed
                assert await serving.addresses(port) == ()
            assert completed.stdout.text() == "listening\n"
            assert completed.signal == 9
            assert (await sandbox.run(shell("echo next"))).stdout.text() == "next\n"

    run(main)


def test_what_ends_by_itself_is_reported_as_by_run() -> None:
    async def main() -> Completed:
        async with world() as (_, sandbox), sandbox.serve(shell("echo out; sleep 600 & exit 4")) as serving:
            await until(lambda: serving.has_ended)
            return await serving.stop()

    completed = run(main)
    assert (completed.exit_code, completed.stdout.text(), completed.leftovers) == (4, "out\n", 1)


def test_limits_hold_and_time_too() -> None:
    async def main() -> list[Completed]:
        async with world(CommandLimits(pids=30)) as (_, sandbox):
            found = []
            for text in ("while :; do sleep 600 & done", "sleep 600"):
                async with sandbox.serve(shell(text, timeout=3)) as serving:
                    await until(lambda: serving.has_ended)
                    found.append(await serving.stop())
            return found

    many, long = run(main)
    assert many.limit is not None
    assert long.timed_out


def test_nothing_is_left_whatever_ends_the_context() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            for end, ended in (("cancel", contextlib.nullcontext()), ("raise", pytest.raises(ZeroDivisionError))):
                mark = token()
                with anyio.CancelScope() as scope, ended:
                    async with sandbox.serve(server(free_port(), more=f"# {mark}")):
                        await until(lambda mark=mark: bool(alive(mark)))
                        if end == "raise":
                            raise ZeroDivisionError
                        scope.cancel()
                        await anyio.sleep(600)
                assert alive(mark) == []
            assert (await sandbox.run(shell("echo next"))).stdout.text() == "next\n"
            async with sandbox.serve(shell("sleep 600")) as serving:
                await sandbox.close()
                await until(lambda: serving.has_ended)

    run(main)


def test_a_program_that_does_not_exist_is_told_as_by_run() -> None:
    async def main() -> Completed:
        async with world() as (_, sandbox), sandbox.serve(Command(("no-such-program",))) as serving:
            return await serving.stop()

    assert run(main).not_found


def test_a_port_of_somebody_else_is_no_server_of_this_sandbox() -> None:
    async def main() -> None:
        async with world() as (provider, sandbox):
            port = free_port()
            other = await another(provider)
            async with other.serve(server(port)) as theirs, sandbox.serve(shell("sleep 600")) as serving:
                await listening(theirs, port)
                if not ROOT:  # both are us
                    assert await serving.addresses(port) == ("127.0.0.1",)
                    return
                with pytest.raises(SandboxError, match="taken by another program"):
                    await serving.addresses(port)

    run(main)


V4 = "   0: {address}:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 1 1 x 100 0"


@pytest.mark.parametrize(
    ("address", "state", "expected"),
    [
        ("0100007F", "0A", [Listener(("127.0.0.1",), 7)]),
        ("00000000", "0A", [Listener(("127.0.0.1",), 7)]),
        ("00000000000000000000000000000000", "0A", [Listener(("127.0.0.1", "::1"), 7)]),
        ("00000000000000000000000001000000", "0A", [Listener(("::1",), 7)]),
        ("0100007F", "01", []),
        ("zz", "0A", []),
    ],
)
def test_rows_of_the_kernel(address: str, state: str, expected: list[Listener]) -> None:
    assert list(listeners([V4.format(address=address, state=state, uid=7)], 0x1F90)) == expected
    assert list(listeners([V4.format(address=address, state=state, uid=7)], 0x1F91)) == []


@given(st.lists(st.text()), st.integers(1, 65535))
def test_no_row_is_too_odd(rows: list[str], port: int) -> None:
    assert all(isinstance(one, Listener) for one in listeners(rows, port))


@pytest.mark.parametrize("argv", [[sys.executable, "-c", _PYTHON], ["bash", "-c", _BASH, "bash"]])
def test_tunnels_carry_both_ways_and_end_with_the_server(argv: list[str]) -> None:
    """The programs that stand beside a server in a container, here beside one of this machine."""
    listener = create_server(("127.0.0.1", 0))
    size = 1 << 20

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            asked = b""
            while not asked.endswith(b"!"):
                asked += connection.recv(1 << 16)
            connection.sendall(bytes([len(asked) % 251]) * size)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    command = [*argv, "127.0.0.1", str(listener.getsockname()[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tunnel:
        assert tunnel.stdin is not None
        assert tunnel.stdout is not None
        tunnel.stdin.write(b"?" * 99_999 + b"!")
        tunnel.stdin.flush()
        # Standard input stays open: only the server's end ends it.
        assert tunnel.stdout.read() == bytes([100_000 % 251]) * size
        assert tunnel.wait(30) is not None
    thread.join(30)
    listener.close()


def test_a_command_is_ended_at_a_sign_with_all_that_it_started_and_tells_what_it_printed() -> None:
    mark = token()

    async def main() -> Completed:
        async with world() as (_, sandbox):
            stop = asyncio.Event()
            script = f"sleep 1000 & echo before; exec sleep 100{mark}"
            task = asyncio.create_task(sandbox.run(shell(script), stop))
            await until(lambda: alive(mark) != [])
            stop.set()
            return await task

    completed = run(main)
    assert (completed.exit_code, completed.signal, completed.timed_out) == (None, 9, False)
    assert completed.stdout.text() == "before\n"
    assert alive(mark) == []


def test_a_sign_that_was_given_before_ends_it_at_once_and_one_never_given_ends_nothing() -> None:
    async def main() -> tuple[Completed, Completed]:
        async with world() as (_, sandbox):
            given, never = asyncio.Event(), asyncio.Event()
            given.set()
            return await sandbox.run(shell("sleep 1000"), given), await sandbox.run(shell("echo whole"), never)

    ended, whole = run(main)
    assert ended.signal == 9
    assert (whole.exit_code, whole.stdout.text()) == (0, "whole\n")
