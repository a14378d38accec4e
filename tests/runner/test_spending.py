"""The job's limit of money."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.runner.model_access import Spending
from keystone_action.runner.scheduler import budget_notices
from keystone_action.scoring.fields import nothing_used
from keystone_action.scoring.results import CellResult

CENTS = st.lists(st.integers(0, 500), max_size=30)


def cell(number: int, spent: float | None = 0.1, judges: float | None = 0.0, *, ran: bool = True) -> CellResult:
    found = CellResult(f"a.r{number}", "a", {}, number, "pass", 1.0, 0.1, None, None, (), attempts=1 if ran else 0)
    found.usage.update(spent_usd=spent)
    found.judge_usage.update(cost_usd=judges)
    return found


@given(CENTS, st.integers(0, 3000))
def test_it_stops_with_the_amount_that_reaches_the_limit(cents: list[int], limit: int) -> None:
    """Also where the sum of cents as binary fractions is a little less than they are."""
    spending = Spending(limit / 100)
    total = 0
    for amount in cents:
        assert bool(spending.refusal()) is (total >= limit)
        spending.spend(amount / 100)
        total += amount
    if total >= limit:
        assert spending.refusal() == f"stopped at ${total / 100:.2f} of ${limit / 100:.2f}"


def test_without_a_limit_it_only_counts() -> None:
    spending = Spending()
    spending.spend(1e6)
    assert (spending.refusal(), spending.spent) == ("", 1e6)


def test_threads_lose_nothing() -> None:
    spending = Spending(1000)

    def spend() -> None:
        for _ in range(5000):
            spending.spend(0.01)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spending.spent == pytest.approx(400)


def test_what_people_are_told() -> None:
    spending = Spending(0.5)
    assert budget_notices(spending, [cell(0), cell(1)]) == []
    spending.spend(0.52)
    assert budget_notices(spending, [cell(0), cell(1)]) == [], "all were run"
    cells = [cell(0), cell(1, None), cell(2, judges=None), cell(3, 0.0, ran=False)]
    assert budget_notices(spending, cells) == [
        "max-cost-usd: stopped at $0.52 of $0.50; not run: 1 of 4 cells",
        "max-cost-usd: what 2 of 4 cells cost is unknown, and is not counted",
    ]
    assert budget_notices(Spending(), cells) == []
    assert nothing_used()["spent_usd"] == 0
