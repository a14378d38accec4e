"""The egress proxy over real sockets: what is let through, what is not, and what is written down."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import egress as stage
from support.egress import PUBLIC, StagedOutside, connect, decisions, exchange, port_of, read_all

from keystone_action.engine.networks import ContainerNetwork
from keystone_action.errors import ServiceError
from keystone_action.evidence import egress as log_module
from keystone_action.evidence.audit import AuditLog
from keystone_action.network import proxy as module
from keystone_action.network.proxy import EgressCell, EgressProxy
from keystone_action.spec.models.policies import Egress

ALLOW = ["api.example.com", "*.allowed.example", "raw.example:7000"]


class World:
    def __init__(self, directory: Path) -> None:
        self.outside = StagedOutside()
        self.proxy = EgressProxy(self.outside)
        self.proxy.start()
        self.network = stage.loopback_network()
        self.audit_log = directory / "audit.jsonl"
        self.audit = AuditLog(self.audit_log)
        self.cell = self.open(ALLOW)

    def open(
        self, allow: list[str], network: ContainerNetwork | None = None, audit: AuditLog | None = None
    ) -> EgressCell:
        policy = Egress(default="deny", allow=allow)
        return asyncio.run(
            self.proxy.open(policy, network or self.network, audit or self.audit, services=["db", "crm_api"])
        )

    @property
    def port(self) -> int:
        return port_of(self.cell)

    def close(self) -> list[dict[str, object]]:
        asyncio.run(self.cell.close())
        return decisions(self.audit_log)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.proxy.stop()


def test_a_tunnel_to_an_allowed_host(world: World) -> None:
    with stage.serving(stage.echo) as server:
        world.outside.serve("api.example.com", 443, server)
        with connect(world.port) as client:
            client.sendall(b"CONNECT API.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n")
            assert client.recv(100) == b"HTTP/1.1 200 Connection established\r\n\r\n"
            client.sendall(b"\x16\x03 anything")
            assert client.recv(100) == b"\x16\x03 anything"
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b""
    [line] = world.close()
    assert line.pop("duration_s") >= 0
    assert line == {
        "host": "api.example.com",
        "port": 443,
        "method": "CONNECT",
        "allowed": True,
        "reason": "allowed by api.example.com",
        "bytes_sent": 11,
        "bytes_received": 11,
    }
    assert world.outside.connected == [(PUBLIC, 443)]
    assert world.cell.failure is None


def test_a_plain_request_to_an_allowed_host(world: World) -> None:
    with stage.serving(stage.hello) as server:
        world.outside.serve("www.allowed.example", 80, server)
        reply = exchange(
            world.port,
            b"POST http://www.allowed.example/x?y=1 HTTP/1.1\r\nHost: evil.example\r\n"
            b"Proxy-Authorization: Basic c2VjcmV0\r\nContent-Length: 4\r\n\r\nbody",
        )
    assert reply.endswith(b"\r\n\r\nhello")
    head = server.received[0]
    assert head.startswith(b"POST /x?y=1 HTTP/1.1\r\nHost: www.allowed.example\r\n")
    assert b"c2VjcmV0" not in head
    [line] = world.close()
    assert (line["method"], line["allowed"], line["bytes_sent"]) == ("POST", True, 4)
    assert "secret" not in world.audit_log.read_text()


@pytest.mark.parametrize(
    ("request_line", "host", "said"),
    [
        (b"CONNECT evil.example:443", "evil.example", "evil.example is not in network.egress.allow"),
        (b"CONNECT api.example.com.evil.com:443", "api.example.com.evil.com", "is not in network.egress.allow"),
        (b"CONNECT allowed.example:443", "allowed.example", "is not in network.egress.allow"),
        (b"CONNECT api.example.com:22", "api.example.com", "port 22 of api.example.com"),
        (b"CONNECT raw.example:443", "raw.example", "port 443 of raw.example"),
        (b"CONNECT 93.184.216.34:443", PUBLIC, "93.184.216.34 is not in network.egress.allow"),
        (b"CONNECT 127.0.0.1:443", "127.0.0.1", "127.0.0.1 is not in network.egress.allow"),
        (b"CONNECT [::1]:443", "::1", "::1 is not in network.egress.allow"),
        (b"GET http://evil.example/", "evil.example", "evil.example is not in network.egress.allow"),
    ],
)
def test_what_is_not_listed_is_denied_without_a_look_up(
    world: World, request_line: bytes, host: str, said: str
) -> None:
    reply = exchange(world.port, request_line + b" HTTP/1.1\r\n\r\n")
    head, _, body = reply.partition(b"\r\n\r\n")
    # Clients show the status line of a tunnel that was refused, and the body of a request.
    assert head.startswith(b"HTTP/1.1 403 ")
    assert said.encode() in head.split(b"\r\n")[0]
    assert said.encode() in body
    assert b"network.egress.allow" in body
    [line] = world.close()
    assert (line["host"], line["allowed"]) == (host, False)
    assert said in str(line["reason"])
    assert world.outside.resolved == world.outside.connected == []


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.7", "::1", "::ffff:127.0.0.1"])
def test_an_allowed_name_that_stands_for_something_inside_is_denied(world: World, address: str) -> None:
    world.outside.names["a.allowed.example"] = [address]
    reply = exchange(world.port, b"CONNECT a.allowed.example:443 HTTP/1.1\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 403 ")
    assert world.outside.connected == []
    [line] = world.close()
    assert line["allowed"] is False


def test_the_machine_s_own_address_is_not_outside_whatever_it_is(world: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((PUBLIC, 9))
        except OSError:
            pytest.fail("this machine has no route, so no address of its own to be tested")
        own = probe.getsockname()[0]
    world.outside.names["api.example.com"] = [own]
    assert exchange(world.port, b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    assert world.outside.connected == []


def test_the_connection_goes_to_the_address_that_was_checked(world: World) -> None:
    """A name server that answers otherwise the second time (DNS rebinding) is not asked a second time."""
    with stage.serving(stage.hello) as server:
        world.outside.names["a.allowed.example"] = ["127.0.0.1", "10.0.0.1", PUBLIC]
        world.outside.servers[PUBLIC, 80] = server.port
        assert exchange(world.port, b"GET http://a.allowed.example/ HTTP/1.1\r\n\r\n").endswith(b"hello")
    assert world.outside.resolved == ["a.allowed.example"]
    assert world.outside.connected == [(PUBLIC, 80)]


def test_hosts_that_can_t_be_reached_are_said_and_written_down(world: World) -> None:
    world.outside.names["api.example.com"] = [PUBLIC]
    refused = exchange(world.port, b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 502 ")
    assert b"api.example.com:443 can't be reached: 93.184.216.34 does not answer (Connection refused)" in refused
    unknown = exchange(world.port, b"CONNECT b.allowed.example:443 HTTP/1.1\r\n\r\n")
    assert b"its name can't be resolved (Name or service not known)" in unknown
    first, second = world.close()
    assert first["allowed"] is second["allowed"] is True
    assert str(first["reason"]).endswith("; 93.184.216.34 does not answer (Connection refused)")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01 no http at all\r\n\r\n", 400),
        (b"CONNECT user@api.example.com:443 HTTP/1.1\r\n\r\n", 400),
        (b"GET http://api.example.com/ HTTP/1.1\r\nX: " + b"x" * 200_000, 431),
    ],
)
def test_what_is_no_request_is_denied_and_written_down(world: World, data: bytes, status: int) -> None:
    assert exchange(world.port, data).startswith(f"HTTP/1.1 {status} ".encode())
    [line] = world.close()
    assert line["allowed"] is False
    assert len(json.dumps(line)) < 4000


def test_a_client_that_says_nothing_leaves_no_line(world: World) -> None:
    assert exchange(world.port, b"") == b""
    assert exchange(world.port, b"CONNECT api.exa") == b""
    assert world.close() == []


def test_a_client_of_another_network_is_not_heard(world: World) -> None:
    with stage.serving(stage.hello) as server:
        world.outside.serve("api.example.com", 80, server)
        assert exchange(world.port, b"GET http://api.example.com/ HTTP/1.1\r\n\r\n", source="127.0.0.1") == b""
        world.network.shared.add("127.0.0.3")
        assert exchange(world.port, b"GET http://api.example.com/ HTTP/1.1\r\n\r\n", source="127.0.0.3") == b""
        assert exchange(world.port, b"GET http://api.example.com/ HTTP/1.1\r\n\r\n").endswith(b"hello")
    assert len(world.close()) == 1


def test_a_denied_upload_still_reads_its_answer(world: World) -> None:
    with connect(world.port) as client:
        client.sendall(b"POST http://evil.example/ HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).startswith(b"HTTP/1.1 403 ")


def test_megabytes_both_ways_while_a_reader_is_slow(world: World) -> None:
    data = bytes(range(256)) * 40_000
    with stage.serving(stage.echo) as server:
        world.outside.serve("api.example.com", 443, server)
        with connect(world.port) as client:
            client.sendall(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
            assert client.recv(39).startswith(b"HTTP/1.1 200")

            def send() -> None:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send)
            sender.start()
            assert read_all(client) == data
            sender.join()
    [line] = world.close()
    assert line["bytes_sent"] == line["bytes_received"] == len(data)


def test_more_connections_than_the_limit_wait_their_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS", 2)
    world.close()
    world.cell = world.open(ALLOW)
    idle = [connect(world.port) for _ in range(2)]
    with connect(world.port) as third:
        third.sendall(b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
        third.settimeout(0.3)
        with pytest.raises(TimeoutError):
            third.recv(10)
        idle[0].close()
        third.settimeout(30)
        assert third.recv(12) == b"HTTP/1.1 403"
    idle[1].close()


def test_a_connection_without_a_byte_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.2)
    with stage.serving(lambda connection, _: connection.recv(1)) as server:
        world.outside.serve("api.example.com", 443, server)
        with connect(world.port) as client:
            client.sendall(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
            assert read_all(client) == b"HTTP/1.1 200 Connection established\r\n\r\n"
        with connect(world.port) as client:
            client.sendall(b"CONN")
            assert read_all(client) == b""
    [line] = world.close()
    assert str(line["reason"]).endswith("; ended after 0.2 s without a byte")


@pytest.mark.parametrize("by_stop", [False, True])
def test_at_the_end_open_tunnels_are_cut_and_have_their_line(world: World, by_stop: bool) -> None:
    with stage.serving(stage.echo) as server:
        world.outside.serve("api.example.com", 443, server)
        with connect(world.port) as client:
            client.sendall(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
            assert client.recv(39).startswith(b"HTTP/1.1 200")
            client.sendall(b"abc")
            assert client.recv(3) == b"abc"
            port = world.port
            if by_stop:
                world.proxy.stop()
                world.proxy.stop()
            lines = world.close()
            assert read_all(client) == b""
    assert [line["bytes_sent"] for line in lines] == [3]
    with pytest.raises(ConnectionRefusedError):
        connect(port)


def test_once_it_is_settled_all_that_a_client_asked_for_is_written_down_and_others_are_served(world: World) -> None:
    with stage.serving(stage.echo) as server:
        world.outside.serve("api.example.com", 443, server)
        with connect(world.port) as client:
            client.sendall(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
            assert client.recv(39).startswith(b"HTTP/1.1 200")
            for _ in range(20):  # it hangs up at once
                with connect(world.port) as hasty:
                    hasty.sendall(b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
            asyncio.run(world.cell.settle())
            assert read_all(client) == b""
        hosts = [line["host"] for line in decisions(world.audit_log)]
        assert sorted(hosts) == ["api.example.com", *["evil.example"] * 20]
        assert b" 403 " in exchange(world.port, b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
    assert len(world.close()) == 22


def test_decisions_that_can_t_be_recorded_are_a_failure_and_nothing_gets_out_after_it(world: World) -> None:
    world.close()
    world.cell = world.open(ALLOW, audit=AuditLog(Path("/dev/full")))
    exchange(world.port, b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
    assert world.cell.failure == "a decision about the network could not be recorded: No space left on device"
    with stage.serving(stage.hello) as server:
        world.outside.serve("api.example.com", 80, server)
        reply = exchange(world.port, b"GET http://api.example.com/ HTTP/1.1\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 507 ")
    assert world.outside.connected == []


def test_an_agent_that_fills_the_record_gets_out_no_more_and_makes_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LAST_RECORD", 2000)
    with stage.serving(stage.hello) as server:
        world.outside.serve("api.example.com", 80, server)
        get = b"GET http://api.example.com/ HTTP/1.1\r\n\r\n"
        assert exchange(world.port, get).startswith(b"HTTP/1.1 200 ")
        for _ in range(20):
            reply = exchange(world.port, b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
            assert reply.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 507 "))
        assert exchange(world.port, get).startswith(b"HTTP/1.1 507 ")
    assert world.cell.failure is None


def test_an_address_that_is_not_ours_is_said(world: World) -> None:
    elsewhere = stage.loopback_network()
    elsewhere.own_address = "192.0.2.1"
    with pytest.raises(ServiceError, match=r"192\.0\.2\.1 is not an address of this machine"):
        world.open([], network=elsewhere)


def test_the_environment_names_the_proxy_and_what_is_reached_without_it(world: World) -> None:
    world.network.hosts["late.example"] = "127.0.0.1"
    environment = world.cell.environment
    url = f"http://127.0.0.1:{world.port}"
    assert {environment[name] for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")} == {url}
    assert environment["no_proxy"] == environment["NO_PROXY"]
    direct = environment["NO_PROXY"].split(",")
    assert {"localhost", "127.0.0.1", "db", "crm_api", "late.example"} <= set(direct)
    assert len(direct) == len(set(direct))


CLIENT = """
import json, sys, urllib.request
try:
    print(json.dumps(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode()))
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def test_python_s_own_client_uses_it_and_shows_the_reason(world: World) -> None:
    """As a program that knows only the environment. It comes from 127.0.0.1, so the network's gateway is another."""
    network = stage.loopback_network()
    network.gateway = "127.0.0.9"
    cell = world.open(ALLOW, network=network)

    def get(url: str) -> str:
        environment = {**cell.environment, "PATH": "/usr/bin:/bin"}
        printed = subprocess.check_output([sys.executable, "-c", CLIENT, url], env=environment)
        return str(json.loads(printed))

    with stage.serving(stage.hello) as server:
        world.outside.serve("api.example.com", 80, server)
        assert get("http://api.example.com/x") == "hello"
    assert "403" in get("http://evil.example/")
    assert "403 evil.example is not in network.egress.allow" in get("https://evil.example/")
    asyncio.run(cell.close())
