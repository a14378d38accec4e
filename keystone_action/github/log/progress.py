"""How a run goes, in the log of a workflow: one line a cell, in a part of the log that folds."""

from __future__ import annotations

from pathlib import Path

from keystone_action.github.log.commands import MIN_MASK, LogCommands
from keystone_action.github.pull_request.live import Live
from keystone_action.report import words
from keystone_action.report.sentences.view import cell_reason
from keystone_action.report.so_far import Heartbeat, SoFar
from keystone_action.scoring.results import CellResult

SILENCE = 60.0
"""Seconds after which the log is told that the run goes on."""


class LogProgress:
    """A `runner.options.Progress` that writes to the log, a line at least every `silence` seconds. live: is told how
    far the run is."""

    def __init__(self, commands: LogCommands, live: Live | None = None, *, silence: float = SILENCE) -> None:
        self._commands = commands
        self._live = live
        self._warned = False
        self._so_far = SoFar()
        self._heartbeat = Heartbeat(lambda: self._commands.log(self._so_far.sentence()), silence)

    def started(self, *, cells: int, finished: int, output: Path, notices: tuple[str, ...]) -> None:
        """Opens the folded part."""
        for notice in notices:
            self._commands.log(notice)
        if self._live is not None:
            self._live.cells(cells, finished)
        done = f", {finished} of them finished before" if finished else ""
        self._commands.group(f"Keystone runs {cells} {'cell' if cells == 1 else 'cells'}{done}")
        self._commands.debug(f"results go to {output}")
        self._so_far.started(cells, finished)
        self._heartbeat.start()

    def phase(self, cell_id: str, phase: str) -> None:
        """Said with step debugging only."""
        self._so_far.phase(cell_id, phase)
        self._commands.debug(f"{cell_id}: {phase}")

    def detail(self, cell_id: str, message: str) -> None:
        """Said with step debugging only."""
        self._commands.debug(f"{cell_id}: {message}")

    def cell(self, spec_id: str, result: CellResult) -> None:
        """One line: verdict, which cell, composite, duration, and why it is not a pass."""
        self._so_far.cell(result)
        if self._live is not None:
            self._live.cell(passed=result.verdict == "pass")
        composite = "" if result.composite is None else f"  composite {result.composite:.2f}"
        reason = "" if result.verdict == "pass" else f"  {cell_reason(result)}"
        name = result.id if result.id.startswith(spec_id) else f"{spec_id} {result.id}"
        line = f"{result.verdict:<5}  {name}{composite}  {words.duration(result.duration_s)}{reason}"
        self._commands.log(" ".join(line.splitlines()))
        self._heartbeat.spoke()

    def note(self, message: str) -> None:
        """A plain line."""
        self._commands.log(message)

    def secrets(self, values: tuple[str, ...]) -> None:
        """Masks every value before any other line; warns once about those too short to be masked."""
        unmasked = [value for value in values if value and not self._commands.mask(value)]
        if unmasked and not self._warned:
            self._warned = True
            self._commands.warning(f"a secret of fewer than {MIN_MASK} characters is not masked in logs and results")

    def finished(self) -> None:
        """Closes the folded part."""
        self._heartbeat.stop()
        self._commands.endgroup()
