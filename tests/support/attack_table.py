"""The table that `make hostile` prints: attack × sandbox → held off, by which mechanism, and its honest twin.

A pytest plugin: `-p support.attack_table`. It keeps the marked tests alone, and fails the run where a row is not held
off, has no twin, or names a twin of nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

MARKS = ("hostile", "honest")
Row = tuple[str, str]
"""Family and attack."""


@dataclass
class Tally:
    """Of one row: outcomes of its tests by mark, the sandboxes, and what holds it off."""

    outcomes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    sandboxes: set[str] = field(default_factory=set)
    held_by: set[str] = field(default_factory=set)

    def shown(self, mark: str) -> str:
        """`3/3`; what was skipped counts apart."""
        found = self.outcomes[mark]
        skipped = found.count("skipped")
        return f"{found.count('passed')}/{len(found) - skipped}" + (f" ({skipped} skipped)" if skipped else "")

    def problem(self) -> str:
        """Why this row is none to rely on; empty when it is."""
        if not self.outcomes["hostile"]:
            return "a twin of no attack"
        if not self.outcomes["honest"]:
            return "no twin"
        failed = [mark for mark in MARKS if {"failed", "error"} & set(self.outcomes[mark])]
        return {"hostile": "NOT HELD OFF", "honest": "the twin fails"}[failed[0]] if failed else ""


class AttackTable:
    """Collects outcomes while tests run, in whichever worker, and prints them at the end."""

    def __init__(self) -> None:
        self.rows: dict[Row, Tally] = defaultdict(Tally)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and not report.passed):
            outcome = "error" if report.when == "setup" and report.failed else report.outcome
            for mark, told in dict(report.user_properties).get("attack", []):
                for what in told.get("attacks", (told.get("what"),)):
                    tally = self.rows[told["family"], what]
                    tally.outcomes[mark].append(outcome)
                if mark == "hostile":
                    tally.sandboxes.add(told["sandbox"])
                    tally.held_by.add(told["held_by"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("attacks")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> Iterator[str]:
        """The table as Markdown, and a line that counts."""
        yield "| family | attack | sandbox | held off | by | twins |"
        yield "|---|---|---|--:|---|--:|"
        for (family, what), tally in sorted(self.rows.items()):
            where, by = ", ".join(sorted(tally.sandboxes)), "; ".join(sorted(tally.held_by))
            problem = tally.problem()
            note = f" **{problem}**" if problem else ""
            yield f"| {family} | {what} | {where} | {tally.shown('hostile')}{note} | {by} | {tally.shown('honest')} |"
        held = [not tally.problem() for tally in self.rows.values()]
        yield ""
        yield f"{sum(held)} of {len(held)} attacks are held off, each with an honest twin that is not."

    @property
    def is_whole(self) -> bool:
        """Whether every row is held off and has its twin."""
        return bool(self.rows) and not any(tally.problem() for tally in self.rows.values())


def pytest_configure(config: pytest.Config) -> None:
    table = AttackTable()
    config.pluginmanager.register(table, "attack-table-rows")
    if not hasattr(config, "workerinput"):
        config.stash[_TABLE] = table


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if any(item.get_closest_marker(mark) for mark in MARKS)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(marked)])
    items[:] = marked


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    told: list[tuple[str, dict[str, Any]]] = [
        (mark, dict(one.kwargs)) for mark in MARKS for one in item.iter_markers(mark)
    ]
    item.user_properties.append(("attack", told))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    table = session.config.stash.get(_TABLE, None)
    if table is not None and session.exitstatus == pytest.ExitCode.OK and not table.is_whole:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_TABLE = pytest.StashKey[AttackTable]()
