"""What people see in a terminal or a job's log: progress on stderr while it runs, the report on stdout at the end.

Text of agents and services never reaches rich as markup and never starts a workflow command.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from keystone_action.evidence.masking import Masker
from keystone_action.report import view, words
from keystone_action.report.compared import baseline_lines, gate_lines
from keystone_action.report.escape import excerpt, first_line, log_line
from keystone_action.report.headline import headline
from keystone_action.scoring.results import CellResult, RunResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table
    from rich.text import Text

STYLES = {"pass": "green", "fail": "red", "flaky": "yellow", "error": "magenta", "skip": "dim"}
WIDTH_WITHOUT_TERMINAL = 120
MAX_STORIES = 3
"""Cells whose errors and agents are told in full."""
NARROW = 72
"""Columns below which the table has no room for five columns of its own."""


class RichProgress:
    """Tells how a run goes (`runner.options.Progress`): a bar on a terminal, else one line a finished cell.

    file: where to (stderr). quiet: say nothing at all. report: where the lines of finished cells go instead when there
    is no bar, so that a log which takes both streams has each of them once; `reported` are the ids written there. Use
    it as a context manager so that the bar is always taken down. Its methods are called from one thread,
    return at once and never raise.
    """

    def __init__(self, file: TextIO | None = None, *, quiet: bool = False, report: TextIO | None = None) -> None:
        self._file = sys.stderr if file is None else file
        self._quiet = quiet
        self._report = None if quiet or self._file.isatty() else report
        self.reported: set[str] = set()
        self._total = 0
        self._done = 0
        self._running: dict[str, str] = {}
        self._masker = Masker(())
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> RichProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar down; nothing is drawn from here on."""
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self._bar.stop()
            self._bar = None

    def started(self, *, cells: int, finished: int, output: Path, notices: tuple[str, ...]) -> None:
        """Planning is done."""
        self._total, self._done = cells, finished
        resumed = f", {finished:,} of them finished before" if finished else ""
        self._say(f"{words.count(cells, 'cell')}{resumed}; results go to {output}")
        for notice in notices:
            self.note(notice)
        if not self._quiet and self._file.isatty():
            self._show_bar()

    def phase(self, cell_id: str, phase: str) -> None:
        """A cell entered a phase of its life."""
        self._running[cell_id] = phase
        self._update()

    def cell(self, spec_id: str, result: CellResult) -> None:
        """A cell is finished."""
        self._running.pop(result.id, None)
        self._done += 1
        line = cell_line(spec_id, result)
        if self._report is None:
            self._say(f"[{self._done}/{max(self._total, self._done)}] {line}")
        else:
            with contextlib.suppress(OSError, ValueError):  # what is not written now is written, or fails, at the end
                write_line(self._report, log_line(self._masker.text(line)))
                self.reported.add(result.id)
        self._update()

    def note(self, message: str) -> None:
        """Something that people should know while it runs."""
        self._say(f"note: {message}")

    def secrets(self, values: tuple[str, ...]) -> None:
        """Values that no line of ours may show from here on."""
        self._masker = Masker(values)

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

    def _show_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        console = Console(file=self._file, markup=False, highlight=False, emoji=False)
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=self._total, completed=self._done)
        self._bar.start()

    def _update(self) -> None:
        if self._bar is None or self._task is None:
            return
        shown = [f"{name}: {phase}" for name, phase in list(self._running.items())[:2]]
        more = f" and {len(self._running) - 2} more" if len(self._running) > 2 else ""
        description = log_line(self._masker.text("; ".join(shown) + more))
        with contextlib.suppress(OSError, ValueError):
            self._bar.update(self._task, completed=self._done, description=description)


def write_line(file: IO[str], text: str) -> None:
    """Print text that is already harmless; what the terminal's encoding lacks becomes a question mark."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    file.flush()


def cell_line(spec_id: str, cell: CellResult) -> str:
    """One cell in one line: verdict, composite, time, ids, and why when it did not pass. Not yet escaped."""
    composite = words.score(cell.composite)
    name = cell.id if cell.id.startswith(spec_id) else f"{spec_id}: {cell.id}"
    why = f" ({view.cell_reason(cell)})" if cell.verdict != "pass" else ""
    return f"{cell.verdict:<5} {composite:>6} {words.duration(cell.duration_s):>7}  {name}{why}"


def plain(run: RunResult, *, reported: Collection[str] = ()) -> str:
    """The report of `--format plain`: one line a cell that is not reported yet; when there is no cell, one line that
    says why."""
    lines = [cell_line(spec.id, cell) for spec in run.specs for cell in spec.cells if cell.id not in reported]
    if not any(spec.cells for spec in run.specs):
        lines = [f"{run.verdict}: {first_line(run.error or 'nothing ran', 500)}"]
    return "".join(f"{log_line(line)}\n" for line in lines)


def print_verdict(run: RunResult, file: IO[str]) -> None:
    """What `--format plain` leaves to stderr: the verdict, what agents that ended badly said last, and what to know
    before believing it."""
    for line in gate_lines(run.spec_changes):
        write_line(file, log_line(line))
    for line in _broken_rules(cell for item in view.spec_views(run) for cell in item.failed):
        write_line(file, log_line(line))
    for line, _ in _stories(run):
        write_line(file, log_line(line))
    write_line(file, log_line(" · ".join([headline(run), *_further_facts(run)])))
    for line in baseline_lines(run.baseline, run):
        write_line(file, log_line(line))
    for note in view.notes(run)[0]:
        if note not in run.notices:  # those were said when the run started
            write_line(file, log_line(f"note: {first_line(note, 500)}"))


def print_table(run: RunResult, file: IO[str] | None = None, *, summary: Path | None = None) -> None:
    """The report of `--format rich`: a table for each spec, then the verdict, why, what to know, and where the summary
    is. Coloured on a terminal."""
    from rich.text import Text

    console = _console(sys.stdout if file is None else file)
    for line in gate_lines(run.spec_changes):
        console.print(Text(log_line(line), style="yellow"), soft_wrap=True)
    for item in view.spec_views(run):
        # Not as the table's title: that would be wrapped, and a line could begin anywhere in it.
        title = f"{item.spec.id}: {', '.join(item.facts)}"
        console.print(Text(log_line(title), style="bold"), soft_wrap=True)
        for line in _broken_rules(item.failed):
            console.print(Text(log_line(line), style="red"), soft_wrap=True)
        if item.rows:
            console.print(_table(item, console.width))
    console.print(_verdict(run), soft_wrap=True)
    for line, style in _after_verdict(run):
        console.print(Text(log_line(line), style=style), soft_wrap=True)
    if summary is not None:
        console.print(Text(f"summary: {log_line(str(summary))}"), soft_wrap=True)


def _console(file: IO[str]) -> Console:
    from rich.console import Console

    console = Console(file=file, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(file=file, markup=False, highlight=False, emoji=False, width=WIDTH_WITHOUT_TERMINAL)
    return console


def _table(item: view.SpecView, width: int) -> Table:
    """A closed box: no cell of it can begin a line, however it is wrapped."""
    from rich.box import ROUNDED
    from rich.table import Table
    from rich.text import Text

    if width < NARROW:
        return _narrow_table(item)
    table = Table(box=ROUNDED, header_style="dim", expand=True)
    table.add_column("Status", no_wrap=True)
    table.add_column("Invariant", overflow="fold", ratio=2)
    if item.several:
        table.add_column("Passed", justify="right", no_wrap=True)
    table.add_column("Score", justify="right", no_wrap=True)
    table.add_column("Weight", justify="right", no_wrap=True)
    table.add_column("Why", overflow="fold", ratio=4)
    for row in item.rows:
        name = f"{row.name} ({row.gate})" if row.gate else row.name
        cells = [row.status, name]
        cells += [f"{row.passed}/{row.total}"] if item.several else []
        cells += [words.score(row.score), words.weight(row.weight), row.why]
        styles = [STYLES[row.status]] + [""] * (len(cells) - 1)
        table.add_row(*(Text(log_line(cell), style=style) for cell, style in zip(cells, styles, strict=True)))
    return table


def _narrow_table(item: view.SpecView) -> Table:
    """The same in two columns, where five would leave none of them room for a word."""
    from rich.box import ROUNDED
    from rich.table import Table
    from rich.text import Text

    table = Table(box=ROUNDED, header_style="dim", expand=True)
    table.add_column("Status", no_wrap=True)
    table.add_column("Invariant", overflow="fold")
    for row in item.rows:
        name = f"{row.name} ({row.gate})" if row.gate else row.name
        passed = f"passed {row.passed}/{row.total} · " if item.several else ""
        facts = f" · {passed}score {words.score(row.score)} · weight {words.weight(row.weight)}"
        text = Text(log_line(name), style="bold").append(f"{facts}\n", style="not bold dim")
        table.add_row(Text(row.status, style=STYLES[row.status]), text.append(log_line(row.why), style="not bold"))
    return table


def _verdict(run: RunResult) -> Text:
    from rich.text import Text

    line = log_line(headline(run))
    style = "yellow" if run.cancelled else STYLES[run.verdict]
    text = Text(line, style=f"bold {style}")
    return text.append(log_line(f" · {' · '.join(_further_facts(run))}"), style="not bold default")


def _further_facts(run: RunResult) -> list[str]:
    """Those that the headline does not end with already."""
    line = headline(run)
    return [fact for fact in view.facts(run) if not line.endswith(f": {fact.removesuffix(' passed')}")]


def _after_verdict(run: RunResult) -> Iterator[tuple[str, str]]:
    if run.error is not None:
        yield from ((line, "red") for line in run.error.splitlines())
    why, more = view.reasons(run)
    for reason in why:
        where = " › ".join(reason.where)
        yield f"  {reason.verdict}: {where}{': ' if where else ''}{reason.text}", STYLES[reason.verdict]
    if more:
        yield f"  … and {more} more", "dim"
    yield from _stories(run)
    yield from ((line, "") for line in baseline_lines(run.baseline, run))
    notes, more_notes = view.notes(run)
    yield from ((f"note: {first_line(note, 500)}", "yellow") for note in notes)
    if more_notes:
        yield f"… and {more_notes} more notes", "dim"


def _broken_rules(cells: Iterable[CellResult]) -> Iterator[str]:
    """What forbidden rules say of the worst cells; equal words once."""
    told = dict.fromkeys((rule.rule, rule.details) for cell in cells for rule in cell.forbidden if rule.violated)
    for rule, details in list(told)[:MAX_STORIES]:
        yield f"  forbidden rule {first_line(rule)} was violated:"
        yield from (f"    {line}" for line in excerpt(details, lines=12, characters=4000).split("\n"))
    if len(told) > MAX_STORIES:
        yield f"  … and {len(told) - MAX_STORIES} more violations"


def _stories(run: RunResult) -> Iterator[tuple[str, str]]:
    """Of the worst cells that did not pass: the whole of an error of several lines, and what an agent said last that
    ended badly or printed nothing. Cells with one story are told once."""
    told: set[tuple[str, ...]] = set()
    for cell in (cell for item in view.spec_views(run) for cell in item.failed):
        lines = tuple(_story(cell))
        if lines and lines not in told and len(told) < MAX_STORIES:
            told.add(lines)
            yield f"  {cell.id}:", "bold"
            yield from ((f"    {line}", "") for line in lines)


def _story(cell: CellResult) -> Iterator[str]:
    if cell.error and "\n" in cell.error.strip():
        yield from excerpt(cell.error.strip(), lines=40, characters=4000).split("\n")
    agent = cell.agent
    if agent is not None and (not agent.ended_well or not agent.output.strip()):
        yield words.agent(agent)
        said = view.last_words(agent)
        for title, text in said:
            yield f"{title}:"
            yield from (f"  {line}" for line in excerpt(text.strip("\n"), lines=10, characters=1500).split("\n"))
        if not said:
            yield "It printed nothing."
