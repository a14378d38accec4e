"""What all cells of a run share, made once and closed once."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import HarnessError, SandboxError, SecretError
from keystone_action.files.removal import remove_tree
from keystone_action.spec.loading.author_directory import read_below

if TYPE_CHECKING:
    from keystone_action.evidence.masking import Masker
    from keystone_action.judge.base import Judge
    from keystone_action.plan import Cell
    from keystone_action.runner.cell.host import Host
    from keystone_action.runner.concurrency import Company
    from keystone_action.runner.containers import Containers
    from keystone_action.runner.options import Progress, RunOptions
    from keystone_action.runner.service_pool import ServicePool
    from keystone_action.sandbox.base import SandboxProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The shared parts of a run.

    roots: private directories of the run. container_roots: those of cells in containers. results: the output directory.
    provider: the process sandbox, also of the author's own scripts. images: by spec id, for cells in containers.
    containers: the engine, where there is one. service_defects: what went wrong in our own
    mock server so far. secrets: by spec id.
    company: by spec id, who runs beside its cells. light: by spec id, whether its workspace is
    so small that it is copied faster than a thread is woken. author_files: bytes of the author's files,
    read before the first agent started. identified: to be awaited before an agent starts, see `parts/identify.py`.
    host: what scripts on the host find.
    """

    options: RunOptions
    progress: Progress
    roots: Roots
    container_roots: Roots
    results: Path
    provider: SandboxProvider
    images: Mapping[str, str]
    containers: Containers | None
    services: ServicePool
    service_defects: Callable[[], tuple[str, ...]]
    judge: Judge
    masker: Masker
    secrets: Mapping[str, SpecSecrets]
    company: Mapping[str, Company]
    light: Mapping[str, bool]
    author_files: AuthorFiles
    identified: Callable[[], Awaitable[None]]
    host: Host

    def cell_roots(self, cell: Cell) -> CellRoots:
        """The directories of one attempt at a cell."""
        in_container = cell.loaded.spec.id in self.images
        return (self.container_roots if in_container else self.roots).cell(cell)


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
        area.chmod(0o711)  # whatever our umask takes away
        workspace = area / "workspace"
        workspace.mkdir()
        return CellRoots(private, area, workspace)

    def remove(self) -> None:
        """Remove all of it; what can't be removed stays and is not an error of the run."""
        remove_tree(self.path)


@dataclass(frozen=True, slots=True)
class CellRoots:
    """private: ours. area: can be entered by the cell's users; holds the workspace and its copies."""

    private: Path
    area: Path
    workspace: Path

    def remove(self) -> None:
        """Remove what this attempt left."""
        remove_tree(self.area)
        remove_tree(self.private)


@dataclass(frozen=True, slots=True)
class SpecSecrets:
    """The secrets of a spec. missing: those that only judges use and that could not be resolved, with why. error: why
    the others could not be, told by every cell of the spec."""

    values: Mapping[str, str]
    warnings: tuple[str, ...]
    missing: Mapping[str, str]
    error: SecretError | None


@dataclass
class AuthorFiles:
    """The author's files (scripts, rubrics, hidden tests) as they were before the first agent started."""

    _bytes: dict[Path, bytes] = field(default_factory=dict)
    _directories: dict[Path, Mapping[str, bytes]] = field(default_factory=dict)

    def add_all(self, paths: Iterable[Path], withheld: Collection[Path] = ()) -> None:
        """Read files now, and of directories those that are withheld, which are the checks'; any other is left to
        whoever copies it. Raises HarnessError."""
        for path in paths:
            try:
                if path.is_file():
                    self._bytes[path.resolve()] = path.read_bytes()
                elif path in withheld and path.is_dir():
                    self._directories[path.resolve()] = read_below(path)
            except OSError as error:
                raise HarnessError(f"{path} can't be read: {error.strerror}") from error
            except ValueError as problem:
                raise HarnessError(f"{path} {problem}") from problem

    def read(self, path: Path) -> bytes:
        """The bytes of a file that was added. Raises FileNotFoundError when it was not."""
        try:
            return self._bytes[path.resolve()]
        except KeyError:
            raise FileNotFoundError(f"{path} was not there when the run started") from None

    def directory(self, path: Path) -> Mapping[str, bytes]:
        """The files of a directory that was added, by relative path. Raises FileNotFoundError when it was not."""
        try:
            return self._directories[path.resolve()]
        except KeyError:
            raise FileNotFoundError(f"{path} was not there when the run started") from None
