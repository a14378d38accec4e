"""Python packages of a cell: `setup.packages` in the process sandbox, and what the agent installed.

For the former there is a virtual environment of the cell. It is made by the sandbox's python3 as the agent's user, then
closed to it and handed to agent and checks to read. So neither the agent can change what its checks import, nor does
the environment go away with the agent's HOME. The latter are copied when the agent has ended, for checks that ask.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from keystone_action.errors import HarnessError
from keystone_action.evidence.model import PACKAGE_NAMES
from keystone_action.files.copies import copy_all, file_holds
from keystone_action.files.descent import walk_down
from keystone_action.files.paths import name_paths
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.protocol import Home, Sandbox, SandboxProvider, Wanted
from keystone_action.sandbox.trees import copy_wanted
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


MOST_BYTES = 512 << 20
MOST_ENTRIES = 50_000
"""Of all that is copied of what an agent installed."""
_OF_USER = (".local", "lib")
"""Where pip installs for a user, below HOME."""
_ENVIRONMENTS = (".venv", "venv")
"""Virtual environments that an agent makes in its workspace."""
_VERSION = re.compile(r"python3\.[0-9]{1,2}")
_NAMES_SHOWN = 100
_RUN_UNASKED = frozenset({"sitecustomize", "usercustomize"})
_OF_INSTALLERS = frozenset({"distutils-precedence.pth", "_virtualenv.pth"})
"""Files that installers leave wherever they install: nobody misses them."""


async def keep_agent_packages(sandbox: Sandbox, workspace: Path, destination: Path) -> tuple[str, ...]:
    """Close the agent's sandbox, and copy the packages that the agent installed to a new directory: those of its user,
    and of `.venv` and `venv` in the workspace.

    Returns sentences on what was left out: files that Python runs unasked, modules with the name of one of the standard
    library, what was too much, and what could not be had. Links are never copied. Raises HarnessError.
    """
    home = await sandbox.close_but_home()
    try:
        return await anyio.to_thread.run_sync(copy_packages, home, workspace, destination)
    except OSError as error:
        raise HarnessError(f"what the agent installed can't be copied: {error.strerror or error}") from error
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(home.remove)


def copy_packages(home: Home, workspace: Path, destination: Path) -> tuple[str, ...]:
    """See `keep_agent_packages`. home: the agent's. Blocking. Raises OSError, SandboxError."""
    selection = _Selection()
    (destination / "home").mkdir(parents=True)
    selection.copy("home", home.copy, destination, _OF_USER)
    for name in _ENVIRONMENTS:
        try:
            mode = (workspace / name).lstat().st_mode
        except OSError:
            continue
        if stat.S_ISLNK(mode):
            selection.missing.append(name)
        elif stat.S_ISDIR(mode):
            (destination / name).mkdir()
            selection.copy(name, partial(copy_wanted, workspace / name), destination, ("lib",))
    for path in selection.too_much:
        remove_tree(destination / path)
    (destination / PACKAGE_NAMES).write_text("\n".join(selection.names()), "utf-8")
    return selection.notices()


class _Spent(Exception):  # noqa: N818 - a finding, not an error
    """There are more entries than are looked at."""


class _Selection:
    """What of several trees is copied: site-packages, as far as there is room."""

    def __init__(self) -> None:
        self._bytes, self._entries = MOST_BYTES, MOST_ENTRIES
        self._unsafe: dict[str, None] = {}
        self._begun: dict[str, bool] = {}
        """Modules and packages by their place below the copy, and whether they are whole as far as was seen: a folder
        that was entered, and a file. A package is copied at one stretch."""
        self.too_much: dict[str, None] = {}
        """Those that are not whole."""
        self._unseen: list[str] = []
        """Trees that were not looked into, or not to their end."""
        self.missing: list[str] = []
        """What could not be had."""

    def copy(
        self, tree: str, copy: Callable[[Path, Wanted], tuple[str, ...]], destination: Path, folders: tuple[str, ...]
    ) -> None:
        """One tree, as far as there is room. Raises OSError, SandboxError."""
        if self._entries < 0:
            self._unseen.append(tree)
            return
        try:
            paths = copy(destination / tree, self._below(folders, tree))
            self.missing += [f"{tree}/{path}".rstrip("/") for path in paths]
        except _Spent:
            self._unseen.append(tree)
            self.too_much |= dict.fromkeys(place for place, is_whole in self._begun.items() if not is_whole)

    def _below(self, folders: tuple[str, ...], tree: str) -> Wanted:
        """For one tree, which has site-packages in `pythonX.Y` of these folders."""
        depth = len(folders) + 2

        def is_wanted(path: str, size: int | None) -> bool:
            parts = path.split("/")
            if len(parts) > depth:
                return self._has_room(parts, depth, tree, size)
            if size is not None or tuple(parts[: len(folders)]) != folders[: len(parts)]:
                return False
            below = parts[len(folders) :]
            if below and (_VERSION.fullmatch(below[0]) is None or below[1:] not in ([], ["site-packages"])):
                return False
            self._count()
            return True

        return is_wanted

    def _count(self, place: str = "") -> None:
        """One more entry that is looked at, of this module or package."""
        self._entries -= 1
        if self._entries < 0:
            if place:
                self._begun[place] = False
            raise _Spent

    def _has_room(self, parts: list[str], depth: int, tree: str, size: int | None) -> bool:
        name = parts[depth]
        place = "/".join((tree, *parts[: depth + 1]))
        self._count(place)
        stem = name.partition(".")[0]
        if parts[-1] == "__pycache__":
            return False
        if len(parts) == depth + 1 and (
            name.endswith(".pth") or stem in _RUN_UNASKED or stem in sys.stdlib_module_names
        ):
            if name not in _OF_INSTALLERS:
                self._unsafe[name] = None
            return False
        if place in self.too_much:
            return False
        self._begun[place] = size is not None or len(parts) > depth + 1
        self._bytes -= size or 0
        if self._bytes < 0:
            self.too_much[place] = None
            self._bytes += size or 0
            return False
        return True

    def names(self) -> list[str]:
        """Of the modules and packages that were copied, as far as they are shown."""
        whole = (place.rpartition("/")[2].partition(".")[0] for place in self._begun if place not in self.too_much)
        return sorted({name for name in whole if name.isidentifier()})[:_NAMES_SHOWN]

    def notices(self) -> tuple[str, ...]:
        """Sentences without a full stop."""
        what = "checks do not see all that the agent installed"
        found = []
        if self._unsafe:
            why = "it has the name of a module of the standard library, or Python would run it unasked"
            found.append(f"{what}: {name_paths(sorted(self._unsafe))} ({why})")
        if self.too_much or self._unseen:
            cut = [f"the rest of {tree}" for tree in self._unseen]
            names = name_paths([*cut, *sorted(path.rpartition("/")[2] for path in self.too_much)])
            most = f"{MOST_ENTRIES:,} files and folders and {MOST_BYTES >> 20} MiB"
            found.append(f"{what}: {names} (more than {most} in all)")
        if self.missing:
            why = "it is gone, closed to us, a link, or another name of a file that is not copied"
            found.append(f"{what}: {name_paths(sorted(self.missing))} ({why})")
        return tuple(found)


WORTH_KEEPING = 1.0
"""Seconds that commands must take: what is quicker is run again sooner than it is copied."""
