"""The workflows to copy, played whole: what a newcomer gets from each when the agent does it, and when not."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.artifacts import Artifacts
from support.fake_github import FakeGitHub
from support.fake_runner import ROOT
from support.workflow_play import Played, Player

from keystone_action.github import reporting
from keystone_action.github.api.requests import RequestLimits
from tools.readme_workflow import workflows

pytestmark = [pytest.mark.command, pytest.mark.usefixtures("kept_runs")]

EXAMPLES = ROOT / "examples" / "workflows"
HEAD = "2" * 40
SPEC = """\
version: 1
id: suite
task: {prompt: "do it"}
agent: {type: command, command: 'touch "$FILE"', env: {FILE: "{{ params.model }}.txt"}}
parallelism: {matrix: {model: [small, large]}}
invariants:
  done: {check: {type: file_exists, path: WANTED}}
"""
PASSING = SPEC.replace("WANTED", '"{{ params.model }}.txt"')
FAILING = SPEC.replace("WANTED", "small.txt")


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    """Pull request 17 of the events."""
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(waiting=0.0, between_writes=0.0))
    with FakeGitHub() as fake:
        fake.state.repository = "octo/agents"
        fake.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="octo/agents")
        yield fake


def checkout(spec: str) -> Callable[[Path], None]:
    def put(workspace: Path) -> None:
        (workspace / "keystone.yaml").write_text(spec)
        (workspace / "evals").mkdir(exist_ok=True)

    return put


def text(name: str) -> str:
    return (EXAMPLES / f"{name}.yml").read_text("utf-8")


def play(root: Path, name: str, github: FakeGitHub, spec: str = PASSING, **options: Any) -> Played:
    root.mkdir(exist_ok=True)
    given = {"event": "pull_request", "github": github, **options}
    return Player(root, text(name), checkout(spec), **given).play()


def statuses(github: FakeGitHub) -> dict[str, str]:
    """The last state of each context."""
    return {one["context"]: one["state"] for one in github.state.statuses}


@pytest.mark.parametrize(("name", "event"), [
    ("minimal", "pull_request"),
    ("forks", "pull_request"),
    ("forks", "pull_request_fork"),
    ("merge-queue", "pull_request"),
    ("merge-queue", "merge_group"),
    ("baseline", "push"),
    ("baseline", "schedule"),
])  # fmt: skip
def test_it_passes_or_fails_by_what_the_agent_did(tmp_path: Path, name: str, event: str, github: FakeGitHub) -> None:
    passed = play(tmp_path / "passes", name, github, event=event)
    failed = play(tmp_path / "fails", name, github, FAILING, event=event)
    assert (passed.result("evaluate"), failed.result("evaluate")) == ("success", "failure")
    for played, verdict in ((passed, "pass"), (failed, "fail")):
        (leg,) = played.jobs["evaluate"]
        assert leg.ours.outputs["verdict"] == verdict
        (kept,) = played.artifacts.names
        assert (played.artifacts.folder(kept) / "results.json").is_file()


def test_the_readme_shows_a_spec_and_a_workflow_that_work_together(tmp_path: Path, github: FakeGitHub) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (workflow,) = workflows(readme)
    spec = re.findall(r"^```yaml\n(version: 1\n.*?)^```", readme, re.MULTILINE | re.DOTALL)[0]
    for name, text, result in (("good", spec, "success"), ("bad", spec.replace("# 1.2.0", "draft"), "failure")):
        (tmp_path / name).mkdir()
        player = Player(tmp_path / name, workflow, checkout(text), event="pull_request", github=github)
        assert player.play().result("evaluate") == result
        (comment,) = github.state.comments
        assert comment.body.startswith("## ✅ Keystone: " if result == "success" else "## ❌ Keystone: ")
        assert statuses(github) == {"keystone/evaluate": result}


KEEP_RESULTS = sorted(path.stem for path in EXAMPLES.glob("*.yml") if "actions/upload-artifact@" in path.read_text())


@pytest.mark.parametrize("name", KEEP_RESULTS)
def test_results_that_a_change_brings_along_are_not_kept_as_those_of_the_run(
    tmp_path: Path, name: str, github: FakeGitHub
) -> None:
    def commit(workspace: Path) -> None:
        checkout(PASSING)(workspace)
        (workspace / "keystone-results").mkdir()
        (workspace / "keystone-results" / "results.json").write_text("{}")

    played = Player(tmp_path, text(name), commit, event="pull_request", github=github).play()
    assert played.result("evaluate") == "failure"
    assert {leg.ours.exit_code for leg in played.jobs["evaluate"]} == {2}
    assert played.artifacts.names == []


def test_our_own_shards_take_no_results_that_a_change_brings_along(tmp_path: Path) -> None:
    """In the folder of self-test.yml's own name: a shard that is lost has nothing to stand in for it."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "self-test.yml").read_text("utf-8"))
    workflow["jobs"] = {name: workflow["jobs"][name] for name in ("plan", "shard", "merge")}
    suite = Path("tests/self-test/shards.keystone.yaml")

    def put(workspace: Path) -> None:
        (workspace / suite.parent).mkdir(parents=True)
        shutil.copyfile(ROOT / suite, workspace / suite)

    first = Player(tmp_path / "first", yaml.safe_dump(workflow), put).play()
    assert first.result("merge") == "success"

    def forged(workspace: Path) -> None:
        put(workspace)
        shutil.copytree(first.artifacts.folder("self-test-shard-1"), workspace / "shards" / "forged")

    def lose(job: str, artifacts: Artifacts) -> None:
        if job == "merge":
            shutil.rmtree(artifacts.folder("self-test-shard-1"))

    second = Player(tmp_path / "second", yaml.safe_dump(workflow), forged, between=lose).play()
    assert [second.result(job) for job in ("plan", "shard", "merge")] == ["success", "success", "failure"]
    assert second.jobs["merge"][0].ours.outputs["verdict"] == "error"


def test_our_own_shards_have_a_verdict_whatever_became_of_them(tmp_path: Path) -> None:
    """A check that is skipped counts as passed where it is required."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "self-test.yml").read_text("utf-8"))
    workflow["jobs"] = {name: workflow["jobs"][name] for name in ("plan", "shard", "merge")}
    played = Player(tmp_path, yaml.safe_dump(workflow), checkout(PASSING), cancelled=("plan-0",)).play()
    assert [played.result(job) for job in ("plan", "shard", "merge")] == ["cancelled", "skipped", "failure"]


def test_minimal_comments_and_sets_no_status(tmp_path: Path, github: FakeGitHub) -> None:
    play(tmp_path, "minimal", github)
    assert len(github.state.comments) == 1
    assert statuses(github) == {}


def test_each_model_has_a_verdict_a_comment_and_a_status(tmp_path: Path, github: FakeGitHub) -> None:
    played = play(tmp_path / "first", "matrix", github, FAILING)
    assert [leg.ours.outputs["verdict"] for leg in played.jobs["evaluate"]] == ["pass", "fail"]
    assert statuses(github) == {"keystone/small": "success", "keystone/large": "failure"}
    assert len(github.state.comments) == 2
    play(tmp_path / "again", "matrix", github)
    assert len(github.state.comments) == 2
    assert statuses(github) == {"keystone/small": "success", "keystone/large": "success"}


def play_shards(root: Path, github: FakeGitHub, event: str) -> Played:
    """The reusable workflow, as the example calls it."""
    root.mkdir(exist_ok=True)
    job = yaml.safe_load(text("shards"))["jobs"]["agent"]
    called = job["uses"].partition("@")[0].removeprefix("keystone-action/keystone-action/")
    workflow = (ROOT / called).read_text("utf-8")
    inputs = {**job["with"], "spec": "keystone.yaml"}
    options: dict[str, Any] = {"event": event, "github": github, "secrets": dict.fromkeys(job["secrets"], "")}
    return Player(root, workflow, checkout(PASSING), inputs=inputs, **options).play()


def test_shards_have_one_verdict_one_comment_and_one_status(tmp_path: Path, github: FakeGitHub) -> None:
    played = play_shards(tmp_path, github, "pull_request")
    assert (played.outputs["verdict"], len(played.jobs["run"])) == ("pass", 2)
    assert len(github.state.comments) == 1
    assert statuses(github) == {"keystone/agent": "success"}


def test_what_shards_of_a_fork_found_is_posted_by_the_second_workflow(tmp_path: Path, github: FakeGitHub) -> None:
    """docs/scaling.md: forks-comment.yml with the artifact of the last job, which has another name."""
    github.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="mallory/agents")
    first = play_shards(tmp_path / "first", github, "pull_request_fork")
    assert (first.result("merge"), github.state.comments, github.state.statuses) == ("success", [], [])
    comment = text("forks-comment").replace("name: keystone-results\n", "name: keystone-results-agent\n")
    options: dict[str, Any] = {"event": "workflow_run_fork", "github": github, "artifacts": first.artifacts}
    (tmp_path / "second").mkdir()
    second = Player(tmp_path / "second", comment, checkout(PASSING), **options).play()
    assert second.result("comment") == "success"
    assert [one.number for one in github.state.comments] == [17]


def test_the_queue_has_a_status_and_no_comment(tmp_path: Path, github: FakeGitHub) -> None:
    play(tmp_path, "merge-queue", github, event="merge_group")
    assert github.state.comments == []
    assert list(statuses(github).values()) == ["success"]


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [(PASSING, FAILING, "failure"), (FAILING, FAILING, "success"), (FAILING, PASSING, "success")],
)
def test_only_what_was_better_on_the_base_branch_fails(
    tmp_path: Path, github: FakeGitHub, before: str, after: str, result: str
) -> None:
    pushed = play(tmp_path / "push", "baseline", github, before, event="push")
    (name,) = pushed.artifacts.names
    folder = pushed.artifacts.folder(name)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run = github.state.add_run(workflow="evaluate.yml", head_repository="octo/agents")
    github.state.add_artifact(run.id, name, files)
    played = play(tmp_path / "pull", "baseline", github, after)
    assert played.result("evaluate") == result
    assert len(github.state.comments) == 1


def test_a_fork_gets_its_comment_from_the_second_workflow(tmp_path: Path, github: FakeGitHub) -> None:
    github.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="mallory/agents")
    secrets = {"ANTHROPIC_API_KEY": "sk-key-that-forks-never-see"}
    first = play(tmp_path / "first", "forks", github, FAILING, event="pull_request_fork", secrets=secrets)
    assert (first.result("evaluate"), github.state.comments, github.state.statuses) == ("failure", [], [])
    options = {"event": "workflow_run_fork", "artifacts": first.artifacts}
    second = play(tmp_path / "second", "forks-comment", github, **options)
    assert second.result("comment") == "success"
    (comment,) = github.state.comments
    assert comment.number == 17
    assert second.jobs["comment"][0].ours.outputs["comment-id"] == str(comment.id)


def test_a_forks_run_that_left_no_artifact_breaks_no_second_workflow(tmp_path: Path, github: FakeGitHub) -> None:
    github.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="mallory/agents")
    second = play(
        tmp_path / "second", "forks-comment", github, event="workflow_run_fork", artifacts=Artifacts(tmp_path / "none")
    )
    assert second.result("comment") == "success"
    assert github.state.comments == []


def test_a_fork_with_a_bad_spec_leaves_its_comment_and_breaks_no_second_workflow(
    tmp_path: Path, github: FakeGitHub
) -> None:
    """What it has committed as results is not taken along."""

    def commit(workspace: Path) -> None:
        checkout("version: 7\n")(workspace)
        (workspace / "keystone-results" / "cells").mkdir(parents=True)
        (workspace / "keystone-results" / "cells" / "log.txt").write_text("forged")

    github.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="mallory/agents")
    (tmp_path / "first").mkdir()
    first = Player(tmp_path / "first", text("forks"), commit, event="pull_request_fork", github=github).play()
    assert first.jobs["evaluate"][0].ours.exit_code == 2
    kept = first.artifacts.folder("keystone-results")
    assert [path.name for path in kept.iterdir()] == ["comment.md"]
    assert "version" in (kept / "comment.md").read_text()
    options = {"event": "workflow_run_fork", "artifacts": first.artifacts}
    second = play(tmp_path / "second", "forks-comment", github, **options)
    assert second.result("comment") == "success"
    assert "that run ended before it had results" in second.jobs["comment"][0].ours.text
    assert github.state.comments == []


def test_own_branches_are_left_to_the_first_workflow(tmp_path: Path, github: FakeGitHub) -> None:
    played = play(tmp_path, "forks-comment", github, event="workflow_run")
    assert played.result("comment") == "skipped"


@pytest.mark.parametrize(("number", "name"), [(0, "forks"), (1, "forks-comment")])
def test_the_page_about_forks_shows_the_same_workflows(number: int, name: str) -> None:
    shown = workflows((ROOT / "docs" / "forks.md").read_text("utf-8"))[number]
    assert yaml.safe_load(shown) == yaml.safe_load(text(name))


def test_no_fork_runs_on_a_machine_that_stays(tmp_path: Path, github: FakeGitHub) -> None:
    assert play(tmp_path, "self-hosted", github, event="pull_request_fork").result("evaluate") == "skipped"


def test_two_that_are_copied_side_by_side_cancel_each_other_never() -> None:
    """Nor does the second workflow for forks answer to another one than the first."""
    found = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in EXAMPLES.glob("*.yml")}
    for key in (lambda one: one["concurrency"]["group"], lambda one: one["name"]):
        values = [key(one) for one in found.values()]
        assert sorted(set(values)) == sorted(values)
    # `on` is the boolean of YAML 1.1.
    assert found["forks-comment"][True]["workflow_run"]["workflows"] == [found["forks"]["name"]]
