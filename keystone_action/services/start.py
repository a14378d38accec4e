"""From the `services` of a spec to running ones: each kind's class, all started at once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from keystone_action.errors import KeystoneError, ServiceError
from keystone_action.services.base import RunningService, ServiceKind, Surroundings
from keystone_action.spec.models.services import Service
from keystone_action.spec.named_classes import class_of_file


def class_of(kind: str) -> type[ServiceKind[Any]]:
    """The class in the file of a kind: `KIND.py` beside this one, or `KIND/service.py`."""
    module = f"{__package__}.{kind}"
    found = find_spec(module)
    is_folder = found is not None and found.submodule_search_locations is not None
    return class_of_file(f"{module}.service" if is_folder else module, ServiceKind)  # type: ignore[type-abstract]


def refuse_unsupported(definitions: Sequence[Service], *, engine: bool = False) -> None:
    """See `ServiceKind.refuse_unsupported`, for all services of a spec."""
    for definition in definitions:
        class_of(definition.kind).refuse_unsupported(definition, engine=engine)


async def start_services(definitions: Sequence[Service], surroundings: Surroundings) -> list[RunningService]:
    """Start all services of a spec at once and return them when every one is ready, in the order of the spec.

    Raises UsageError for a definition that can't be started here, and the ServiceError of the first service that
    fails, after all others were stopped.
    """
    import anyio

    refuse_unsupported(definitions, engine=surroundings.containers is not None)
    services = [build_service(definition, surroundings) for definition in definitions]
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


def build_service(definition: Service, surroundings: Surroundings) -> RunningService:
    """A service that is not started; see `ServiceKind.build`. Raises UsageError."""
    return class_of(definition.kind).build(definition, surroundings)
