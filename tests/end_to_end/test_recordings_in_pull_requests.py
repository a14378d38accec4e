"""Recordings in the action: a fork's run needs no secrets, and what a change does to a recording is said first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import Called, keystone
from support.event_steps import HEAD
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS, FakeRunner, StepResult
from support.model_agents import behind, run, says, spec_of
from support.repositories import commit, git, make_change

from keystone_action.gateway.recordings.files import read_recording, write_recording

SCRIPT = """
status, answer = ask([user("Is it done?")], system=os.environ.get("SYSTEM", "You help."))
print(answer["content"][0]["text"] if status == 200 else answer["error"]["message"])
"""
SPEC = spec_of(SCRIPT)
FILE = "recordings/models/models.r0.jsonl"
FAMILY = "pull request"
EDITS, DELETES = (
    "a change that edits what a model is said to have answered",
    "a change that deletes one replica's recording",
)
ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A repository whose model said that it is not done."""
    folder = tmp_path_factory.mktemp("recorded")
    with behind(says("not yet")) as (_, environ):
        assert run(folder, SPEC, environ, "--gateway", "record").code == 1
    return {"keystone.yaml": json.dumps(SPEC), FILE: (folder / FILE).read_text()}


@pytest.fixture
def edited(base: Mapping[str, str], tmp_path: Path) -> str:
    """The recording as one who wants to pass would have it, in good order."""
    path = tmp_path / "edited" / "models.r0.jsonl"
    path.parent.mkdir()
    path.write_text(base[FILE])
    recording = read_recording(path)
    (entry,) = recording.entries
    answer = {**entry.answer, "content": [{"type": "text", "text": "done"}]}
    write_recording(path, replace(recording, entries=(replace(entry, answer=answer),)), None)
    return path.read_text()


def step(
    tmp_path: Path,
    base: Mapping[str, str],
    change: Mapping[str, str | None],
    *,
    event: str = "pull_request",
    github: FakeGitHub | None = None,
    **inputs: str,
) -> tuple[StepResult, dict[str, Any]]:
    """A job without any key, and its only cell."""
    made = make_change(tmp_path / "origin", base, change)
    payload = json.loads((EVENTS / f"{event}.json").read_text())
    payload["pull_request"]["base"]["sha"] = made.base
    job = FakeRunner(tmp_path / "job", event=event, payload=payload, github=github)
    made.check_out(job.workspace)
    given = {"spec": "keystone.yaml", "gateway": "replay"} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    done = job.step(given, env=ENGINE)
    results = json.loads((job.workspace / "keystone-results" / "results.json").read_text())
    return done, results["specs"][0]["cells"][0]


@honest(FAMILY, EDITS, DELETES)
@pytest.mark.parametrize("event", ["pull_request_fork", "pull_request_dependabot"])
def test_a_run_without_secrets_replays(tmp_path: Path, base: dict[str, str], edited: str, event: str) -> None:
    good = {**base, FILE: edited}
    done, cell = step(tmp_path, good, {"README": "x"}, event=event, fail_on_stale="true")
    assert (done.exit_code, done.rejected) == (0, []), done.text
    assert done.summary.startswith("## ✅ Keystone: models passed: 1 of 1 check")
    assert "Replayed, no model was asked: 1 cell from recordings of " in done.summary
    assert (cell["trace"]["replayed"], cell["usage"]["spent_usd"]) == ("exact", 0)
    assert done.outputs["cost-usd"] == "0"


def test_a_live_run_of_a_fork_is_told_that_a_replay_needs_no_secrets(tmp_path: Path, base: dict[str, str]) -> None:
    done, cell = step(tmp_path, base, {"README": "x"}, event="pull_request_fork", gateway="live")
    assert done.exit_code == 3
    assert "`--gateway replay` needs none" in cell["error"]


@hostile(FAMILY, EDITS, held_by="recordings are compared with the base commit, and stand in the first line")
def test_an_edited_recording_stands_in_every_first_line(
    tmp_path: Path, base: dict[str, str], edited: str, github: FakeGitHub
) -> None:
    done, cell = step(tmp_path, base, {FILE: edited}, github=github)
    assert done.exit_code == 0, done.text
    assert cell["trace"]["replayed"] == "changed"
    told = "Keystone (replayed; from a changed recording): models passed: 1 of 1 check"
    (comment,) = github.state.comments
    assert comment.body.splitlines()[0] == f"## ✅ {told}"
    assert f"## ✅ {told}" in done.summary
    assert f"changed files: {FILE} (+2 −2)" in done.summary.partition("## ")[0]
    assert [(one["sha"], one["description"]) for one in github.state.statuses][-1] == (HEAD, told)


@pytest.mark.parametrize("kind", ["edited", "new"])
def test_with_fail_on_stale_it_does_not_pass(tmp_path: Path, base: dict[str, str], edited: str, kind: str) -> None:
    before = base if kind == "edited" else {"keystone.yaml": base["keystone.yaml"]}
    done, cell = step(tmp_path, before, {FILE: edited}, fail_on_stale="true")
    assert (done.exit_code, done.outputs["verdict"]) == (1, "fail")
    assert cell["reason"] == "the replay was of a recording that this change touched"
    assert "## ❌ Keystone (replayed; from a changed recording): models failed: the replay was of" in done.summary


def test_spec_from_base_replays_the_recording_of_the_base(tmp_path: Path, base: dict[str, str], edited: str) -> None:
    done, cell = step(tmp_path, base, {FILE: edited}, spec_from="base", fail_on_stale="true")
    assert done.exit_code == 1
    assert (cell["trace"]["replayed"], cell["agent"]["output"]) == ("exact", "not yet\n")
    assert f"changed files: {FILE} (+2 −2)" in done.summary
    assert "had no effect" in done.summary


@hostile(FAMILY, EDITS, held_by="recordings are compared by what they hold, wherever the spec says that they are")
def test_another_folder_of_recordings_is_a_change_though_it_was_there_before(
    tmp_path: Path, base: dict[str, str], edited: str
) -> None:
    planted = {**base, "planted/models.r0.jsonl": edited}
    spec = json.dumps({**json.loads(base["keystone.yaml"]), "gateway": {"recordings": "planted"}})
    done, cell = step(tmp_path, planted, {"keystone.yaml": spec})
    assert cell["trace"]["replayed"] == "changed"
    assert "gateway.recordings" in done.summary.partition("## ")[0]


def test_spec_from_base_says_where_it_looked_for_a_recording(tmp_path: Path, base: dict[str, str], edited: str) -> None:
    before = {"keystone.yaml": base["keystone.yaml"]}
    done, cell = step(tmp_path, before, {FILE: edited}, spec_from="base")
    assert done.exit_code == 3
    assert f"{FILE} does not exist at the base commit, where spec-from: base looks" in cell["error"]


@hostile(FAMILY, DELETES, held_by="recordings are compared with the base commit, and stand in the first line")
def test_a_recording_that_went_leaves_no_other_in_its_place_unseen(
    tmp_path: Path, base: dict[str, str], edited: str
) -> None:
    """A further replica without a recording of its own is answered from the first one's."""
    second = FILE.replace(".r0.", ".r1.")
    spec = json.dumps({**SPEC, "parallelism": {"replicas": 2}})
    other = base[FILE].replace("models.r0", "models.r1")
    made = make_change(tmp_path / "origin", {"keystone.yaml": spec, FILE: edited, second: other}, {second: None})
    payload = json.loads((EVENTS / "pull_request.json").read_text())
    payload["pull_request"]["base"]["sha"] = made.base
    job = FakeRunner(tmp_path / "job", event="pull_request", payload=payload)
    made.check_out(job.workspace)
    done = job.step({"spec": "keystone.yaml", "gateway": "replay", "comment": "never"}, env=ENGINE)
    assert done.exit_code == 0, done.text
    results = json.loads((job.workspace / "keystone-results" / "results.json").read_text())
    assert [one["trace"]["replayed"] for one in results["specs"][0]["cells"]] == ["exact", "changed"]
    assert "Keystone (replayed; 1 of 2 cells from a changed recording): models passed" in done.summary


def replayed(folder: Path, *words: str, spec: Mapping[str, Any] = SPEC) -> Called:
    (folder / "keystone.yaml").write_text(json.dumps(spec))
    return keystone("run", "keystone.yaml", "--output", "out", "--gateway", "replay", *words, directory=folder)


def put(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_on_the_command_line_a_stale_replay_fails_where_it_must(
    tmp_path: Path, base: dict[str, str], edited: str
) -> None:
    put(tmp_path, {FILE: edited})
    other = spec_of(SCRIPT, agent={"env": {"SYSTEM": "You help a lot."}}, gateway={"match": "turn"})
    lenient = replayed(tmp_path, spec=other)
    assert lenient.code == 0, lenient.err
    assert "Keystone (replayed; stale): models passed" in lenient.err
    (tmp_path / "out").rename(tmp_path / "before")
    strict = replayed(tmp_path, "--fail-on-stale", spec=other)
    assert strict.code == 1
    assert strict.cells[0]["reason"].startswith("the replay was stale: request 1 differs (turn): system")
    (tmp_path / "out").rename(tmp_path / "strict")
    assert replayed(tmp_path, "--fail-on-stale").code == 0, "one that fits exactly"


def test_a_replay_that_missed_is_neither_exact_nor_stale(tmp_path: Path, edited: str) -> None:
    put(tmp_path, {FILE: edited})
    other = spec_of(SCRIPT, agent={"env": {"SYSTEM": "You help a lot."}})
    called = replayed(tmp_path, "--fail-on-stale", spec=other)
    assert (called.code, called.cells[0]["verdict"]) == (3, "error")
    assert called.cells[0]["trace"]["replayed"] is None
    assert "Keystone: models ended with an error: no recording for request 1 of" in called.err
    assert "Replayed" not in called.err


def test_a_replay_goes_on_with_the_same_recordings_only(tmp_path: Path, base: dict[str, str], edited: str) -> None:
    put(tmp_path, {FILE: edited})
    assert replayed(tmp_path).code == 0
    resume = ("run", "keystone.yaml", "--gateway", "replay", "--resume", "out")
    assert keystone(*resume, directory=tmp_path).code == 0
    put(tmp_path, base)
    refused = keystone(*resume, directory=tmp_path)
    assert refused.code == 2
    assert "the folder recordings/models of models has changed since" in refused.err
    live = keystone("run", "keystone.yaml", "--resume", "out", directory=tmp_path)
    assert live.code == 2
    assert "the gateway was replay and is each spec's own" in live.err


def test_what_is_recorded_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    with behind(says("done")) as (_, environ):
        assert run(tmp_path, SPEC, environ, "--gateway", "record").code == 0
        words = ("run", "keystone.yaml", "--gateway", "record", "--resume", "out")
        again = keystone(*words, directory=tmp_path, environ=environ)
    assert again.code == 0, again.err


def test_on_a_laptop_the_recordings_of_the_base_are_read(tmp_path: Path, base: dict[str, str], edited: str) -> None:
    made = make_change(tmp_path / "origin", base, {FILE: edited})
    clone = tmp_path / "clone"
    clone.mkdir()
    made.check_out(clone)
    git(clone, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    commit(clone, {"more": "x"})
    called = replayed(clone, "--spec-from", "base")
    assert called.code == 1
    assert called.cells[0]["agent"]["output"] == "not yet\n"


UNKNOWN = "a recording that nobody can say the change left alone"


@pytest.mark.parametrize("sha", ["9" * 40, ""])
@hostile(FAMILY, UNKNOWN, held_by="exact is said only where the comparison was made", sandbox="none")
def test_without_a_base_no_recording_is_said_to_fit(
    tmp_path: Path, base: Mapping[str, str], edited: str, sha: str
) -> None:
    made = make_change(tmp_path / "origin", base, {FILE: edited})
    payload = json.loads((EVENTS / "pull_request.json").read_text())
    payload["pull_request"]["base"]["sha"] = sha
    job = FakeRunner(tmp_path / "job", event="pull_request", payload=payload)
    made.check_out(job.workspace)
    (job.workspace / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
    done = job.step({"spec": "keystone.yaml", "gateway": "replay", "fail-on-stale": "true"}, env=ENGINE)
    results = json.loads((job.workspace / "keystone-results" / "results.json").read_text())
    cell = results["specs"][0]["cells"][0]
    assert (done.exit_code, cell["trace"]["replayed"]) == (1, "changed"), done.text
    assert cell["reason"].startswith("whether this change touched the recording that was replayed is not known: ")


@honest(FAMILY, UNKNOWN, sandbox="none")
def test_with_a_base_that_has_it_a_recording_fits(tmp_path: Path, base: Mapping[str, str]) -> None:
    done, cell = step(tmp_path, base, {"x": "y"}, fail_on_stale="true")
    assert (done.exit_code, cell["trace"]["replayed"]) == (1, "exact"), done.text
    assert "not known" not in cell["reason"]
