"""Each kind of event with each kind of token: what the action, called as by the runner, writes on a fake GitHub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.event_steps import HEAD, PASSING, states, step
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS, MERGE_SHA, FakeRunner, StepResult

pytestmark = pytest.mark.usefixtures("kept_runs")

OLD = "1" * 40
FAILING = PASSING.replace("path: done.txt", "path: other.txt")
TOKENS = ("write", "read-only", "app", "person", "none")
MAY_WRITE = ("write", "app", "person")
AUTHORS = {"write": "github-actions[bot]", "app": "our-reviewer[bot]", "person": "octocat"}


@dataclass(frozen=True)
class Written:
    """With a token that may write. status: of which commit. comments: on which pull requests."""

    fixture: str
    policy: str = "auto"
    status: str | None = None
    comments: tuple[int, ...] = ()


TABLE = [
    Written("pull_request", status=HEAD, comments=(17,)),
    Written("pull_request", "always", HEAD, (17,)),
    Written("pull_request", "never", HEAD),
    Written("pull_request_fork"),
    Written("pull_request_fork", "always"),
    Written("pull_request_deleted_fork"),
    Written("pull_request_dependabot", status=HEAD, comments=(17,)),
    Written("pull_request_target", status=HEAD, comments=(17,)),
    Written("merge_group", status=HEAD),
    Written("push", status=MERGE_SHA),
    Written("push", "always", MERGE_SHA, (18, 19)),
    Written("push_tag", status=MERGE_SHA),
    Written("workflow_run", status=HEAD),
    Written("workflow_run", "always", HEAD, (17,)),
    Written("workflow_dispatch"),
    Written("workflow_dispatch", "always", None, (18, 19)),
    Written("schedule"),
]


READ_ONLY_EVENTS = ("pull_request_fork", "pull_request_deleted_fork")


def pairs() -> Iterator[tuple[Written, str]]:
    """Each row with a token that may write; besides, each event and each policy with each other token, once. Events of
    forks, of which nothing is sent whatever the token, meet all tokens in the next test."""
    seen: set[tuple[str, str]] = set()
    for row in TABLE:
        yield row, TOKENS[0]
    # Rows with a policy of their own come first: their events need not come again.
    for row in sorted(TABLE, key=lambda row: row.policy == "auto"):
        for token in TOKENS[1:]:
            if row.fixture not in READ_ONLY_EVENTS and not {(row.fixture, token), (row.policy, token)} <= seen:
                seen |= {(row.fixture, token), (row.policy, token)}
                yield row, token


@pytest.mark.parametrize(
    ("row", "token"), [pytest.param(*pair, id=f"{pair[0].fixture}-{pair[0].policy}-{pair[1]}") for pair in pairs()]
)
def test_what_is_written_where(tmp_path: Path, github: FakeGitHub, row: Written, token: str) -> None:
    done = step(tmp_path, github, row.fixture, token, comment=row.policy)
    assert (done.exit_code, done.outputs["verdict"], done.rejected) == (0, "pass", [])
    assert "✅ Keystone: suite passed" in done.summary
    may_write = token in MAY_WRITE
    comments = row.comments if may_write else ()
    assert [comment.number for comment in github.state.comments] == list(comments)
    assert {comment.created_by for comment in github.state.comments} == ({AUTHORS[token]} if comments else set())
    assert states(github) == ([("pending", row.status), ("success", row.status)] if may_write and row.status else [])
    assert done.outputs["comment-id"] == ",".join(str(comment.id) for comment in github.state.comments)


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("fixture", READ_ONLY_EVENTS)
def test_forks_are_told_before_any_call(tmp_path: Path, github: FakeGitHub, fixture: str, token: str) -> None:
    done = step(tmp_path, github, fixture, token, spec=FAILING)
    assert github.calls() == []
    assert (done.exit_code, done.outputs["comment-written"]) == (1, "keystone-results/comment.md")
    assert done.text.count("neither comment nor status is posted") == 1
    assert "docs/forks.md" in done.text
    written = next(tmp_path.rglob("comment.md")).read_text()
    assert written.startswith("## ❌ Keystone: ")


@pytest.mark.parametrize("policy", ["auto", "always", "on-failure"])
@pytest.mark.parametrize("token", ["read-only", "none"])
@pytest.mark.parametrize("fixture", ["pull_request", "pull_request_dependabot"])
def test_a_token_that_may_not_write_leaves_a_file_and_says_why(
    tmp_path: Path, github: FakeGitHub, token: str, policy: str, fixture: str
) -> None:
    done = step(tmp_path, github, fixture, token, spec=FAILING, comment=policy)
    assert (done.exit_code, done.outputs["verdict"]) == (1, "fail")
    assert done.outputs["comment-written"] == "keystone-results/comment.md"
    if token == "none":
        assert "the input github-token is empty" in done.text
        assert bool([issue for issue in done.issues if issue.level == "warning"]) == (policy != "auto")
        return
    assert "`permissions: pull-requests: write`" in done.text
    assert "`permissions: statuses: write`" in done.text
    assert "a job's own block replaces the workflow's" in done.text
    warned = [issue for issue in done.issues if issue.level == "warning"]
    assert len(warned) == (0 if policy == "auto" else 1)


def test_a_run_that_is_repeated_updates(tmp_path: Path, github: FakeGitHub) -> None:
    ids = set()
    for spec, first in ((FAILING, "## ❌ Keystone: "), (PASSING, "## ✅ Keystone: "), (PASSING, "## ✅ Keystone: ")):
        done = step(tmp_path, github, "pull_request", spec=spec)
        (comment,) = github.state.comments
        assert comment.body.startswith(first)
        ids.add(done.outputs["comment-id"])
    assert ids == {str(comment.id)}
    assert "nothing changed" in comment.body
    assert [state for state, _ in states(github)] == ["pending", "failure", "pending", "success", "pending", "success"]


def test_a_second_attempt_of_a_run_updates_and_links_itself(tmp_path: Path, github: FakeGitHub) -> None:
    runner = FakeRunner(tmp_path, event="pull_request", github=github)
    (runner.workspace / "keystone.yaml").write_text(FAILING)
    runner.step()
    shutil.rmtree(runner.workspace / "keystone-results")
    runner.attempt = 2
    runner.step()
    (comment,) = github.state.comments
    page = f"{runner.server}/octo/agents/actions/runs/{runner.run_number}/attempts/2"
    assert f"[run]({page}) · [artifacts]({page}#artifacts)" in comment.body
    assert "attempts/1" not in comment.body
    # Behind the `#` stands which job it was.
    assert github.state.statuses[-1]["target_url"].partition("#")[0] == page


def test_what_changed_since_the_last_comment_is_said(tmp_path: Path, github: FakeGitHub) -> None:
    step(tmp_path, github, "pull_request", spec=FAILING)
    step(tmp_path, github, "pull_request", spec=PASSING)
    assert "❌ Failed, composite 0.00 → ✅ Passed, composite 1.00; fixed: `done`" in github.state.comments[0].body


@pytest.mark.parametrize(
    ("spec", "first"), [(FAILING, "## ❌ Keystone: "), ("version: 1\nid: x\n", "## 💥 Keystone: ")]
)
def test_a_run_of_an_older_commit_that_ends_later_leaves_the_comment(
    tmp_path: Path, github: FakeGitHub, spec: str, first: str
) -> None:
    step(tmp_path / "new", github, "pull_request", spec=spec)
    payload = json.loads((EVENTS / "pull_request.json").read_text())
    payload["pull_request"]["head"]["sha"] = OLD

    def older() -> StepResult:
        runner = FakeRunner(
            tmp_path / f"old{len(github.calls())}", event="pull_request", payload=payload, github=github
        )
        (runner.workspace / "keystone.yaml").write_text(PASSING)
        return runner.step()

    done = older()
    (comment,) = github.state.comments
    assert comment.body.startswith(first)
    assert "the comment on #17 is of 2222222, its newest commit: a run of an older one leaves it" in done.text
    assert (done.outputs["comment-id"], done.outputs["comment-written"]) == (str(comment.id), "")
    assert states(github)[-1] == ("success", OLD)
    github.state.add_pull(17, head_sha=OLD, head_ref="topic", head_repository="octo/agents")  # pushed back
    older()
    assert comment.body.startswith("## ✅ Keystone: ")


@pytest.mark.parametrize(
    ("fixture", "there", "linked"),
    [
        ("pull_request", FAILING, HEAD),
        ("pull_request", PASSING, ""),
        ("pull_request", None, ""),
        ("pull_request_fork", FAILING, ""),
        ("push", None, MERGE_SHA),
    ],
)
def test_checks_lead_to_their_lines_where_the_head_has_the_same_file(
    tmp_path: Path, github: FakeGitHub, fixture: str, there: str | None, linked: str
) -> None:
    """there: the file at the pull request's head, of which GitHub makes the merge commit that is judged."""
    if there is not None:
        github.state.files[HEAD, "keystone.yaml"] = there.encode()
    done = step(tmp_path, github, fixture, spec=FAILING, comment="always")
    written = [comment.body for comment in github.state.comments]
    written += [path.read_text() for path in tmp_path.rglob("comment.md")]
    for text in (done.summary, *written):
        assert (f"/octo/agents/blob/{linked}/keystone.yaml#L6)" in text) == bool(linked)
        assert ("/octo/agents/blob/" in text) == bool(linked)
    assert written


def test_on_failure_speaks_of_failures_and_of_their_end(tmp_path: Path, github: FakeGitHub) -> None:
    step(tmp_path, github, "pull_request", comment="on-failure")
    assert github.state.comments == []
    step(tmp_path, github, "pull_request", spec=FAILING, comment="on-failure")
    assert github.state.comments[0].body.startswith("## ❌ Keystone: ")
    step(tmp_path, github, "pull_request", comment="on-failure")
    (comment,) = github.state.comments
    assert comment.body.startswith("## ✅ Keystone: ")


def test_on_failure_is_of_pull_requests(tmp_path: Path, github: FakeGitHub) -> None:
    step(tmp_path, github, "push", spec=FAILING, comment="on-failure")
    assert github.state.comments == []


def test_a_push_without_a_pull_request_is_said(tmp_path: Path, github: FakeGitHub) -> None:
    github.state.pulls.clear()
    done = step(tmp_path, github, "push", comment="always")
    assert (done.exit_code, done.outputs["comment-written"]) == (0, "")
    assert "no open pull request holds commit 3333333" in done.text


def test_of_three_pull_requests_one_that_is_locked_keeps_nothing_from_the_others(
    tmp_path: Path, github: FakeGitHub
) -> None:
    github.state.add_pull(16, head_sha=MERGE_SHA, head_ref="topic", head_repository="octo/agents")
    github.state.locked.add(18)
    done = step(tmp_path, github, "push", comment="always")
    assert sorted(comment.number for comment in github.state.comments) == [16, 19]
    assert done.outputs["comment-id"].split(",") == [str(comment.id) for comment in github.state.comments]
    (warned,) = [issue.message for issue in done.issues if issue.level == "warning"]
    assert "the comment is not posted on #18" in warned
    assert done.outputs["comment-written"] == "keystone-results/comment.md"


def test_two_keys_have_two_comments(tmp_path: Path, github: FakeGitHub) -> None:
    for key in ("one", "two", "one"):
        step(tmp_path, github, "pull_request", **{"comment-key": key})
    assert len(github.state.comments) == 2


@pytest.mark.parametrize(("context", "contexts"), [("my gate", {"my gate"}), ("", set())])
def test_the_status_has_the_name_that_is_given(
    tmp_path: Path, github: FakeGitHub, context: str, contexts: set[str]
) -> None:
    step(tmp_path, github, "pull_request", **{"status-context": context})
    assert {one["context"] for one in github.state.statuses} == contexts


def test_a_bad_spec_is_an_error_everywhere(tmp_path: Path, github: FakeGitHub) -> None:
    done = step(tmp_path, github, "pull_request", spec="version: 1\nid: x\n")
    assert (done.exit_code, done.outputs["verdict"]) == (2, "error")
    assert [state for state, _ in states(github)] == ["pending", "error"]
    assert github.state.comments[0].body.startswith("## 💥 Keystone: ")


def test_a_wrong_input_is_told_to_github_too(tmp_path: Path, github: FakeGitHub) -> None:
    done = step(tmp_path, github, "pull_request", threshold="85%")
    assert (done.exit_code, done.outputs["verdict"]) == (2, "error")
    assert [state for state, _ in states(github)] == ["error"]
    assert "threshold" in github.state.comments[0].body


def test_a_status_context_that_github_would_not_take_is_not_tried(tmp_path: Path, github: FakeGitHub) -> None:
    done = step(tmp_path, github, "pull_request", **{"status-context": "x" * 256})
    assert (done.exit_code, states(github)) == (2, [])
    assert "status-context" in github.state.comments[0].body


@pytest.mark.parametrize("inputs", [{"shard": "1/1"}, {"mode": "plan", "shards": "2"}])
def test_jobs_that_see_a_part_post_nothing(tmp_path: Path, github: FakeGitHub, inputs: dict[str, str]) -> None:
    done = step(tmp_path, github, "pull_request", **inputs)
    assert (done.exit_code, github.calls()) == (0, [])
    assert ("a shard posts neither comment nor status" in done.text) == ("shard" in inputs)


@pytest.mark.parametrize("payload", ["{", "[]", "{}", '{"pull_request": 5}'])
def test_an_event_that_can_not_be_read_posts_nothing_and_changes_nothing(
    tmp_path: Path, github: FakeGitHub, payload: Any
) -> None:
    runner = FakeRunner(tmp_path, event="pull_request", payload=payload, github=github)
    (runner.workspace / "keystone.yaml").write_text(FAILING)
    done = runner.step()
    assert (done.exit_code, done.outputs["verdict"]) == (1, "fail")
    assert github.calls() == []
    assert done.outputs["comment-written"] == "keystone-results/comment.md"


def test_an_event_that_names_neither_pull_request_nor_commit_says_so(tmp_path: Path, github: FakeGitHub) -> None:
    payload = {"pull_request": {"head": {"repo": {"full_name": "octo/agents"}, "sha": "HEAD"}}}
    runner = FakeRunner(tmp_path, event="pull_request", payload=payload, github=github)
    (runner.workspace / "keystone.yaml").write_text(FAILING)
    done = runner.step()
    assert (done.exit_code, done.outputs["verdict"], github.calls()) == (1, "fail", [])
    assert done.outputs["comment-written"] == "keystone-results/comment.md"
    assert "no status is set: the event does not say of which commit" in done.text
    (warned,) = [issue.message for issue in done.issues if issue.level == "warning"]
    assert warned == "the comment is not posted: the event does not say which pull request it is of"
