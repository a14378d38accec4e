"""The one record of a run under way, which all its cells share."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import HarnessError
from keystone_action.runner.cell.shared_copies import FirstCopies
from keystone_action.runner.roots import CellRoots, Certificates, Roots
from keystone_action.spec.loading.author_files import read_below

if TYPE_CHECKING:
    from keystone_action.evidence.masking import Masker
    from keystone_action.judge.judgement import Judge
    from keystone_action.options.model import Options
    from keystone_action.runner.cell.shared_copies import KeptSetups
    from keystone_action.runner.model_access import LazyGateways, Spending
    from keystone_action.runner.preflight import Facilities
    from keystone_action.runner.progress import Progress
    from keystone_action.runner.roots import HostCheckouts
    from keystone_action.runner.secrets import SpecSecrets
    from keystone_action.runner.shared_services import Containers, Neighbours, ServicePool
    from keystone_action.sandbox.protocol import SandboxProvider
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.plan import Cell, Plan


@dataclass
class AuthorFiles:
    """The author's files (scripts, rubrics, hidden tests) as they were before the first agent started."""

    _bytes: dict[Path, bytes] = field(default_factory=dict)
    _directories: dict[Path, Mapping[str, bytes]] = field(default_factory=dict)

    def add_all(self, paths: Iterable[Path], withheld: Collection[Path] = ()) -> None:
        """Read files now, and of directories those that are withheld, which are the checks'; any other is read
        when it is copied. Raises HarnessError."""
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


@dataclass(kw_only=True)
class RunUnderWay:
    """What all cells of a run share: what the run was asked for, then what `start.py` makes of it.

    directory: for results. facilities: what preflight found. identified: to be awaited before an agent starts, see
    `parts/identify.py`. spending: of agents and judges. written: to be awaited before an agent starts, see
    `parts/finished_cells.py`.

    roots: private directories of the run. container_roots: those of cells in containers. provider: the process sandbox,
    also of the author's own scripts. containers: the engine, where there is one. services: set where a spec has some.
    gateways: those to models. versions: of known agents, by spec, image and program. service_defects: what went wrong
    in our own mock server so far. secrets: by spec id. neighbours: by spec id, what runs beside its cells.
    author_files: bytes of the author's files, read before the first agent started. host: what scripts on the host find.
    kept_setups: what `setup` left in cells of the process sandbox. certificates: of the host, for `setup` there.
    first_copies: of workspaces, which cells of a spec share.
    """

    options: Options
    progress: Progress
    specs: Sequence[LoadedSpec]
    planned: Plan
    directory: Path
    run_id: str
    facilities: Facilities
    identified: Callable[[], Awaitable[None]]
    spending: Spending
    written: Callable[[], Awaitable[None]] = field(init=False)

    roots: Roots = field(init=False)
    container_roots: Roots = field(init=False)
    provider: SandboxProvider = field(init=False)
    containers: Containers | None = None
    services: ServicePool = field(init=False)
    gateways: LazyGateways = field(init=False)
    versions: dict[tuple[str, str | None, str], str | None] = field(default_factory=dict)
    service_defects: Callable[[], tuple[str, ...]] = tuple
    judge: Judge = field(init=False)
    masker: Masker = field(init=False)
    secrets: Mapping[str, SpecSecrets] = field(default_factory=dict)
    neighbours: Mapping[str, Neighbours] = field(default_factory=dict)
    author_files: AuthorFiles = field(default_factory=AuthorFiles)
    host: HostCheckouts = field(init=False)
    kept_setups: KeptSetups = field(init=False)
    first_copies: FirstCopies = field(init=False)
    certificates: Certificates = field(default_factory=Certificates)

    @property
    def wanted(self) -> list[LoadedSpec]:
        """The specs that have a cell in this run."""
        ids = {cell.loaded.spec.id for cell in self.planned.cells}
        return [loaded for loaded in self.specs if loaded.spec.id in ids]

    @cached_property
    def results_places(self) -> set[Path]:
        """Where results are, this run's and earlier ones: they may lie inside of what is copied."""
        return results_places(self.directory, self.options)

    @cached_property
    def _scenario_sizes(self) -> Counter[tuple[str, str]]:
        return Counter((cell.loaded.spec.id, cell.scenario.id) for cell in self.planned.cells)

    def has_alike(self, cell: Cell) -> bool:
        """Whether the run has another cell of its scenario."""
        return self._scenario_sizes[cell.loaded.spec.id, cell.scenario.id] > 1

    def image(self, cell: Cell) -> str | None:
        """What a cell in a container runs in; None for one in the process sandbox."""
        return self.facilities.images.get(cell.loaded.spec.id)

    def cell_roots(self, cell: Cell) -> CellRoots:
        """The directories of one attempt at a cell."""
        return (self.roots if self.image(cell) is None else self.container_roots).cell(cell)


def hidden_places(loaded: LoadedSpec, options: Options) -> set[Path]:
    """What no agent of a spec may see."""
    recordings = (_recordings(folder, loaded.recordings) for folder in (loaded.directory, loaded.code_directory))
    return {*loaded.withheld, *options.caller.withheld, *recordings}


def _recordings(directory: Path, name: str) -> Path:
    """Where a spec's recordings are, or the folder above where that holds nothing but recordings: it was not there
    when the first of them was made, and an agent that lists its workspace must see the same in a replay."""
    place = directory / name
    return place.parent if place.parent != directory and _holds_recordings_alone(place.parent) else place


def _holds_recordings_alone(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return all(
            entry.is_dir() and not entry.is_symlink() and all(one.suffix == ".jsonl" for one in entry.iterdir())
            for entry in folder.iterdir()
        )
    return False


def results_places(directory: Path, options: Options) -> set[Path]:
    """Where results are, this run's (`directory`) and earlier ones: they may lie inside of what is copied."""
    return {Path(os.path.realpath(directory)), Path(os.path.realpath(options.caller.directory)) / ".keystone"}


async def run_shielded(close: Callable[[], Awaitable[None]]) -> None:
    """Run a clean-up to its end, also when the cell is being cancelled."""
    with anyio.CancelScope(shield=True):
        await close()
