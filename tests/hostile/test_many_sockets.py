"""Agents that use up descriptors: ours, by the connections that a relay passes on for them, or their own."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import Called
from support.process_world import run, world
from support.started_as import keystone_in

from keystone_action.sandbox.processes.wire import ClosedNetworkWay
from keystone_action.system.command import Command, Completed

FAMILY = "descriptors"
OURS, OWN = "opens 2,000 connections at a time", "has no descriptor left for a socket"
DESCRIPTORS = 512
"""That the run may have open: by default, most machines allow twice as many."""
HELD = 16
"""So many connections of the hostile agent are there before the honest one is served."""
_END_SECONDS = 10
ASKS = """
import socket
with socket.create_connection(("127.0.0.1", PORT), timeout=300) as made:
    made.sendall(b"honest")
    answer = made.recv(9)
assert answer == b"hello", answer
"""
AGENTS = {
    "hostile": """
import resource, select, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
opened, poller = {}, select.poll()
for _ in range(2000 if hard < 0 else min(2000, hard - 64)):
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(("127.0.0.1", PORT))
    opened[made.fileno()] = made
    poller.register(made, select.POLLIN)
said = b""
while said != b"enough":
    for number, _ in poller.poll():
        said = opened[number].recv(9)
""",
    "honest": ASKS * 3,
}


class Service:
    """Answers those that speak, once the hostile agent has its connections, and holds all others until then."""

    def __init__(self) -> None:
        self.most = 0
        """Connections of the hostile agent at a time, while it ran."""
        self._held: set[socket.socket] = set()
        self._served = 0
        self._changed = threading.Condition()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *given: socket.socket) -> None:
        made = threading.Thread(target=target, args=given, daemon=True)
        self._threads.append(made)
        made.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                self._start(self._serve, accepted)

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, contextlib.suppress(OSError):
            self._hold(accepted)
            try:
                said = accepted.recv(9)
            finally:
                self._let_go(accepted)
            if said == b"honest":
                self._answer(accepted)

    def _hold(self, accepted: socket.socket) -> None:
        with self._changed:
            self._held.add(accepted)
            if self._served < 3:
                self.most = max(self.most, len(self._held))
            else:
                accepted.sendall(b"enough")
            self._changed.notify_all()

    def _let_go(self, accepted: socket.socket) -> None:
        with self._changed:
            self._held.discard(accepted)

    def _answer(self, accepted: socket.socket) -> None:
        with self._changed:
            found = self._changed.wait_for(lambda: len(self._held) >= HELD, timeout=300)
            accepted.sendall(b"hello" if found else b"alone")
            self._served += 1
            for one in self._held if self._served == 3 else ():
                one.sendall(b"enough")

    def close(self) -> None:
        """What it has open is closed then: tests that follow count what this process has open."""
        self._listening.shutdown(socket.SHUT_RDWR)  # by `close` alone nobody who waits there is told
        accepting, *_ = self._threads
        accepting.join(_END_SECONDS)
        with self._changed:
            for one in self._held:
                with contextlib.suppress(OSError):  # the other end is gone
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_END_SECONDS)
        self._listening.close()


@contextlib.contextmanager
def _few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def side_by_side() -> Iterator[tuple[Called, Service]]:
    """A run of both agents at a time, in namespaces of their own."""
    service = Service()
    texts = {name: text.replace("PORT", str(service.port)) for name, text in AGENTS.items()}
    document: dict[str, Any] = {
        "version": 1,
        "id": "side-by-side",
        "network": {"egress": {"default": "deny"}},
        "services": [{"name": "shop", "type": "external", "url": f"tcp://127.0.0.1:{service.port}"}],
        "agent": {"type": "command", "command": ["python3", "-c", "{{ params.text }}"], "must_exit_zero": True},
        "task": {"prompt": "go"},
        "scenarios": [{"id": name, "params": {"text": text}} for name, text in texts.items()],
        "parallelism": {"max_concurrency": 2},
        "invariants": {"judged": {"check": {"type": "file_absent", "path": "nothing"}}},
    }
    with tempfile.TemporaryDirectory(prefix="checkout-") as name:
        Path(name).chmod(0o755)
        with _few_descriptors():
            called = keystone_in(None, Path(name), json.dumps(document))
        yield called, service
    service.close()


def _cell(called: Called, name: str) -> dict[str, Any]:
    (found,) = (one for one in called.cells if f".{name}." in one["id"])
    return found


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of the network needs root, or user namespaces")


@needs_root
@hostile(FAMILY, OURS, held_by="at most 256 of a cell, and what is left to others, are passed on at a time")
def test_many_connections_leave_the_run_its_descriptors(side_by_side: tuple[Called, Service]) -> None:
    called, service = side_by_side
    assert called.document["sandbox"]["egress"] == "namespace"
    assert _cell(called, "hostile")["verdict"] == "pass", (called.out, called.err)
    assert HELD <= service.most <= DESCRIPTORS // 8
    assert called.code == 0


@needs_root
@honest(FAMILY, OURS)
def test_another_cell_is_served_and_judged_meanwhile(side_by_side: tuple[Called, Service]) -> None:
    called, _ = side_by_side
    assert _cell(called, "honest")["verdict"] == "pass", (called.out, called.err)


STARVES = """
import errno, os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.EMFILE
for _ in range(int(sys.argv[1])):
    os.close(held.pop())
"""
ASKS_FOR_ONE = """
for _ in range(3):
    try:
        socket.socket().close()
        print("made")
    except OSError as error:
        print(errno.errorcode[error.errno])
for one in held:
    os.close(one)
"""


def _starved(way: ClosedNetworkWay, free: int) -> Completed:
    async def main() -> Completed:
        async with world() as (sandboxes, sandbox):
            other = "ports" if way == "namespace" else "namespace"
            if await sandboxes.networks.find_way(without=(other,)) != way:
                pytest.skip(f"this machine can't close a network by {way}")
            service = Service()
            sandbox.network = sandboxes.networks.closed([("127.0.0.1", service.port)])
            then = "made = socket.create_connection(('127.0.0.1', PORT))\nprint('went on')"
            text = (STARVES + ASKS_FOR_ONE + then).replace("PORT", str(service.port))
            done = await sandbox.run(Command(("python3", "-c", text, str(free)), timeout=300))
            service.close()
            return done

    done: Completed = run(main)
    return done


@pytest.mark.parametrize("way", ["namespace", "ports"])
@hostile(FAMILY, OWN, held_by="the call fails with EMFILE, and who makes the sockets goes on")
def test_a_socket_without_a_descriptor_is_refused_and_the_agent_goes_on(way: ClosedNetworkWay) -> None:
    done = _starved(way, 0)
    assert (done.exit_code, done.stdout.text()) == (0, "EMFILE\n" * 3 + "went on\n"), done.stderr.text()


@pytest.mark.parametrize("way", ["namespace", "ports"])
@honest(FAMILY, OWN)
def test_with_one_descriptor_left_there_is_a_socket(way: ClosedNetworkWay) -> None:
    done = _starved(way, 1)
    assert (done.exit_code, done.stdout.text()) == (0, "made\n" * 3 + "went on\n"), done.stderr.text()
