"""A sandbox whose network is closed: what reaches the services of its cell arrives whole, with its end or its breaking
off; nothing is left of it afterwards."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.process_world import another, run, shell, world

from keystone_action.errors import SandboxError
from keystone_action.sandbox.dialing import CannotDial
from keystone_action.sandbox.processes.sandbox import ProcessSandbox
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.sandbox.processes.wire import ClosedNetworkWay
from keystone_action.system.command import Command, Completed

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
WAYS = pytest.mark.parametrize("way", ["namespace", "ports"])
OTHER: dict[ClosedNetworkWay, ClosedNetworkWay] = {"namespace": "ports", "ports": "namespace"}
CLIENT = """
import socket, struct, sys
made = socket.create_connection(("127.0.0.1", {port}))
{more}
"""


async def close(sandboxes: ProcessSandboxes, sandbox: ProcessSandbox, way: ClosedNetworkWay, *ports: int) -> None:
    if await sandboxes.networks.find_way(without=(OTHER[way],)) != way:
        pytest.skip(f"this machine can't close a network by {way}")
    sandbox.network = sandboxes.networks.closed([("127.0.0.1", port) for port in ports])


@asynccontextmanager
async def service(handler: Handler) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def asked(way: ClosedNetworkWay, handler: Handler, more: str, times: int = 1) -> Completed:
    """How a command ends that does this with a connection to a service that does that."""

    async def main() -> Completed:
        async with world() as (sandboxes, sandbox), service(handler) as port:
            await close(sandboxes, sandbox, way, port)
            command = Command(("python3", "-c", CLIENT.format(port=port, more=more)), timeout=60)
            for _ in range(times):
                done = await sandbox.run(command)
            return done

    done: Completed = run(main)
    return done


@WAYS
def test_much_goes_both_ways_and_each_end_is_told(way: ClosedNetworkWay) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()  # until the end of what the client sends
        writer.write(data[::-1])
        await writer.drain()
        writer.close()

    sends = """
import threading
data = bytes(range(256)) * (4 << 12)
threading.Thread(target=lambda: (made.sendall(data), made.shutdown(socket.SHUT_WR))).start()
found = b""
while piece := made.recv(1 << 16):
    found += piece
print(found == data[::-1])
"""
    done = asked(way, echo, sends, times=2)
    assert done.stdout.text() == "True\n", done.stderr.text()


@WAYS
def test_a_service_that_breaks_off_is_told_from_one_that_ends(way: ClosedNetworkWay) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        made = writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    waits = """
made.sendall(b"x")
try:
    print("ended", made.recv(1))
except ConnectionResetError:
    print("broke off")
"""
    assert asked(way, reset, waits).stdout.text() == "broke off\n"


@WAYS
def test_a_command_that_breaks_off_is_told_from_one_that_ends(way: ClosedNetworkWay) -> None:
    said: list[object] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said.append(await reader.read())
        except ConnectionResetError:
            said.append("broke off")
        writer.close()

    breaks = "made.sendall(b'x'); made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))"
    asked(way, listen, breaks)
    asked(way, listen, "made.sendall(b'y')")
    assert said == ["broke off", b"y"]


@WAYS
def test_what_was_sent_just_before_the_end_arrives(way: ClosedNetworkWay) -> None:
    said: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.read())
        writer.close()

    asked(way, listen, "made.sendall(b'z' * 100_000); import os; os.kill(os.getpid(), 9)", times=5)
    assert said == [b"z" * 100_000] * 5


@WAYS
def test_a_service_that_does_not_listen_refuses(way: ClosedNetworkWay) -> None:
    async def main() -> str:
        async with world() as (sandboxes, sandbox):
            with socket.create_server(("127.0.0.1", 0)) as gone:
                port = gone.getsockname()[1]
            await close(sandboxes, sandbox, way, port)
            more = "made.sendall(b'x'); made.recv(1)"
            done = await sandbox.run(Command(("python3", "-c", CLIENT.format(port=port, more=more))))
            return done.stderr.text()

    said: str = run(main)
    # In a namespace it is our relay that listens, and breaks off.
    assert ("ConnectionResetError" if way == "namespace" else "ConnectionRefusedError") in said


@WAYS
def test_nothing_of_it_stays_open(way: ClosedNetworkWay) -> None:
    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> tuple[int, int]:
        async with world() as (sandboxes, sandbox), service(quiet) as port:
            await close(sandboxes, sandbox, way, port)
            command = Command(("python3", "-c", CLIENT.format(port=port, more="made.sendall(b'x')")))
            counts: list[int] = []
            # Other threads of this process open and close, too; what a command left would be there in every round.
            while len(counts) < 2 or (counts[-1] > counts[0] and len(counts) < 6):
                for _ in range(3):
                    await sandbox.run(command)
                gc.collect()  # of earlier tests
                counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            return counts[0], counts[-1]

    before, after = run(main)
    assert after <= before


@WAYS
def test_commands_at_a_time_and_after_an_open_one(way: ClosedNetworkWay) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def main() -> list[str]:
        async with world() as (sandboxes, sandbox), service(greet) as port:
            assert (await sandbox.run(shell("true"))).succeeded
            await close(sandboxes, sandbox, way, port)
            command = Command(("python3", "-c", CLIENT.format(port=port, more="print(made.recv(9).decode())")))
            done = await asyncio.gather(*(sandbox.run(command) for _ in range(6)))
            sandbox.network = None
            assert (await sandbox.run(shell("true"))).succeeded
            return [one.stdout.text() for one in done]

    assert run(main) == ["hello\n"] * 6


@WAYS
def test_a_command_that_can_t_be_started_is_refused_as_ever(way: ClosedNetworkWay) -> None:
    async def main() -> tuple[Completed, Completed]:
        async with world() as (sandboxes, sandbox):
            await close(sandboxes, sandbox, way, 9)
            return await sandbox.run(Command(("no-such-program",))), await sandbox.run(shell("sleep 60", timeout=0.2))

    missing, late = run(main)
    assert (missing.exit_code, missing.not_found) == (127, True)
    assert late.timed_out


@WAYS
def test_a_process_of_ours_in_it_connects_for_us(way: ClosedNetworkWay) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def main() -> bytes:
        async with world() as (sandboxes, sandbox), service(greet) as port, service(greet) as closed:
            await close(sandboxes, sandbox, way, port)
            async with sandbox.dial("127.0.0.1", port) as (reader, _):
                said = await reader.read()
            with pytest.raises(CannotDial):
                async with sandbox.dial("127.0.0.1", closed):
                    pass
            return said

    assert run(main) == b"hello"


def test_where_nothing_isolates_there_is_no_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(uid_isolation=False, landlock=False) as (sandboxes, _):
            assert await sandboxes.networks.find_way() is None
            with pytest.raises(SandboxError, match="no way to close"):
                sandboxes.networks.closed([])

    run(main)


def test_two_cells_don_t_meet_in_their_namespaces() -> None:
    async def main() -> list[str]:
        async with world() as (sandboxes, sandbox):
            await close(sandboxes, sandbox, "namespace")
            other = await another(sandboxes)
            other.network = sandbox.network
            server = "import socket, time\nkept = socket.create_server(('127.0.0.1', 7777))\nprint('there', flush=True)"
            texts = (server, server.replace("create_server", "create_connection"))
            async with sandbox.serve(Command(("python3", "-c", f"{texts[0]}\ntime.sleep(600)"))) as serving:
                while not await serving.addresses(7777):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.02)
                done = await other.run(Command(("python3", "-c", texts[1])))
            return [done.stdout.text(), done.stderr.text()]

    out, err = run(main)
    assert out == ""
    assert "ConnectionRefusedError" in err


PAIRS = """
import errno, json, socket
ended = {}
for family in (1, 2, 10, 30):
    for name in ("SOCK_STREAM", "SOCK_SEQPACKET", "SOCK_DGRAM", "SOCK_RAW", "SOCK_RDM"):
        for flags in (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
            try:
                ours, theirs = socket.socketpair(family, getattr(socket, name) | flags)
                ours.sendall(b"one")
                ours.sendall(b"two")
                said = theirs.recv(9)
            except OSError as error:
                said = errno.errorcode[error.errno].encode()
            ended.setdefault(f"{family} {name}", []).append(said.decode())
print(json.dumps(ended))
"""


@WAYS
def test_pairs_of_sockets_work_where_neither_can_be_pointed_elsewhere(way: ClosedNetworkWay) -> None:
    async def main() -> tuple[str, str]:
        async with world() as (sandboxes, sandbox):
            command = Command(("python3", "-c", PAIRS))
            before = await sandbox.run(command)
            await close(sandboxes, sandbox, way)
            return before.stdout.text(), (await sandbox.run(command)).stdout.text()

    before, after = map(json.loads, run(main))
    works = {"1 SOCK_STREAM": ["onetwo"] * 2, "1 SOCK_SEQPACKET": ["one"] * 2}
    assert {**before, **works, "1 SOCK_DGRAM": ["one"] * 2} == before
    assert after == {**dict.fromkeys(before, ["EACCES"] * 2), **works}
