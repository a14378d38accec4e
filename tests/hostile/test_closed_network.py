"""Ways out of a process sandbox whose network is closed, in both ways to close it, as root and as a plain user. Each of
them leads somewhere where nothing closes it: the same program, run beside the sandbox, gets there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.started_as import PLAIN_USER, keystone_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="playing both root and a plain user needs root")

FAMILY = "network"
WAYS_OUT = r"""
import array, ctypes, errno, json, os, socket, struct, sys, threading, time
where = json.loads(sys.argv[1])
HOST, OPEN, SAME = where["host"], where["open"], where["same"]
libc = ctypes.CDLL(None, use_errno=True)

def said_by(connection, word=b"anybody?"):
    with connection:
        connection.settimeout(2)
        connection.send(word)
        return connection.recv(100) == b"outside"

def tcp(address, family=socket.AF_INET, kind=socket.SOCK_STREAM, protocol=0):
    made = socket.socket(family, kind, protocol)
    made.settimeout(2)
    made.connect(address)
    return said_by(made)

def an_address_of_the_machine():
    return tcp((HOST, OPEN))

def the_port_of_a_service_at_another_address():
    return tcp((HOST, SAME))

def another_cells_port():
    return tcp(("127.0.0.1", where["other"]))

def dns_by_tcp():
    return tcp((HOST, where["dns"]))

def udp():
    return tcp((HOST, where["udp"]), kind=socket.SOCK_DGRAM)

def multipath_tcp():
    return tcp((HOST, OPEN), protocol=262)

def tcp_fast_open():
    made = socket.socket()
    made.sendto(b"anybody?", 0x20000000, (HOST, OPEN))
    return made.recv(100) == b"outside"

def raw_packets():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3).close()
    return True

def raw_ip():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()
    return True

def netlink():
    return {name for _, name in socket.if_nameindex()} != {"lo"}

def another_device():
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, where["device"].encode())
    made.settimeout(2)
    made.connect((HOST, SAME))
    return said_by(made)

def io_uring():
    ring = libc.syscall(425, 8, ctypes.create_string_buffer(120))
    return ring >= 0

def vsock():
    socket.socket(40, socket.SOCK_STREAM).close()
    return True

def an_abstract_socket():
    return tcp("\0" + where["abstract"], socket.AF_UNIX)

def a_socket_in_run():
    return tcp(where["stream"], socket.AF_UNIX)

def datagrams_to_a_socket_in_run(first=None):
    made = first or socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.sendto(b"anybody?", where["datagram"])
    return True

def one_of_a_pair():
    return datagrams_to_a_socket_in_run(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0])

def a_descriptor_from_outside():
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(where["descriptors"])
    _, found, _, _ = socket.recv_fds(made, 10, 1)
    return said_by(socket.socket(fileno=found[0]))

def what_was_inherited():
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if link.startswith("socket:"):
            return True
    return bool(where["inherited"])

def a_double_fork():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            try:
                os.write(writer, b"yes" if tcp((HOST, OPEN)) else b"no")
            finally:
                os._exit(0)
        os._exit(0)
    os.close(writer)
    return os.read(reader, 10) == b"yes"

def the_namespace_of_others():
    place = os.open(f"/proc/{where['somebody']}/ns/net", os.O_RDONLY)
    return libc.setns(place, 0x40000000) == 0 and tcp((HOST, OPEN))

def a_namespace_of_its_own():
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            left = libc.unshare(0x10000000) == 0 or os.geteuid() == 0
            os.write(writer, b"yes" if left and tcp((HOST, OPEN)) else b"no")
        finally:
            os._exit(0)
    os.close(writer)
    return os.read(reader, 10) == b"yes"

def being_called():
    with socket.create_server(("0.0.0.0", where["called"])) as server:
        server.settimeout(2)
        return said_by(server.accept()[0])

found = {}
for name, way in list(globals().items()):
    if name in where["ways"]:
        try:
            found[name] = way()
        except OSError as error:
            found[name] = False
found["service"] = tcp(("127.0.0.1", SAME))
server = socket.create_server(("127.0.0.1", 0))
try:
    socket.create_connection(server.getsockname(), timeout=2).close()
    found["own server"] = True
except OSError:
    found["own server"] = False
ours, theirs = socket.socketpair()
ours.send(b"x")
found["pair"] = theirs.recv(1) == b"x"
print(json.dumps(found))
"""
WAYS = {
    "an address of the machine": "its own network namespace, or no such port for Landlock",
    "the port of a service at another address": "its own network namespace, or sockets bound to the loopback interface",
    "another cells port": "its own network namespace, or no such port for Landlock",
    "dns by tcp": "its own network namespace, or no such port for Landlock",
    "udp": "its own network namespace, or no such sockets (seccomp)",
    "multipath tcp": "its own network namespace, or no such sockets (seccomp)",
    "tcp fast open": "its own network namespace, or no such flag (seccomp)",
    "raw packets": "no such sockets (seccomp)",
    "raw ip": "no capabilities, no such sockets (seccomp)",
    "netlink": "its own network namespace, or no such sockets (seccomp)",
    "another device": "its own network namespace, or a device that only root can change",
    "io uring": "no such system call (seccomp)",
    "vsock": "no such sockets (seccomp)",
    "an abstract socket": "no Unix sockets but pairs (seccomp)",
    "a socket in run": "no Unix sockets but pairs (seccomp)",
    "datagrams to a socket in run": "no Unix sockets but pairs (seccomp)",
    "one of a pair": "no pairs but connected ones (seccomp)",
    "a descriptor from outside": "no Unix sockets but pairs (seccomp)",
    "a double fork": "what closes the network is inherited",
    "the namespace of others": "no capabilities",
    "a namespace of its own": "its own network namespace, or Landlock and seccomp",
    "being called": "its own network namespace, or sockets bound to the loopback interface",
}
RUNS = {
    f"{who}, {way}": (user, way)
    for who, user in (("root", 0), ("plain user", PLAIN_USER))
    for way in ("namespace", "ports")
}


def _outside_address() -> tuple[str, str]:
    """An address of this machine that is not on the loopback, and its device."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but those of the loopback")
        host = str(probe.getsockname()[0])
    shown = json.loads(subprocess.run(["ip", "-j", "-4", "addr"], capture_output=True, check=True).stdout)
    device = next(one["ifname"] for one in shown for address in one["addr_info"] if address["local"] == host)
    return host, device


class Outside:
    """What a way out leads to: whatever connects gets an answer."""

    def __init__(self, directory: Path) -> None:
        self.host, device = _outside_address()
        self._sockets: list[socket.socket] = []
        self.service = self._serve(("127.0.0.1", 0))
        same = self._serve((self.host, self.service))
        with contextlib.suppress(OSError):
            self._serve((self.host, 53))
        self._datagrams = self._bound(socket.AF_INET, (self.host, 0), socket.SOCK_DGRAM)
        threading.Thread(target=self._answer_datagrams, daemon=True).start()
        paths = {name: str(directory / name) for name in ("stream", "datagram", "descriptors")}
        abstract = f"keystone-test-{os.getpid()}-{id(self)}"
        self._serve("\0" + abstract, socket.AF_UNIX)
        self._serve(paths["stream"], socket.AF_UNIX)
        self._bound(socket.AF_UNIX, paths["datagram"], socket.SOCK_DGRAM)
        self._serve(paths["descriptors"], socket.AF_UNIX, passes=True)
        for path in paths.values():
            Path(path).chmod(0o777)
        self.where: dict[str, Any] = {
            "host": self.host,
            "device": device,
            "open": self._serve((self.host, 0)),
            "same": same,
            "other": self._serve(("127.0.0.1", 0)),
            "dns": 53,
            "udp": self._datagrams.getsockname()[1],
            "abstract": abstract,
            "called": _free_port(self.host),
            "inherited": 0,
            "somebody": os.getpid(),
            "ways": [name.replace(" ", "_") for name in WAYS],
            **paths,
        }
        self._ended = threading.Event()
        self._caller = threading.Thread(target=self._call, daemon=True)
        self._caller.start()

    def _bound(self, family: int, address: Any, kind: int = socket.SOCK_STREAM) -> socket.socket:
        made = socket.socket(family, kind)
        self._sockets.append(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        return made

    def _serve(self, address: Any, family: int = socket.AF_INET, *, passes: bool = False) -> int:
        listening = self._bound(family, address)
        listening.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    if passes:
                        there = socket.create_connection((self.host, self.where["open"]))
                        socket.send_fds(accepted, [b"."], [there.fileno()])
                    else:
                        accepted.recv(100)
                        accepted.send(b"outside")
                        accepted.close()

        threading.Thread(target=serve, daemon=True).start()
        return int(listening.getsockname()[1]) if family == socket.AF_INET else 0

    def _answer_datagrams(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                _, peer = self._datagrams.recvfrom(100)
                self._datagrams.sendto(b"outside", peer)

    def _call(self) -> None:
        while not self._ended.wait(0.05):
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.where["called"])) as called:
                called.recv(100)
                called.send(b"outside")

    def close(self) -> None:
        self._ended.set()
        self._caller.join()
        for one in self._sockets:
            one.close()


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with tempfile.TemporaryDirectory(prefix="keystone-test-", dir="/run") as name:
        Path(name).chmod(0o755)
        made = Outside(Path(name))
        yield made
        made.close()


@pytest.fixture(scope="module")
def unconfined(outside: Outside) -> dict[str, bool]:
    """What the program finds beside the sandbox, as root."""
    where = json.dumps({**outside.where, "inherited": 1})
    done = subprocess.run([sys.executable, "-c", WAYS_OUT, where], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, bool] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module", params=RUNS.values(), ids=list(RUNS))
def confined(request: pytest.FixtureRequest, outside: Outside) -> dict[str, Any]:
    """What it finds as the agent of a cell, and how that cell's network was closed."""
    user, way = request.param
    document = {
        "version": 1,
        "id": "closed",
        "task": {"prompt": "get out"},
        "network": {"egress": {"default": "deny"}},
        "services": [{"name": "shop", "type": "external", "url": f"tcp://127.0.0.1:{outside.service}"}],
        "agent": {
            "type": "command",
            "command": ["python3", "-c", WAYS_OUT, json.dumps(outside.where)],
            "must_exit_zero": True,
        },
        "invariants": {
            "closed_too": {
                "check": {
                    "type": "command_exit",
                    "command": ["python3", "-c", WAYS_OUT, json.dumps(outside.where)],
                }
            }
        },
    }
    with tempfile.TemporaryDirectory(prefix="checkout-") as name:
        Path(name).chmod(0o755)
        called = keystone_in(None, Path(name), json.dumps(document), user, namespaces=way == "namespace")
        (cell,) = called.cells
        assert cell["verdict"] == "pass", (called.out, called.err)
        agent = json.loads(next(called.output.glob("cells/*/agent.stdout")).read_text())
        check = next(called.output.glob("cells/*/checks/closed_too.log")).read_text()
        found = json.loads(next(line for line in check.splitlines() if line.startswith("{")))
        told = called.document["sandbox"]["egress"]
    return {"agent": agent, "check": found, "way": way, "told": told}


def _key(name: str) -> str:
    return name.replace(" ", "_")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=hostile(FAMILY, f"gets out by {name}", held_by=held_by))
        for name, held_by in WAYS.items()
    ],
)
def test_no_way_leads_out(confined: dict[str, Any], unconfined: dict[str, bool], name: str) -> None:
    assert confined["told"] == confined["way"]
    if not unconfined[_key(name)]:
        pytest.skip(f"{name} leads nowhere on this machine, closed or not")
    assert confined["agent"][_key(name)] is False
    assert confined["check"][_key(name)] is False


@honest(FAMILY, *(f"gets out by {name}" for name in WAYS))
def test_services_and_pairs_go_on(confined: dict[str, Any]) -> None:
    for whose in ("agent", "check"):
        found = confined[whose]
        assert (found["service"], found["pair"]) == (True, True)
        assert found["own server"] is (confined["way"] == "namespace")
