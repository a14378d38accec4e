"""Where the engine's machine has the directories that we see: bind mounts name *its* paths, not ours.

Run by GitHub, we live in a container ourselves, and `/github/workspace` is some directory of the runner's machine. Our
own container's mounts tell which; whether that is right shows only when a container reads there what we wrote.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from keystone_action.engine.errors import engine_errors
from keystone_action.engine.own_container import find_own_container

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient


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


def find_host_paths(client: EngineClient) -> HostPaths:
    """Asks the engine about our own container, if we are in one of its. Raises SandboxError."""
    with engine_errors("can't look at our own container"):
        own = find_own_container(client)
    return HostPaths(None if own is None else own.mounts)


def _mount_point(path: Path) -> str:
    """The directory where the file system of `path` is mounted, as far as a look at each directory above tells."""
    while not os.path.ismount(path) and path != path.parent:
        path = path.parent
    return str(path)
