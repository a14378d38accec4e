"""Whose network do we live in? Run as an action, ours must join those of our siblings to reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keystone_action.engine.own_container import find_own_container

if TYPE_CHECKING:
    from docker import DockerClient


def own_container(client: DockerClient) -> str | None:
    """The id of the container of this engine whose network we live in, or None: we run on a machine, in a container of
    another engine, or in one that uses its machine's network. Blocking; raises docker's errors."""
    found = find_own_container(client.api)
    return None if found is None else found.network
