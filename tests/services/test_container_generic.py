"""Any image as a service, on the real engine: readiness, isolation, and what is said when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support.containers import NOTHING, ContainerWorld
from support.images import BASE, EXITS_AT_ONCE, MEMORY_HOG, NO_SHELL

from keystone_action.errors import ServiceError

pytestmark = pytest.mark.docker

LISTEN = (
    "import http.server, time; time.sleep({delay});"
    "http.server.HTTPServer(('', 8000), http.server.SimpleHTTPRequestHandler).serve_forever()"
)
FETCH = "python3 -c \"import urllib.request as u; print(u.urlopen('{url}', timeout=2).status)\""

TRY_AGAIN_AND_AGAIN = """python3 -c "
import socket, time
reached, end = 0, time.monotonic() + 5
while time.monotonic() < end:
    with socket.socket() as attempt:
        attempt.settimeout(0.05)
        try:
            reached += attempt.connect_ex(('{host}', 8000)) == 0
        except OSError:
            pass
print('reached' if reached else 'never reached')
" """


def web(delay: float = 0) -> list[str]:
    return ["python3", "-c", LISTEN.format(delay=delay)]


def failure(containers: ContainerWorld, **fields: object) -> str:
    service = containers.start(name="web", **fields)
    with pytest.raises(ServiceError) as failed:
        containers.cell(service)
    assert "service web" in failed.value.message
    return failed.value.message


def test_it_is_reached_by_name_in_its_cells_network_once_its_ports_are_open(containers: ContainerWorld) -> None:
    cell = containers.cell(containers.start(name="web", image=BASE, command=web(delay=1), ports=[8000]))
    assert cell.place.for_agent.url == "http://web:8000"
    assert cell.agent(FETCH.format(url=cell.place.for_agent.url)) == (0, "200\n")
    assert cell.place.for_host.port == 8000
    assert cell.agent(FETCH.format(url=cell.place.for_host.url)) == (0, "200\n")


def test_every_cell_has_a_container_of_its_own(containers: ContainerWorld) -> None:
    service = containers.start(name="web", image=BASE, command=web(), ports=[8000])
    first, second = containers.cell(service), containers.cell(service)
    assert first.place.for_host.host != second.place.for_host.host
    assert len(containers.containers(kind="service")) == 2
    first.close()
    assert len(containers.containers(kind="service")) == 1
    assert second.agent(FETCH.format(url="http://web:8000")) == (0, "200\n")


@contextmanager
def networks_come_and_go(containers: ContainerWorld) -> Iterator[None]:
    """As beside other cells and runs. An engine may lift its rules between networks for a moment each time."""
    over = threading.Event()

    def make_and_remove() -> None:
        while not over.is_set():
            with containers.portal.wrap_async_context_manager(containers.networks.cell("another")):
                pass

    with ThreadPoolExecutor(1) as pool:
        ends = pool.submit(make_and_remove)
        try:
            yield
        finally:
            over.set()
        ends.result()


def test_where_egress_is_denied_no_cell_reaches_another_s_container(containers: ContainerWorld) -> None:
    service = containers.start(name="web", image=BASE, command=web(), ports=[8000])
    first, second = containers.cell(service, internal=True), containers.cell(service, internal=True)
    with networks_come_and_go(containers):
        exit_code, printed = second.agent(TRY_AGAIN_AND_AGAIN.format(host=first.place.for_host.host))
    assert (exit_code, printed) == (0, "never reached\n")


def test_where_egress_is_open_the_engine_keeps_cells_apart(containers: ContainerWorld) -> None:
    """But for the moments in which it makes a network, as docs/security.md says: so one attempt may get through."""
    service = containers.start(name="web", image=BASE, command=web(), ports=[8000])
    first, second = containers.cell(service), containers.cell(service)
    fetch = FETCH.format(url=first.place.for_host.url)
    attempts = (second.agent(fetch) for _ in range(10))
    printed = next((said for exit_code, said in attempts if exit_code != 0), "reached each time")
    assert "timed out" in printed or "unreachable" in printed


def test_with_isolation_database_all_cells_share_one_container_and_are_told(containers: ContainerWorld) -> None:
    service = containers.start(name="web", image=BASE, command=web(), ports=[8000], isolation="database")
    first, second = containers.cell(service), containers.cell(service)
    assert len(containers.containers(kind="service")) == 1
    assert "never reset" in first.place.notices[0]
    for cell in (first, second):
        assert cell.agent(FETCH.format(url="http://web:8000")) == (0, "200\n")
    first.close()
    assert second.agent(FETCH.format(url="http://web:8000")) == (0, "200\n")


def test_wait_for_is_run_inside_until_it_succeeds(containers: ContainerWorld) -> None:
    command = f"sleep 1; touch /ready; {NOTHING}"
    service = containers.start(name="web", image=BASE, command=["sh", "-c", command], wait_for="test -e /ready")
    containers.cell(service)
    [container] = containers.containers(kind="service")
    exit_code, _ = containers.engine.containers.get(container["Id"]).exec_run(["test", "-e", "/ready"])
    assert exit_code == 0


def test_a_wait_for_that_never_succeeds_says_what_it_printed(containers: ContainerWorld) -> None:
    said = failure(
        containers,
        image=BASE,
        command=["sh", "-c", f"echo warming up; {NOTHING}"],
        wait_for="echo no sign of life; exit 7",
        ready_timeout="5s",
    )
    assert "was not ready within 5 s: wait_for ended with exit code 7 (no sign of life)" in said
    assert said.endswith("it printed last:\nwarming up")


def test_a_wait_for_that_hangs_is_given_up(containers: ContainerWorld) -> None:
    said = failure(containers, image=BASE, command=["sh", "-c", NOTHING], wait_for="sleep 3000", ready_timeout="1s")
    assert "was not ready within 1 s" in said


def test_a_closed_port_is_named(containers: ContainerWorld) -> None:
    said = failure(containers, image=BASE, command=["sh", "-c", NOTHING], ports=[8000, 9000], ready_timeout="5s")
    assert "was not ready within 5 s: port 8000 does not accept connections" in said
    assert said.endswith("it printed nothing")


@pytest.mark.parametrize("fields", [{"ports": [8080]}, {"wait_for": "false"}, {}])
def test_one_that_ends_at_once_says_how_and_what_it_printed_last(
    containers: ContainerWorld, fields: dict[str, object]
) -> None:
    said = failure(containers, image=EXITS_AT_ONCE, **fields)
    assert "with exit code 3" in said
    assert said.endswith("it printed last:\nfatal: LICENSE_KEY is not set")


def test_one_that_ends_before_it_is_ready_is_not_waited_for(containers: ContainerWorld) -> None:
    said = failure(containers, image=BASE, command=["sh", "-c", "sleep 1; exit 4"], ports=[8000], ready_timeout="500s")
    assert "ended before it was ready, with exit code 4" in said


def test_no_shell_in_the_image_is_said_of_wait_for(containers: ContainerWorld) -> None:
    assert "the image has no /bin/sh" in failure(containers, image=NO_SHELL, wait_for="true")


def test_a_command_that_the_image_has_not_is_said(containers: ContainerWorld) -> None:
    service = containers.start(name="web", image=BASE, command=["nonesuch"])
    with pytest.raises(ServiceError) as failed:
        containers.cell(service)
    assert "nonesuch" in failed.value.message
    assert "`command`" in failed.value.help


def test_out_of_memory_is_said(containers: ContainerWorld) -> None:
    containers.need(MEMORY_HOG)
    limit = "while ! test -e /limited; do sleep 0.1; done; exec python3 /take.py"
    service = containers.start(name="web", image=MEMORY_HOG, command=["sh", "-c", limit], ports=[8000])
    with ThreadPoolExecutor(1) as others:
        cell = others.submit(containers.cell, service)
        while not (found := [one for one in containers.containers(service="web") if one["State"]["Running"]]):
            time.sleep(0.05)
        container = containers.engine.containers.get(found[0]["Id"])
        container.update(mem_limit=64 << 20, memswap_limit=64 << 20)
        while container.exec_run(["touch", "/limited"]).exit_code != 0:
            time.sleep(0.05)
        with pytest.raises(ServiceError, match="was killed before it was ready: it was out of memory"):
            cell.result()


def test_it_is_labelled_hardened_bounded_publishes_no_port_and_refuses_sql(containers: ContainerWorld) -> None:
    cell = containers.cell(containers.start(name="web", image=BASE, command=["sh", "-c", NOTHING], env={"A": "1"}))
    [container] = containers.containers(kind="service", service="web")
    config, host = container["Config"], container["HostConfig"]
    assert config["Labels"]["keystone.cell"] == "cell-0"
    assert "A=1" in config["Env"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert not host["Privileged"]
    assert not host["Binds"]
    assert not host["PortBindings"]
    assert host["PidsLimit"] > 0
    assert host["LogConfig"]["Config"]["max-size"]
    assert {"NET_RAW", "MKNOD"} <= set(host["CapDrop"])
    with pytest.raises(ServiceError, match="sql needs a database"):
        cell.fixture("SELECT 1")


def test_its_volumes_go_with_it(containers: ContainerWorld) -> None:
    containers.need("mariadb:11")
    service = containers.start(
        name="web", image="mariadb:11", type="container", command=["mariadbd"], env={"MARIADB_ROOT_PASSWORD": "x"}
    )
    [container] = containers.containers(kind="service")
    volumes = [mount["Name"] for mount in container["Mounts"] if mount["Type"] == "volume"]
    assert volumes
    containers.portal.call(service.stop)
    left = {volume.name for volume in containers.engine.volumes.list()}
    assert not left & set(volumes)


def test_stopping_removes_what_cells_still_have(containers: ContainerWorld) -> None:
    service = containers.start(name="web", image=BASE, command=["sh", "-c", NOTHING])
    containers.cell(service)
    containers.portal.call(service.stop)
    assert containers.left()["containers"] == []


def test_one_that_ended_between_cells_is_said(containers: ContainerWorld) -> None:
    service = containers.start(
        name="web", image=BASE, command=["sh", "-c", "echo bye; sleep 2; exit 9"], isolation="database"
    )
    [container] = containers.containers(kind="service")
    containers.engine.containers.get(container["Id"]).wait(timeout=60)
    with pytest.raises(ServiceError, match=r"ended between two cells, with exit code 9.*\nbye"):
        containers.cell(service)
