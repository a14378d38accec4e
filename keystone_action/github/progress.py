"""What GitHub is told while a run is under way: a pending status at once, and in long runs how far it is.

A thread of its own, so that neither a slow nor a dead API ever delays a cell. What fails here is said once and left:
the end of the run is what matters, and that is posted by `reporting`.

The log of the workflow gets one line for each cell, in a part that folds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import GitHubError
from keystone_action.github.api.requests import Clock, RequestLimits
from keystone_action.github.log_commands import MIN_MASK, LogCommands
from keystone_action.github.status import CommitStatus
from keystone_action.report import words
from keystone_action.report.comment.render import CommentProgress
from keystone_action.report.sentences.view import cell_reason
from keystone_action.report.so_far import Heartbeat, SoFar
from keystone_action.scoring.results import CellResult

Connect = Callable[[RequestLimits, Clock], GitHubClient]
Show = Callable[[GitHubClient, CommentProgress], bool]
"""Brings the comments up to date; False when there are none to keep, so that it need not be called again."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. first: a run that is over by then shows no progress. between: from one update to the next; it doubles
    with each, up to `longest`: all jobs of a repository share a thousand requests an hour, and the end needs some too.
    """

    first: float = 30.0
    between: float = 30.0
    longest: float = 300.0


class RunEnded(Exception):  # noqa: N818 - it tells, and is not a failure
    """The run ended meanwhile: nothing of how far it was may be written any more."""


class Live:
    """One run's thread. status: None for none. show: None for no comment. log: takes lines, from that thread too."""

    def __init__(
        self,
        connect: Connect,
        *,
        status: CommitStatus | None,
        show: Show | None,
        pace: Pace,
        limits: RequestLimits,
        log: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._status = status
        self._show = show
        self._pace = pace
        self._limits = limits
        self._log = log
        self._began = time.monotonic()
        self._progress = CommentProgress(0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="live report")

    def start(self) -> None:
        """Returns at once."""
        if self._status is not None or self._show is not None:
            self._thread.start()

    def cells(self, cells: int, finished: int) -> None:
        """The number of cells, and how many of them an earlier run finished."""
        self._progress = replace(self._progress, cells=cells, passed=finished)

    def cell(self, *, passed: bool) -> None:
        """One more is done."""
        now = self._progress
        self._progress = replace(now, passed=now.passed + passed, failed=now.failed + (not passed))

    def not_run(self) -> None:
        """One does not have to run."""
        self._progress = replace(self._progress, cells=self._progress.cells - 1)

    def stop(self, seconds: float) -> bool:
        """Waits for what is being sent, at most so long. Returns whether the thread ended."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self.is_alive

    def check(self) -> None:
        """For `Show`, right before it writes: raises RunEnded when the run has ended while GitHub was asked, since the
        result may be there already."""
        if self._stop.is_set():
            raise RunEnded

    @property
    def is_alive(self) -> bool:
        """Whether anything may still be sent."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._connect(self._limits, Clock(sleep=self._sleep)) as github:
                self._set_pending(github)
                if self._show is not None:
                    self._keep_showing(github, self._show)
        except RunEnded:
            return
        except GitHubError as error:
            self._log(f"while cells run, nothing is posted: {error.sentences}")
        except Exception as error:  # noqa: BLE001 - in a thread, whose traceback nobody could use
            self._log(f"while cells run, nothing is posted: {type(error).__name__}: {error}")

    def _set_pending(self, github: GitHubClient) -> None:
        if self._status is None:
            return
        try:
            self._status.pending(github)
        except GitHubError as error:
            self._log(error.sentences)

    def _keep_showing(self, github: GitHubClient, show: Show) -> None:
        seconds, between = self._pace.first, self._pace.between
        while not self._stop.wait(seconds):
            seconds = between
            if self._progress.cells == 0:
                continue
            now = replace(self._progress, seconds=time.monotonic() - self._began)
            if not show(github, now):
                return
            between = min(2 * between, self._pace.longest)

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise RunEnded


SILENCE = 60.0
"""Seconds after which the log is told that the run goes on."""


class LogProgress:
    """A `runner.progress.Progress` that writes to the log, a line at least every `silence` seconds. live: is told how
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

    def not_run(self) -> None:
        """Counts one cell less."""
        self._so_far.not_run()
        if self._live is not None:
            self._live.not_run()

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
