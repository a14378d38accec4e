"""Which container of an engine do we run in? An action does: its mounts tell where the engine's machine has our files,
and it must join the networks of its siblings to reach them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from keystone_action.engine.calls import engine_errors, unless_refused

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import Container

_ID = re.compile(r"[0-9a-f]{64}")
_SHORT_ID = re.compile(r"[0-9a-f]{12}\Z")
_OWN_FILES = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
"""What an engine mounts into every container from a directory whose name is the container's id."""
_UPPER = re.compile(r"(?:^|,)upperdir=(?:[^,]*/)?([^,/]+/diff)(?:,|$)")
_SELF = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class OwnContainer:
    """The container that we run in."""

    identifier: str
    """Of the container whose files and mounts we have."""
    network: str | None
    """Of the container whose network we live in, which may be another (`--network container:X`); None = the
    machine's."""
    mounts: tuple[tuple[str, str], ...]
    """(path inside, path on the engine's machine); volumes have one, too, as long as they are the engine's own."""


def find_own_container(client: EngineClient) -> OwnContainer | None:
    """None: we run on a machine, or in a container of another engine. Blocks. Raises what the client raises."""
    known = [described for one in candidates() if (described := _running(client, one)) is not None]
    described = next(_exactly(client, known, _upper_directory()), None) or next(filter(_likely, known), None)
    if described is None:
        return None
    mode = str(described["HostConfig"]["NetworkMode"])
    # Containers may share one's network; only that one can be connected to more.
    network = None if mode == "host" else mode.removeprefix("container:")
    identifier = str(described["Id"])
    mounts = described.get("Mounts") or []
    return OwnContainer(
        identifier,
        network if mode == "host" or mode.startswith("container:") else identifier,
        tuple((str(one["Destination"]), str(one["Source"])) for one in mounts if one.get("Source")),
    )


def candidates(process: Path = _SELF) -> list[str]:
    """Ids that may be ours, the surest first: by our control group, by our mounts (which are the network's owner's),
    by our host name. process: the directory that the kernel describes us in."""
    found = [*_by_group(process / "cgroup"), *_by_mounts(process / "mountinfo"), socket.gethostname()]
    return list(dict.fromkeys(one for one in found if _ID.fullmatch(one) or _SHORT_ID.fullmatch(one)))


def _by_group(path: Path) -> list[str]:
    # The last one: an engine inside of a container sees its own below that of the container.
    return [one for line in _lines(path) for one in _ID.findall(line)[-1:]]


def _by_mounts(path: Path) -> list[str]:
    # 36 35 0:26 /var/lib/docker/containers/<id>/hostname /etc/hostname rw … : root and mount point are 4th and 5th.
    rows = [line.split(" ") for line in _lines(path)]
    return [one for row in rows if len(row) > 4 and row[4] in _OWN_FILES for one in _ID.findall(row[3])]


def _upper_directory(process: Path = _SELF) -> str | None:
    """The name of our root's own layer, `<name>/diff`, where the root is an overlay: no other container has it."""
    for line in _lines(process / "mountinfo"):
        fields, _, options = line.partition(" - overlay ")
        if fields.split(" ")[4:5] == ["/"] and (found := _UPPER.search(options.rpartition(" ")[2])):
            return found[1]
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _running(client: EngineClient, identifier: str) -> Container | None:
    """What the engine says of it; a name may look like an id, and what runs us runs."""
    described: Container = {}
    with unless_refused(404):
        described = client.inspect_container(identifier)
    if not described:
        return None
    return described if str(described["Id"]).startswith(identifier) and described["State"].get("Running") else None


def _exactly(client: EngineClient, known: list[Container], upper: str | None) -> Iterator[Container]:
    """Of these containers, and then of those that live in their networks, the ones with our root."""
    if upper is None:
        return
    for described in known:
        if _upper_of(described) == upper:
            yield described
    networks = {f"container:{described['Id']}" for described in known}
    for one in client.list_containers() if known else []:
        if (one.get("HostConfig") or {}).get("NetworkMode") in networks:
            member = _running(client, one["Id"])
            if member is not None and _upper_of(member) == upper:
                yield member


def _upper_of(described: Container) -> str | None:
    place = ((described.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
    return "/".join(str(place).split("/")[-2:]) if place else None


def _likely(described: Container) -> bool:
    """Whether it may be ours: containers that share a network share its files and its host name, too."""
    shared = str(described["HostConfig"]["NetworkMode"]).startswith(("container:", "host"))
    return shared or described["Config"].get("Hostname") == socket.gethostname()


@dataclass(slots=True)
class HostPaths:
    """Translates our paths to those of the engine's machine, which bind mounts name. Run by GitHub, we live in a
    container, and `/github/workspace` is some directory of the runner's machine. Our own container's mounts tell which;
    whether that is right shows only when a container reads there what we wrote."""

    own: tuple[tuple[str, str], ...] | None
    """(path inside, path on the engine's machine) for each mount of our own container; None when we are in none."""
    verified: dict[str, bool] = field(default_factory=dict)
    """What trials have shown, by mount point."""

    def source(self, path: Path) -> tuple[str, str] | None:
        """(mount point, path on the engine's machine) of one of our real paths; None = it has none that we know."""
        if self.own is None:
            return _mount_point(path), str(path)
        inside = PurePosixPath(path)
        found = [(mount, source) for mount, source in self.own if inside.is_relative_to(mount)]
        if not found:
            return None
        mount, source = max(found, key=lambda pair: len(pair[0]))
        return mount, str(PurePosixPath(source) / inside.relative_to(mount))


def find_host_paths(client: EngineClient) -> HostPaths:
    """Asks the engine about our own container, if it runs us in one. Raises SandboxError."""
    with engine_errors("can't look at our own container"):
        own = find_own_container(client)
    return HostPaths(None if own is None else own.mounts)


def _mount_point(path: Path) -> str:
    """The directory where the file system of `path` is mounted, as far as a look at each directory above tells."""
    while not os.path.ismount(path) and path != path.parent:
        path = path.parent
    return str(path)
