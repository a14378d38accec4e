"""What runs make on the Docker engine, written down while it happens, and what is left of it afterwards.

Labels alone would miss what can't carry them: a volume that an image declares has none.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from docker import DockerClient

RUN, KIND = "keystone.run", "keystone.kind"


@dataclass(frozen=True)
class Container:
    """A container that was made. labels, image and name as the engine tells them."""

    id: str
    labels: Mapping[str, str]

    @property
    def image(self) -> str:
        return self.labels["image"]

    @property
    def kind(self) -> str:
        return self.labels.get(KIND, "")


class EngineWatch:
    """Listens to an engine from now on. Other runs on the same engine are told apart by their run ids."""

    def __init__(self, engine: DockerClient) -> None:
        self._engine = engine
        self._containers: dict[str, Container] = {}
        self._volumes: dict[str, set[str]] = {}
        self._stream: Any = engine.events(decode=True, since=int(time.time()))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(Exception):  # the connection is closed under its reader
            for event in self._stream:
                self._note(event["Type"], event["Action"], event["Actor"])

    def _note(self, kind: str, action: str, actor: Mapping[str, Any]) -> None:
        attributes = actor["Attributes"]
        if (kind, action) == ("container", "create"):
            self._containers[actor["ID"]] = Container(actor["ID"], attributes)
        elif (kind, action) == ("volume", "mount"):
            self._volumes.setdefault(attributes["container"], set()).add(actor["ID"])

    def made(self, runs: Collection[str]) -> list[Container]:
        """The containers of these runs so far."""
        return [one for one in list(self._containers.values()) if one.labels.get(RUN) in runs]

    def kinds(self, runs: Collection[str]) -> set[tuple[str, str]]:
        """Kind and image of the containers of these runs so far."""
        return {(one.kind, one.image) for one in self.made(runs)}

    def left(self, runs: Collection[str]) -> list[str]:
        """What is there of these runs: containers, networks, volumes and processes. Nothing is waited for."""
        assert runs, "a run that nobody can name leaves nothing that anybody could find"
        made = self.made(runs)
        identifiers = {one.id for one in made}
        volumes = set().union(*(self._volumes.get(one.id, ()) for one in made))
        return [
            *self._containers_of(runs, identifiers),
            *self._networks_of(runs),
            *self._volumes_of(runs, volumes),
            *_processes(identifiers),
        ]

    def _containers_of(self, runs: Collection[str], identifiers: Collection[str]) -> Iterator[str]:
        for one in self._engine.api.containers(all=True):
            if one["Id"] in identifiers or one["Labels"].get(RUN) in runs:
                yield f"container {one['Names']} of {one['Image']}: {one['Status']}"

    def _networks_of(self, runs: Collection[str]) -> Iterator[str]:
        for one in self._engine.api.networks():
            named = any(one["Name"].startswith(f"keystone-{run}") for run in runs)
            if named or (one.get("Labels") or {}).get(RUN) in runs:
                yield f"network {one['Name']}"

    def _volumes_of(self, runs: Collection[str], volumes: Collection[str]) -> Iterator[str]:
        for one in self._engine.api.volumes().get("Volumes") or []:
            if one["Name"] in volumes or (one.get("Labels") or {}).get(RUN) in runs:
                yield f"volume {one['Name']}"

    def close(self) -> None:
        self._stream.close()
        self._thread.join(10)


def _processes(containers: Collection[str]) -> Iterator[str]:
    """Processes of this machine in the control groups of these containers."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            groups = (path / "cgroup").read_text()
            if any(container in groups for container in containers):
                yield f"process {path.name}: {(path / 'cmdline').read_bytes()!r}"


@pytest.fixture
def watch(engine: DockerClient) -> Iterator[EngineWatch]:
    made = EngineWatch(engine)
    yield made
    made.close()
