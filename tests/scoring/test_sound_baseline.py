"""Earlier results that a run is compared with may be anybody's: what no run of ours writes refuses them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.shard_runs import cell, spec, whole

from keystone_action.errors import UsageError
from keystone_action.scoring.results import CellResult, RunResult
from keystone_action.scoring.soundness import baseline_of


def run_of(one: CellResult) -> RunResult:
    return whole([spec("alpha", [one])])


def test_what_it_says_of_the_whole_is_made_again_from_its_cells() -> None:
    run = run_of(cell("alpha", "one", 0, cost=0.25))
    claimed = replace(run, usage=run.usage | {"cost_usd": 0.0, "spent_usd": 0.0}, judge_usage={"cost_usd": 0.0})
    found = baseline_of(claimed, "main").run
    assert (found.usage, found.judge_usage) == (run.usage, run.judge_usage)
    assert found.usage["cost_usd"] == 0.25


@pytest.mark.parametrize("amount", [-0.01, 1e300])
@pytest.mark.parametrize("name", ["usage", "judge_usage"])
def test_amounts_that_no_run_has(name: str, amount: float) -> None:
    one = cell("alpha", "one", 0)
    with pytest.raises(UsageError, match="a time, usage or weight that no run has in alpha"):
        baseline_of(run_of(replace(one, **{name: {"cost_usd": amount}})), "main")


def test_a_cost_that_nobody_knows_is_none_of_them() -> None:
    found = baseline_of(run_of(cell("alpha", "one", 0, cost=None)), "main").run
    assert (found.usage["cost_usd"], found.judge_usage["cost_usd"]) == (None, None)
