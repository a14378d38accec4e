"""The commit that a gate is compared with: where a pushed branch left the default one, what a merge was made on."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS
from support.repositories import Change, commit, git, make_change

from keystone_action.action.bases import find_change_base
from keystone_action.gate.change_base import ChangeBase
from keystone_action.gate.workflow_files import WorkflowFile
from keystone_action.github.inputs import InputReader, read_options
from keystone_action.github.log_commands import LogCommands

pytestmark = pytest.mark.command

BEFORE = "1" * 40
ELSEWHERE = "4" * 40
MERGE = "3" * 40


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        yield fake


@pytest.fixture
def made(tmp_path: Path) -> Change:
    return make_change(tmp_path / "origin", {"a": "1\n"}, {"a": "2\n"})


def compared(
    place: Path, github: FakeGitHub, event: str, payload: dict[str, Any] | str, *, token: str = "read-only", **more: str
) -> ChangeBase:
    """What a step in a checkout is compared with."""
    file = place / "event.json"
    file.write_text(payload if isinstance(payload, str) else json.dumps(payload))
    environ = {
        **github.environ(token),
        "GITHUB_EVENT_NAME": event,
        "GITHUB_EVENT_PATH": str(file),
        "GITHUB_WORKSPACE": str(place / "checkout"),
        **more,
    }
    reader = InputReader(environ)
    options = read_options(reader)
    reader.raise_problems()
    return find_change_base(options, environ, LogCommands(io.StringIO()))


def pushed(head: str, *, ref: str = "refs/heads/topic", before: str = BEFORE) -> dict[str, Any]:
    return json.loads((EVENTS / "push.json").read_text()) | {"ref": ref, "before": before, "after": head}


def checkout(tmp_path: Path, made: Change, depth: int | None = 1) -> Path:
    place = tmp_path / "checkout"
    place.mkdir()
    made.check_out(place, depth=depth)
    return tmp_path


@pytest.mark.parametrize(
    ("fixture", "event", "name"),
    [
        ("pull_request", "pull_request", "the pull request's base main"),
        ("pull_request_fork", "pull_request", "the pull request's base main"),
        ("pull_request_dependabot", "pull_request", "the pull request's base main"),
        ("push", "push", "the commit before this push"),
        ("merge_group", "merge_group", "the merge group's base"),
    ],
)
def test_what_an_event_proposes_is_compared_with_the_base_that_it_names(tmp_path, github, fixture, event, name) -> None:
    (tmp_path / "checkout").mkdir()
    payload = json.loads((EVENTS / f"{fixture}.json").read_text())
    found = compared(tmp_path, github, event, payload)
    assert found.commit is not None
    assert (found.commit.sha, found.commit.name, found.problem) == (BEFORE, name, "")


@pytest.mark.parametrize(
    ("event", "more", "problem"),
    [
        ("schedule", {}, ""),
        ("workflow_dispatch", {}, ""),
        ("push", {"before": "0" * 40, "created": True}, ""),
        ("pull_request", "{", "the event file could not be read"),
        (
            "pull_request",
            {"pull_request": {"base": {"sha": "--upload-pack=touch x"}}},
            "the event does not name the pull request's base",
        ),
    ],
)
def test_an_event_without_a_base_says_why_where_it_should_have_one(tmp_path, github, event, more, problem) -> None:
    (tmp_path / "checkout").mkdir()
    payload = json.loads((EVENTS / f"{event}.json").read_text())
    found = compared(tmp_path, github, event, more if isinstance(more, str) else payload | more)
    assert (found.commit, found.problem) == (None, problem)


@pytest.mark.parametrize("before", [BEFORE, "0" * 40])
def test_all_pushes_to_a_branch_are_compared_with_where_it_left(tmp_path, github, made, before) -> None:
    github.state.merge_bases = {("main", made.head): ELSEWHERE}
    found = compared(checkout(tmp_path, made), github, "push", pushed(made.head, before=before))
    assert found.commit is not None
    assert (found.commit.sha, found.commit.name, found.commit.incomplete) == (
        ELSEWHERE,
        "where this branch left main",
        "",
    )
    assert found.problem == ""


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/tags/v1"])
def test_pushes_to_the_default_branch_are_compared_with_the_commit_before(tmp_path, github, made, ref) -> None:
    found = compared(checkout(tmp_path, made), github, "push", pushed(made.head, ref=ref))
    assert found.commit is not None
    assert (found.commit.sha, found.commit.name, found.commit.incomplete) == (BEFORE, "the commit before this push", "")
    assert github.calls() == []


def test_a_branch_that_the_default_one_holds_changes_only_itself(tmp_path, github, made) -> None:
    """Such as one that says what is deployed."""
    github.state.merge_bases = {("main", made.head): made.head}
    place = checkout(tmp_path, made)
    found = compared(place, github, "push", pushed(made.head))
    assert found.commit is not None
    assert (found.commit.sha, found.commit.incomplete) == (BEFORE, "")
    new = compared(place, github, "push", pushed(made.head, before="0" * 40))
    assert (new.commit, new.problem) == (None, "")


@pytest.mark.parametrize("branch", ["topic", "main"])
def test_a_run_that_was_started_by_hand_is_compared_as_a_push_is(tmp_path, github, made, branch) -> None:
    """Its job stands beside the commit as that of a push does."""
    github.state.merge_bases = {("main", made.head): ELSEWHERE}
    payload = json.loads((EVENTS / "workflow_dispatch.json").read_text()) | {"ref": f"refs/heads/{branch}"}
    more = {"GITHUB_SHA": made.head, "GITHUB_REF": f"refs/heads/{branch}"}
    found = compared(checkout(tmp_path, made), github, "workflow_dispatch", payload, **more)
    assert (found.commit.sha if found.commit else None) == (ELSEWHERE if branch == "topic" else None)
    assert found.problem == ""


@pytest.mark.parametrize(
    ("event", "reference", "expected"),
    [
        (
            "pull_request",
            "octo-org/evals/.github/workflows/x.yml@refs/pull/1/merge",
            (".github/workflows/x.yml", MERGE),
        ),
        ("push", "Octo-Org/Evals/.github/workflows/x.yaml@refs/heads/a@b", (".github/workflows/x.yaml", MERGE)),
        ("push", "octo-org/rules/.github/workflows/x.yml@refs/heads/main", ("", MERGE)),
        ("push", "octo-org/evals/../x.yml@a", ("", MERGE)),
        ("push", "", ("", MERGE)),
        ("pull_request_target", "octo-org/evals/.github/workflows/x.yml@main", (".github/workflows/x.yml", "")),
    ],
)
def test_the_workflow_that_runs(tmp_path, github, made, event, reference, expected) -> None:
    """None of another repository; the one that runs on pull_request_target is the base's, and not the change's."""
    payload = json.loads((EVENTS / "pull_request.json").read_text())
    more = {"GITHUB_WORKFLOW_REF": reference, "GITHUB_WORKFLOW_SHA": MERGE, "GITHUB_ACTION_REPOSITORY": "x/y"}
    found = compared(checkout(tmp_path, made), github, event, payload, **more).workflow
    assert found == WorkflowFile(*expected, "x/y")


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"status": 403, "message": "Resource not accessible by integration"}, "contents: read"),
    ({"status": 404, "message": "Not Found"}, "404"),
    ({"status": 500, "times": 9}, "500"),
    ({"how": "reset", "times": 9}, ""),
    ({"body": b"<html>", "status": 200}, "JSON"),
    ({"body": b'{"merge_base_commit": {"sha": "--x"}}', "status": 200}, "another shape"),
]


@pytest.mark.parametrize(("fault", "why"), REFUSALS)
def test_what_is_not_known_is_said_and_breaks_nothing(tmp_path, github, made, fault, why, monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    github.fault("GET", f"/compare/main...{made.head}", **fault)
    place = checkout(tmp_path, made)
    found = compared(place, github, "push", pushed(made.head))
    assert found.commit is not None
    assert found.commit.sha == BEFORE
    assert found.commit.incomplete.startswith(
        "only this push was compared, not those before it: where this branch left main is not known ("
    )
    assert why in found.commit.incomplete


def test_without_a_commit_before_or_for_the_specs_that_run_nothing_else_will_do(tmp_path, github, made) -> None:
    """With the commit before, the specs that run could be those that an earlier push of this branch weakened."""
    place, unknown = checkout(tmp_path, made), "where this branch left main is not known"
    new = compared(place, github, "push", pushed(made.head, before="0" * 40))
    assert (new.commit, new.problem.startswith(unknown)) == (None, True)
    found = compared(place, github, "push", pushed(made.head), **{"INPUT_SPEC-FROM": "base"})
    assert (found.commit, found.problem.startswith(unknown)) == (None, True)


@pytest.mark.parametrize("token", ["read-only", "none"])
def test_a_whole_checkout_knows_it_without_github(tmp_path, github, made, token) -> None:
    found = compared(checkout(tmp_path, made, depth=None), github, "push", pushed(made.head), token=token)
    assert found.commit is not None
    assert (found.commit.sha, found.commit.incomplete) == (made.base, "")
    assert bool(github.calls()) == (token != "none")


def test_without_a_token_github_is_not_asked(tmp_path, github, made) -> None:
    github.state.merge_bases = {("main", made.head): ELSEWHERE}
    found = compared(checkout(tmp_path, made), github, "push", pushed(made.head), token="none")
    assert found.commit is not None
    assert (found.commit.sha, github.calls()) == (BEFORE, [])
    assert found.commit.incomplete.endswith(
        "where this branch left main is not known (GitHub was not asked, since the input github-token is empty);"
        " `fetch-depth: 0` tells it too"
    )


def merged(made: Change) -> tuple[str, str]:
    """The newer commit of main, and the merge of the topic into it that GitHub has for a pull request."""
    work = made.origin.parent / "merging"
    git(made.origin.parent, "clone", "-q", str(made.origin), str(work))
    git(work, "checkout", "-q", "main")
    newer = commit(work, {"b": "new on main\n"})
    git(work, "merge", "-q", "--no-ff", "-m", "merge", made.head)
    merge = git(work, "rev-parse", "HEAD")
    git(work, "push", "-q", "origin", f"{merge}:refs/pull/17/merge")
    return newer, merge


@pytest.mark.parametrize(
    ("event", "out", "expected"),
    [
        ("pull_request", "merge", "newer"),
        ("pull_request_review", "merge", "newer"),
        ("pull_request", "head", "event"),
        ("pull_request", "other merge", "event"),
        ("pull_request_target", "merge", "event"),
    ],
)
def test_a_pull_request_is_compared_with_what_its_merge_was_made_on(
    tmp_path: Path, github: FakeGitHub, made: Change, event: str, out: str, expected: str
) -> None:
    """The base that the event names may be an older one: what came since is none of the pull request's doing. Only of
    the merge that GitHub made: whoever opens the pull request could make one on a weaker commit."""
    newer, merge = merged(made)
    place = tmp_path / "checkout"
    place.mkdir()
    git(place, "init", "-q")
    git(place, "fetch", "-q", "--depth=1", made.origin.as_uri(), made.head if out == "head" else merge)
    git(place, "checkout", "-q", "FETCH_HEAD")
    payload = json.loads((EVENTS / "pull_request.json").read_text())
    payload["pull_request"]["base"]["sha"] = made.base
    payload["pull_request"]["head"]["sha"] = made.head
    sha = {"merge": merge, "head": merge, "other merge": ELSEWHERE}[out]
    found = compared(tmp_path, github, event, payload, GITHUB_SHA=newer if event.endswith("target") else sha)
    assert found.commit is not None
    assert found.commit.sha == {"newer": newer, "event": made.base}[expected]
    assert found.commit.name == "the pull request's base main"
    assert github.calls() == []
