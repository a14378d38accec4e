"""`setup.packages` in the process sandbox: a virtual environment of the cell.

It is made by the sandbox's python3 as the agent's user, then closed to it and handed to agent and checks to read. So
neither the agent can change what its checks import, nor does the environment go away with the agent's HOME.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from keystone_action.errors import HarnessError
from keystone_action.files.copies import copy_all, file_holds
from keystone_action.files.descent import walk_down
from keystone_action.sandbox.protocol import Sandbox, SandboxProvider
from keystone_action.system.command import Command, CommandLimits

_DEBIAN = "on Debian and Ubuntu: apt-get install python3-venv; or set `base:` to an image that has it"


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """Where `setup.packages` are."""

    directory: Path | None = None
    """For every sandbox of the cell to read; None without packages."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """PATH with its `bin` first, and VIRTUAL_ENV, for agent and checks."""


async def make_environment(
    packages: Sequence[str],
    *,
    provider: SandboxProvider,
    directory: Path,
    limits: CommandLimits,
    readable: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
) -> PythonEnvironment:
    """Install packages (requirement specifiers as pip takes them) into a new virtual environment in `directory`.

    environment: `setup.env`, where PIP_INDEX_URL and the like belong. readable: folders that its values name. Without
    packages nothing is made or run.
    Raises HarnessError: no python3, no venv module, a package that can't be installed, with what pip said.
    """
    if not packages:
        return PythonEnvironment()
    await anyio.to_thread.run_sync(lambda: directory.mkdir(parents=True, exist_ok=True))
    sandbox = await provider.open(directory, limits=limits, readable=readable, environment=dict(environment or {}))
    try:
        path = await _make(sandbox)
        argv = ("venv/bin/python", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--")
        done = await sandbox.run(Command((*argv, *packages)))
        if not done.succeeded:
            raise HarnessError(f"setup.packages: pip could not install {', '.join(packages)}: {done.failure()}")
    finally:
        with anyio.CancelScope(shield=True):
            await sandbox.close()
    await anyio.to_thread.run_sync(_close_to_others, directory)
    home = f"{sandbox.workspace_inside}/venv"
    return PythonEnvironment(directory, {"PATH": f"{home}/bin:{path}", "VIRTUAL_ENV": home})


async def _make(sandbox: Sandbox) -> str:
    """Make the virtual environment; returns the PATH of the sandbox."""
    if sandbox.which("python3") is None:
        raise HarnessError("setup.packages: python3 is not in this sandbox", help=_DEBIAN)
    done = await sandbox.run(Command(("python3", "-m", "venv", "venv")))
    if not done.succeeded:
        raise HarnessError(
            f"setup.packages: python3 -m venv failed in this sandbox: {done.failure()}",
            help=f"it needs the modules venv and ensurepip; {_DEBIAN}",
        )
    done = await sandbox.run(Command(("sh", "-c", 'printf %s "$PATH"')))
    return done.stdout.text()


def keep_environment(directory: Path, copy: Path) -> tuple[str, ...]:
    """Copy what `make_environment` made in `directory`, which lies in the cell's area, to the folder `copy`.

    Returns the files that name that area: a program says in its first line which interpreter runs it. Raises OSError.
    """
    copy_all(directory, copy)
    area = re.compile(re.escape(os.fsencode(directory.parent.name)))
    files = (path for path in copy.rglob("*") if path.is_file() and not path.is_symlink())
    return tuple(str(path.relative_to(copy)) for path in files if file_holds(str(path), area))


def put_environment(
    copy: Path, naming: Sequence[str], made: PythonEnvironment, *, directory: Path
) -> PythonEnvironment:
    """Put such a copy into the area of another cell, whose name is as long as that of the first. Raises OSError."""
    assert made.directory is not None
    old, new = (os.fsencode(place.parent.name) for place in (made.directory, directory))
    assert len(old) == len(new)  # it stands in compiled code, too, where lengths are told
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    copy_all(copy, directory)
    for name in naming:
        _replace_bytes(directory / name, old, new)
    variables = {name: value.replace(str(made.directory), str(directory)) for name, value in made.variables.items()}
    return PythonEnvironment(directory, variables)


def _replace_bytes(file: Path, old: bytes, new: bytes) -> None:
    status, content = file.stat(), file.read_bytes()
    file.unlink()
    file.write_bytes(content.replace(old, new))
    file.chmod(stat.S_IMODE(status.st_mode))
    # Compiled Python counts only beside a source of the time that it was made from.
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _close_to_others(directory: Path) -> None:
    """Nobody but us may write in it, everybody may read."""
    status = directory.lstat()
    owner = status.st_uid
    _close_one(str(directory), status, owner, None)
    for _, folder, entries in walk_down(directory):
        for entry in entries:
            _close_one(entry.name, entry.stat(follow_symlinks=False), owner, folder)


def _close_one(name: str, status: os.stat_result, owner: int, folder: int | None) -> None:
    # What an installer linked in from elsewhere is not its user's, and keeps its modes.
    if status.st_uid != owner:
        return
    if os.geteuid() == 0:
        os.chown(name, 0, 0, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        mode = status.st_mode & 0o755 | (0o555 if stat.S_ISDIR(status.st_mode) else 0o444)
        os.chmod(name, mode, dir_fd=folder)


WORTH_KEEPING = 1.0
"""Seconds that commands must take: what is quicker is run again sooner than it is copied."""
