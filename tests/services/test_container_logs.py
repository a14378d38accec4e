"""What a service's container printed is found after it is gone, bounded and without secrets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers import NOTHING, SECRET, ContainerWorld
from support.images import BASE, EXITS_AT_ONCE, POSTGRES

from keystone_action.errors import ServiceError
from keystone_action.services.container import engine_container as kept_logs
from keystone_action.services.container.engine_container import KeptLogs

MIB = 1 << 20


def says(*lines: str) -> list[str]:
    return ["sh", "-c", "; ".join([*(f"echo '{line}'" for line in lines), "touch /said", NOTHING])]


@pytest.mark.docker
def test_each_cells_container_leaves_a_file_of_its_own(containers: ContainerWorld) -> None:
    service = containers.start(
        name="web", image=BASE, command=says("hello", f"token={SECRET}"), wait_for="test -e /said"
    )
    cells = [containers.cell(service) for _ in range(2)]
    assert containers.logs() == {}
    for cell in cells:
        cell.close()
    wanted = "hello\ntoken=***\n"
    assert containers.logs() == {"web-cell-0.log": wanted, "web-cell-1.log": wanted}


@pytest.mark.docker
def test_a_container_that_cells_share_leaves_one_file_for_the_run(containers: ContainerWorld) -> None:
    service = containers.start(name="db", image=POSTGRES, env={"POSTGRES_PASSWORD": SECRET})
    for _ in range(2):
        containers.cell(service).close()
    containers.portal.call(service.stop)
    [(name, log)] = containers.logs().items()
    assert name == "db.log"
    assert "database system is ready to accept connections" in log


@pytest.mark.docker
def test_one_that_never_got_ready_leaves_its_log_too(containers: ContainerWorld) -> None:
    service = containers.start(name="web", image=EXITS_AT_ONCE, wait_for="true")
    with pytest.raises(ServiceError):
        containers.cell(service)
    assert containers.logs() == {"web-cell-0.log": "fatal: LICENSE_KEY is not set\n"}


@pytest.mark.docker
def test_of_a_long_log_both_ends_are_kept_and_what_the_engine_lost_is_said(containers: ContainerWorld) -> None:
    lines = 200_000
    command = ["sh", "-c", f"seq -f 'line %.0f of many' {lines}; touch /said; {NOTHING}"]
    service = containers.start(name="web", image=BASE, command=command, wait_for="test -e /said")
    cell = containers.cell(service)
    [container] = containers.containers(service="web")
    written = containers.engine.containers.get(container["Id"])
    while written.logs(tail=1) != f"line {lines} of many\n".encode():
        time.sleep(0.05)
    began = time.monotonic()
    cell.leave()
    [log] = containers.logs().values()
    if "could not be had" in log:
        assert time.monotonic() - began > 1
    else:
        assert len(log) < 2 * MIB + 500
        assert f"line {lines} of many" in log
        assert "line 1 of many" not in log
        assert "what came before may be missing]" in log


@pytest.mark.docker
def test_a_container_that_somebody_removed_is_said(containers: ContainerWorld) -> None:
    service = containers.start(name="web", image=BASE, command=says("hello"))
    cell = containers.cell(service)
    [container] = containers.containers(service="web")
    containers.engine.containers.get(container["Id"]).remove(force=True, v=True)
    cell.close()
    [log] = containers.logs().values()
    assert "could not be had" in log
    assert "No such container" in log


def test_a_second_container_of_the_same_name_replaces_nothing(tmp_path: Path) -> None:
    logs = KeptLogs(tmp_path / "services", str)
    for text in (b"one", b"two", b"three"):
        logs.keep("db", "", text)
    kept = {path.name: path.read_text() for path in (tmp_path / "services").iterdir()}
    assert kept == {"db.log": "one", "db.2.log": "two", "db.3.log": "three"}


def test_one_that_printed_nothing_leaves_nothing(tmp_path: Path) -> None:
    KeptLogs(tmp_path, str).keep("db", "cell", b"")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logs = KeptLogs(tmp_path / "file" / "services", str)
    logs.keep("db", "", b"text")
    logs.lack("db", "", "reason")
    assert (tmp_path / "file").read_text() == ""


def test_the_cut_is_said_and_no_half_of_a_secret_stays_at_it(tmp_path: Path) -> None:
    from keystone_action.evidence.masking import Masker

    printed = b"a" * (MIB - 4) + SECRET.encode() + b"b" * MIB
    KeptLogs(tmp_path, Masker({"TOKEN": SECRET}).text).keep("db", "", printed)
    text = (tmp_path / "db.log").read_text()
    assert "\n[… 4 bytes cut …]\n" in text
    assert SECRET[:4] not in text
    assert "engine keeps" not in text


@given(service=st.from_regex(r"[a-z0-9]{63}", fullmatch=True), cell=st.text("abc-.", min_size=1, max_size=250))
def test_any_cells_id_makes_a_file_name(service: str, cell: str) -> None:
    stem = f"{service}-{kept_logs._short(cell)}.999.log"
    assert len(stem) <= 255
    assert kept_logs._short(cell) == cell or kept_logs._short(cell) != kept_logs._short(cell + "a")


@given(st.binary(max_size=300))
def test_any_bytes_are_kept_as_text(printed: bytes) -> None:
    kept: list[str] = []
    KeptLogs(Path("/proc/nonesuch"), lambda text: (kept.append(text), text)[1]).keep("db", "", printed)
    assert kept == ([printed.decode("utf-8", "replace")] if printed else [])
