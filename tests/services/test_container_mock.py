"""A mock, as containers of its cell's network reach it, and as no others do."""

from __future__ import annotations

import json

import httpx
import pytest
from support.containers import ContainerWorld, ServedCell
from support.images import BASE

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.services.service import CellScope

pytestmark = pytest.mark.docker

ASK = "python3 -c \"import urllib.request as u; print(u.urlopen('{url}', timeout=5).read().decode())\""
RELAY = (
    "import socket, sys; s = socket.create_connection(('{host}', {port}), 5);"
    "s.sendall(b'GET /relayed HTTP/1.0\\r\\n\\r\\n'); print(s.recv(100))"
)


def mock(containers: ContainerWorld, **fields: object) -> ServedCell:
    service = containers.build(
        name="crm_api",
        type="http_mock",
        record=True,
        routes=[{"method": "GET", "path": "/customers/{id}", "json": {"id": "{{ request.params.id }}"}}],
    )
    containers.portal.call(service.start)
    return containers.cell(service, **fields)  # type: ignore[arg-type]


def paths(cell: ServedCell) -> list[str]:
    assert cell.place.requests is not None
    return [request.path for request in cell.place.requests.requests()]


@pytest.mark.parametrize("internal", [False, True])
def test_a_container_of_the_cell_reaches_it_by_name(containers: ContainerWorld, internal: bool) -> None:
    cell = mock(containers, internal=internal)
    url = cell.place.for_agent.url
    assert url.startswith("http://crm_api:")
    exit_code, printed = cell.agent(ASK.format(url=f"{url}/customers/7"))
    assert (exit_code, json.loads(printed)) == (0, {"id": "7"})
    assert httpx.get(f"{cell.place.for_host.url}/customers/8", trust_env=False).json() == {"id": "8"}
    assert paths(cell) == ["/customers/7", "/customers/8"]
    assert cell.place.requests is not None
    assert cell.place.requests.requests()[0].url == f"{url}/customers/7"


def test_a_container_of_another_cell_is_refused_and_not_recorded(containers: ContainerWorld) -> None:
    ours, theirs = mock(containers), mock(containers)
    port = ours.place.for_agent.port
    for address in (ours.network.host_address, theirs.network.host_address):
        exit_code, printed = theirs.agent(ASK.format(url=f"http://{address}:{port}/customers/1"))
        assert exit_code != 0, printed
    assert paths(ours) == []
    assert paths(theirs) == []
    ours.close()
    assert '"strangers": 1' in ours.scope.audit_log.path.read_text()


def test_a_container_outside_of_all_cells_is_refused(containers: ContainerWorld) -> None:
    cell = mock(containers)
    address, port = cell.network.host_address, cell.place.for_agent.port
    with pytest.raises(Exception, match="non-zero exit status"):
        containers.engine.containers.run(
            BASE, ["sh", "-c", ASK.format(url=f"http://{address}:{port}/customers/1")], remove=True,
            labels={"keystone.run": containers.run_id},
        )  # fmt: skip
    assert paths(cell) == []


def test_a_process_of_this_machine_is_refused_at_the_networks_address(containers: ContainerWorld) -> None:
    cell = mock(containers)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{cell.network.host_address}:{cell.place.for_agent.port}/customers/1", trust_env=False)
    assert paths(cell) == []


def test_a_container_that_cells_share_does_not_speak_for_one_of_them(containers: ContainerWorld) -> None:
    shared = containers.start(
        name="relay", image=BASE, command=["sh", "-c", "while :; do sleep 600; done"], isolation="database"
    )
    cell = mock(containers)
    joined = containers.cell(shared, network=cell.network)
    assert joined.network.shared
    [container] = containers.containers(kind="service", service="relay")
    script = RELAY.format(host=cell.network.host_address, port=cell.place.for_agent.port)
    result = containers.engine.containers.get(container["Id"]).exec_run(["python3", "-c", script])
    assert b"HTTP/1" not in result.output
    assert paths(cell) == []


def test_an_address_that_is_not_ours_is_said(containers: ContainerWorld) -> None:
    cell = mock(containers)
    elsewhere = cell.network
    elsewhere.own_address = "192.0.2.1"
    private = containers.directory / "elsewhere"
    private.mkdir()
    scope = CellScope("elsewhere", private, private, AuditLog(private / "audit.jsonl"), True, network=elsewhere)
    with pytest.raises(ServiceError, match=r"service crm_api: 192\.0\.2\.1 is not an address of") as failed:
        containers.portal.call(cell.service.attach(scope).__aenter__)
    assert "engine must run on this machine" in failed.value.help


def test_after_the_cell_nothing_listens(containers: ContainerWorld) -> None:
    cell = mock(containers)
    network = cell.network
    port = cell.place.for_agent.port
    cell.leave()
    exit_code, printed = containers.run(network, ASK.format(url=f"http://{network.host_address}:{port}/"))
    assert exit_code != 0
    assert "refused" in printed
