"""How a run goes, in the log of a workflow: it is told that the run goes on while no cell ends."""

from __future__ import annotations

import io
import re
import threading
from pathlib import Path

import pytest
from support.sample_parts import cell, check

from keystone_action.github.log_commands import LogCommands
from keystone_action.github.progress import LogProgress


class Log(io.StringIO):
    """A log that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.line = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if " cells after " in text:
            self.line.set()
        return written


def started(log: io.StringIO, silence: float) -> LogProgress:
    shown = LogProgress(LogCommands(log), silence=silence)
    shown.started(cells=3, finished=1, output=Path("out"), notices=())
    return shown


def test_the_log_is_told_that_the_run_goes_on_and_obeys_no_name_of_a_cell() -> None:
    log = Log()
    shown = started(log, 0.01)
    shown.phase("a.r0", "agent")
    shown.phase("##[error]b.r0", "checks")
    shown.cell("a", cell("a.r0", check("t"), usage={"spent_usd": 0.25}))
    log.line.clear()
    assert log.line.wait(60)
    shown.finished()
    line = [line for line in log.getvalue().splitlines() if " cells after " in line][-1]
    said = r"2 of 3 cells after [\d.e-]+ s, about [\d.e-]+ s left, \$0\.25 spent; running: ## \[error\]b\.r0: checks"
    assert re.fullmatch(said, line), line


def test_a_run_that_tells_enough_is_left_alone() -> None:
    log = Log()
    shown = started(log, 3600.0)
    assert not log.line.wait(0.05)
    shown.finished()
    assert log.getvalue().splitlines() == ["::group::Keystone runs 3 cells, 1 of them finished before", "::endgroup::"]


def test_nothing_is_said_once_the_run_has_ended() -> None:
    before = threading.active_count()
    log = io.StringIO()
    started(log, 0.001).finished()
    assert threading.active_count() == before
    assert log.getvalue().endswith("::endgroup::\n")


def test_a_run_goes_on_where_the_system_gives_no_further_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    log = io.StringIO()
    started(log, 0.001).finished()
    assert "Keystone runs 3 cells" in log.getvalue()
