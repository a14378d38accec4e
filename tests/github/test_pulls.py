"""Which pull requests the results of another run reach: those whose newest commit it was of, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.fake_github import FakeGitHub
from support.github_client import probe

from keystone_action.github.pulls import TriggeringRun, pulls_of_run

OURS = "octo/agents"
HEAD, OLDER = "2" * 40, "4" * 40
OF_A_FORK = TriggeringRun(6001, 1, "success", HEAD, "topic", "mallory/agents")
OF_OURS = replace(OF_A_FORK, head_repository=OURS)


def found(run: TriggeringRun, *pulls: dict[str, Any]) -> list[int]:
    """The numbers, of pull requests that are counted from 1; each is of the run's own commit unless it says more."""
    own = {"head_sha": run.head_sha, "head_ref": run.head_branch, "head_repository": run.head_repository}
    with FakeGitHub() as github:
        github.state.repository = OURS
        for number, pull in enumerate(pulls, 1):
            github.state.add_pull(number, **{**own, **pull})
        return pulls_of_run(probe(github).client, run, OURS)


@pytest.mark.parametrize("run", [OF_A_FORK, OF_OURS], ids=["fork", "own"])
def test_all_open_ones_at_the_runs_commit_are_found(run: TriggeringRun) -> None:
    assert found(run, {}, {"base_ref": "release"}, {"state": "closed"}) == [1, 2]
    shouted = run.head_repository.replace("agents", "AGENTS")
    assert found(replace(run, head_repository=shouted), {"head_repository": run.head_repository}) == [1]


@pytest.mark.parametrize(
    "pull",
    [
        {"head_sha": OLDER},
        {"head_ref": "another"},
        {"head_repository": "eve/agents"},
        {"head_repository": "mallory/another"},
        {"head_repository": OURS},
        {"head_repository": None},
    ],
    ids=str,
)
def test_a_forks_results_reach_nobody_else(pull: dict[str, Any]) -> None:
    assert found(OF_A_FORK, pull) == []


def test_of_a_fork_that_was_deleted_nothing_is_known() -> None:
    assert found(replace(OF_A_FORK, head_repository=""), {"head_repository": None}) == []
