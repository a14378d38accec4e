"""What a run was asked for (`run.py`), and what its cells share once it was started (`start.py`)."""

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
from keystone_action.spec.loading.author_files import read_below

if TYPE_CHECKING:
    from keystone_action.evidence.masking import Masker
    from keystone_action.judge.judgement import Judge
    from keystone_action.options.model import Options
    from keystone_action.runner.cell.shared_copies import FirstCopies, KeptSetups
    from keystone_action.runner.model_access import LazyGateways, Spending
    from keystone_action.runner.preflight import Facilities
    from keystone_action.runner.progress import Progress
    from keystone_action.runner.roots import CellRoots, Certificates, HostCheckouts, Roots
    from keystone_action.runner.secrets import SpecSecrets
    from keystone_action.runner.shared_services import Containers, Neighbours, ServicePool
    from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
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


class AgentVersions:
    """The versions of known agents, each asked once a run, by spec, image and program."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None, str], str | None] = {}

    async def of(self, key: tuple[str, str | None, str], ask: Callable[[], Awaitable[str | None]]) -> str | None:
        """The version; None where the program does not tell."""
        if key not in self._known:
            self._known[key] = await ask()
        return self._known[key]

    def known(self, key: tuple[str, str | None, str]) -> str | None:
        """The version, as far as it was asked for."""
        return self._known.get(key)


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What a run was asked for, before anything of it is started."""

    options: Options
    progress: Progress
    specs: Sequence[LoadedSpec]
    plan: Plan
    run_id: str

    directory: Path
    """For results."""

    facilities: Facilities
    """What the cells run in, as preflight found it."""

    @property
    def wanted(self) -> list[LoadedSpec]:
        """The specs that have a cell in this run."""
        ids = {cell.loaded.spec.id for cell in self.plan.cells}
        return [loaded for loaded in self.specs if loaded.spec.id in ids]

    def image(self, cell: Cell) -> str | None:
        """The image that a cell in a container runs in; None for a cell in the process sandbox."""
        return self.facilities.images.get(cell.loaded.spec.id)

    @cached_property
    def results_places(self) -> set[Path]:
        """See the function of this name."""
        return results_places(self.directory, self.options)

    @cached_property
    def _scenario_sizes(self) -> Counter[tuple[str, str]]:
        return Counter((cell.loaded.spec.id, cell.scenario.id) for cell in self.plan.cells)

    def has_alike(self, cell: Cell) -> bool:
        """Whether the run has another cell of this one's scenario."""
        return self._scenario_sizes[cell.loaded.spec.id, cell.scenario.id] > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServers:
    """What serves the cells of a run."""

    gateways: LazyGateways
    """Those to models."""

    pool: ServicePool | None = None
    """The services of specs; None where no spec has any."""

    defects: Callable[[], tuple[str, ...]] = tuple
    """What went wrong in our own mock server so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorMaterial:
    """What the author of the specs gave, as it was before the first agent started."""

    secrets: Mapping[str, SpecSecrets]
    """By spec id."""

    files: AuthorFiles
    host: HostCheckouts
    """What scripts on the host find."""

    certificates: Certificates
    """Of the host, for `setup` in the process sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCopies:
    """What was made in one cell, or for one, and is copied to others."""

    workspaces: FirstCopies
    setups: KeptSetups


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """What all cells of a run share."""

    planned: PlannedRun

    may_start_agent: Callable[[], Awaitable[None]]
    """To be awaited before an agent starts: by then the run is identified, and finished cells are on the disk."""

    roots: Roots
    """The run's private directories."""

    container_roots: Roots
    """Those of cells in containers."""

    provider: ProcessSandboxes
    """The process sandbox, which the author's own scripts run in too."""

    containers: Containers | None
    """The container engine, where there is one."""

    servers: RunServers
    author: AuthorMaterial
    copies: SharedCopies
    versions: AgentVersions

    neighbours: Mapping[str, Neighbours]
    """By spec id, what runs beside its cells."""

    judge: Judge
    masker: Masker
    spending: Spending
    """Of agents and judges."""

    def cell_roots(self, cell: Cell) -> CellRoots:
        """New directories for one attempt at a cell."""
        return (self.roots if self.planned.image(cell) is None else self.container_roots).cell(cell)


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
    """Run a clean-up to its end, also when the cell or the run is being cancelled."""
    with anyio.CancelScope(shield=True):
        await close()
