"""Something outside: servers on the loopback that play hosts of the internet, and a proxy that finds them there."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keystone_action.engine.networks import ContainerNetwork
from keystone_action.network.guarded_listener import StreamPair
from keystone_action.network.proxy import EgressCell
from keystone_action.network.relay import Outside
from keystone_action.spec.models.policies import IPAddress

PUBLIC = "93.184.216.34"


class StagedOutside(Outside):
    """names: what each stands for; others have no address. servers: the port of the loopback on which an address and
    port is played; nobody answers at others. connected: the addresses that were asked for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, list[str]] = {}
        self.servers: dict[tuple[str, int], int] = {}
        self.resolved: list[str] = []
        self.connected: list[tuple[str, int]] = []

    async def resolve(self, host: str) -> list[IPAddress]:
        self.resolved.append(host)
        with contextlib.suppress(ValueError):
            return [ipaddress.ip_address(host)]
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        return [ipaddress.ip_address(address) for address in self.names[host]]

    async def connect(self, address: IPAddress, port: int) -> StreamPair:
        self.connected.append((str(address), port))
        played = self.servers.get((str(address), port))
        if played is None:
            raise ConnectionRefusedError(111, "Connection refused")
        return await super().connect(ipaddress.ip_address("127.0.0.1"), played)

    def serve(self, host: str, port: int, server: Server, address: str = PUBLIC) -> None:
        """Have this server play a host."""
        self.names.setdefault(host, [address])
        self.servers[address, port] = server.port


@dataclass
class Server:
    """A TCP server on the loopback. received: what each connection sent first."""

    answer: Callable[[socket.socket, bytes], None]
    port: int = 0
    received: list[bytes] = field(default_factory=list)

    def __enter__(self) -> Server:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            first = connection.recv(65536)
            self.received.append(first)
            self.answer(connection, first)

    def __exit__(self, *_error: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


def hello(connection: socket.socket, first: bytes) -> None:
    """An HTTP server that greets, and hears its client out."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
    connection.shutdown(socket.SHUT_WR)
    read_all(connection)


def echo(connection: socket.socket, first: bytes) -> None:
    """Sends back all that comes, until its end."""
    while first:
        connection.sendall(first)
        first = connection.recv(65536)


def loopback_network() -> ContainerNetwork:
    """A cell's network without an engine: clients at 127.0.0.2 and above are its containers, 127.0.0.1 is not."""
    return ContainerNetwork("n", "n", ipaddress.IPv4Network("127.0.0.0/8"), "127.0.0.1", internal=True)


def connect(port: int, source: str = "127.0.0.2") -> socket.socket:
    """A connection to a port of the loopback, as a container with this address makes it."""
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def exchange(port: int, data: bytes, source: str = "127.0.0.2") -> bytes:
    """Send, half-close, and read to the end; nothing where the other end hangs up."""
    with connect(port, source) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)
    return b""


def read_all(connection: socket.socket) -> bytes:
    """Until the other end has no more, or breaks off."""
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def port_of(cell: EgressCell) -> int:
    return int(cell.url.rpartition(":")[2])


def decisions(audit_log: Path) -> list[dict[str, Any]]:
    """The details of the lines of type `egress`."""
    if not audit_log.exists():
        return []
    lines = [json.loads(line) for line in audit_log.read_text("ascii").splitlines()]
    return [line["details"] for line in lines if line["type"] == "connect"]


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket, bytes], None]) -> Iterator[Server]:
    with Server(answer) as server:
        yield server
