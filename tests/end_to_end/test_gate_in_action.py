"""The action on pull requests, pushes and merge groups: what a change does to its own gate is said before anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import EVENTS, TOKEN, FakeRunner, StepResult
from support.git_server import GitServer
from support.repositories import Change, git, make_change, write

from keystone_action.report.addresses import DOCS

SPEC = """
version: 1
id: small
task: {prompt: "do it"}
workspace: app
agent: {type: command, command: "sh $KEYSTONE_AGENT_DIR/run.sh", dir: agent}
invariants:
  tests_pass: {gate: true, check: {type: tests, cmd: "python3 test_x.py", inject: [hidden/test_x.py]}}
  x: {weight: 2, check: {type: file_exists, path: a}}
  y: {gate: true, check: {type: file_exists, path: b}}
scoring: {pass_threshold: 0.85}
"""
WEAK = "\n".join(line for line in SPEC.replace("0.85", "0.5").splitlines() if "tests_pass" not in line)
WEAK = WEAK.replace("weight: 2, ", "").replace("y: {gate: true, ", "y: {")
BASE = {
    "keystone.yaml": SPEC,
    "hidden/test_x.py": "import os\n\nassert os.path.exists('a')\nassert os.path.exists('b')\n",
    "app/README": "app\n",
    "agent/run.sh": "touch a b\n",
}
CHEAT = {"keystone.yaml": WEAK, "agent/run.sh": "touch b\n"}
SENTENCES = "threshold 0.85 → 0.5; removed: tests_pass (a gate); gate y removed; weight of x 2 → 1"
ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def runner(
    tmp_path: Path, made: Change, event: str = "pull_request", *, depth: int | None = 1, **more: Any
) -> FakeRunner:
    """A job for an event about this change, checked out as actions/checkout does."""
    payload = json.loads((EVENTS / f"{event}.json").read_text())
    if event.startswith("pull_request"):
        payload["pull_request"]["base"]["sha"] = made.base
    elif event == "push":
        payload["before"] = made.base
    elif event == "merge_group":
        payload["merge_group"]["base_sha"] = made.base
    found = FakeRunner(tmp_path / "job", event=event, payload=more.pop("payload", payload))
    made.check_out(found.workspace, depth=depth)
    return found


def step(job: FakeRunner, server: str = "", **inputs: str) -> StepResult:
    given = {"spec": "keystone.yaml", "comment": "never", "status-context": ""}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    job.server = server or job.server
    return job.step(given, env=ENGINE)


def changes(job: FakeRunner) -> dict[str, Any]:
    return json.loads((job.workspace / "keystone-results" / "results.json").read_text())["spec_changes"]


@pytest.mark.parametrize("event", ["pull_request_fork", "merge_group"])
def test_a_weakened_gate_is_said_first(tmp_path: Path, event: str) -> None:
    job = runner(tmp_path, make_change(tmp_path / "origin", BASE, CHEAT), event, depth=None)
    done = step(job)
    assert (done.exit_code, done.rejected) == (0, [])
    assert done.summary.startswith("> [!WARNING]\n> **This change alters its own gate, compared with ")
    assert f"`keystone.yaml`: {SENTENCES}" in done.summary
    assert done.summary.index("threshold") < done.summary.index("## ")
    (one,) = changes(job)["specs"]
    assert (one["path"], one["change"]) == ("keystone.yaml", "changed")


def test_every_kind_of_change(tmp_path: Path) -> None:
    more = {"old.keystone.yaml": SPEC.replace("small", "old"), "stern.keystone.yaml": SPEC.replace("small", "stern")}
    change = {
        "hidden/test_x.py": "pass\n",
        "old.keystone.yaml": None,
        "other.keystone.yaml": SPEC.replace("small", "new"),
        "stern.keystone.yaml": more["stern.keystone.yaml"].replace("0.85", "0.9"),
    }
    job = runner(tmp_path, make_change(tmp_path / "origin", BASE | more, change), depth=None)
    done = step(job, spec=".")
    assert done.exit_code == 0, done.text
    warning, *lines = done.summary.partition("\n\n")[0].splitlines()
    assert warning == "> [!WARNING]"
    assert sorted(lines[1:]) == [
        "> - `keystone.yaml`: changed files: hidden/test_x.py (+1 −4)",
        "> - `old.keystone.yaml`: spec deleted",
        "> - `other.keystone.yaml`: spec added",
        "> - `stern.keystone.yaml`: threshold 0.85 → 0.9; changed files: hidden/test_x.py (+1 −4)",
    ]


def test_what_a_change_is_about_is_no_change_of_its_gate(tmp_path: Path) -> None:
    change = {"agent/run.sh": "touch a b # better\n", "app/more": "x"}
    job = runner(tmp_path, make_change(tmp_path / "origin", BASE, change), depth=None)
    done = step(job, spec=".")
    assert done.exit_code == 0, done.text
    assert not done.summary.startswith("> [!WARNING]")


def test_text_of_a_change_is_text(tmp_path: Path) -> None:
    evil = SPEC.replace('"do it"', '"@octocat <img src=x> [a](https://evil.example) ::error::x"')
    job = runner(tmp_path, make_change(tmp_path / "origin", BASE, {"keystone.yaml": evil}), depth=None)
    done = step(job)
    assert done.rejected == []
    assert done.issues == []
    asked = "```text\n@octocat <img src=x> [a](https://evil.example) ::error::x\n```\n"
    assert done.summary.count(asked) == 1  # fenced
    told = done.summary.replace(asked, "")
    assert "task.prompt" in told
    assert r"\<img src=x\>" in told
    assert "<img" not in told.replace(r"\<", "")
    ours = told.count(f"]({DOCS}")
    assert told.count("](https") - ours == told.count("`[a](https://evil.example)`") == 1, "a code span"


def test_a_shallow_checkout_gets_the_base_commit_with_the_token(tmp_path: Path) -> None:
    """actions/checkout fetches one commit by default."""
    made = make_change(tmp_path / "origin", BASE, CHEAT)
    job = runner(tmp_path, made)
    before = git(job.workspace, "count-objects", "-v")
    with GitServer(made.origin) as forge:
        done = step(job, server=forge.url, threshold="")
    assert done.exit_code == 0, done.text
    assert SENTENCES in done.summary
    assert changes(job)["problem"] == ""
    assert all("basic" in one for one in forge.authorizations)
    assert TOKEN not in done.text
    assert git(job.workspace, "count-objects", "-v") == before, "nothing is written into the checkout"


def test_a_shallow_checkout_that_can_not_fetch_says_so(tmp_path: Path) -> None:
    made = make_change(tmp_path / "origin", BASE, CHEAT)
    job = runner(tmp_path, made)
    done = step(job)
    assert done.exit_code == 0, done.text
    head = done.summary.splitlines()[2]
    assert head.startswith("ℹ️ Whether this change weakens its own gate is not known:")
    assert "fetch-depth: 0" in head
    assert made.base[:12] in head
    assert "the checkout does not have it, and fetching it" in changes(job)["problem"]


def test_events_without_a_base_compare_nothing(tmp_path: Path) -> None:
    job = runner(tmp_path, make_change(tmp_path / "origin", BASE, CHEAT), "schedule")
    assert step(job).exit_code == 0
    assert changes(job) is None


def test_an_event_that_names_no_base_is_said(tmp_path: Path) -> None:
    payload = {"pull_request": {"base": {"sha": "--upload-pack=touch x"}}}
    job = runner(tmp_path, make_change(tmp_path / "origin", BASE, CHEAT), payload=payload)
    done = step(job)
    assert done.exit_code == 0
    assert "Whether this change weakens its own gate is not known" in done.summary


def test_spec_from_base(tmp_path: Path) -> None:
    job = runner(tmp_path, make_change(tmp_path / "origin", BASE, CHEAT), depth=None)
    done = step(job, spec_from="base")
    assert done.exit_code == 1, done.text
    assert done.summary.startswith("> [!WARNING]\n> **The specs of the pull request's base main decided, as commit")
    assert SENTENCES in done.summary
    document = json.loads((job.workspace / "keystone-results" / "results.json").read_text())
    assert document["specs"][0]["path"] == "keystone.yaml"
    assert "fail" in {check["status"] for check in document["specs"][0]["cells"][0]["invariants"]}


@pytest.mark.parametrize(
    ("event", "depth", "said"),
    [
        ("schedule", None, "the event schedule proposes no change to one"),
        ("pull_request", 1, "fetch-depth: 0"),
    ],
)
def test_spec_from_base_without_one_is_exit_2(tmp_path: Path, event: str, depth: int | None, said: str) -> None:
    job = runner(tmp_path, make_change(tmp_path / "origin", BASE, CHEAT), event, depth=depth)
    done = step(job, spec_from="base")
    assert (done.exit_code, done.outputs["verdict"]) == (2, "error")
    assert said in done.summary


def test_a_plan_has_the_cells_of_the_base(tmp_path: Path) -> None:
    more = SPEC + "parallelism: {replicas: 3}\n"
    made = make_change(tmp_path / "origin", {**BASE, "keystone.yaml": more}, CHEAT)
    job = runner(tmp_path, made, depth=None)
    assert step(job, mode="plan", shards="5", spec_from="base").outputs["total"] == "3"
    assert step(job, mode="plan", shards="5").outputs["total"] == "1"


def test_a_working_directory_and_a_checkout_of_another_owner(tmp_path: Path) -> None:
    nested = {f"sub/{name}": text for name, text in BASE.items()}
    change = {f"sub/{name}": text for name, text in CHEAT.items()}
    made = make_change(tmp_path / "origin", nested, change)
    payload = json.loads((EVENTS / "pull_request.json").read_text())
    payload["pull_request"]["base"]["sha"] = made.base
    job = FakeRunner(tmp_path / "job", event="pull_request", payload=payload, owner=1001)
    made.check_out(job.workspace)
    job.own()
    done = step(job, working_directory="sub")
    assert done.exit_code == 0, done.text
    assert f"`keystone.yaml`: {SENTENCES}" in done.summary


def test_no_checkout_where_the_specs_are_looked_for_says_so(tmp_path: Path) -> None:
    """An archive that was unpacked, or the folder around a checkout with a `path`."""
    job = FakeRunner(tmp_path / "job", event="pull_request")
    write(job.workspace, BASE)
    done = step(job)
    assert done.exit_code == 0, done.text
    assert "is not a git checkout; use actions/checkout; where that has a `path`, name it in" in done.summary
