"""Programs of ours, our own Python first, for users that can't read where they are installed: below a closed home.

A copy is named by its content, made once, and belongs to us. It lies where every user may pass and only we may write; a
folder that somebody else put there first is never used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.processes import policy

_PLACES = (Path("/var/cache"), Path("/var/tmp"))  # noqa: S108 - what is found there is looked at before it is used
_FOLDER = "keystone-action"
_UNFINISHED = ".unfinished-"
_UNFINISHED_SECONDS = 3600.0
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a copy."""

    source: Path
    """With links followed."""
    target: PurePosixPath
    """Relative to the copy."""
    executable: bool


def open_to_all(*trees: Path) -> bool:
    """Whether any user may read all files of these trees, run those that are programs, and pass every directory on the
    way. Raises OSError."""
    for top in trees:
        if not _passable(top.resolve().parent):
            return False
        for path in (top, *top.rglob("*")):
            if path.is_symlink() and not path.resolve().is_relative_to(top.resolve()):
                return False
            if not _open(path.stat()):
                return False
    return True


def shared_copy(trees: Mapping[str, Path], own: Path, version: str = "") -> Path:
    """The folder that has copies of these trees: target, relative to it, → source.

    own: a folder of ours that all users may pass, for where no lasting place can be had. version: stands for their
    content, where reading all of it each time would take too long. Raises OSError.
    """
    name = hashlib.sha256(version.encode("utf-8", "surrogateescape")).hexdigest()[:32] if version else ""
    for folder in _folders() if name else ():
        if _is_ours(folder / name):
            return _make_copy(folder, name, [])
    files = [file for target, source in trees.items() for file in _files(source, PurePosixPath(target))]
    name = name or _digest(files)
    for folder in _folders():
        with contextlib.suppress(OSError):
            return _make_copy(folder, name, files)
    return _make_copy(own, name, files)


def unused_copies(seconds: float) -> list[Path]:
    """Copies of ours that no run has asked for in this time, and those that were not finished."""
    found = []
    now = time.time()
    for place in _PLACES:
        folder = place / _FOLDER
        if not _is_ours(folder):
            continue
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                limit = min(seconds, _UNFINISHED_SECONDS) if entry.name.startswith(_UNFINISHED) else seconds
                if entry.stat(follow_symlinks=False).st_mtime <= now - limit:
                    found.append(Path(entry.path))
    return sorted(found)


def _folders() -> Iterator[Path]:
    for place in _PLACES:
        folder = place / _FOLDER
        with contextlib.suppress(OSError):
            if not _safe(place):
                continue
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o755)
                folder.chmod(0o755)
            if _is_ours(folder) and not os.statvfs(folder).f_flag & os.ST_NOEXEC:
                yield folder


def _safe(place: Path) -> bool:
    """Whether nobody but root and we can move away what is ours there, and all may pass. No part of it is a link."""
    for path in (place, *place.parents):
        status = path.lstat()
        may_be_swapped = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()) or may_be_swapped:
            return False
    return _passable(place)


def _is_ours(folder: Path) -> bool:
    """Whether it is a real directory of ours that nobody else may write to, and all may pass."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    writable = status.st_mode & 0o022
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not writable and _open(status)


def _make_copy(folder: Path, name: str, files: list[_File]) -> Path:
    copy = folder / name
    if _is_ours(copy):
        with contextlib.suppress(OSError):
            os.utime(copy)  # used now: `keystone clean` reads this time
        return copy
    unfinished = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
    try:
        _write(unfinished, files)
        try:
            unfinished.rename(copy)
        except OSError:
            if not _is_ours(copy):  # else another run was quicker
                raise
    finally:
        if unfinished.exists():
            remove_tree(unfinished)
    return copy


def _write(folder: Path, files: list[_File]) -> None:
    folders = {folder}
    folder.mkdir(mode=0o700)
    for file in files:
        path = folder / file.target
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders |= {one for one in path.parents if one.is_relative_to(folder)}
        # Not `copyfile`: a file of ours that is cut meanwhile must not be taken for whole by its name.
        path.write_bytes(file.source.read_bytes())
        path.chmod(0o755 if file.executable else 0o644)
        # Compiled Python counts only beside a source of the time that it was made from.
        times = file.source.stat()
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for one in folders:
        one.chmod(0o755)


def _files(source: Path, target: PurePosixPath) -> Iterator[_File]:
    for path in sorted((source, *source.rglob("*"))):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            place = target / PurePosixPath(path.relative_to(source))
            yield _File(path, place, bool(status.st_mode & stat.S_IXUSR))


def _digest(files: list[_File]) -> str:
    total = hashlib.sha256()
    for file in files:
        with file.source.open("rb") as content:
            one = hashlib.file_digest(content, "sha256").hexdigest()
        total.update(f"{one} {file.executable:d} {file.target}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:32]


def _passable(directory: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (directory, *directory.parents))


def _open(status: os.stat_result) -> bool:
    """For others: to be read, and to be run where its owner may run it; a directory to be passed and listed."""
    wanted = stat.S_IROTH | (stat.S_IXOTH if status.st_mode & stat.S_IXUSR else 0)
    return status.st_mode & wanted == wanted


_NOT_NEEDED = frozenset({"site-packages", "test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"})
"""Of a standard library: most of its size."""

_FORM = 2
"""Of copies: counts up when they are made in another way, so that older ones are not used."""


@dataclass(frozen=True, slots=True)
class OwnPython:
    """An interpreter, and what it needs."""

    program: str
    sites: tuple[Path, ...]
    """Directories of packages that it does not look in by itself."""
    readable: tuple[Path, ...]
    """What it reads."""
    libraries: Path | None = None
    """Where a copy has the library that it is linked with; None for an interpreter that finds it."""

    def environment(self, script: Path) -> dict[str, str]:
        """What this script needs in its environment. With Python's safe path, the files beside it are found only where
        they are named."""
        found = {"PYTHONPATH": os.pathsep.join(map(str, (script.parent, *self.sites)))}
        return found if self.libraries is None else {**found, "LD_LIBRARY_PATH": str(self.libraries)}


def own_python(user: int | None, place: Path) -> OwnPython:
    """The interpreter for this user, None = ourselves. place: a folder of ours that all may pass, for a copy. Blocks.
    Raises OSError."""
    prefixes = tuple({Path(sys.prefix), Path(sys.base_prefix)})
    program, packages = Path(sys.executable).resolve(), Path(sysconfig.get_path("purelib"))
    if user is None or (_may_use(user, _standard_library()) and _may_use(user, packages)):
        return OwnPython(sys.executable, (), prefixes)
    base, libraries = Path(sys.base_prefix), None
    if not _may_use(user, _standard_library()):
        base = shared_copy(_base(program), place, _version(program, _standard_library()))
        program = base / "bin" / program.name
        libraries = base / "lib" if sysconfig.get_config_var("Py_ENABLE_SHARED") else None
    if not _may_use(user, packages):
        packages = shared_copy({"packages": packages}, place, _version(packages, *packages.iterdir())) / "packages"
    return OwnPython(str(program), (packages,), (base, packages), libraries)


def _may_use(user: int, library: Path) -> bool:
    """Whether this user may pass all directories down to what lies in this one. Raises OSError."""
    return policy.user_may_enter(library.resolve() / "any", user) is None


def _standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _base(program: Path) -> dict[str, Path]:
    """What an interpreter needs that finds its library from where it lies itself, by where the copy has it."""
    library = _standard_library()
    parts = [part for part in library.iterdir() if part.name not in _NOT_NEEDED and not part.name.startswith("config-")]
    shared = Path(sys.base_prefix, "lib").glob("libpython*.so*")
    found = {f"bin/{program.name}": program, **{f"lib/{one.name}": one for one in shared}}
    return {**found, **{f"lib/{library.name}/{part.name}": part for part in parts}}


def _version(*paths: Path) -> str:
    """What changes whenever an installation does: names and times of what it consists of."""
    found = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(paths)]
    return repr((_FORM, sys.version, found))
