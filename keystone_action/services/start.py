"""From the `services` of a spec to running ones: each kind's class, all started at once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from keystone_action.errors import KeystoneError, ServiceError, UsageError
from keystone_action.services.base import RunningService
from keystone_action.services.server_process import ScriptHost, Spawner
from keystone_action.spec.models.services import (
    ContainerService,
    ExternalService,
    HttpMockService,
    MysqlService,
    PostgresService,
    Service,
    SqliteService,
)

if TYPE_CHECKING:
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.services.http_mock.server import MockServer


class Provider(Spawner, ScriptHost, Protocol):
    """A process sandbox, as far as services need it. root: below it, directories are passable for servers' users."""


def refuse_unsupported(definitions: Sequence[Service], *, engine: bool = False) -> None:
    """Raises UsageError for what an embedded server, in place of an image, can't do (engine: one for containers is
    there); starts nothing. For use before the first cell: definitions may still hold expressions."""
    for definition in definitions:
        if not isinstance(definition, PostgresService | ContainerService) or definition.kind != "postgres":
            continue
        if definition.image is None or not engine:
            from keystone_action.services.postgres.embedded import refuse_what_only_an_image_has

            refuse_what_only_an_image_has(definition)


async def start_services(
    definitions: Sequence[Service],
    *,
    provider: Provider,
    directory: Path,
    mocks: MockServer,
    containers: ContainerHost | None = None,
) -> list[RunningService]:
    """Start all services of a spec at once and return them when every one is ready, in the order of the spec.

    directory: the spec's; files of mock responses are read from there. mocks: the run's server for mocks, which its
    maker stops. containers: the engine on which images are started, and how; None = there is none. Raises UsageError
    for a definition that can't be started here, and the ServiceError of the first service that fails, after all others
    were stopped.
    """
    import anyio

    refuse_unsupported(definitions, engine=containers is not None)
    services = [build_service(definition, provider, directory, mocks, containers) for definition in definitions]
    failures: list[KeystoneError] = []

    async def start(service: RunningService) -> None:
        try:
            await service.start()
        except KeystoneError as error:
            failures.append(error)
            group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - a defect of a kind must name its service too
            failures.append(ServiceError(f"service {service.name} can't be started: {type(error).__name__}: {error}"))
            group.cancel_scope.cancel()

    ready = False
    try:
        async with anyio.create_task_group() as group:
            for service in services:
                group.start_soon(start, service)
        ready = not failures
    finally:
        if not ready:
            with anyio.CancelScope(shield=True):
                await stop_services(services)
    if failures:
        raise failures[0]
    return services


async def stop_services(services: Sequence[RunningService]) -> None:
    """Stop all at once. Never raises."""
    import anyio

    async with anyio.create_task_group() as group:
        for service in services:
            group.start_soon(service.stop)


def build_service(
    definition: Service, provider: Provider, directory: Path, mocks: MockServer, containers: ContainerHost | None
) -> RunningService:
    """A service that is not started; see `start_services`. Raises UsageError."""
    if containers is not None and (in_container := _in_container(definition, containers)) is not None:
        return in_container
    if isinstance(definition, SqliteService):
        from keystone_action.services.sqlite.service import SqliteFile

        return SqliteFile(definition, provider)
    if isinstance(definition, ExternalService):
        from keystone_action.services.external import External

        return External(definition, mocks.thread)
    if isinstance(definition, HttpMockService):
        from keystone_action.services.http_mock import service as http_mock

        return http_mock.HttpMock(definition, mocks, directory)
    if isinstance(definition, PostgresService | ContainerService) and definition.kind == "postgres":
        from keystone_action.services.postgres.embedded import EmbeddedPostgres

        return EmbeddedPostgres(definition, provider.root / f"postgres-{secrets.token_hex(6)}", provider, mocks.thread)
    raise UsageError(
        f"service {definition.name} needs a container engine", help="Start Docker, or set DOCKER_HOST to where it is."
    )


def _in_container(definition: Service, host: ContainerHost) -> RunningService | None:
    """The service for a definition that needs the engine; None for all others (`type: postgres` without an image is
    always embedded). Raises UsageError."""
    if isinstance(definition, PostgresService | ContainerService) and definition.kind == "postgres":
        if definition.image is None:
            return None
        from keystone_action.services.postgres.container import PostgresContainer

        return PostgresContainer(definition, host)
    if isinstance(definition, MysqlService | ContainerService) and definition.kind == "mysql":
        from keystone_action.services.mysql.container import MysqlContainer

        return MysqlContainer(definition, host)
    if isinstance(definition, ContainerService):
        from keystone_action.services.container.service import GenericContainer

        return GenericContainer(definition, host)
    return None
