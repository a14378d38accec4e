"""Relays: what only we can reach, for the containers of one cell and no others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from support import egress as stage
from support.containers import ContainerWorld, ServedCell
from support.databases import PostgresForTests
from support.egress import exchange
from support.images import POSTGRES
from support.places import attached

from keystone_action.engine.networks import ContainerNetwork
from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.network.loop_thread import LoopThread
from keystone_action.network.relay import PortRelay, PortRelays, RelayTarget
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.services.external import External
from keystone_action.services.external_address import ExternalAddress
from keystone_action.services.http_mock.server import MockServer
from keystone_action.services.postgres.service import EmbeddedPostgres
from keystone_action.services.service import CellScope, Place
from keystone_action.spec.models.services import ExternalService, PostgresService

ASK = "python3 -c \"import urllib.request as u; print(u.urlopen('{url}', timeout=5).read().decode())\""


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("keystone-relay", "the relay to services")
    yield made

    async def nothing() -> None:
        return

    made.stop(nothing)


def open_relay(thread: LoopThread, network: ContainerNetwork, host: str, port: int) -> PortRelay:
    relay = PortRelay(thread, network, RelayTarget(host, port))
    asyncio.run(relay.open())
    return relay


def test_it_passes_on_both_ways_and_only_for_its_network(thread: LoopThread) -> None:
    network = stage.loopback_network()
    data = bytes(range(256)) * 20_000
    with stage.serving(stage.echo) as server:
        relay = open_relay(thread, network, "localhost", server.port)
        # The server has its own port of this address, so the relay's is another.
        assert relay.port != server.port
        with stage.connect(relay.port) as client:
            client.sendall(b"ping")
            assert client.recv(4) == b"ping"
            client.sendall(data[:100_000])
            client.shutdown(socket.SHUT_WR)
            assert stage.read_all(client) == data[:100_000]
        assert len(server.received) == 1
        assert exchange(relay.port, b"ping", source="127.0.0.1") == b""
        network.shared.add("127.0.0.5")
        assert exchange(relay.port, b"ping", source="127.0.0.5") == b""
        assert len(server.received) == 1
        port = relay.port
        asyncio.run(relay.close())
        asyncio.run(relay.close())
        with pytest.raises(ConnectionRefusedError):
            stage.connect(port)


def test_the_target_s_own_port_where_it_is_free(thread: LoopThread) -> None:
    network = stage.loopback_network()
    with stage.serving(stage.echo) as server:
        network.own_address = "127.0.0.77"
        relay = open_relay(thread, network, "127.0.0.1", server.port)
        assert relay.port == server.port
        asyncio.run(relay.close())


def test_what_does_not_answer_is_hung_up_on_and_asked_again_by_the_next(thread: LoopThread) -> None:
    network = stage.loopback_network()
    with stage.serving(stage.echo) as server:
        gone = server.port
    relay = open_relay(thread, network, "127.0.0.1", gone)
    assert exchange(relay.port, b"x") == b""
    unknown = open_relay(thread, network, "no-such-name.invalid", 80)
    assert exchange(unknown.port, b"x") == b""
    assert thread.defects == []


def test_it_ends_with_open_connections(thread: LoopThread) -> None:
    with stage.serving(stage.echo) as server:
        relay = open_relay(thread, stage.loopback_network(), "127.0.0.1", server.port)
        with stage.connect(relay.port) as client:
            client.sendall(b"ping")
            assert client.recv(4) == b"ping"
            asyncio.run(relay.close())
            assert stage.read_all(client) == b""


def test_an_address_that_is_not_ours_is_said(thread: LoopThread) -> None:
    network = stage.loopback_network()
    network.own_address = "192.0.2.1"
    with pytest.raises(ServiceError, match=r"192\.0\.2\.1 is not an address of this machine"):
        open_relay(thread, network, "127.0.0.1", 1)


def test_each_relay_of_a_service_ends_with_its_block() -> None:
    relays = PortRelays()
    with stage.serving(stage.echo) as server, start_blocking_portal() as portal:

        def open_one() -> AbstractContextManager[PortRelay]:
            target = RelayTarget("127.0.0.1", server.port)
            return portal.wrap_async_context_manager(relays.open(stage.loopback_network(), target))

        with open_one() as second:
            with open_one() as first:
                ports = first.port, second.port
            with pytest.raises(ConnectionRefusedError):
                stage.connect(ports[0])
            assert exchange(ports[1], b"x") == b"x"
        with pytest.raises(ConnectionRefusedError):
            stage.connect(ports[1])
        portal.call(relays.stop)


@pytest.mark.parametrize(
    ("url", "port", "expected"),
    [
        ("http://localhost:3000/v1?x=1", 3000, "http://svc:3000/v1?x=1"),
        ("http://localhost:3000/v1?x=1", 3001, "http://svc:3001/v1?x=1"),
        ("postgresql://us%40er:p%2Fw@127.0.0.1/d?sslmode=disable", 5432, "postgresql://us%40er:p%2Fw@svc/d?sslmode=disable"),
        ("postgresql://u:p@127.0.0.1/d", 6000, "postgresql://u:p@svc:6000/d"),
        ("mysql://u:p@[::1]:3307/d", 3307, "mysql://u:p@svc:3307/d"),
        ("https://api.corp.example/v1", 443, "https://api.corp.example/v1"),
        ("https://api.corp.example/v1", 40001, "https://api.corp.example:40001/v1"),
        ("https://API.corp.example:8443/", 8443, "https://api.corp.example:8443/"),
        ("redis://cache", 6379, "redis://cache"),
        ("redis://10.0.0.5:6379/0", 6379, "redis://svc:6379/0"),
        ("http://db.localhost:80/", 80, "http://svc:80/"),
    ],
)  # fmt: skip
def test_an_address_by_a_relay(url: str, port: int, expected: str) -> None:
    found = ExternalAddress.from_url("svc", url).by_relay("svc", port)
    assert found.url == expected
    assert found.port == port
    assert found.host in expected
    before = ExternalAddress.from_url("svc", url).address
    assert (found.user, found.password, found.database) == (before.user, before.password, before.database)


def external(url: str) -> External:
    definition = {"type": "external", "name": "svc", "url": url, "ready_timeout": 10}
    return External(ExternalService.model_validate(definition))


@contextmanager
def used(
    service: External, tmp_path: Path, network: ContainerNetwork | None, *, in_network: bool = True
) -> Iterator[Place]:
    scope = CellScope("c", tmp_path, tmp_path, AuditLog(tmp_path / "a"), True, network=network, in_network=in_network)
    with attached(service, scope) as place:
        yield place


def test_an_agent_that_reaches_it_itself_needs_no_relay(tmp_path: Path) -> None:
    network = stage.loopback_network()
    with stage.serving(stage.hello) as server:
        url = f"http://localhost:{server.port}/"
        with used(external(url), tmp_path, None) as place:
            assert place.for_agent.url == url
        with used(external(url), tmp_path, network, in_network=False) as place:
            assert place.for_agent.url == url
    network.internal = False
    public = external("http://93.184.216.34/")
    with used(public, tmp_path, network) as place:
        assert place.for_agent.url == "http://93.184.216.34/"
    assert network.hosts == {}


@pytest.mark.parametrize("internal", [True, False])
def test_an_agent_in_a_container_gets_an_address_that_is_valid_there(tmp_path: Path, internal: bool) -> None:
    network = stage.loopback_network()
    network.internal = internal
    with stage.serving(stage.hello) as server:
        service = external(f"http://localhost:{server.port}/x")
        with used(service, tmp_path, network) as place:
            assert place.for_host.url == f"http://localhost:{server.port}/x"
            assert place.for_agent.url == f"http://svc:{place.for_agent.port}/x"
            assert network.hosts == {"svc": "127.0.0.1"}
            assert place.for_agent.port is not None
            assert exchange(place.for_agent.port, b"GET / HTTP/1.0\r\n\r\n").endswith(b"hello")
        with pytest.raises(ConnectionRefusedError):
            stage.connect(place.for_agent.port)
        asyncio.run(service.stop())


def test_parameters_that_would_pass_a_relay_by_are_refused(tmp_path: Path, postgres_url: str) -> None:
    service = external(f"{postgres_url}?hostaddr=127.0.0.1")
    with pytest.raises(ServiceError, match=r"service svc: .* by a relay, which its parameter hostaddr would pass by"):
        used(service, tmp_path, stage.loopback_network()).__enter__()


@pytest.fixture
def postgres_url(postgres: PostgresForTests) -> Iterator[str]:
    cell = postgres.attach()
    yield cell.place.for_host.url
    cell.close()


@pytest.mark.docker
@pytest.mark.parametrize("internal", [True, False])
def test_a_container_reaches_a_service_of_this_machine_s_loopback(containers: ContainerWorld, internal: bool) -> None:
    with stage.serving(stage.hello) as server:
        service = containers.start(name="api", type="external", url=f"http://127.0.0.1:{server.port}/")
        ours = containers.cell(service, internal=internal)
        theirs = containers.cell(service, internal=internal)
        url = ours.place.for_agent.url
        assert url == f"http://api:{server.port}/"
        before = len(server.received)
        assert ours.agent(ASK.format(url=url)) == (0, "hello\n")
        for address in (ours.network.host_address, theirs.network.host_address):
            direct = f"http://{address}:{server.port}/"
            exit_code, printed = containers.run(theirs.network, ASK.format(url=direct))
            # Their own way there is theirs; ours is not.
            assert (exit_code == 0) is (address == theirs.network.host_address), printed
        assert len(server.received) == before + 2


@pytest.fixture
def embedded(
    containers: ContainerWorld, portal: BlockingPortal, sandboxes: process.ProcessSandboxes
) -> Iterator[EmbeddedPostgres]:
    containers.need(POSTGRES)
    definition = PostgresService.model_validate({"type": "postgres", "name": "db"})
    service = EmbeddedPostgres(
        definition, sandboxes.root / f"{containers.run_id}-db", sandboxes, containers.mocks.thread
    )
    portal.call(service.start)
    yield service
    portal.call(service.stop)


@pytest.mark.docker
def test_a_container_reaches_its_own_database_of_the_embedded_postgresql(
    containers: ContainerWorld, embedded: EmbeddedPostgres
) -> None:
    first, second = (containers.cell(embedded, internal=True) for _ in range(2))

    def psql(cell: ServedCell, url: str) -> tuple[int, str]:
        return cell.agent(f"psql '{url}' -X -A -t -c 'SELECT current_database()' 2>&1", image=POSTGRES)

    ours, theirs = first.place.for_agent, second.place.for_agent
    assert ours.host == "db"
    assert first.place.for_host.host == "127.0.0.1"
    assert psql(first, ours.url) == (0, f"{ours.database}\n")
    # Another cell's database by one's own way there: no password, no entry.
    for url in (
        ours.url.replace(ours.database, theirs.database),
        ours.url.replace(f":{ours.password}@", "@").replace(f"//{ours.user}", f"//{theirs.user}"),
    ):
        exit_code, printed = psql(first, url)
        assert exit_code != 0, printed
    # Somebody else's relay is shut even for who knows the password.
    at_ours = theirs.url.replace("@db:", f"@{second.network.host_address}:")
    exit_code, printed = psql(first, at_ours)
    assert exit_code != 0, printed
    first.fixture("CREATE TABLE t AS SELECT 7 AS n")
    assert list(first.query("SELECT n FROM t").rows) == [(7,)]


@pytest.mark.docker
def test_a_way_that_can_t_be_opened_leaves_no_database_behind(
    containers: ContainerWorld, embedded: EmbeddedPostgres
) -> None:
    cell = containers.cell(embedded)
    network = cell.network
    network.own_address = "192.0.2.1"
    scope = CellScope(
        "x", containers.directory, containers.directory, AuditLog(containers.directory / "a"), False, network=network,
        in_network=True,
    )  # fmt: skip
    with pytest.raises(ServiceError, match=r"service db: 192\.0\.2\.1 is not an address of this machine"):
        containers.portal.call(embedded.attach(scope).__aenter__)
    count = cell.query("SELECT count(*) FROM pg_database WHERE datname LIKE 'cell_%'")
    assert list(count.rows) == [(1,)]


def test_a_mock_server_s_thread_serves_relays_too() -> None:
    mocks = MockServer()
    with stage.serving(stage.echo) as server:
        relay = open_relay(mocks.thread, stage.loopback_network(), "127.0.0.1", server.port)
        assert exchange(relay.port, b"x") == b"x"
        mocks.stop()
        asyncio.run(relay.close())
