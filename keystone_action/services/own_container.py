"""Which container do we run in? An action does, and must join the networks of its siblings to reach them."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import DockerClient

_ID = re.compile(r"[0-9a-f]{64}")
_SHORT_ID = re.compile(r"[0-9a-f]{12}\Z")
_OWN_FILES = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
"""What an engine mounts into every container from its own directory, whose name is the container's id."""


def own_container(client: DockerClient) -> str | None:
    """The id of the container of this engine whose network we live in, or None: we run on a machine, in a container of
    another engine, or in one that uses its machine's network. Blocking; raises docker's errors."""
    from docker.errors import NotFound

    for candidate in candidates():
        try:
            found = client.containers.get(candidate)
        except NotFound:
            continue
        # A name can look like an id; what runs us must run.
        if not str(found.id).startswith(candidate) or found.status not in ("running", "paused"):
            continue
        mode = str(found.attrs["HostConfig"]["NetworkMode"])
        if mode == "host":
            return None
        # Two containers may share one network (`--network container:X`); it is X's, and only X can be connected.
        return mode.removeprefix("container:") if mode.startswith("container:") else str(found.id)
    return None


def candidates(process: Path = Path("/proc/self")) -> list[str]:
    """Ids that may be ours, the likeliest first: by our mounts, by our host name, by our control group."""
    found = [*_by_mounts(process / "mountinfo"), socket.gethostname(), *_by_group(process / "cgroup")]
    possible = [one for one in found if _ID.fullmatch(one) or _SHORT_ID.fullmatch(one)]
    return list(dict.fromkeys(possible))


def _by_mounts(path: Path) -> list[str]:
    # 36 35 0:26 /var/lib/docker/containers/<id>/hostname /etc/hostname rw … : root and mount point are 4th and 5th.
    rows = [line.split(" ") for line in _lines(path)]
    return [one for row in rows if len(row) > 4 and row[4] in _OWN_FILES for one in _ID.findall(row[3])]


def _by_group(path: Path) -> list[str]:
    return [one for line in _lines(path) for one in _ID.findall(line)[-1:]]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
