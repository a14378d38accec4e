"""The action on what weakens a gate from outside of its specs, or before the push that is tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS, REPOSITORY, FakeRunner, StepResult
from support.git_server import GitServer
from support.repositories import Change, commit, git, make_change
from support.shard_runs import cell, spec, whole

from keystone_action.report.write import render_results

SPEC = """
version: 1
id: small
task: {prompt: "do it"}
agent: {type: command, command: "touch b"}
invariants:
  a: {weight: 2, check: {type: file_exists, path: a}}
  b: {check: {type: file_exists, path: b}}
scoring: {pass_threshold: 0.85}
"""
FLOW = ".github/workflows/evaluate.yml"
CALL = """
on: [push, pull_request]
jobs:
  evaluate:
    steps:
      - uses: keystone-action/keystone-action@v0
        with:
          spec: keystone.yaml
"""
BASE = {"keystone.yaml": SPEC, FLOW: CALL}
WEAK_CALL = CALL.replace(
    "spec: keystone.yaml", "spec: keystone.yaml\n          fail-on: never\n          threshold: 0.2"
)
ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def event(name: str, made: Change, **more: Any) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text()) | more
    if name == "pull_request":
        payload["pull_request"]["base"]["sha"] = made.base
    return payload


def step(job: FakeRunner, **inputs: str) -> StepResult:
    given = {"spec": "keystone.yaml", "comment": "never", "status-context": ""}
    done = job.step(given | {name.replace("_", "-"): value for name, value in inputs.items()}, env=ENGINE)
    assert done.rejected == []
    return done


@pytest.mark.parametrize("spec_from", ["head", "base"])
def test_inputs_that_weaken_the_gate_are_said_first(tmp_path: Path, spec_from: str) -> None:
    """They had effect whosever specs ran."""
    made = make_change(tmp_path / "origin", BASE, {FLOW: WEAK_CALL, "keystone.yaml": SPEC.replace("0.85", "0.5")})
    job = FakeRunner(tmp_path / "job", event="pull_request", payload=event("pull_request", made))
    made.check_out(job.workspace)
    done = step(job, threshold="0.2", fail_on="never", spec_from=spec_from)
    assert done.exit_code == 0, done.text
    head, workflow, spec = done.summary.splitlines()[1:4]
    if spec_from == "base":
        assert "alters how they are run, which had effect; its own specs had none:**" in head
    assert workflow == f"> - `{FLOW}`: threshold added: 0.2; fail-on added: never; workflow changed (+2 −0)"
    assert spec == "> - `keystone.yaml`: threshold 0.85 → 0.5"
    assert done.text.index("threshold added: 0.2") < done.text.index("verdict: ")
    document = json.loads((job.workspace / "keystone-results" / "results.json").read_text())["spec_changes"]
    assert [one["path"] for one in document["workflows"]] == [FLOW]


@pytest.mark.parametrize("known", [True, False])
def test_the_second_push_of_a_branch_tells_what_the_first_one_weakened(tmp_path: Path, known: bool) -> None:
    """In a checkout of one commit, where only GitHub knows where the branch left."""
    made = make_change(tmp_path / "origin", BASE, {"keystone.yaml": SPEC.replace("0.85", "0.2")})
    second = commit_on_topic(tmp_path, made)
    payload = event("push", made, ref="refs/heads/topic", before=made.head, after=second)
    with FakeGitHub() as github, GitServer(made.origin) as server:
        github.state.repository = REPOSITORY
        if known:
            github.state.merge_bases = {("main", second): made.base}
        job = FakeRunner(tmp_path / "job", event="push", payload=payload, github=github, token="read-only")
        job.server = server.url
        made.check_out(job.workspace, depth=1)
        done = step(job)
        assert github.calls() == [f"GET /compare/main...{second}"]
        gated = step(job, spec_from="base", output_dir="gated")
    assert done.exit_code == 0, done.text
    head, *lines = done.summary.splitlines()[1:3]
    if known:
        assert gated.exit_code == 1, gated.text
        assert head.endswith(f"compared with commit `{made.base[:12]}` (where this branch left main):**")
        assert lines == ["> - `keystone.yaml`: threshold 0.85 → 0.2"]
    else:
        assert gated.exit_code == 2
        assert "check out with `fetch-depth: 0`, which tells where it left the default one" in gated.issues[0].message
        unknown = "Only this push was compared, not those before it: where this branch left main is not known"
        assert head.startswith(f"> **{unknown} (")
        assert f"Compared with commit `{made.head[:12]}` (the commit before this push), no change" in head


def commit_on_topic(tmp_path: Path, made: Change) -> str:
    work = tmp_path / "work"
    git(tmp_path, "clone", "-q", "-b", "topic", str(made.origin), str(work))
    second = commit(work, {"more": "x\n"})
    git(work, "push", "-q", "origin", "topic")
    git(made.origin, "update-server-info")
    return second


def test_a_baseline_that_the_change_brings_along_is_said(tmp_path: Path) -> None:
    """One that has failed already is nothing to be worse than; in the job too that only joins results. One that a step
    has fetched is none of the change's."""
    good, bad = (
        render_results(whole([spec("alpha", [cell("alpha", "alpha", 0, verdict, score=float(verdict == "pass"))])]))
        for verdict in ("pass", "fail")
    )
    base = {"keystone.yaml": SPEC.replace("small", "alpha"), "was/results.json": good}
    made = make_change(tmp_path / "origin", base, {"was/results.json": bad})
    job = FakeRunner(tmp_path / "job", event="pull_request", payload=event("pull_request", made))
    made.check_out(job.workspace)
    done = step(job, baseline="was", fail_on="regression")
    assert done.exit_code == 0, done.text
    line = done.summary.splitlines()[2]
    assert line.startswith("> - `was`: baseline changed (+")
    (job.workspace / "shards").mkdir()
    (job.workspace / "keystone-results").rename(job.workspace / "shards" / "one")
    joined = step(job, mode="merge", results="shards", baseline="was", fail_on="regression")
    assert joined.summary.splitlines()[2] == line
    inner = FakeRunner(tmp_path / "inner", event="pull_request", payload=event("pull_request", made))
    (inner.workspace / "app").mkdir()
    made.check_out(inner.workspace / "app")
    told = step(inner, spec="app/keystone.yaml", baseline="app/was", fail_on="regression")
    assert line.replace("`was`", "`app/was`") in told.summary.splitlines()
    (job.workspace / "fetched.json").write_text(bad)
    other = step(job, baseline="fetched.json", output_dir="more")
    assert other.summary.startswith("## "), other.text


@pytest.mark.parametrize("named", ["kept/was", "link"])
def test_a_baseline_in_a_submodule_is_told_by_its_commit(tmp_path: Path, named: str) -> None:
    """Another commit of the submodule can hold one that nothing is worse than."""
    good, bad = (
        render_results(whole([spec("alpha", [cell("alpha", "alpha", 0, verdict, score=float(verdict == "pass"))])]))
        for verdict in ("pass", "fail")
    )
    outside = tmp_path / "outside"
    outside.mkdir()
    git(outside, "init", "-q", "-b", "main")
    commit(outside, {"was/results.json": good})
    work = tmp_path / "job" / "_work" / "agents" / "agents"
    job = FakeRunner(tmp_path / "job", event="pull_request")
    git(work, "init", "-q", "-b", "main")
    git(work, "submodule", "--quiet", "add", str(outside), "kept")
    (work / "link").symlink_to("kept/was")
    base = commit(work, {"keystone.yaml": SPEC.replace("small", "alpha").replace("path: a", "path: b")})
    commit(work, {"more": "x\n"})
    job.happened("pull_request", event("pull_request", Change(work, base, "")))
    assert step(job, baseline=named).summary.startswith("## ")
    commit(work / "kept", {"was/results.json": bad})
    commit(work, {})
    line = step(job, baseline=named, output_dir="again").summary.splitlines()[2]
    assert line.startswith(f"> - `{named}`: baseline changed (submodule kept ")


@pytest.mark.parametrize(("checks", "code", "said"), [("hidden", 2, "submodule hidden "), ("app", 1, "")])
def test_hidden_tests_in_a_submodule_are_told_by_their_commit(
    tmp_path: Path, checks: str, code: int, said: str
) -> None:
    """What is in it is in no commit of the repository: specs of the base that need it don't run. One that holds the
    workspace is what the change is about."""
    named = SPEC.replace("{type: file_exists, path: a}", "{type: custom, script: hidden/c.sh}").replace(
        "{weight: 2, ", "{"
    )
    text = named if checks == "hidden" else SPEC.replace("task:", "workspace: app\ntask:")
    outside = tmp_path / "outside"
    outside.mkdir()
    git(outside, "init", "-q", "-b", "main")
    commit(outside, {"c.sh": "echo '{\"passed\": false}'\n"})
    work = tmp_path / "job" / "_work" / "agents" / "agents"
    job = FakeRunner(tmp_path / "job", event="pull_request")
    git(work, "init", "-q", "-b", "main")
    git(work, "submodule", "--quiet", "add", str(outside), checks)
    base = commit(work, {"keystone.yaml": text})
    commit(work / checks, {"c.sh": "echo '{\"passed\": true}'\n"})
    commit(work, {})
    job.happened("pull_request", event("pull_request", Change(work, base, "")))
    summary = step(job).summary.partition("## ")[0]
    assert (said in summary) if said else not summary
    assert step(job, spec_from="base", output_dir="more").exit_code == code


@pytest.mark.parametrize(("attributes", "seen"), [("", True), ("*.sh text eol=crlf\n", False)])
def test_line_ends_that_the_change_brings_along_are_seen(tmp_path: Path, attributes: str, seen: bool) -> None:
    """Of a script they make that `set -e` has no effect."""
    named = SPEC.replace(
        "a: {weight: 2, check: {type: file_exists, path: a}}", "a: {check: {type: custom, script: c.sh}}"
    )
    script = "set -e\ntest -f a\necho '{\"passed\": true}'\n"
    base = {"keystone.yaml": named, "c.sh": script, ".gitattributes": attributes}
    made = make_change(tmp_path / "origin", base, {"x": "y"} if attributes else {".gitattributes": "c.sh eol=crlf\n"})
    job = FakeRunner(tmp_path / "job", event="pull_request", payload=event("pull_request", made))
    made.check_out(job.workspace)
    assert b"\r\n" in (job.workspace / "c.sh").read_bytes()
    assert ("`keystone.yaml`: changed files: c.sh (+3 −3)" in step(job).summary) is seen


@pytest.mark.parametrize(("kind", "spec_from"), [("link", "head"), ("link", "base"), ("submodule", "base")])
def test_another_folder_in_the_place_of_the_working_directory_is_seen(
    tmp_path: Path, kind: str, spec_from: str
) -> None:
    """One of the base's own, with weaker specs, compared with which nothing would have changed."""
    weak = SPEC.replace("0.85", "0.2")
    made = make_change(tmp_path / "origin", {"evals/keystone.yaml": SPEC, "easy/keystone.yaml": weak}, {"x": "y"})
    job = FakeRunner(tmp_path / "job", event="pull_request", payload=event("pull_request", made))
    made.check_out(job.workspace)
    place = job.workspace / "evals"
    (place / "keystone.yaml").unlink()
    place.rmdir()
    if kind == "link":
        place.symlink_to("easy")
    else:
        place.mkdir()
        git(place, "init", "-q")
        commit(place, {"keystone.yaml": weak})
    git(job.workspace, "add", "-A")
    git(job.workspace, "commit", "-q", "-m", "another folder")
    done = step(job, working_directory="evals", spec_from=spec_from)
    assert done.exit_code == int(spec_from == "base"), done.text
    said = done.summary.partition("## ")[0]
    assert said.startswith("> [!WARNING]")
    assert "threshold 0.85 → 0.2" in said
