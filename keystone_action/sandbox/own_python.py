"""Our own interpreter, as the user of an author's script finds it: where it is installed, or, below a closed home, as a
copy."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from keystone_action.sandbox.processes import policy
from keystone_action.sandbox.shared_copy import shared_copy

_NOT_NEEDED = frozenset({"site-packages", "test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"})
"""Of a standard library: most of its size."""

_FORM = 2
"""Of copies: counts up when they are made in another way, so that older ones are not used."""


@dataclass(frozen=True, slots=True)
class OwnPython:
    """program: the interpreter. sites: directories of packages that it does not look in by itself. readable: what it
    reads. libraries: where a copy has the library that it is linked with; None for one that finds it."""

    program: str
    sites: tuple[Path, ...]
    readable: tuple[Path, ...]
    libraries: Path | None = None

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
