"""Events of every kind: whose code it is, which pull request, which commit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from keystone_action.errors import UsageError
from keystone_action.github.event import Event, read_event

EVENTS = Path(__file__).parents[1] / "data" / "events"
HEAD, MERGE = "2" * 40, "3" * 40


def event(name: str, fixture: str | None = None, **environ: str) -> Event:
    return read_event(
        {
            "GITHUB_EVENT_NAME": name,
            "GITHUB_EVENT_PATH": str(EVENTS / f"{fixture or name}.json"),
            "GITHUB_REPOSITORY": "octo/agents",
            "GITHUB_ACTOR": "ada",
            "GITHUB_SHA": MERGE,
            **environ,
        }
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (event("push"), Event("push", head_sha=MERGE)),
        (event("push", "push_tag"), Event("push", head_sha=MERGE)),
        (event("schedule"), Event("schedule", head_sha=MERGE)),
        (event("workflow_dispatch"), Event("workflow_dispatch", head_sha=MERGE)),
        (event("merge_group"), Event("merge_group", pull_request=17, head_sha=HEAD)),
        (event("pull_request"), Event("pull_request", pull_request=17, head_sha=HEAD)),
        (
            event("pull_request", "pull_request_fork"),
            Event("pull_request", is_fork=True, pull_request=17, head_sha=HEAD),
        ),
        (
            event("pull_request", "pull_request_deleted_fork"),
            Event("pull_request", is_fork=True, pull_request=17, head_sha=HEAD),
        ),
        (
            event("pull_request", "pull_request_dependabot", GITHUB_ACTOR="dependabot[bot]"),
            Event("pull_request", is_dependabot=True, pull_request=17, head_sha=HEAD),
        ),
        (event("pull_request_target"), Event("pull_request_target", pull_request=17, head_sha=HEAD)),
        (event("workflow_run"), Event("workflow_run", pull_request=17, head_sha=HEAD)),
        (event("workflow_run", "workflow_run_fork"), Event("workflow_run", is_fork=True, head_sha=HEAD)),
    ],
)
def test_kinds(found: Event, expected: Event) -> None:
    assert found == expected


def test_the_name_of_the_repository_ignores_case() -> None:
    assert not event("pull_request", GITHUB_REPOSITORY="Octo/Agents").is_fork


def test_outside_of_a_workflow_there_is_no_event() -> None:
    assert read_event({}) == Event()


@pytest.mark.parametrize(
    ("name", "fixture"), [("pull_request_target", "pull_request_target_fork"), ("workflow_run", "workflow_run_fork")]
)
def test_code_of_a_fork_beside_secrets_is_refused(name: str, fixture: str) -> None:
    with pytest.raises(UsageError, match=r"code of a fork.*allow-pull-request-target"):
        event(name, fixture).refuse_foreign_code()


@pytest.mark.parametrize(
    ("name", "fixture"),
    [
        ("pull_request_target", "pull_request_target"),
        ("workflow_run", "workflow_run"),
        ("pull_request", "pull_request_fork"),
    ],
)
def test_other_runs_are_not_refused(name: str, fixture: str) -> None:
    found = event(name, fixture)
    found.refuse_foreign_code()
    assert found.problem == ""


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_a_malformed_event_is_tolerated_where_nothing_depends_on_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "event.json"
    path.write_bytes(content)
    found = event("push", GITHUB_EVENT_PATH=str(path))
    found.refuse_foreign_code()
    assert "could not be read" in found.problem
    assert found.head_sha == MERGE


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "event.json")
    assert "is not a file" in event("push", GITHUB_EVENT_PATH=str(tmp_path / "event.json")).problem


def test_a_queue_whose_number_is_none_breaks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps({"merge_group": {"head_ref": f"refs/heads/gh-readonly-queue/main/pr-{'9' * 5000}-a"}}))
    assert event("merge_group", GITHUB_EVENT_PATH=str(path)) == Event("merge_group", head_sha=MERGE)


@pytest.mark.parametrize("path", ["", "/does/not/exist.json", "/"])
def test_an_event_that_decides_about_safety_must_be_readable(path: str) -> None:
    with pytest.raises(UsageError, match="unknown origin"):
        event("pull_request_target", GITHUB_EVENT_PATH=path).refuse_foreign_code()


@pytest.mark.parametrize("name", ["pull_request_target", "workflow_run"])
@pytest.mark.parametrize("content", ["{}", '{"pull_request": 1}', '{"workflow_run": {"head_repository": "x"}}'])
def test_an_event_of_another_shape_is_not_trusted(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / "event.json"
    path.write_text(content)
    with pytest.raises(UsageError):
        event(name, GITHUB_EVENT_PATH=str(path)).refuse_foreign_code()


@pytest.mark.parametrize("content", ["{}", '{"issue": {}}', '{"issue": {"number": "17", "pull_request": {}}}', "{"])
def test_a_comment_on_what_is_not_known_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "event.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="unknown origin"):
        event("issue_comment", GITHUB_EVENT_PATH=str(path)).refuse_foreign_code()


def test_a_comment_on_a_pull_request_is_refused_until_it_is_known_whose_that_is() -> None:
    found = event("issue_comment")
    assert found.commented == 17
    with pytest.raises(UsageError, match="whose pull request #17 is was not asked"):
        found.refuse_foreign_code()
    found.of_commented_pull("Octo/Agents", "octo/agents").refuse_foreign_code()
    for head in ("mallory/agents", ""):
        with pytest.raises(UsageError, match="the code of a fork"):
            found.of_commented_pull(head, "octo/agents").refuse_foreign_code()


def test_why_a_run_gets_no_secrets() -> None:
    assert "fork" in event("pull_request", "pull_request_fork").no_secrets_reason
    assert "Dependabot" in event("push", GITHUB_ACTOR="dependabot[bot]").no_secrets_reason
    assert event("pull_request").no_secrets_reason == ""
