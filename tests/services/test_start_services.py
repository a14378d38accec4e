"""Starting all services of a spec at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from pydantic import TypeAdapter

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.audit import AuditLog
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.services.http_mock.server import MockServer
from keystone_action.services.service import (
    CellScope,
    Place,
    RunningService,
    Surroundings,
    class_of,
    refuse_unsupported,
    start_services,
    stop_services,
)
from keystone_action.spec.models.services import SERVICE_TYPES, Service


def define(*documents: dict[str, Any]) -> list[Service]:
    return TypeAdapter(list[Service]).validate_python(list(documents))


@pytest.mark.parametrize("kind", SERVICE_TYPES)
def test_every_type_of_the_format_has_a_class_in_the_file_of_its_name(kind: str) -> None:
    module = class_of(kind).__module__.removeprefix("keystone_action.services.")
    assert module in (kind, f"{kind}.service")
    assert "build" in vars(class_of(kind))


def test_a_kind_without_a_file_is_told() -> None:
    with pytest.raises(TypeError, match=r"keystone_action\.services\.nonsense, which is not there"):
        class_of("nonsense")


@pytest.fixture
def mocks() -> Iterator[MockServer]:
    server = MockServer()
    yield server
    server.stop()


def test_every_kind_starts_and_hands_out_an_address(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, mocks: MockServer, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        definitions = define(
            {"name": "db", "image": "postgres:16", "env": {"POSTGRES_PASSWORD": "x"}},
            {"name": "smtp", "type": "http_mock", "record": True},
            {"name": "file", "type": "sqlite", "path": "data.db"},
            {"name": "cache", "type": "external", "url": f"redis://127.0.0.1:{listener.getsockname()[1]}"},
        )

        async def run() -> tuple[list[RunningService], list[Place]]:
            running = await start_services(definitions, Surroundings(sandboxes, tmp_path, mocks))
            scope = CellScope("cell", tmp_path, tmp_path, AuditLog(tmp_path / "audit.jsonl"), exclusive=True)
            async with AsyncExitStack() as stack:
                places = [await stack.enter_async_context(service.attach(scope)) for service in running]
            await stop_services(running)
            return running, places

        running, places = portal.call(run)
    assert [service.name for service in running] == ["db", "smtp", "file", "cache"]
    assert [one.name for one in places] == ["db", "smtp", "file", "cache"]
    assert all(one.for_agent.url for one in places)
    assert [one.database is not None for one in places] == [True, False, True, False]
    assert [one.requests is not None for one in places] == [False, True, False, False]
    assert not [path for path in sandboxes.root.iterdir() if path.name.startswith("postgres-")]


def test_the_first_failure_tells_which_and_stops_the_others(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, mocks: MockServer, tmp_path: Path
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        definitions = define(
            {"name": "db", "type": "postgres"},
            {
                "name": "gone",
                "type": "external",
                "url": f"redis://127.0.0.1:{silent.getsockname()[1]}",
                "ready_timeout": "500ms",
            },
        )

        async def run() -> None:
            await start_services(definitions, Surroundings(sandboxes, tmp_path, mocks))

        with pytest.raises(ServiceError, match=r"^service gone: nothing answered at redis://.* within 0\.5 s"):
            portal.call(run)
    assert not [path for path in sandboxes.root.iterdir() if path.name.startswith("postgres-")]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"name": "x", "type": "postgres", "isolation": "container"}, "service x: isolation: container needs a"),
        ({"name": "x", "image": "postgres:16", "command": "postgres -c a=b"}, "service x: command needs a"),
    ],
)
def test_what_no_embedded_server_can_do_is_refused_before_anything_starts(
    document: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        refuse_unsupported(define(document))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("image", ["redis:7", "mysql:9"])
def test_an_image_without_an_engine_is_refused(
    portal: BlockingPortal,
    sandboxes: process.ProcessSandboxes,
    mocks: MockServer,
    tmp_path: Path,
    image: str,
) -> None:
    async def run() -> None:
        await start_services(define({"name": "x", "image": image}), Surroundings(sandboxes, tmp_path, mocks))

    with pytest.raises(UsageError, match="service x needs a container engine"):
        portal.call(run)


def test_what_runs_here_is_not_refused() -> None:
    refuse_unsupported(
        define(
            {"name": "a", "type": "postgres"},
            {"name": "b", "image": "docker.io/library/postgres:16@sha256:" + "0" * 64},
            {"name": "c", "type": "http_mock"},
            {"name": "d", "type": "sqlite", "path": "{{ params.file }}"},
            {"name": "e", "type": "external", "url": "{{ secrets.URL }}"},
        )
    )
