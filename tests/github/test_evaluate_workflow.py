"""The reusable workflow, played from its own file: plan → shards → merge, with artifacts as GitHub lays them out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.artifacts import Artifacts
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS, ROOT
from support.workflow_play import SUITE, Played, Player

from keystone_action import __version__
from keystone_action.github import reporting
from keystone_action.github.api.requests import RequestLimits
from keystone_action.spec.plan import shard_of as shard_with

pytestmark = [pytest.mark.command, pytest.mark.usefixtures("kept_runs")]

WORKFLOW = (ROOT / ".github" / "workflows" / "evaluate.yml").read_text("utf-8")
DOCUMENT: dict[Any, Any] = yaml.safe_load(WORKFLOW)


@pytest.fixture(autouse=True)
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    """Pull request 17 of the event; no second is waited between writes."""
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(waiting=0.0, between_writes=0.0))
    with FakeGitHub() as fake:
        fake.state.repository = "octo/agents"
        fake.state.add_pull(17, head_sha="2" * 40, head_ref="topic", head_repository="octo/agents")
        yield fake


def commit(folder: Path) -> str:
    """Commits all that is there; the commit."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.test", "-c", "init.defaultBranch=main"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=change"]):
        subprocess.run([*command, *arguments], cwd=folder, check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def shard_of(artifacts: Artifacts, index: int) -> Path:
    """What the shard of that index left."""
    (name,) = [one for one in artifacts.names if re.fullmatch(rf"keystone-evaluate-[0-9a-f]{{16}}-shard-{index}", one)]
    return artifacts.folder(name)


def evaluate(tmp_path: Path, *, rule: str = "majority", folder: str = ".", **options: Any) -> Played:
    tmp_path.mkdir(exist_ok=True)

    def checkout(workspace: Path) -> None:
        (workspace / folder / "evals").mkdir(parents=True, exist_ok=True)
        (workspace / folder / "evals" / "suite.keystone.yaml").write_text(SUITE.replace("RULE", rule))

    inputs = {"shards": 3, "comment": "never", **options.pop("inputs", {})}
    return Player(tmp_path, WORKFLOW, checkout, inputs=inputs, **options).play()


@pytest.mark.parametrize(("rule", "verdict", "result"), [("majority", "flaky", "success"), ("all", "fail", "failure")])
def test_three_shards_come_to_one_verdict(tmp_path: Path, rule: str, verdict: str, result: str) -> None:
    played = evaluate(tmp_path, rule=rule)
    assert [leg.ours.exit_code for leg in played.jobs["run"]] == [0, 0, 0]
    names = [f"suite.{scenario}.r{replica}" for scenario in ("add", "edit") for replica in range(3)]
    totals = Counter(shard_with(name, 3) for name in names)
    assert [leg.ours.outputs["total"] for leg in played.jobs["run"]] == [str(totals[index]) for index in (1, 2, 3)]
    assert played.result("merge") == result
    assert played.outputs["verdict"] == verdict
    assert (played.outputs["passed"], played.outputs["failed"], played.outputs["errors"]) == ("4", "2", "0")
    assert (played.outputs["total"], float(played.outputs["composite"])) == ("6", pytest.approx(2 / 3))
    assert [shard_of(played.artifacts, index).exists() for index in range(3)] == [True] * 3
    assert [name for name in played.artifacts.names if "-shard-" not in name] == ["keystone-results-evaluate"]
    kept = json.loads((played.artifacts.folder("keystone-results-evaluate") / "results.json").read_text())
    assert (kept["verdict"], kept["counts"]["cells"]) == (verdict, 6)
    # Only the last job annotates.
    assert [leg.ours.issues for leg in played.jobs["run"]] == [[], [], []]
    assert any(issue.level == "error" for issue in played.jobs["merge"][0].ours.issues)


def test_one_comment_and_one_status_for_all_shards(tmp_path: Path, github: FakeGitHub) -> None:
    inputs = {"comment": "auto", "name": "agent", "shards": 2}
    played = evaluate(tmp_path, event="pull_request", github=github, inputs=inputs)
    (comment,) = github.state.comments
    assert comment.number == 17
    assert "flaky" in comment.body.splitlines()[0].lower()
    assert [(one["context"], one["state"]) for one in github.state.statuses][-1] == ("keystone/agent", "success")
    assert {one["context"] for one in github.state.statuses} == {"keystone/agent"}
    again = evaluate(tmp_path / "again", event="pull_request", github=github, inputs=inputs)
    assert [one.id for one in github.state.comments] == [comment.id]
    assert played.outputs["verdict"] == again.outputs["verdict"] == "flaky"


def test_a_caller_without_the_right_to_write_gets_the_verdict_all_the_same(tmp_path: Path, github: FakeGitHub) -> None:
    inputs = {"comment": "auto", "shards": 2}
    played = evaluate(tmp_path, event="pull_request", github=github, token="read-only", inputs=inputs, rule="all")
    assert (played.result("merge"), played.outputs["verdict"], played.outputs["total"]) == ("failure", "fail", "6")
    assert (github.state.comments, github.state.statuses) == ([], [])
    assert "pull-requests: write" in played.jobs["merge"][0].ours.text


def test_the_joined_results_are_the_baseline_of_the_next(tmp_path: Path, github: FakeGitHub) -> None:
    """Found by the input name, by the job that joins: what failed there too may fail."""
    pushed = evaluate(tmp_path / "push", rule="all")
    folder = pushed.artifacts.folder("keystone-results-evaluate")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run = github.state.add_run(workflow="evaluate.yml", head_repository="octo/agents")
    github.state.add_artifact(run.id, "keystone-results-evaluate", files)
    inputs = {"baseline": "auto", "fail-on": "regression", "shards": 2}
    played = evaluate(tmp_path / "pull", rule="all", event="pull_request", github=github, inputs=inputs)
    assert (pushed.result("merge"), played.result("merge"), played.outputs["verdict"]) == ("failure", "success", "fail")
    kept = json.loads((played.artifacts.folder("keystone-results-evaluate") / "results.json").read_text())
    assert kept["baseline"]["source"].startswith(f"run {run.id} of main")
    assert (kept["baseline"]["partial"], kept["baseline"]["partial_baseline"]) == (False, False)


@pytest.mark.parametrize(("whose", "verdict"), [("head", "flaky"), ("base", "fail")])
def test_a_change_can_not_weaken_its_gate_unseen(tmp_path: Path, github: FakeGitHub, whose: str, verdict: str) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    shas = []
    for rule in ("all", "any"):
        (origin / "keystone.yaml").write_text(SUITE.replace("RULE", rule))
        shas.append(commit(origin))
    payload = json.loads((EVENTS / "pull_request.json").read_text())
    payload["pull_request"]["base"]["sha"], payload["pull_request"]["head"]["sha"] = shas

    def checkout(workspace: Path) -> None:
        shutil.copytree(origin, workspace, dirs_exist_ok=True)

    inputs = {"shards": 2, "spec-from": whose, "comment": "auto"}
    options: dict[str, Any] = {"event": "pull_request", "payload": payload, "github": github}
    played = Player(tmp_path / "jobs", WORKFLOW, checkout, inputs=inputs, **options).play()
    assert played.outputs["verdict"] == verdict
    (comment,) = github.state.comments
    for text in (played.jobs["merge"][0].ours.summary, comment.body):
        assert "replica_aggregation all → any" in text


def test_a_folder_and_a_name_of_ones_own(tmp_path: Path) -> None:
    inputs = {"working-directory": "project", "spec": "evals/suite.keystone.yaml", "name": "nightly", "shards": 1}
    played = evaluate(tmp_path, folder="project", inputs=inputs)
    assert played.outputs["verdict"] == "flaky"
    assert "keystone-results-nightly" in played.artifacts.names


def test_inputs_reach_the_jobs_that_they_are_for(tmp_path: Path) -> None:
    inputs = {"replicas": "1", "threshold": "0.5", "tags": "", "fail-on-skipped": True, "fail-on": "error"}
    played = evaluate(tmp_path, rule="all", inputs=inputs)
    kept = json.loads((played.artifacts.folder("keystone-results-evaluate") / "results.json").read_text())
    assert (kept["counts"]["cells"], kept["specs"][0]["pass_threshold"]) == (2, 0.5)
    assert kept["specs"][0]["threshold_source"] == "input"


def test_without_the_gate_a_failure_does_not_fail(tmp_path: Path) -> None:
    played = evaluate(tmp_path, rule="all", inputs={"fail-on": "never"})
    assert (played.result("merge"), played.outputs["verdict"]) == ("success", "fail")


def test_a_lost_shard_is_never_green(tmp_path: Path) -> None:
    def lose(job: str, artifacts: Artifacts) -> None:
        if job == "merge":
            shutil.rmtree(shard_of(artifacts, 1))

    played = evaluate(tmp_path, inputs={"fail-on": "never"}, between=lose)
    assert (played.result("merge"), played.outputs["verdict"]) == ("failure", "error")
    assert "missing: shard 2/3" in played.jobs["merge"][0].ours.text


def test_two_calls_of_one_name_have_each_their_own_verdict(tmp_path: Path) -> None:
    """As in a matrix of the caller's: the other's shards may all have ended after ours, and before our last job."""

    def other(job: str, artifacts: Artifacts) -> None:
        if job == "merge":
            assert evaluate(tmp_path / "other", rule="any", artifacts=artifacts).result("merge") == "success"

    played = evaluate(tmp_path / "one", rule="all", between=other)
    assert (played.result("merge"), played.outputs["verdict"]) == ("failure", "fail")


def test_a_plan_that_fails_is_never_green(tmp_path: Path, github: FakeGitHub) -> None:
    """GitHub takes a required check that was skipped for one that passed."""
    inputs = {"tags": "none", "fail-on": "never", "comment": "auto"}
    played = evaluate(tmp_path, event="pull_request", github=github, inputs=inputs)
    assert [played.result(job) for job in ("plan", "run", "merge")] == ["failure", "skipped", "failure"]
    assert played.outputs["verdict"] == "error"
    assert github.state.statuses[-1]["state"] == "error"
    assert len(github.state.comments) == 1


@pytest.mark.parametrize(
    ("cancelled", "entirely", "results", "said"),
    [
        # By its timeout-minutes: the others' results are there, and not enough.
        (("run-1",), False, ["success", "cancelled", "failure"], "missing: shard 2/3 (found: 1/3, 3/3)"),
        # The whole, while a shard runs: no check that was skipped may be left.
        (("run-2",), True, ["success", "cancelled", "failure"], "missing: shard 3/3"),
        (("plan-0",), False, ["cancelled", "skipped", "failure"], "there is no folder keystone-shards"),
        (("plan-0",), True, ["cancelled", "cancelled", "failure"], "there is no folder keystone-shards"),
    ],
)
def test_what_was_cancelled_is_never_green(
    tmp_path: Path, cancelled: tuple[str, ...], entirely: bool, results: list[str], said: str
) -> None:
    played = evaluate(tmp_path, inputs={"fail-on": "never"}, cancelled=cancelled, entirely=entirely)
    assert [played.result(job) for job in ("plan", "run", "merge")] == results
    assert (played.outputs["verdict"], said in played.jobs["merge"][0].ours.text) == ("error", True)
    assert "keystone-results-evaluate" not in played.artifacts.names


def test_a_last_job_that_is_cancelled_itself_gives_no_verdict(tmp_path: Path) -> None:
    played = evaluate(tmp_path, cancelled=("merge-0",))
    assert (played.result("merge"), played.outputs["verdict"]) == ("cancelled", "")


def test_results_that_a_change_brings_along_stand_in_for_no_shard(tmp_path: Path) -> None:
    """A commit may hold a folder of the name that the shards' artifacts are downloaded to."""
    first = evaluate(tmp_path / "first", inputs={"shards": 1})
    # An artifact that is alone is downloaded without a folder of its name.
    assert (first.result("merge"), first.outputs["verdict"], first.outputs["total"]) == ("success", "flaky", "6")
    text, forged = SUITE.replace("RULE", "majority"), shard_of(first.artifacts, 0)

    def checkout(workspace: Path) -> None:
        (workspace / "evals").mkdir()
        (workspace / "evals" / "suite.keystone.yaml").write_text(text)
        shutil.copytree(forged, workspace / "keystone-shards" / "forged")

    def lose(job: str, artifacts: Artifacts) -> None:
        if job == "merge":
            shutil.rmtree(shard_of(artifacts, 0))

    inputs = {"shards": 1, "comment": "never"}
    played = Player(tmp_path / "jobs", WORKFLOW, checkout, inputs=inputs, between=lose).play()
    assert [played.result(job) for job in ("plan", "run", "merge")] == ["success", "success", "failure"]
    assert played.outputs["verdict"] == "error"


def test_keys_reach_the_jobs_that_run_cells_and_no_other(tmp_path: Path) -> None:
    secret = "sk-secret-of-the-agent"
    text = SUITE.replace("REPLICA: ", 'KEY: "{{ secrets.AGENT_API_KEY }}", REPLICA: ').replace("RULE", "majority")
    text = text.replace("|| touch", '&& test -n "$KEY" || touch') + "secrets: [AGENT_API_KEY]\n"

    def checkout(workspace: Path) -> None:
        (workspace / "keystone.yaml").write_text(text)

    inputs = {"shards": 2, "env": "AGENT_API_KEY"}
    played = Player(tmp_path, WORKFLOW, checkout, inputs=inputs, secrets={"AGENT_API_KEY": secret}).play()
    assert played.outputs["verdict"] == "flaky"
    assert secret not in "".join(
        step.log.replace(f"::add-mask::{secret}", "") for leg in played.jobs["run"] for step in leg.steps
    )
    without = [step for job in ("plan", "merge") for step in DOCUMENT["jobs"][job]["steps"]]
    assert not any("secrets." in str(step) for step in without)


def test_only_the_job_that_runs_nobodys_code_has_what_the_caller_gives() -> None:
    jobs = DOCUMENT["jobs"]
    assert "permissions" not in DOCUMENT
    assert jobs["plan"]["permissions"] == jobs["run"]["permissions"] == {"contents": "read"}
    assert "permissions" not in jobs["merge"]


def test_nothing_that_a_caller_gives_is_ignored() -> None:
    call = DOCUMENT[True]["workflow_call"]
    jobs = str(DOCUMENT["jobs"])
    assert {name for name in call["inputs"] if not re.search(rf"inputs\.{name}\b(?!-)", jobs)} == set()
    assert {name for name in call["secrets"] if f"secrets.{name} " not in jobs} == set()


def test_what_decides_which_cells_there_are_is_the_same_for_plan_and_shards() -> None:
    plan, run = (
        next(
            step["with"]
            for step in DOCUMENT["jobs"][job]["steps"]
            if step.get("uses", "").startswith("keystone-action/")
        )
        for job in ("plan", "run")
    )
    about_cells = {"spec", "working-directory", "replicas", "params", "tags", "spec-from"}
    assert {name: plan[name] for name in about_cells} == {name: run[name] for name in about_cells}


def test_callers_get_the_action_of_the_same_version() -> None:
    named = {
        step["uses"]
        for job in DOCUMENT["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("keystone-action/")
    }
    assert named == {f"keystone-action/keystone-action@v{__version__}"}
    assert f"evaluate.yml@v{__version__}\n" in WORKFLOW
