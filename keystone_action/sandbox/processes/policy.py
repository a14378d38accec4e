"""What code in a process sandbox may touch, as Landlock rules: the system, what is its own, and what a spec shows it.

The author's own scripts get more: our PATH and what it leads to.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from keystone_action.files.paths import is_within, real_path
from keystone_action.sandbox.processes import landlock
from keystone_action.system.environment import own_search_path

Rules = list[tuple[str, int]]

_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap",
    "/proc", "/sys", "/run/current-system", "/run/systemd/resolve", "/run/resolvconf",
    "/run/NetworkManager/resolv.conf", "/var/lib/ca-certificates", "/var/lib/dpkg", "/var/cache/fontconfig",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_TERMINALS = ("/dev/ptmx", "/dev/pts")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - granted, not used

_SOCKETS = (
    "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
    "/run/crio/crio.sock", "/run/buildkit/buildkitd.sock",
)  # fmt: skip
_SESSION_SOCKETS = ("docker.sock", "podman/podman.sock", "bus")  # over the session's bus, systemd starts programs


def system_rules(hidden: Iterable[Path]) -> Rules:
    """Rules for what every sandbox may read and run. Where a hidden directory lies inside (a checkout in /opt), its
    neighbours are named one by one instead: Landlock can only add."""
    secret = [path for path in map(real_path, hidden) if not is_system(path)]
    roots = [real_path(Path(name)) for name in (*_SYSTEM, sys.base_prefix)]
    rules: Rules = []
    for root in sorted(set(roots)):
        if not any(is_within(root, Path(done)) for done, _ in rules):
            rules.extend((str(path), landlock.READ) for path in around(root, secret) if path.exists())
    rules.extend((path, landlock.DEVICE) for path in _DEVICES)
    return rules


def own_user_rules() -> Rules:
    """What more a sandbox may have whose files, by their modes, nobody else can open: terminals and shared memory."""
    return [
        *((path, landlock.DEVICE | landlock.READ_DIR) for path in _TERMINALS),
        (_SHARED_MEMORY, landlock.SHARED_MEMORY),
    ]


def own_rules(writable: Sequence[Path], readable: Sequence[Path]) -> Rules:
    """What belongs to one sandbox."""
    return [
        *((str(path), landlock.WRITE) for path in writable),
        *((str(path), landlock.READ) for path in readable),
    ]


def may_execute(rules: Rules, path: Path) -> bool:
    """Whether these rules let a program with this real path be run."""
    return any(access & landlock.EXECUTE and is_within(path, real_path(Path(root))) for root, access in rules)


def reachable_sockets(uid: int | None) -> list[str]:
    """Sockets of services that could undo the sandbox (Landlock doesn't cover them), open to this user or, for None,
    to us."""
    found: list[str] = []
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    named = [os.environ.get("DOCKER_HOST", ""), os.environ.get("CONTAINER_HOST", "")]
    told = [name.removeprefix("unix://") for name in named if name.startswith("unix://")]
    for name in (*_SOCKETS, *(f"{runtime}/{service}" for service in _SESSION_SOCKETS), *told):
        try:
            status = os.stat(name)  # noqa: PTH116
        except OSError:
            continue
        usable = os.access(name, os.W_OK) if uid is None else bool(status.st_mode & stat.S_IWOTH)
        if stat.S_ISSOCK(status.st_mode) and usable and os.path.realpath(name) not in map(os.path.realpath, found):
            found.append(name)
    return found


def user_may_execute(path: Path, uid: int) -> bool:
    """By the modes of the program and of all directories above it, for a user in no other group than its own."""
    try:
        if not _mode_allows(path.stat(), uid):
            return False
        return all(_mode_allows(parent.stat(), uid) for parent in path.parents)
    except OSError:
        return False


def user_may_enter(path: Path, uid: int) -> Path | None:
    """The first directory above `path` that this user can't pass through, None when it can reach it."""
    place = ""
    for part in path.parts[:-1]:
        place = os.path.join(place, part)  # noqa: PTH118 - asked for every cell, and a Path takes longer than the call
        if not _mode_allows(os.stat(place), uid):  # noqa: PTH116
            return Path(place)
    return None


def _mode_allows(status: os.stat_result, uid: int) -> bool:
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == uid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def is_system(path: Path) -> bool:
    """Whether it is a system directory or holds one: that can't be hidden."""
    return any(is_within(real_path(Path(name)), path) for name in _SYSTEM)


def around(root: Path, secret: Sequence[Path]) -> list[Path]:
    """What there is in a directory besides the secret: the directory, or its parts. All paths are real ones."""
    if any(is_within(root, each) for each in secret):
        return []
    if not any(root in each.parents for each in secret):
        return [root]
    try:
        children = sorted(root.iterdir())
    except OSError:
        return []
    return [path for child in children if not child.is_symlink() for path in around(child, secret)]


def hidden_folders(program: Path) -> tuple[Path, ...]:
    """Those of the program that the sandbox hides, none within another; nothing when it sees all of them."""
    return only_hidden(_folders(program))


def only_hidden(folders: list[Path]) -> tuple[Path, ...]:
    """Those of the folders that the sandbox hides, none within another."""
    rules = system_rules(())
    found: list[Path] = []
    for folder in sorted(folders, key=lambda one: len(one.parts)):
        if not may_execute(rules, folder) and not any(is_within(folder, one) for one in found):
            found.append(folder)
    return tuple(found)


def _folders(program: Path) -> list[Path]:
    """What it takes to run a program: its own folder, where it really is, and what npm or pip put beside it."""
    real = real_path(program)
    places = [real_path(program.parent)]
    if "node_modules" in real.parts:
        return [*places, Path(*real.parts[: real.parts.index("node_modules") + 1])]
    if (real.parent.parent / "pyvenv.cfg").is_file():
        return [*places, real.parent.parent, real_path(real.parent / "python").parent.parent]
    return [*places, real.parent]


_LIBRARIES = ("lib", "libexec")
"""Beside a `bin`, what the programs in it load."""

_SWITCHES = {
    # The working directory is full of what an agent wrote: no interpreter takes a module from there by itself.
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PERL_USE_UNSAFE_INC": "0",
    # The copy of the checkout belongs to us, not to the user that reads it.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


def script_environment() -> dict[str, str]:
    """Of a script on the host, all of it but HOME, TMPDIR and LANG."""
    return {"PATH": own_search_path(), **_SWITCHES}


def script_programs() -> list[Path]:
    """The directories that PATH names, and the libraries beside them, without those that hold our home directory."""
    found: list[Path] = []
    home = Path("~").expanduser().resolve()
    for name in own_search_path().split(":"):
        place = Path(name)
        if home.is_relative_to(place.resolve()):
            continue
        found.append(place)
        if place.name == "bin":
            found += [place.parent / library for library in _LIBRARIES]
    return found
