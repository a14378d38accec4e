"""A check that breaks is that check's error: never a pass, never the agent's failure."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar

import anyio
import pytest
from support.context import judged_cell

from keystone_action.errors import HarnessError, ServiceError
from keystone_action.evidence.model import Address, QueryResult
from keystone_action.invariants.check import Check, CheckContext, Outcome, Phase, passed
from keystone_action.invariants.types.sql import Sql
from keystone_action.runner.cell.judge import _evaluate, doubt_what_executed, run_checks
from keystone_action.services.service import Place
from keystone_action.spec.models.spec import Invariant


class Raising(Check):
    type_name: ClassVar[str] = "raising"
    error: ClassVar[Exception]

    async def evaluate(self, context: object) -> Outcome:
        raise self.error


class Boasting(Check):
    type_name: ClassVar[str] = "boasting"

    async def evaluate(self, context: object) -> Outcome:
        return passed("better than perfect", score=1.5)


class Phased(Check):
    """Needs nothing of its cell."""

    type_name: ClassVar[str] = "phased"
    ran: ClassVar[list[str]] = []
    at: Phase

    @property
    def run_phase(self) -> Phase:
        return self.at

    async def evaluate(self, context: CheckContext) -> Outcome:
        self.ran.append(context.name)
        return passed("done")


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (("shared_copy", "observe", "fresh_copy", "observe"), ["1", "3", "0", "2"]),
        (("fresh_copy", "shared_copy", "fresh_copy"), ["0", "1", "2"]),
        (("observe", "observe", "shared_copy"), ["0", "1", "2"]),
    ],
)
def test_checks_that_observe_come_before_those_that_execute(
    declared: tuple[Phase, ...], expected: list[str], tmp_path: Path
) -> None:
    """Code of the agent must not have run when a check looks at a service. Otherwise the declared order counts; it is
    that of the results."""
    invariants = {
        str(number): Invariant(weight=1, check=Phased(type="phased", at=phase)) for number, phase in enumerate(declared)
    }
    Phased.ran.clear()

    async def main() -> list[str]:
        async with judged_cell(tmp_path, tmp_path / "private", invariants) as cell:
            return [entry.result.name for entry in await run_checks(cell)]

    assert anyio.run(main) == list(invariants)
    assert Phased.ran == expected


class CrashedPlace(Place):
    """A service that has crashed while the cell's checks ran."""

    def require_unbroken(self) -> None:
        raise ServiceError(f"service {self.name} went away")


def test_what_a_check_found_in_a_service_that_crashed_is_no_verdict(tmp_path: Path) -> None:
    """What executes can have asked any service; one that observes files asked none."""
    invariants = {
        "files": Invariant(weight=1, check=Phased(type="phased", at="observe")),
        "runs": Invariant(weight=1, check=Phased(type="phased", at="shared_copy")),
        "asks-it": Invariant(weight=1, check=Sql(type="sql", service="db", query="SELECT 1", equals=1)),
        "asks-another": Invariant(weight=1, check=Sql(type="sql", service="whole", query="SELECT 1", equals=1)),
    }

    async def main() -> dict[str, tuple[str, str]]:
        nowhere = Address("127.0.0.1", 1)
        services = {
            "db": CrashedPlace("db", nowhere, nowhere, database=OneRow()),
            "whole": Place("whole", nowhere, nowhere, database=OneRow()),
        }
        async with judged_cell(tmp_path, tmp_path / "private", invariants, services) as cell:
            graded = await run_checks(cell)
        return {entry.result.name: (entry.result.status, entry.result.message) for entry in graded}

    found = anyio.run(main)
    assert {name: status for name, (status, _) in found.items()} == {
        "files": "pass",
        "runs": "error",
        "asks-it": "error",
        "asks-another": "pass",
    }
    assert found["runs"][1] == found["asks-it"][1] == "service db went away"


def test_what_executed_behind_a_way_out_that_broke_is_no_verdict(tmp_path: Path) -> None:
    """The proxy's record was not whole when all had ended; what observes needed no way out."""
    invariants = {
        at: Invariant(weight=1, check=Phased(type="phased", at=at)) for at in ("observe", "shared_copy", "fresh_copy")
    }

    async def main() -> dict[str, tuple[str, float | None, str]]:
        async with judged_cell(tmp_path, tmp_path / "private", invariants) as cell:
            graded = doubt_what_executed(await run_checks(cell), invariants, "the egress proxy failed")
        results = [entry.result for entry in graded]
        return {result.name: (result.status, result.score, result.message) for result in results}

    said = "the egress proxy failed, so what was found counts for nothing: done"
    assert anyio.run(main) == {
        "observe": ("pass", 1.0, "done"),
        "shared_copy": ("error", None, said),
        "fresh_copy": ("error", None, said),
    }


class OneRow:
    """A database that answers."""

    def query(self, sql: str, *, timeout: float, redefined: bool = False) -> QueryResult:
        return QueryResult(("one",), ((1,),))


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (ValueError("odd"), "the check itself broke: ValueError: odd"),
        (HarnessError("service db went away"), "db went"),
        (RuntimeError("can't start new thread"), "process"),
        (OSError(errno.EMFILE, "Too many open files"), "no file descriptor is left"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "no space left on this machine for /tmp/x"),
    ],
)
def test_whatever_a_check_raises_is_its_error(error, part):
    Raising.error = error
    outcome = anyio.run(_evaluate, Raising(type="raising"), None, 5.0)
    assert (outcome.status, outcome.score) == ("error", None)
    assert part in outcome.message


def test_a_score_out_of_range_is_an_error_and_not_clamped():
    outcome = anyio.run(_evaluate, Boasting(type="boasting"), None, 5.0)
    assert (outcome.status, outcome.score) == ("error", None)
