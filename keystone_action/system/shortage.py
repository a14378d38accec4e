"""What this machine is short of: memory, space, descriptors, and processes by `pids.max` of the control groups that we
run in, as podman, Kubernetes and systemd set it. What the machine refuses is never the agent's doing.

Only the standard library: the launcher imports this.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

OUT_OF_SOMETHING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""What starting a process fails with when the machine has no process, memory or descriptor left for it."""


def refused_processes() -> int:
    """How many processes have been refused so far in our control group and those above it."""
    return sum(_counter(group / "pids.events") for group in _groups())


def process_shortage(code: int = errno.EAGAIN) -> str:
    """Why the machine starts no further process or thread, as far as it tells. code: what the system call said."""
    if code in (errno.EMFILE, errno.ENFILE):
        return "no file descriptor is left (`ulimit -n`, or fs.file-max of the machine)"
    if code == errno.ENOMEM:
        return "the machine has no memory left for one more process"
    full = [(most, used) for most, used in map(_use, _groups()) if most is not None]
    if not full:
        return "the machine starts no further process: a limit on them is reached (`ulimit -u`, kernel.pid_max)"
    most, used = min(full, key=lambda each: each[0] - each[1])
    return f"the machine caps processes (pids.max is {most}, {used} are in use)"


def machine_shortage(error: BaseException) -> str:
    """What the machine ran out of, when that is why something of ours failed; else empty."""
    code = error.errno if isinstance(error, OSError) else None
    if code in OUT_OF_SOMETHING:
        return process_shortage(code)
    if code in (errno.ENOSPC, errno.EDQUOT):
        where = f" for {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"there is no space left on this machine{where}"
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return process_shortage()
    if isinstance(error, MemoryError):
        return "no memory is left for this process"
    return ""


def smallest_cap() -> int | None:
    """The smallest cap that holds for us; None where there is none."""
    return min((most for most, _ in map(_use, _groups()) if most is not None), default=None)


@functools.cache
def _groups() -> tuple[Path, ...]:
    """The directories of our control group and of those above it that can have a cap, the innermost first."""
    try:
        groups = Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(
        group
        for place, inside in _places(groups, mounts)
        for group in (place / inside, *(place / above for above in inside.parents))
        if (group / "pids.max").exists()
    )


def _places(groups: list[str], mounts: list[str]) -> Iterator[tuple[Path, PurePosixPath]]:
    """Where the hierarchies with the `pids` controller are mounted, and our place in each."""
    own: dict[str, str] = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own["cgroup2"] = path
        elif "pids" in controllers.split(","):
            own["cgroup"] = path
    for line in mounts:
        fields = line.split()
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind not in own or (kind == "cgroup" and "pids" not in options):
            continue
        root, mount = fields[3], fields[4]
        inside = PurePosixPath(own[kind])
        # A container may see the host's name for its group, and the group itself as the root of the mount.
        yield Path(mount), inside.relative_to(root) if inside.is_relative_to(root) else PurePosixPath()


def _use(group: Path) -> tuple[int | None, int]:
    """(cap or None, processes in use)."""
    try:
        most = (group / "pids.max").read_text().strip()
        used = int((group / "pids.current").read_text())
    except (OSError, ValueError):
        return None, 0
    return int(most) if most.isdigit() else None, used


def _counter(events: Path) -> int:
    try:
        lines = events.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(value) for name, _, value in (line.partition(" ") for line in lines) if name == "max")
