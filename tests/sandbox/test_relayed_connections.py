"""The relay out of a command's network namespace: how much it passes on at a time, what it is handed, and what becomes
of a hand-over that went wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest
from support.process_world import no_descriptor_left, open_descriptors, run, world

from keystone_action.errors import SandboxError
from keystone_action.network.loop_thread import LoopThread
from keystone_action.sandbox.processes import closed_network, landlock, process_tree, wire
from keystone_action.sandbox.processes.network import CellRoom, NamespaceRelay, RelayRoom, _relay
from keystone_action.system.command import Command, Completed

ADDRESS = ("127.0.0.1", 1)
MANY = """
import socket, threading
opened = [socket.create_connection(("127.0.0.1", {port})) for _ in range(60)]
def ask(one):
    one.sendall(b"x")
    one.shutdown(socket.SHUT_WR)
    answers.append(one.recv(9))
    one.close()
answers = []
threads = [threading.Thread(target=ask, args=(one,)) for one in reversed(opened)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(answers.count(b"hello"))
"""


def test_connections_beyond_the_room_wait_until_others_are_over() -> None:
    at_a_time: list[int] = []
    there: set[asyncio.StreamWriter] = set()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.add(writer)
        at_a_time.append(len(there))
        await reader.read()
        writer.write(b"hello")
        there.discard(writer)
        writer.close()

    async def main() -> Completed:
        async with world() as (sandboxes, sandbox), await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            if await sandboxes.networks.find_way(without=("ports",)) is None:
                pytest.skip("this machine can't close a network by a namespace")
            port = server.sockets[0].getsockname()[1]
            network = sandboxes.networks.closed([("127.0.0.1", port)])
            sandbox.network = network._replace(room=CellRoom(RelayRoom(most=24)))
            return await sandbox.run(Command(("python3", "-c", MANY.format(port=port)), timeout=300))

    done: Completed = run(main)
    assert done.stdout.text() == "60\n", done.stderr.text()
    assert max(at_a_time) <= 12


def test_cells_that_hold_on_to_theirs_leave_room_for_another() -> None:
    whole = RelayRoom(most=100)
    cells = [CellRoom(whole) for _ in range(20)]
    taken = [_take_all(cell) for cell in cells]
    assert taken[:3] == [50, 25, 13]
    assert taken[4:] == [8] * 16
    for _ in range(50):
        cells[0].give_back()
    assert not cells[1].is_left()  # it still has more than there is for others
    assert _take_all(CellRoom(whole)) == 8


def _take_all(cell: CellRoom) -> int:
    count = 0
    while cell.is_left():
        cell.take()
        count += 1
    return count


def test_one_cell_has_256_at_most() -> None:
    cell = CellRoom(RelayRoom(most=10_000))
    assert _take_all(cell) == 256
    cell.give_back()
    assert cell.is_left()


def test_a_connection_waits_for_a_descriptor_for_its_other_end() -> None:
    """That we have none is not the command's fault: broken off, an honest one would be judged by it."""

    async def main() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours = server.accept()[0]
        with ours, theirs, socket.create_server(("127.0.0.1", 0)) as server:
            ours.setblocking(False)
            theirs.setblocking(False)
            with no_descriptor_left(0):
                relayed = asyncio.create_task(_relay(ours, server.getsockname()))
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not relayed.done()
            theirs.sendall(b"asked")
            theirs.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(60):
                answered = await asyncio.to_thread(_answer, server)
                await relayed
            assert answered == b"asked"
            return theirs.recv(100)

    assert run(main) == b"answered"


def _answer(server: socket.socket) -> bytes:
    server.settimeout(60)
    accepted, _ = server.accept()
    with accepted:
        asked = accepted.recv(100)
        accepted.sendall(b"answered")
    return asked


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("keystone-relay", "the relay")
    made.start()

    async def nothing() -> None:
        return

    yield made
    made.stop(nothing)


def _handed_over(thread: LoopThread, hand_over: Callable[[socket.socket, NamespaceRelay], None]) -> tuple[str, bool]:
    """What a relay says at its end when its supervisor handed this over, and whether the command was ended."""
    stopped: list[bool] = []

    async def stop() -> None:
        stopped.append(True)

    async def main() -> str:
        relay = NamespaceRelay(thread, [ADDRESS], CellRoom(RelayRoom()))
        theirs = socket.socket(fileno=os.dup(relay.passed))
        hand_over(theirs, relay)
        relay.begin(stop)
        theirs.close()
        try:
            await relay.close()
        except SandboxError as error:
            return error.message
        return ""

    before = open_descriptors()
    said: str = run(main)
    assert not open_descriptors() - before
    return said, bool(stopped)


def _pass(end: socket.socket, count: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, open("/dev/null", "rb") as table:  # noqa: PTH123
        socket.send_fds(end, [wire.MARK], [server.fileno(), table.fileno(), table.fileno()][:count])


def test_a_whole_hand_over_is_taken(thread: LoopThread) -> None:
    assert _handed_over(thread, lambda end, _: _pass(end, 3)) == ("", False)


def test_a_hand_over_that_is_not_whole_ends_the_command_and_is_said(thread: LoopThread) -> None:
    said = "of 3 sockets of a command's closed network, 2 arrived"
    assert _handed_over(thread, lambda end, _: _pass(end, 2)) == (said, True)


@pytest.mark.parametrize("free", [0, 2])
def test_a_hand_over_for_which_we_have_no_descriptors_is_said(thread: LoopThread, free: int) -> None:
    """By the socket itself: the loop that waits needs descriptors of its own."""

    async def main() -> None:
        relay = NamespaceRelay(thread, [ADDRESS], CellRoom(RelayRoom()))
        _pass(relay._theirs, 3)
        with no_descriptor_left(free), pytest.raises(SandboxError, match=f"{free} arrived: .* no descriptor left"):
            await relay._receive(3)
        await relay.close()

    before = open_descriptors()
    run(main)
    assert not open_descriptors() - before


def test_a_supervisor_that_is_gone_hands_nothing_over(thread: LoopThread) -> None:
    def nothing(_: socket.socket, __: NamespaceRelay) -> None:
        return

    def breaks_off(_: socket.socket, relay: NamespaceRelay) -> None:
        relay._ours.send(b"unread")

    for gone in (nothing, breaks_off):
        assert _handed_over(thread, gone) == ("", False)


@pytest.mark.parametrize("free", [0, 1])
def test_descriptors_that_are_not_all_to_be_had_are_none(free: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(theirs, [wire.MARK], [0, 1, 2])
        before = open_descriptors()
        with no_descriptor_left(free):
            assert wire.receive_descriptors(ours) == (wire.MARK, [])
        assert not open_descriptors() - before
        socket.send_fds(theirs, [wire.MARK], [0])
        mark, passed = wire.receive_descriptors(ours)
        assert (mark, len(passed)) == (wire.MARK, 1)
        os.close(passed[0])


def _makes_sockets_among_signals() -> bool:
    """Whether each socket is one, though a signal for who makes them is always on its way."""
    landlock.no_new_privileges()
    signal.signal(signal.SIGUSR1, lambda *_: None)
    sender, receiver = os.fork(), os.getppid()
    if sender == 0:
        receiver = os.getppid()
        while os.getppid() == receiver:
            os.kill(receiver, signal.SIGUSR1)
        os._exit(0)

    def make() -> bool:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        made = [socket.socket().detach() for _ in range(100)]
        return min(made) > 2 and len(set(made)) == len(made)

    try:
        return all(closed_network._in_notified_thread(make) == [True] for _ in range(20))
    finally:
        os.kill(sender, signal.SIGKILL)


def test_a_signal_does_not_spoil_the_socket_that_is_being_made() -> None:
    if not process_tree.succeeds(closed_network.can_close_ports, 60):
        pytest.skip("this machine can't close a network by ports")
    assert process_tree.succeeds(_makes_sockets_among_signals, 300)
