"""Removing what runs left on an engine, after a SIGKILL for example: only what carries our labels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from keystone_action.errors import SandboxError
from keystone_action.sandbox.docker_container import remove
from keystone_action.sandbox.docker_errors import engine_errors, is_not_found
from keystone_action.sandbox.docker_plan import KIND_LABEL, RUN_LABEL

WEEK = 7 * 24 * 3600.0
_AT_ONCE = 16


@dataclass
class Swept:
    """How many of each were removed, and sentences for what could not be."""

    containers: int = 0
    networks: int = 0
    volumes: int = 0
    images: int = 0
    problems: list[str] = field(default_factory=list)


async def sweep(
    client: Any, run_id: str | None = None, *, older_than: float = 0.0, images_older_than: float = WEEK
) -> Swept:
    """Remove containers, networks and volumes of one run, or (None) of every run, and then old setup images too.

    client: a docker.DockerClient. older_than: seconds since containers, networks and volumes were made, so that runs
    of now stay unharmed when everything is swept; images_older_than: the same for setup images. What can't be removed
    is told in `problems`. Raises SandboxError when the engine can't be asked.
    """
    api = client.api
    label = RUN_LABEL if run_id is None else f"{RUN_LABEL}={run_id}"
    swept = Swept()
    gate = asyncio.Semaphore(_AT_ONCE)

    async def each(found: Iterable[str], function: Callable[[Any, str], None]) -> int:
        results = await asyncio.gather(*(_one(gate, partial(function, api, name), swept) for name in found))
        return sum(results)

    limit = time.time() - older_than
    containers = await asyncio.to_thread(_containers, api, label, limit)
    swept.containers = await each(containers, remove)
    swept.networks = await each(await asyncio.to_thread(_networks, api, label, limit), _remove_network)
    swept.volumes = await each(await asyncio.to_thread(_volumes, api, label, limit), _remove_volume)
    if run_id is None:
        old = time.time() - images_older_than
        swept.images = await each(await asyncio.to_thread(_setup_images, api, old), _remove_image)
    return swept


async def _one(gate: asyncio.Semaphore, function: Callable[[], None], swept: Swept) -> bool:
    async with gate:
        try:
            await asyncio.to_thread(function)
        except SandboxError as error:
            swept.problems.append(error.message)
            return False
        return True


def _containers(api: Any, label: str, limit: float) -> list[str]:
    with engine_errors("can't list containers"):
        found = api.containers(all=True, filters={"label": label})
    return [one["Id"] for one in found if one["Created"] <= limit]


def _networks(api: Any, label: str, limit: float) -> list[str]:
    with engine_errors("can't list networks"):
        found = api.networks(filters={"label": label})
    return [one["Id"] for one in found if _seconds(one.get("Created")) <= limit]


def _volumes(api: Any, label: str, limit: float) -> list[str]:
    with engine_errors("can't list volumes"):
        found = api.volumes(filters={"label": label}).get("Volumes") or []
    return [one["Name"] for one in found if _seconds(one.get("CreatedAt")) <= limit]


def _setup_images(api: Any, limit: float) -> list[str]:
    with engine_errors("can't list images"):
        found = api.images(filters={"label": f"{KIND_LABEL}=setup"})
    return [one["Id"] for one in found if one["Created"] <= limit]


def _remove_network(api: Any, identifier: str) -> None:
    """What is still in it is not ours (our own container, which joined) and only leaves it."""
    from docker.errors import APIError

    with engine_errors("can't remove a network"):
        try:
            for container in api.inspect_network(identifier).get("Containers") or {}:
                api.disconnect_container_from_network(container, identifier, force=True)
            api.remove_network(identifier)
        except APIError as error:
            if not is_not_found(error):
                raise


def _remove_volume(api: Any, name: str) -> None:
    from docker.errors import APIError

    with engine_errors(f"can't remove the volume {name}"):
        try:
            api.remove_volume(name, force=True)
        except APIError as error:
            if not is_not_found(error):
                raise


def _remove_image(api: Any, identifier: str) -> None:
    from docker.errors import APIError

    with engine_errors("can't remove a setup image"):
        try:
            api.remove_image(identifier, force=False)
        except APIError as error:
            if not is_not_found(error):
                raise


def _seconds(text: str | None) -> float:
    """An engine's time (RFC 3339, with nanoseconds, which Python does not read) since the epoch; 0 = not told."""
    if not text:
        return 0.0
    head, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return datetime.fromisoformat(head + (rest[digits:] if dot else "")).timestamp()
