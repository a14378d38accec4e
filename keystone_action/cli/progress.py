"""How a run goes, on stderr while it runs: a bar on a terminal, else lines.

Text of agents and services never reaches rich as markup and never starts a workflow command.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from keystone_action.evidence.masking import Masker
from keystone_action.report import words
from keystone_action.report.console import cell_line, write_line
from keystone_action.report.escape import log_line
from keystone_action.report.so_far import Heartbeat, SoFar
from keystone_action.scoring.results import CellResult

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SILENCE = 30.0
"""Seconds after which a log is told that the run goes on."""


class RichProgress:
    """Tells how a run goes (`runner.progress.Progress`): a bar on a terminal, else one line a finished cell, and one at
    least every `silence` seconds.

    file: where to (stderr). quiet: say nothing at all. verbose: say what each cell does, how long that takes and where
    its files are. report: where the lines of finished cells go instead when there is no bar, so that a log which takes
    both streams has each of them once; `reported` are the ids written there. Use it as a context manager, so that bar
    and thread end. Its methods are called from one thread, return at once and never raise.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        quiet: bool = False,
        verbose: bool = False,
        report: TextIO | None = None,
        silence: float = SILENCE,
    ) -> None:
        self._file = sys.stderr if file is None else file
        self._quiet = quiet
        self._verbose = verbose
        self._has_bar = not quiet and self._file.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._report = None if quiet or self._has_bar else report
        self.reported: set[str] = set()
        self._so_far = SoFar()
        self._heartbeat = Heartbeat(lambda: self._say(self._so_far.sentence()), silence)
        self._output = Path()
        self._since: dict[str, float] = {}
        self._masker = Masker(())
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> RichProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar down; nothing is drawn from here on."""
        self._heartbeat.stop()
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self._bar.stop()
            self._bar = None

    def started(self, *, cells: int, finished: int, output: Path, notices: tuple[str, ...]) -> None:
        """Planning is done."""
        self._so_far.started(cells, finished)
        self._output = output
        resumed = f", {finished:,} of them finished before" if finished else ""
        self._say(f"{words.count(cells, 'cell')}{resumed}; results go to {output}")
        for notice in notices:
            self.note(notice)
        if self._has_bar:
            self._show_bar()
        elif not self._quiet:
            self._heartbeat.start()

    def phase(self, cell_id: str, phase: str) -> None:
        """A cell entered a phase of its life."""
        self._end_phase(cell_id)
        self._so_far.phase(cell_id, phase)
        self._since[cell_id] = time.monotonic()
        self._update()

    def detail(self, cell_id: str, message: str) -> None:
        """What a cell does, for those who asked for all of it."""
        if self._verbose:
            self._say(f"  {cell_id}: {message}")

    def cell(self, spec_id: str, result: CellResult) -> None:
        """A cell is finished."""
        if self._verbose:
            self._end_phase(result.id)
            self.detail(result.id, f"files are in {self._output / 'cells' / result.id}")
        self._so_far.cell(result)
        self._since.pop(result.id, None)
        line = cell_line(spec_id, result)
        if self._report is None:
            done, total = self._so_far.done, self._so_far.total
            self._say(f"[{done}/{max(total, done)}] {line}")
        else:
            with contextlib.suppress(OSError, ValueError):  # what is not written now is written, or fails, at the end
                write_line(self._report, log_line(self._masker.text(line)))
                self.reported.add(result.id)
                self._heartbeat.spoke()
        self._update()

    def not_run(self) -> None:
        """A cell does not have to run."""
        self._so_far.not_run()
        self._update()

    def note(self, message: str) -> None:
        """Something that people should know while it runs."""
        self._say(f"note: {message}")

    def secrets(self, values: tuple[str, ...]) -> None:
        """Values that no line of ours may show from here on."""
        self._masker = Masker(values)

    def _end_phase(self, cell_id: str) -> None:
        phase = self._so_far.phase_of(cell_id)
        if self._verbose and phase is not None:
            took = time.monotonic() - self._since[cell_id]
            self.detail(cell_id, f"{phase} took {words.duration(took)}")

    def _say(self, line: str) -> None:
        if self._quiet:
            return
        text = log_line(self._masker.text(line))
        with contextlib.suppress(OSError, ValueError):  # a closed stderr must not end the run
            if self._bar is None:
                write_line(self._file, text)
            else:
                from rich.text import Text

                self._bar.console.print(Text(text), soft_wrap=True)
        self._heartbeat.spoke()

    def _show_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        console = Console(file=self._file, markup=False, highlight=False, emoji=False)
        one_line = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns: list[ProgressColumn] = [MofNCompleteColumn(), TimeElapsedColumn()]
        columns += [TextColumn("{task.description}", markup=False, table_column=one_line)]
        if console.width >= 60:  # below that the words are worth more than the bar
            columns = [BarColumn(bar_width=20), *columns]
        self._bar = Progress(*columns, console=console, transient=True, expand=True)
        self._task = self._bar.add_task("", total=self._so_far.total, completed=self._so_far.done)
        self._bar.start()

    def _update(self) -> None:
        if self._bar is None or self._task is None:
            return
        said = " · ".join(filter(None, [self._so_far.time_left(), self._so_far.money(), self._so_far.what_runs()]))
        with contextlib.suppress(OSError, ValueError):
            self._bar.update(self._task, completed=self._so_far.done, description=log_line(self._masker.text(said)))
