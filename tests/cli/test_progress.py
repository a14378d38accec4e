"""How a run goes, on stderr: lines in a log, at least one in so many seconds, and what `-q` and `-v` make of them."""

from __future__ import annotations

import io
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.sample_parts import cell, check

from keystone_action.cli.progress import RichProgress


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


def started(log: io.StringIO, **more: Any) -> RichProgress:
    shown = RichProgress(log, **more)
    shown.started(cells=3, finished=1, output=Path("out"), notices=())
    return shown


def test_a_log_is_told_that_the_run_goes_on_while_nothing_ends() -> None:
    log = Log()
    with started(log, silence=0.01) as shown:
        shown.secrets(("hunter2-long",))
        for name in ("a.r0", "hunter2-long", "c.r0"):
            shown.phase(name, "agent")
        shown.cell("a", cell("a.r0", check("t"), usage={"spent_usd": 0.25}))
        log.line.clear()
        assert log.line.wait(60)
    line = [line for line in log.getvalue().splitlines() if " cells after " in line][-1]
    said = r"2 of 3 cells after [\d.e-]+ s, about [\d.e-]+ s left, \$0\.25 spent; running: \*\*\*: agent; c\.r0: agent"
    assert re.fullmatch(said, line), line


@pytest.mark.parametrize("more", [{"quiet": True}, {"silence": 3600.0}])
def test_a_run_that_is_quiet_or_tells_enough_is_left_alone(more: dict[str, Any]) -> None:
    log = Log()
    with started(log, **more):
        assert not log.line.wait(0.05)
    assert log.getvalue() == ("" if "quiet" in more else "3 cells, 1 of them finished before; results go to out\n")


def test_nothing_is_said_once_the_run_has_ended() -> None:
    log = Log()
    before = threading.active_count()
    started(log, silence=0.001).close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() <= before


def test_what_a_cell_does_is_told_to_those_who_ask_for_all_of_it() -> None:
    log, usual = io.StringIO(), io.StringIO()
    for shown in (RichProgress(log, verbose=True), RichProgress(usual)):
        shown.started(cells=1, finished=0, output=Path("out"), notices=())
        shown.phase("a.r0", "services")
        shown.detail("a.r0", "service db: 127.0.0.1:5432")
        shown.phase("a.r0", "agent")
        shown.cell("a", cell("a.r0", check("t")))
        shown.close()
    lines = [line.strip() for line in log.getvalue().splitlines()]
    assert "a.r0: service db: 127.0.0.1:5432" in lines
    assert any(re.fullmatch(r"a\.r0: services took (less than )?[\d.]+ s", line) for line in lines)
    assert any(re.fullmatch(r"a\.r0: agent took (less than )?[\d.]+ s", line) for line in lines)
    assert "a.r0: files are in out/cells/a.r0" in lines
    assert len(usual.getvalue().splitlines()) == 2
