"""`egress: deny` on the real engine: what an agent in a container reaches, and what it doesn't."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support import egress as stage
from support.containers import ContainerWorld
from support.egress import StagedOutside, decisions, port_of
from support.images import BASE, PYTHON

from keystone_action.engine import networks as module
from keystone_action.engine.networks import DATAGRAMS_OPEN, ContainerNetwork
from keystone_action.evidence.audit import AuditLog
from keystone_action.network.proxy import EgressCell, EgressProxy
from keystone_action.spec.models.policies import Egress

pytestmark = pytest.mark.docker

ALLOW = ["api.example.com", "*.allowed.example"]
ASK = """
import json, os, sys, urllib.request
def ask(url):
    try:
        return urllib.request.urlopen(url, timeout=20).read().decode()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
print(json.dumps([ask(url) for url in sys.argv[1:]]))
"""
TUNNEL = """
import http.client, os, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["https_proxy"])
connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=20)
connection.set_tunnel("api.example.com", 443)
connection.request("GET", "/inside")
print(connection.getresponse().read().decode())
"""
KNOCK = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def knock(address, port):
    try:
        with socket.create_connection((address, int(port)), 4) as connection:
            connection.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            return connection.recv(100).decode() or "hung up"
    except OSError as error:
        return f"no: {error}"
print(json.dumps(list(ThreadPoolExecutor().map(lambda one: knock(*one.rsplit(":", 1)), sys.argv[1:]))))
"""


class Deny:
    """A cell whose egress is denied: an internal network, and a proxy in it."""

    def __init__(self, containers: ContainerWorld, proxy: EgressProxy, suffix: str) -> None:
        async def opened() -> tuple[ContainerNetwork, EgressCell]:
            network = await containers.networks.open(suffix, internal=True)
            policy = Egress(default="deny", allow=ALLOW)
            return network, await proxy.open(policy, network, AuditLog(self.audit_log), services=["crm_api"])

        self.containers = containers
        self.audit_log = containers.directory / f"{suffix}.jsonl"
        self.network, self.proxy = containers.portal.call(opened)

    def python(self, script: str, *arguments: str, proxied: bool = True) -> str:
        """What a program in a container of this cell prints."""
        quoted = " ".join(f"'{argument}'" for argument in arguments)
        environment = {"RES_OPTIONS": "timeout:1 attempts:1", **(self.proxy.environment if proxied else {})}
        exit_code, printed = self.containers.run(
            self.network, f"python3 - {quoted} <<'END'\n{script}\nEND", image=PYTHON, environment=environment
        )
        assert exit_code == 0, printed
        return printed

    def ask(self, *urls: str, proxied: bool = True) -> list[str]:
        found: list[str] = json.loads(self.python(ASK, *urls, proxied=proxied))
        return found

    def knock(self, *endpoints: str) -> list[str]:
        found: list[str] = json.loads(self.python(KNOCK, *endpoints, proxied=False))
        return found

    def decisions(self) -> list[dict[str, object]]:
        self.containers.portal.call(self.proxy.close)
        return decisions(self.audit_log)


class Outskirts:
    """A run's proxy, and servers that play the outside."""

    def __init__(self, containers: ContainerWorld) -> None:
        self.containers = containers
        self.outside = StagedOutside()
        self.proxy = EgressProxy(self.outside)
        self.proxy.start()

    def cell(self, suffix: str = "deny") -> Deny:
        return Deny(self.containers, self.proxy, suffix)


@pytest.fixture
def outskirts(containers: ContainerWorld) -> Iterator[Outskirts]:
    made = Outskirts(containers)
    yield made
    made.proxy.stop()


@contextmanager
def open_port() -> Iterator[int]:
    """A server of this machine that listens on all addresses, as many do."""
    with socket.create_server(("0.0.0.0", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"the machine")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


def test_an_allowed_host_is_reached_and_no_other(outskirts: Outskirts) -> None:
    cell = outskirts.cell()
    with stage.serving(stage.hello) as server:
        outskirts.outside.serve("api.example.com", 80, server)
        outskirts.outside.serve("api.example.com", 443, server)
        outskirts.outside.names["evil.example"] = [stage.PUBLIC]
        outskirts.outside.names["a.allowed.example"] = ["169.254.169.254"]
        found = cell.ask(
            "http://api.example.com/x",
            "http://evil.example/x",
            "https://evil.example/x",
            "https://api.example.com.evil.example/",
            f"http://{stage.PUBLIC}/x",
            "http://a.allowed.example/latest/meta-data",
        )
        assert found[0] == "hello"
        assert all("403" in one for one in found[1:]), found
        assert cell.python(TUNNEL) == "hello\n"
    assert server.received[0].startswith(b"GET /x HTTP/1.1\r\nHost: api.example.com\r\n")
    lines = cell.decisions()
    assert [(line["host"], line["method"], line["allowed"]) for line in lines] == [
        ("api.example.com", "GET", True),
        ("evil.example", "GET", False),
        ("evil.example", "CONNECT", False),
        ("api.example.com.evil.example", "CONNECT", False),
        (stage.PUBLIC, "GET", False),
        ("a.allowed.example", "GET", False),
        ("api.example.com", "CONNECT", True),
    ]


def test_without_the_proxy_nothing_outside_is_reached(outskirts: Outskirts) -> None:
    """By name, by address, and by the address of a container in another network."""
    cell = outskirts.cell()
    with stage.serving(stage.hello) as server:
        outskirts.outside.serve("api.example.com", 80, server)
        [by_name] = cell.ask("http://api.example.com/", proxied=False)
    assert "Temporary failure in name resolution" in by_name or "not known" in by_name
    neighbour = outskirts.containers.engine.containers.run(
        BASE, ["python3", "-m", "http.server", "8000"], detach=True,
        labels={"keystone.run": outskirts.containers.run_id},
    )  # fmt: skip
    try:
        neighbour.reload()
        address = neighbour.attrs["NetworkSettings"]["IPAddress"]
        found = cell.knock(f"{address}:8000", f"{stage.PUBLIC}:80", "192.0.2.1:443", "169.254.169.254:80")
    finally:
        neighbour.remove(force=True, v=True)
    assert [one[:4] for one in found] == ["no: "] * 4, found
    assert cell.decisions() == []


def test_another_cell_s_container_can_t_use_this_cell_s_proxy(outskirts: Outskirts) -> None:
    ours, theirs = outskirts.cell("ours"), outskirts.cell("theirs")
    with stage.serving(stage.hello) as server:
        outskirts.outside.serve("api.example.com", 80, server)
        port = port_of(ours.proxy)
        for address in (ours.network.host_address, theirs.network.host_address, own_address()):
            script = ASK.replace("20", "5")
            _, printed = outskirts.containers.run(
                theirs.network,
                f"python3 - http://api.example.com/ <<'END'\n{script}\nEND",
                image=PYTHON,
                environment={"http_proxy": f"http://{address}:{port}"},
            )
            assert "hello" not in printed, printed
        assert server.received == []
        assert ours.ask("http://api.example.com/") == ["hello"]
    assert len(ours.decisions()) == 1


def test_on_the_engine_s_machine_its_ports_are_open_at_the_gateway_and_that_is_said(outskirts: Outskirts) -> None:
    cell = outskirts.cell()
    if cell.network.own_address is not None:
        pytest.fail("these tests run on the engine's machine; for our own container see below")
    with open_port() as port:
        [found] = cell.knock(f"{cell.network.gateway}:{port}")
    assert found == "the machine"
    assert cell.network.gateway_open
    assert "ports of this machine open" in cell.network.notice
    assert ContainerNetwork("n", "n", cell.network.subnet, "", internal=False).notice == ""


DATAGRAMS = r"""
import fcntl, socket, struct, sys
if "eth0" not in [name for _, name in socket.if_nameindex()]:
    sys.exit()
port, word = int(sys.argv[1]), sys.argv[2].encode()
eth0 = socket.if_nametoindex("eth0")
own = socket.inet_ntoa(fcntl.ioctl(socket.socket(), 0x8915, struct.pack("256s", b"eth0"))[20:24])
def send(address, *options, bound="", pktinfo=False):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            for level, name, value in options:
                sender.setsockopt(level, name, value)
            sender.bind((bound, 0))
            extra = [(socket.IPPROTO_IP, 8, struct.pack("I4s4s", eth0, bytes(4), bytes(4)))] if pktinfo else []
            sender.sendmsg([word], extra, 0, (address, port))
        except OSError as error:
            print(address, error)
to_all, device = (socket.SOL_SOCKET, socket.SO_BROADCAST, 1), (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
send("255.255.255.255", to_all, bound=own)
send("255.255.255.255", to_all, device)
send("224.0.0.1", bound=own)
send("172.17.0.1", device, (socket.SOL_SOCKET, socket.SO_DONTROUTE, 1))
send("172.17.0.1", pktinfo=True)
"""
FROM_INSIDE = """
import asyncio, json, os, sys
sys.path.insert(0, "/packages")
sys.path.insert(1, "/source")
import docker
from keystone_action.engine.connect import connect
from keystone_action.evidence.audit import AuditLog
from keystone_action.network.proxy import EgressProxy
from keystone_action.engine.networks import Networks
from keystone_action.spec.models.policies import Egress
from pathlib import Path

async def main():
    client = docker.from_env()
    run_id, image, knock, port, machine, datagrams, hears = sys.argv[1:]
    networks, proxy = Networks(connect(os.environ), run_id), EgressProxy()
    proxy.start()
    seen = []
    for number in range(2):
        async with networks.cell(f"from-inside-{number}", internal=True) as network:
            cell = await proxy.open(Egress(default="deny"), network, AuditLog(Path("/tmp/audit.jsonl")))
            own = cell.url.removeprefix("http://")
            ends = [own, f"{network.gateway or machine}:{port}", f"{machine}:{port}", f"172.17.0.1:{port}"]
            printed = await asyncio.to_thread(
                client.containers.run, image, ["python3", "-c", knock, *ends], network=network.name,
                dns=list(network.dns), labels={"keystone.run": run_id}, cap_drop=["ALL"], remove=True)
            for where in (network.name, "none"):
                await asyncio.to_thread(
                    client.containers.run, image, ["python3", "-c", datagrams, hears, where],
                    network=where, labels={"keystone.run": run_id}, cap_drop=["ALL"], remove=True)
            await cell.close()
            seen.append({"found": json.loads(printed), "open": network.gateway_open, "notice": network.notice,
                         "own": network.own_address == network.host_address})
    proxy.stop()
    print(json.dumps(seen))

asyncio.run(main())
"""


def test_in_a_container_of_the_engine_the_machine_has_no_address_in_the_network(containers: ContainerWorld) -> None:
    """As an action runs. The second network is one that nothing was tried in."""
    import docker as client_library

    packages = Path(client_library.__file__).parents[1]
    source = Path(module.__file__).parents[2]
    binds = {
        "/var/run/docker.sock": {"bind": "/var/run/docker.sock", "mode": "rw"},
        str(source): {"bind": "/source", "mode": "ro"},
        str(packages): {"bind": "/packages", "mode": "ro"},
    }
    containers.need(BASE)
    with open_port() as port, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind(("0.0.0.0", 0))
        ear.settimeout(0.5)
        hears = str(ear.getsockname()[1])
        output = containers.engine.containers.run(
            BASE,
            ["python3", "-c", FROM_INSIDE, containers.run_id, BASE, KNOCK, str(port), own_address(), DATAGRAMS, hears],
            volumes=binds,
            remove=True,
            labels={"keystone.run": containers.run_id},
        )
        heard = set()
        with suppress(TimeoutError):
            while True:
                heard.add(ear.recv(100).decode())
    for seen in json.loads(output):
        assert seen["found"][0].startswith("HTTP/1.1 400"), seen
        assert [one[:3] for one in seen["found"][1:]] == ["no:"] * 3, seen
        assert (seen["open"], seen["notice"], seen["own"]) == (False, DATAGRAMS_OPEN, True)
    # Whether they arrive is the machine's doing (`rp_filter`), and can't be seen from where an action runs.
    assert "none" not in heard


def sniffed(bridge: str, seconds: float, what: threading.Event) -> list[str]:
    """Destinations of UDP packets that cross a bridge until `what` is over."""
    found = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as packets:
        packets.bind((bridge, 0))
        packets.settimeout(0.2)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not what.is_set():
            with suppress(TimeoutError):
                header = packets.recv(2000)[14:]
                if header[9] == socket.IPPROTO_UDP:
                    found.append(socket.inet_ntoa(header[16:20]))
    return found


@pytest.mark.parametrize("forwarding", [True, False])
def test_names_that_an_agent_makes_up_carry_nothing_out(containers: ContainerWorld, forwarding: bool) -> None:
    """The engine's DNS answers for aliases and forwards nothing. With the machine's name servers it would, and those
    are asked by the machine itself where they are on its loopback."""

    async def opened() -> ContainerNetwork:
        return await containers.networks.open("dns", internal=True)

    network = containers.portal.call(opened)
    assert network.dns == ("127.0.0.1",)
    network.hosts["crm_api"] = network.host_address
    alias = containers.engine.api.create_endpoint_config(aliases=["db"])
    server = containers.engine.containers.create(
        BASE, ["sleep", "600"], network=network.name, networking_config={network.name: alias},
        labels={"keystone.run": containers.run_id},
    )  # fmt: skip
    server.start()
    made_up = "RES_OPTIONS='timeout:1 attempts:1' getent ahosts secret.example.com"
    script = f"getent ahosts db | head -1; getent ahosts crm_api | head -1; {made_up}; true"
    done, seen = threading.Event(), []
    bridge = f"br-{network.id[:12]}"
    watching = os.geteuid() == 0 and Path("/sys/class/net", bridge).exists()
    watch = threading.Thread(target=lambda: seen.extend(sniffed(bridge, 60, done)))
    if watching:
        watch.start()
    if forwarding:
        # What is shown here is that packets are seen when there are any.
        network.internal = False
    _, printed = containers.run(network, script)
    time.sleep(0.5)
    done.set()
    server.reload()
    address = server.attrs["NetworkSettings"]["Networks"][network.name]["IPAddress"]
    server.remove(force=True, v=True)
    found = [(line.split()[0], line.split()[-1]) for line in printed.splitlines()]
    assert found == [(address, "db"), (network.host_address, "crm_api")]
    if watching:
        watch.join(60)
        assert bool(seen) is forwarding, seen


def test_an_internal_network_has_no_ipv6(outskirts: Outskirts) -> None:
    cell = outskirts.cell()
    engine = outskirts.containers.engine
    assert engine.networks.get(cell.network.id).attrs["EnableIPv6"] is False
    printed = cell.python("print(open('/proc/net/if_inet6').read())", proxied=False)
    assert {line.split()[-1] for line in printed.splitlines() if line.strip()} <= {"lo"}


def test_a_service_s_container_in_an_internal_network_asks_no_name_server_outside(containers: ContainerWorld) -> None:
    service = containers.start(
        name="web", image=BASE, command=["sh", "-c", "while :; do sleep 600; done"], isolation="container"
    )
    cell = containers.cell(service, internal=True)
    [container] = [one for one in containers.containers(kind="service") if cell.network.name in str(one)]
    assert containers.engine.api.inspect_container(container["Id"])["HostConfig"]["Dns"] == ["127.0.0.1"]


def test_options_that_an_engine_does_not_know_are_left_out(
    containers: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from docker.errors import APIError
    from docker.models.networks import NetworkCollection

    create = NetworkCollection.create

    def picky(self: NetworkCollection, *arguments: object, **fields: object) -> object:
        if fields.get("options"):
            raise APIError("400 Bad Request", explanation="unsupported bridge network option enable_ipv6")
        return create(self, *arguments, **fields)

    monkeypatch.setattr(NetworkCollection, "create", picky)

    async def opened() -> ContainerNetwork:
        return await containers.networks.open("picky", internal=True)

    network = containers.portal.call(opened)
    assert network.internal
    assert network.gateway_open
    assert containers.engine.networks.get(network.id).attrs["Internal"] is True
