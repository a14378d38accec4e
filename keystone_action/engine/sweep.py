"""Removing what runs left on an engine, after a SIGKILL for example: only what carries our labels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from keystone_action.engine import records as labels
from keystone_action.engine.calls import engine_errors, unless_refused
from keystone_action.engine.container import remove_container
from keystone_action.engine.images import KEPT_KIND, OWN_KIND, REPOSITORY, remove_image
from keystone_action.engine.networks import remove_network
from keystone_action.errors import SandboxError

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import ListedContainer, ListedImage, NetworkRecord, Volume

    _Listed = ListedContainer | ListedImage | NetworkRecord | Volume

LeftoverKind = Literal["container", "network", "volume", "image"]
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Leftover:
    """A thing of ours on an engine."""

    kind: LeftoverKind
    identifier: str
    name: str
    run_id: str
    """Of the run that made it; empty for images that all runs share."""
    made: float
    """Seconds since the epoch, by the engine's clock."""


@dataclass
class Swept:
    """How many of each were removed, and sentences for what could not be."""

    containers: int = 0
    networks: int = 0
    volumes: int = 0
    images: int = 0
    problems: list[str] = field(default_factory=list)


async def sweep(client: EngineClient, run_id: str) -> Swept:
    """Remove containers, networks, volumes and cells' images of one run, whether it is still going or not.

    What can't be removed is told in `problems`. Raises SandboxError when the engine can't be asked.
    """
    return await remove_leftovers(client, await asyncio.to_thread(find_leftovers, client, run_id))


def find_leftovers(client: EngineClient, run_id: str | None = None) -> list[Leftover]:
    """What one run has on an engine, or (None) all runs, those that are going among them. Blocks. Raises SandboxError.

    A container that anybody starts from one of our images has the image's labels. Those of ours name a run.
    """
    filters = {"label": labels.RUN if run_id is None else f"{labels.RUN}={run_id}"}
    with engine_errors("can't list containers, networks, volumes and images"):
        containers = client.list_containers(filters, all=True)
        networks = client.list_networks(filters)
        volumes = client.list_volumes(filters)
        images = client.list_images({"label": [filters["label"], f"{labels.KIND}={OWN_KIND}"]})
    found = [
        *(_leftover("container", one, one["Id"], _name_of(one), float(one["Created"])) for one in containers),
        *(_leftover("network", one, one["Id"], one["Name"], _seconds(one.get("Created"))) for one in networks),
        *(_leftover("volume", one, one["Name"], one["Name"], _seconds(one.get("CreatedAt"))) for one in volumes),
        *(_leftover("image", one, one["Id"], _tag_of(one), float(one["Created"])) for one in images),
    ]
    return [one for one in found if one.run_id]


def find_setup_images(client: EngineClient) -> list[Leftover]:
    """The images that setups were kept in, each by our own name for it: others may have given it theirs. Blocks.
    Raises SandboxError."""
    with engine_errors("can't list images"):
        found = client.list_images({"label": f"{labels.KIND}={KEPT_KIND}", "reference": REPOSITORY})
    return [
        Leftover("image", tag, tag, "", float(one["Created"]))
        for one in found
        for tag in one.get("RepoTags") or ()
        if tag.startswith(f"{REPOSITORY}:")
    ]


def engine_time(client: EngineClient) -> float:
    """Seconds since the epoch by the engine's clock, which need not be ours. Blocks. Raises SandboxError."""
    with engine_errors("can't ask the engine for its time"):
        return _seconds(client.facts().get("SystemTime"))


async def remove_leftovers(client: EngineClient, leftovers: Iterable[Leftover]) -> Swept:
    """Remove these: containers first, since networks, volumes and images are in use by them."""
    swept, gate = Swept(), asyncio.Semaphore(_AT_ONCE)
    known = list(leftovers)

    async def one(function: Callable[[EngineClient, str], bool | None], identifier: str) -> bool:
        async with gate:
            try:
                return await asyncio.to_thread(function, client, identifier) is not False
            except SandboxError as error:
                swept.problems.append(error.message)
                return False

    async def each(kind: LeftoverKind, function: Callable[[EngineClient, str], bool | None]) -> int:
        return sum(await asyncio.gather(*(one(function, found.identifier) for found in known if found.kind == kind)))

    swept.containers = await each("container", remove_container)
    swept.networks = await each("network", _remove_network)
    swept.volumes = await each("volume", _remove_volume)
    # The newest first, and one after the other: it may be made of an older one.
    for image in sorted((found for found in known if found.kind == "image"), key=lambda image: -image.made):
        swept.images += await one(remove_image, image.identifier)
    return swept


def _leftover(kind: LeftoverKind, listed: _Listed, identifier: str, name: str, made: float) -> Leftover:
    return Leftover(kind, identifier, name, (listed.get("Labels") or {}).get(labels.RUN, ""), made)


def _name_of(container: ListedContainer) -> str:
    names = container.get("Names") or [container["Id"][:12]]
    return str(names[0]).lstrip("/")


def _tag_of(image: ListedImage) -> str:
    return str((image.get("RepoTags") or [image["Id"]])[0])


def _remove_network(client: EngineClient, identifier: str) -> None:
    """What is still in it is not ours (our own container, which joined) and only leaves it."""
    with engine_errors("can't remove a network"):
        remove_network(client, identifier)


def _remove_volume(client: EngineClient, name: str) -> None:
    with engine_errors(f"can't remove the volume {name}"), unless_refused(404):
        client.remove_volume(name)


def _seconds(text: str | None) -> float:
    """An engine's time (RFC 3339, with nanoseconds, which Python does not read) since the epoch; 0 = not told."""
    if not text:
        return 0.0
    head, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return datetime.fromisoformat(head + (rest[digits:] if dot else "")).timestamp()
