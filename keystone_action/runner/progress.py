"""Who is told how a run goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from keystone_action.scoring.results import CellResult


class Progress(Protocol):
    """Is told how a run goes; each call returns at once and never raises."""

    def started(self, *, cells: int, finished: int, output: Path, notices: tuple[str, ...]) -> None:
        """Planning is done. cells: all of them. finished: those that an earlier run finished (`--resume`)."""

    def phase(self, cell_id: str, phase: str) -> None:
        """A cell entered a phase of its life: workspace, services, fixtures, setup, agent, checks."""

    def detail(self, cell_id: str, message: str) -> None:
        """What a cell does: a command, a service. Only told with `CallerOptions.verbose`."""

    def cell(self, spec_id: str, result: CellResult) -> None:
        """A cell is finished and its journal line is on disk."""

    def not_run(self) -> None:
        """A cell does not have to run: its group of replicas is decided without it."""

    def note(self, message: str) -> None:
        """Something that people should know while it runs (a substituted service, a retry)."""

    def secrets(self, values: tuple[str, ...]) -> None:
        """Values to mask from here on, told before anything can print them."""
