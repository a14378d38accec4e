"""docs/scaling.md: its workflow, played job by job by the fake runner, and its arithmetic."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import ROOT
from support.workflow_play import SUITE, Played, Player

from keystone_action.runs import MAX_JOBS
from tools.readme_workflow import workflow

pytestmark = pytest.mark.command

PAGE = (ROOT / "docs" / "scaling.md").read_text("utf-8")


def play(tmp_path: Path, rule: str = "majority", **options: Any) -> Played:
    def checkout(workspace: Path) -> None:
        (workspace / "evals").mkdir()
        (workspace / "evals" / "suite.keystone.yaml").write_text(SUITE.replace("RULE", rule))

    return Player(tmp_path, workflow(PAGE), checkout, event="pull_request_fork", **options).play()


@pytest.mark.parametrize(("rule", "verdict", "code"), [("majority", "flaky", 0), ("all", "fail", 1)])
def test_the_workflow_comes_to_one_verdict(tmp_path: Path, rule: str, verdict: str, code: int) -> None:
    played = play(tmp_path, rule)
    assert [leg.ours.exit_code for leg in played.jobs["shard"]] == [0] * 6
    (merge,) = played.jobs["merge"]
    assert (merge.ours.exit_code, merge.ours.outputs["verdict"], merge.ours.outputs["total"]) == (code, verdict, "6")
    assert merge.ours.rejected == []


@pytest.mark.parametrize("job", ["plan-0", "shard-4"])
def test_what_was_cancelled_is_never_green(tmp_path: Path, job: str) -> None:
    played = play(tmp_path, cancelled=(job,))
    assert (played.result("merge"), played.jobs["merge"][0].ours.outputs["verdict"]) == ("failure", "error")


def test_the_table_follows_from_the_formulas() -> None:
    rows = [
        [float(cell) for cell in line.strip("| \n").split("|")]
        for line in PAGE.splitlines()
        if re.fullmatch(r"\| [0-9]+ \|.*", line) and line.count("|") == 7
    ]
    assert [row[0] for row in rows] == [1, 20, 60, 120, 256]
    cells, minutes, at_once, start, jobs_at_once = 1500, 2, 2, 1.5, 60
    for shards, cells_a_job, a_job, waves, all_in_all, paid in rows:
        assert cells_a_job == math.ceil(cells / shards)
        assert a_job == start + math.ceil(cells / shards / at_once) * minutes
        assert waves == math.ceil(shards / jobs_at_once)
        assert all_in_all == waves * a_job
        assert paid == shards * math.ceil(a_job)
    room = MAX_JOBS * int((6 * 60 - start) // minutes) * at_once
    assert round(room, -4) == 90_000
    assert "some 90,000" in PAGE
