"""What people see in a terminal or a job's log when a run has ended: the report on stdout, the verdict on stderr.

Text of agents and services never reaches rich as markup and never starts a workflow command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from keystone_action.report import words
from keystone_action.report.escape import excerpt, first_line, log_line
from keystone_action.report.sentences import view
from keystone_action.report.sentences.compared import baseline_lines, gate_lines
from keystone_action.report.sentences.headline import headline
from keystone_action.scoring.results import CellResult, RunResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

STYLES = {"pass": "green", "fail": "red", "flaky": "yellow", "error": "magenta", "skip": "dim"}
WIDTH_WITHOUT_TERMINAL = 120
MAX_STORIES = 3
"""Cells whose errors and agents are told in full."""
NARROW = 72
"""Columns below which the table has no room for five columns of its own."""
_WITHOUT_LINKS = {None, "", "dumb", "unknown", "linux", "vt100", "vt220"}
"""Terminals that would show the sequences of a link, or drop it."""


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


def print_verdict(run: RunResult, file: IO[str], *, announced: bool = True) -> None:
    """What `--format plain` leaves to stderr: the verdict, what agents that ended badly said last, and what to know
    before believing it. announced: the run's own notices were said when it started."""
    for line in gate_lines(run.spec_changes):
        write_line(file, log_line(line))
    for line in _broken_rules(cell for item in view.spec_views(run) for cell in item.failed):
        write_line(file, log_line(line))
    for line, _ in _stories(run):
        write_line(file, log_line(line))
    line = headline(run)
    write_line(file, log_line(" · ".join([line, *_further_facts(run)])))
    if "…" in line:  # the end of a reason says what to do
        for reason, _ in _why(run):
            write_line(file, log_line(reason))
    for line in baseline_lines(run.baseline, run):
        write_line(file, log_line(line))
    for note in view.notes(run)[0]:
        if not announced or note not in run.notices:
            write_line(file, log_line(f"note: {first_line(note, 500)}"))


def print_report_path(report: Path, file: IO[str], *, directory: Path) -> None:
    """Where the report is to be opened: a link on a terminal that knows links, an address on any other, in a log the
    path as people write it. directory: what they write it relative to."""
    shown = log_line(str(report.relative_to(directory)) if report.is_relative_to(directory) else str(report))
    if not file.isatty():
        write_line(file, f"report: {shown} (open it in a browser)")
        return
    address = report.absolute().as_uri()
    if os.environ.get("TERM") in _WITHOUT_LINKS or "\n" in shown:
        write_line(file, f"report: {address} (open it in a browser)")
        return
    from rich.text import Text

    line = Text("report: ").append(shown, style=f"link {address}").append(" (open it in a browser)")
    _console(file).print(line, soft_wrap=True)


def print_table(
    run: RunResult, file: IO[str] | None = None, *, summary: Path | None = None, brief: bool = False
) -> None:
    """The report of `--format rich`: a table for each spec, then the verdict, why, what to know, and where the summary
    is. Coloured on a terminal. brief: the verdict and why, and nothing else."""
    from rich.text import Text

    console = _console(sys.stdout if file is None else file)
    for line in gate_lines(run.spec_changes):
        console.print(Text(log_line(line), style="yellow"), soft_wrap=True)
    for item in () if brief else view.spec_views(run):
        # Not as the table's title: that would be wrapped, and a line could begin anywhere in it.
        title = f"{item.spec.id}: {', '.join(item.facts)}"
        console.print(Text(log_line(title), style="bold"), soft_wrap=True)
        for line in _broken_rules(item.failed):
            console.print(Text(log_line(line), style="red"), soft_wrap=True)
        if item.rows:
            console.print(_table(item, console.width))
    console.print(_verdict(run), soft_wrap=True)
    for line, style in _why(run) if brief else _after_verdict(run):
        console.print(Text(log_line(line), style=style), soft_wrap=True)
    if summary is not None and not brief:
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


def _why(run: RunResult) -> Iterator[tuple[str, str]]:
    if run.error is not None:
        yield from ((line, "red") for line in run.error.splitlines())
    why, more = view.reasons(run)
    for reason in why:
        where = " › ".join(reason.where)
        yield f"  {reason.verdict}: {where}{': ' if where else ''}{reason.text}", STYLES[reason.verdict]
    if more:
        yield f"  … and {more} more", "dim"


def _after_verdict(run: RunResult) -> Iterator[tuple[str, str]]:
    yield from _why(run)
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
