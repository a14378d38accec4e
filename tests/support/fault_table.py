"""The table that `make faults` prints: broken what, at which stage → verdict, exit code, what is left behind.

A pytest plugin: `-p support.fault_table`. Rows are what tests recorded under FAULT by `record_property`.
"""

from __future__ import annotations

from typing import Any

import pytest

FAULT = "fault"


class FaultTable:
    """Collects rows while tests run, in whichever worker, and prints them at the end."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, Any], str]] = []
        self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = dict(report.user_properties).get(FAULT)
        if report.when == "call" and row is not None:
            self.rows.append((row, report.outcome))
        self.skipped += report.skipped

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("faults")
        terminalreporter.write_line("| broken | stage | verdict | exit code | said | left behind |")
        terminalreporter.write_line("|---|---|---|--:|---|---|")
        for row, outcome in sorted(self.rows, key=lambda one: (one[0]["broken"], one[0]["stage"])):
            cells = [row["broken"], row["stage"], row["verdict"], str(row["code"]), row["said"], row["left"]]
            wrong = "" if outcome == "passed" else " **not as expected**"
            terminalreporter.write_line("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + f"{wrong} |")
        passed = sum(outcome == "passed" for _, outcome in self.rows)
        more = f", {self.skipped} skipped" if self.skipped else ""
        terminalreporter.write_line(f"\n{passed} of {len(self.rows)} faults end as they should{more}.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FaultTable(), "fault-table-rows")
