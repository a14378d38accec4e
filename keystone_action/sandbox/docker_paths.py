"""Where the engine's machine has the directories that we see: bind mounts name *its* paths, not ours.

Run by GitHub, we live in a container ourselves, and `/github/workspace` is some directory of the runner's machine. Our
own container's mounts tell which; whether that is right shows only when a container reads there what we wrote.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from keystone_action.sandbox.docker_errors import engine_errors

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class HostPaths:
    """Translates our paths. own: (path inside, path on the engine's machine) for each mount of our own container, None
    when we are in none. verified: what trials have shown, by mount point."""

    own: tuple[tuple[str, str], ...] | None
    verified: dict[str, bool] = field(default_factory=dict)

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


def find_host_paths(api: Any) -> HostPaths:
    """Asks the engine about our own container, if we are in one of its. Raises SandboxError."""
    from docker.errors import APIError

    for identifier in _own_identifiers():
        with engine_errors("can't look at our own container"), contextlib.suppress(APIError):
            described = api.inspect_container(identifier)
            if _is_us(described):
                mounts = described.get("Mounts") or []
                return HostPaths(tuple((m["Destination"], m["Source"]) for m in mounts if m.get("Source")))
    return HostPaths(None)


def _own_identifiers() -> list[str]:
    """Names that our container may have, the surest first: cgroup (version 1) knows it even where a network namespace
    is shared; the files that an engine mounts name it under version 2; the host name is often its beginning."""
    found: list[str] = []
    for source in ("/proc/self/cgroup", "/proc/self/mountinfo"):
        with contextlib.suppress(OSError):
            for line in Path(source).read_text(errors="replace").splitlines():
                if source.endswith("mountinfo") and "/containers/" not in line:
                    continue
                found += _CONTAINER_ID.findall(line)
    name = socket.gethostname()
    if re.fullmatch(r"[0-9a-f]{12}", name):
        found.append(name)
    return list(dict.fromkeys(found))


def _is_us(described: dict[str, Any]) -> bool:
    """Several containers may share a host name's or a network's files: ours is one that runs, with this host name."""
    running = bool(described.get("State", {}).get("Running"))
    name = str(described.get("Config", {}).get("Hostname") or "")
    shared = str(described.get("HostConfig", {}).get("NetworkMode", "")).startswith(("container:", "host"))
    return running and (shared or name == socket.gethostname())


def _mount_point(path: Path) -> str:
    """The directory where the file system of `path` is mounted, as far as a look at each directory above tells."""
    while not os.path.ismount(path) and path != path.parent:
        path = path.parent
    return str(path)
