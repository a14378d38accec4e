"""What the client makes of each answer: done, or an error that is named for its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.fake_github import FakeGitHub
from support.github_client import nothing, probe
from support.github_state import BASE_SHA, HEAD_SHA, WORKFLOW

from keystone_action.github.api import errors
from keystone_action.github.api.client import GitHubClient

PULL, COMMENT, RUN, ARTIFACT = 7, 1001, 1002, 1003


def filled(github: FakeGitHub) -> FakeGitHub:
    """With one of everything."""
    github.state.add_pull(PULL)
    github.state.add_comment(PULL, "first")
    github.state.add_run()
    github.state.add_artifact(RUN, "keystone-results-x", {"results.json": "{}"})
    github.state.merge_bases = {
        ("main", HEAD_SHA): BASE_SHA,
        ("release/2 x", HEAD_SHA): BASE_SHA,
        ("gh-pages", HEAD_SHA): None,
    }
    return github


def create(client: GitHubClient) -> Any:
    return client.create_comment(PULL, "text", find_existing=nothing)


def update(client: GitHubClient) -> Any:
    return client.update_comment(COMMENT, "text")


def set_status(client: GitHubClient) -> Any:
    return client.create_status(HEAD_SHA, state="success", context="keystone/x", description="fine")


READS: dict[str, tuple[str, str, str, Callable[[GitHubClient], Any]]] = {
    "comments": ("/issues/7/comments", "#7", "pull-requests: read", lambda client: list(client.comments(PULL))),
    "pull": ("/pulls/7", "#7", "pull-requests: read", lambda client: client.pull(PULL)),
    "pulls of commit": (
        f"/commits/{HEAD_SHA}/pulls",
        "aaaaaaa",
        "pull-requests: read",
        lambda client: list(client.pulls_of_commit(HEAD_SHA)),
    ),
    "open pulls": (
        "/pulls",
        "octo-org:feature",
        "pull-requests: read",
        lambda client: list(client.open_pulls(owner="octo-org", branch="feature")),
    ),
    "merge base": (
        f"/compare/main...{HEAD_SHA}",
        "aaaaaaa left main",
        "contents: read",
        lambda client: client.merge_base("main", HEAD_SHA),
    ),
    "runs": (
        f"/actions/workflows/{WORKFLOW}/runs",
        WORKFLOW,
        "actions: read",
        lambda client: list(client.workflow_runs(WORKFLOW)),
    ),
    "artifacts": (
        f"/actions/runs/{RUN}/artifacts",
        f"run {RUN}",
        "actions: read",
        lambda client: list(client.artifacts(RUN)),
    ),
    "download": (
        f"/actions/artifacts/{ARTIFACT}/zip",
        f"artifact {ARTIFACT}",
        "actions: read",
        lambda client: client.download_artifact(ARTIFACT),
    ),
}
WRITES: dict[str, tuple[str, str, str, str, Callable[[GitHubClient], Any]]] = {
    "create": ("POST", "/issues/7/comments", "#7", "pull-requests: write", create),
    "update": ("PATCH", f"/issues/comments/{COMMENT}", f"comment {COMMENT}", "pull-requests: write", update),
    "status": ("POST", f"/statuses/{HEAD_SHA}", "keystone/x", "statuses: write", set_status),
}
ALL = {name: ("GET", *rest) for name, rest in READS.items()} | WRITES


@pytest.mark.parametrize("kind", ["write", "app", "person"])
@pytest.mark.parametrize("name", ALL)
def test_every_call_is_what_github_describes_and_its_answer_is_understood(name, kind):
    with FakeGitHub() as github:
        found = ALL[name][-1](probe(filled(github), kind).client)
        assert github.calls()[0] == f"{ALL[name][0]} {ALL[name][1]}"
    assert found or name == "status"


def test_what_is_written_is_there():
    with FakeGitHub() as github:
        client = probe(filled(github)).client
        made = create(client)
        changed = client.update_comment(made.id, "another text ☃")
        client.create_status(
            HEAD_SHA, state="failure", context="keystone/x", description="no", target_url="https://github.com/run"
        )
        assert (made.author, made.body) == ("github-actions[bot]", "text")
        assert made.url.endswith(f"/octo-org/evals/pull/7#issuecomment-{made.id}")
        assert changed.body == github.state.comments_of(PULL)[-1].body == "another text ☃"
        assert github.state.statuses == [
            {
                "sha": HEAD_SHA,
                "state": "failure",
                "context": "keystone/x",
                "description": "no",
                "target_url": "https://github.com/run",
            }
        ]


def test_what_is_read_is_what_github_has():
    with FakeGitHub() as github:
        filled(github)
        github.state.add_pull(8, head_repository=None, head_ref="gone")
        github.state.add_comment(PULL, "of a deleted account", None)
        client = probe(github).client
        first, second = client.comments(PULL)
        assert (first.id, first.author, first.body) == (COMMENT, "octocat", "first")
        assert second.author == ""
        own, orphan = client.pull(PULL), client.pull(8)
        assert (own.number, own.state, own.head_sha) == (PULL, "open", HEAD_SHA)
        assert own.base_repository == "octo-org/evals"
        assert (own.head_repository, orphan.head_repository) == ("octo-org/evals", "")
        (run,) = client.workflow_runs(WORKFLOW, branch="main", event="push", status="success")
        assert (run.id, run.event, run.head_branch, run.head_repository) == (RUN, "push", "main", "octo-org/evals")
        assert (run.status, run.conclusion, run.path) == ("completed", "success", f".github/workflows/{WORKFLOW}")
        assert list(client.workflow_runs(WORKFLOW, branch="other")) == []
        (artifact,) = client.artifacts(RUN, name="keystone-results-x")
        assert (artifact.id, artifact.name, artifact.expired) == (ARTIFACT, "keystone-results-x", False)
        assert artifact.size_bytes == len(github.state.artifacts[ARTIFACT].content)


def test_where_a_commit_left_a_branch():
    with FakeGitHub() as github:
        client = probe(filled(github), "read-only").client
        assert client.merge_base("release/2 x", HEAD_SHA) == BASE_SHA
        for branch in ("gh-pages", "../../user"):
            with pytest.raises(errors.NotFound):
                client.merge_base(branch, HEAD_SHA)
        with pytest.raises(errors.BadSetting):
            client.merge_base("main", "topic")


def test_a_forks_pull_request_is_found_by_its_branch():
    with FakeGitHub() as github:
        github.state.add_pull(9, head_repository="someone/evals", head_ref="a/b", head_sha="c" * 40)
        github.state.add_pull(10, head_repository="someone/evals", head_ref="a/b", head_sha="c" * 40, state="closed")
        client = probe(github).client
        assert list(client.pulls_of_commit("c" * 40)) == []
        assert [pull.number for pull in client.open_pulls(owner="someone", branch="a/b")] == [9]


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(("kind", "error"), [("read-only", errors.NoPermission), ("none", errors.BadToken)])
def test_a_token_that_may_not_write_is_told_once_with_what_it_lacks(name, kind, error):
    _, _, subject, permission, call = WRITES[name]
    with FakeGitHub() as github:
        with pytest.raises(error) as caught:
            call(probe(filled(github), kind).client)
        assert len(github.requests) == 1
        assert github.state.statuses == []
        assert [comment.body for comment in github.state.comments] == ["first"]
    assert subject in caught.value.message
    if kind == "read-only":
        assert caught.value.permission == permission
        assert f"permissions: {permission}" in caught.value.sentences
        assert "Resource not accessible by integration" in caught.value.message
    else:
        assert "github-token" in caught.value.sentences


def test_a_personal_token_is_not_sent_to_the_jobs_permissions():
    with FakeGitHub() as github:
        said = "Resource not accessible by personal access token"
        github.fault("POST", "/issues/7/comments", status=403, message=said)
        with pytest.raises(errors.NoPermission) as caught:
            create(probe(filled(github), "person").client)
    assert caught.value.help == "give the personal access token `pull-requests: write`"


def test_without_a_token_what_is_public_can_be_read_and_none_is_sent():
    with FakeGitHub() as github:
        assert probe(filled(github), "none").client.pull(PULL).number == PULL
        assert "authorization" not in github.requests[0].headers


@pytest.mark.parametrize("name", [name for name in READS if name != "download"])
def test_in_a_private_repository_without_a_token_nothing_is_found(name):
    with FakeGitHub() as github:
        filled(github).state.private = True
        with pytest.raises(errors.NotFound) as caught:
            READS[name][-1](probe(github, "none").client)
    assert READS[name][2] in caught.value.help


REFUSALS = [
    # status, GitHub's words, headers, error
    (400, "Problems parsing JSON", {}, errors.Rejected),
    (401, "Bad credentials", {}, errors.BadToken),
    (403, "Resource not accessible by integration", {}, errors.NoPermission),
    (403, "Resource not accessible by integration", {"x-ratelimit-remaining": "0"}, errors.NoPermission),
    (403, "Resource not accessible by personal access token", {}, errors.NoPermission),
    (403, "Must have admin rights to Repository.", {}, errors.NoPermission),
    (403, "Unable to create comment because issue is locked.", {}, errors.ApiForbidden),
    (403, "Repository was archived so is read-only.", {}, errors.ApiForbidden),
    (403, "Resource protected by organization SAML enforcement.", {}, errors.ApiForbidden),
    (403, "The organization has an IP allow list enabled.", {}, errors.ApiForbidden),
    (404, "Not Found", {}, errors.NotFound),
    (405, "Method Not Allowed", {}, errors.Rejected),
    (409, "Conflict", {}, errors.Rejected),
    (410, "This issue was deleted", {}, errors.NotFound),
    (413, "Payload Too Large", {}, errors.Rejected),
    (422, "Body is too long (maximum is 65536 characters)", {}, errors.BodyTooLong),
    (422, "Validation Failed", {}, errors.Rejected),
    (451, "Repository access blocked", {}, errors.Rejected),
    (204, "", {}, errors.UnexpectedAnswer),
    (304, "", {}, errors.UnexpectedAnswer),
]


REFUSED_CALLS = ["pull", "create", "update", "status"]


def refusals() -> Iterator[tuple[Any, ...]]:
    """Each refusal by one call, and each error by each call: the call only gives the sentence its beginning."""
    by_error: dict[type, list[tuple[Any, ...]]] = {}
    for refusal in REFUSALS:
        by_error.setdefault(refusal[-1], []).append(refusal)
    for alike in by_error.values():
        for number in range(max(len(alike), len(REFUSED_CALLS))):
            yield REFUSED_CALLS[number % len(REFUSED_CALLS)], *alike[number % len(alike)]


@pytest.mark.parametrize(("name", "status", "message", "headers", "error"), list(refusals()))
def test_a_refusal_is_named_for_its_cause_and_never_repeated(name, status, message, headers, error):
    method, path, subject = ALL[name][:3]
    with FakeGitHub() as github:
        body = None if message else b""
        github.fault(method, path, status=status, message=message, headers=headers, body=body, times=None)
        checked = probe(filled(github))
        with pytest.raises(errors.GitHubError) as caught:
            ALL[name][-1](checked.client)
        assert len(github.requests) == 1
    assert type(caught.value) is error
    assert subject in caught.value.message
    assert message in caught.value.message
    assert checked.time.waits == []
    assert "\n" not in caught.value.sentences


def test_a_comment_is_as_long_as_github_takes_and_no_longer():
    with FakeGitHub() as github:
        client = probe(filled(github)).client
        assert len(client.create_comment(PULL, "☃" * 65_536, find_existing=nothing).body) == 65_536
        with pytest.raises(errors.BodyTooLong, match="65536"):
            client.create_comment(PULL, "x" * 65_537, find_existing=nothing)
        with pytest.raises(errors.BodyTooLong, match="65536"):
            client.update_comment(COMMENT, "x" * 65_537)
        with pytest.raises(errors.BodyTooLong, match="140"):
            client.create_status(HEAD_SHA, state="error", context="x", description="d" * 141)


def test_a_comment_that_was_deleted_is_not_found():
    with FakeGitHub() as github:
        filled(github).state.comments.clear()
        with pytest.raises(errors.NotFound):
            update(probe(github).client)


@pytest.mark.parametrize("name", ["pull", "status"])
def test_what_is_no_json_is_said(name):
    with FakeGitHub() as github:
        filled(github)
        for number, document in enumerate([b"", b"<html>no</html>", b"\xff\xfe", b"[" * 100_000, b"nul"], start=1):
            github.fault(*ALL[name][:2], status=200, body=document, headers={"content-type": "text/html"})
            with pytest.raises(errors.UnexpectedAnswer, match="text/html"):
                ALL[name][-1](probe(github).client)
            assert len(github.requests) == number


@pytest.mark.parametrize("name", [name for name in ALL if name != "download"])
def test_json_of_another_shape_is_said(name):
    with FakeGitHub() as github:
        filled(github)
        for document in (b"[]", b"3", b'"x"', b"{}", b'{"number": "7"}', b'{"number": true}', b"[null]"):
            fault = github.fault(ALL[name][0], ALL[name][1], status=200, body=document, times=None)
            is_list = name in ("comments", "pulls of commit", "open pulls")
            if is_list and document == b"[]":
                assert ALL[name][-1](probe(github).client) == []
            elif name == "status" and document.startswith(b"{"):
                assert ALL[name][-1](probe(github).client) is None  # of a status that was set, nothing is read
            else:
                with pytest.raises(errors.UnexpectedAnswer):
                    ALL[name][-1](probe(github).client)
            fault.times = 0


def test_the_words_of_a_server_are_one_line_of_bounded_length():
    words = "a\nb\u202e\x1b[31m" + "x" * 5000
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=409, message=words)
        with pytest.raises(errors.Rejected) as caught:
            probe(filled(github)).client.pull(PULL)
    assert len(caught.value.message) < 500
    assert not set("\n\x1b\u202e") & set(caught.value.message)


@pytest.mark.parametrize(
    ("kind", "login", "calls"),
    [
        ("write", "github-actions[bot]", ["GET /user", "POST /graphql"]),
        ("app", "our-reviewer[bot]", ["GET /user", "POST /graphql"]),
        ("person", "octocat", ["GET /user"]),
    ],
)
def test_the_owner_of_the_token_is_asked_for_once(kind, login, calls):
    with FakeGitHub() as github:
        client = probe(github, kind).client
        assert client.authenticated_login() == client.authenticated_login() == login
        assert github.calls() == calls


@pytest.mark.parametrize(
    "how",
    [
        {"status": 403},
        {"status": 404},
        {"status": 502, "times": None},
        {"status": 200, "body": b'{"errors": [{"message": "no"}]}'},
        {"status": 200, "body": b'{"data": {"viewer": null}}'},
        {"status": 200, "body": b"<html>"},
    ],
)
def test_where_graphql_tells_nothing_the_jobs_own_bot_is_taken(how):
    with FakeGitHub() as github:
        github.fault("POST", "/graphql", **how)
        github.state.add_pull(7)
        github.fault("GET", "/pulls/7", status=502)
        checked = probe(github, "app")
        assert checked.client.authenticated_login() == "github-actions[bot]"
        assert github.calls() == ["GET /user", "POST /graphql"]
        assert checked.client.pull(7).number == 7  # what failed there is no reason to be impatient here


def test_the_owner_of_no_token_is_nobody():
    with FakeGitHub() as github, pytest.raises(errors.BadToken):
        probe(github, "none").client.authenticated_login()
