"""The directories of a run and of its cells, and the copies of the host's files that lie in them."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import HarnessError, SandboxError, UsageError
from keystone_action.files.descent import read_plain, walk_down
from keystone_action.files.git.commits import CheckoutCopy, copy_checkout
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.processes import policy
from keystone_action.spec.loading.loaded_spec import enclosing_root

if TYPE_CHECKING:
    from keystone_action.spec.plan import Cell


class Roots:
    """The run's directory in a temporary directory: `private` is ours alone, `cells` can be entered, but not listed, by
    the users that agents run as. Removed at the end unless `keep`. parent: None = the system's temporary directory."""

    def __init__(self, run_id: str, parent: Path | None = None) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=f"keystone-{run_id}-", dir=parent))
        except OSError as error:
            raise SandboxError(
                f"no temporary directory can be made: {error.strerror}", help="set TMPDIR to a directory with room"
            ) from error
        # Agents of other users must pass through to their own workspace, whose name they can't guess or list.
        self.path.chmod(0o711)
        self.private = self._make("private", 0o700)
        self.cells = self._make("cells", 0o711)
        self.sandboxes = self._make("sandboxes", 0o711)

    def _make(self, name: str, mode: int) -> Path:
        path = self.path / name
        path.mkdir()
        path.chmod(mode)
        return path

    def cell(self, cell: Cell) -> CellRoots:
        """The directories of one attempt at a cell."""
        token = secrets.token_hex(8)
        private, area = self.private / f"{cell.id}.{token}", self.cells / token
        private.mkdir(mode=0o700)
        area.mkdir()
        area.chmod(0o711)  # our umask may have taken some of it away
        workspace = area / "workspace"
        workspace.mkdir()
        return CellRoots(private, area, workspace)

    def remove(self) -> None:
        """Remove all of it; what can't be removed stays and is not an error of the run."""
        remove_tree(self.path)
        if self.path.exists():  # once more when the process ends, and with it what took the last descriptors
            atexit.register(remove_tree, self.path)


@dataclass(frozen=True, slots=True)
class CellRoots:
    """The directories of one attempt at a cell."""

    private: Path
    """Ours alone."""
    area: Path
    """Can be entered by the cell's users; holds the workspace and its copies."""
    workspace: Path

    @property
    def agent_packages(self) -> Path:
        """The copy of what the agent installed, once there is one."""
        return self.private / "agent-packages"

    @property
    def audit_log(self) -> Path:
        """Ours, there from the start and empty."""
        return self.private / "audit.jsonl"

    @property
    def trace(self) -> Path:
        """Ours, there from the start and empty."""
        return self.private / "trace.jsonl"

    @property
    def task(self) -> Path:
        """What we give the agent beside its workspace: commands of the sandbox can read it, and nobody but us write."""
        return self.area / "task"

    def remove(self) -> None:
        """Remove what this attempt left."""
        remove_tree(self.area)
        remove_tree(self.private)


def make_readable(directory: Path) -> None:
    """Let every user read (and run what was executable in) a directory of ours, and nobody but us write."""
    for _, folder, entries in walk_down(directory):
        os.fchmod(folder, 0o755)
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                os.chmod(entry.name, 0o755 if mode & 0o100 else 0o644, dir_fd=folder)


@dataclass
class HostCheckouts:
    """Copies of the checkouts that specs are in, for their scripts on the host."""

    area: Path
    """A directory of ours that the users of scripts may pass through, and nobody but us may list."""
    _copies: dict[Path, CheckoutCopy | HarnessError] = field(default_factory=dict)

    def add_all(self, directories: Iterable[Path], left_out: Collection[Path]) -> None:
        """Copy the checkouts that these directories of specs are in. Blocks. Never raises: the checks tell what went
        wrong."""
        for root in {_checkout_of(directory) for directory in directories}:
            place = self.area / f"checkout-{secrets.token_hex(8)}"
            try:
                # All of a home directory is more than a script needs to see: then it has what it was given.
                self._copies[root] = copy_checkout(root, place, [root] if _holds_home(root) else left_out)
            except HarnessError as error:
                self._copies[root] = error

    def checkout(self, directory: Path) -> CheckoutCopy:
        """The copy of the checkout that a spec's directory is in. Raises HarnessError."""
        found = self._copies[_checkout_of(directory)]
        if isinstance(found, HarnessError):
            raise found
        return found

    def readable(self, directory: Path) -> list[Path]:
        """What of the checkout itself scripts may read, as far as modes let their user. Raises HarnessError."""
        copy = self.checkout(directory)
        return policy.around(copy.source, copy.secret)

    def new_directory(self) -> Path:
        """For one check."""
        place = self.area / f"host-{secrets.token_hex(8)}"
        place.mkdir()
        place.chmod(0o711)
        return place


def _checkout_of(directory: Path) -> Path:
    """The workspace of the job, else the repository or working directory around a spec; never one that holds our home
    directory, which is full of what no script is to see."""
    directory, workspace = directory.resolve(), os.environ.get("GITHUB_WORKSPACE")
    if workspace and directory.is_relative_to(Path(workspace).resolve()):
        found = Path(workspace).resolve()
    else:
        found = enclosing_root(directory)
    return directory if _holds_home(found) else found


def _holds_home(directory: Path) -> bool:
    return Path("~").expanduser().resolve().is_relative_to(directory)


_VARIABLES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
)  # fmt: skip
_LIST = "SSL_CERT_DIR"
"""Names several folders, with colons between them."""
_LARGEST = 4 << 20
_MOST_FILES = 2000
_CERTIFICATE = re.compile(rb"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----[A-Za-z0-9+/=\s]+-----END \1-----")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Copies of the host's certificates, for `setup`. Where a proxy opens connections, installers trust it by variables
    that name files. A sandbox can't read files below a closed home, so it gets copies, which hold nothing but
    certificates."""

    folders: tuple[Path, ...] = ()
    """With the copies; empty without any."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The host's variables, which name the copies."""


def copy_certificates(environ: Mapping[str, str], folder: Path) -> Certificates:
    """What the variables of this environment name, copied to a new folder that every user can read. What can't be read,
    or holds no certificate, is left out. Raises OSError for a copy that can't be written."""
    copies: dict[str, Path] = {}
    variables = {}
    for name in _VARIABLES:
        places = environ.get(name, "").split(":") if name == _LIST else [environ.get(name, "")]
        for place in places:
            content = _read(Path(place)) if place and place not in copies else {}
            if content:
                copies[place] = _write(content, folder / str(len(copies)))
        if found := [str(copies[place]) for place in places if place in copies]:
            variables[name] = ":".join(found)
    return Certificates((folder,), variables) if copies else Certificates()


def _read(place: Path) -> dict[str, bytes]:
    """The certificates of a file, under an empty name, or of the files of a folder."""
    try:
        # The system's are links to where a package has them.
        inside = sorted(place.iterdir())[:_MOST_FILES] if place.is_dir() else None
    except (OSError, ValueError):
        return {}
    files = {"": place} if inside is None else {path.name: path for path in inside}
    found = {name: _certificates(file) for name, file in files.items()}
    return {name: content for name, content in found.items() if content}


def _certificates(file: Path) -> bytes:
    try:
        content = read_plain(file.resolve(), _LARGEST)
    except (OSError, ValueError, RuntimeError, UsageError):
        return b""
    return b"".join(match[0] + b"\n" for match in _CERTIFICATE.finditer(content))


def _write(content: Mapping[str, bytes], target: Path) -> Path:
    for folder in (target.parent, *([] if "" in content else [target])):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    for name, certificates in content.items():
        file = target / name
        file.write_bytes(certificates)
        file.chmod(0o644)
    return target
