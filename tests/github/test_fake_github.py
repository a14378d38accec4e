"""The fake GitHub is only worth what it is held to: it must refuse what the real one would, and answer as it does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.fake_github import FakeGitHub
from support.github_description import FILE, description
from support.github_routes import _HANDLERS
from support.github_state import HEAD_SHA

from tools.github_description import OPERATIONS, subset

HEADERS = {"accept": "application/vnd.github+json", "x-github-api-version": "2022-11-28", "user-agent": "test"}
REPOSITORY = "/repos/octo-org/evals"


def ask(github: FakeGitHub, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, document and headers, asked for with nothing of ours between."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = HEADERS | {"authorization": f"Bearer {github.token('write')}"} | named
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(github.url + path, data, {k: v for k, v in given.items() if v}, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


WRONG = [
    ("GET", "/repos/octo-org/evals/issues/7", None, {}, "no operation GET"),
    ("POST", f"{REPOSITORY}/issues/7/comments", {"text": "x"}, {}, "no field text"),
    ("POST", f"{REPOSITORY}/issues/7/comments", {}, {}, "'body' is a required property"),
    ("POST", f"{REPOSITORY}/issues/7/comments", {"body": 3}, {}, "3 is not of type 'string'"),
    ("POST", f"{REPOSITORY}/statuses/{HEAD_SHA}", {"state": "passed"}, {}, "'passed' is not one of"),
    ("POST", f"{REPOSITORY}/statuses/{HEAD_SHA}", {"state": "success", "url": "x"}, {}, "no field url"),
    ("GET", f"{REPOSITORY}/issues/7/comments?perpage=3", None, {}, "no query parameter perpage"),
    ("GET", f"{REPOSITORY}/issues/seven/comments", None, {}, "'seven' is not of type 'integer'"),
    ("GET", f"{REPOSITORY}/pulls?state=merged", None, {}, "'merged' is not one of"),
    ("GET", f"{REPOSITORY}/pulls/7", {"a": 1}, {}, "takes no body"),
    ("GET", f"{REPOSITORY}/pulls/7", None, {"accept": "text/html"}, "accept is text/html"),
    ("GET", f"{REPOSITORY}/pulls/7", None, {"x_github_api_version": "2021-01-01"}, "x-github-api-version is 2021"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "words"), WRONG)
def test_what_github_does_not_describe_fails_the_test_that_asked_for_it(method, path, body, headers, words):
    github = FakeGitHub().__enter__()
    github.state.add_pull(7)
    status, *_ = ask(github, method, path, body, **headers)
    with pytest.raises(AssertionError, match="no such thing"):
        github.__exit__(None, None, None)
    assert status in (400, 404)
    assert any(words in violation for violation in github.violations), github.violations
    assert github.state.comments == github.state.statuses == []


def test_a_test_that_failed_already_keeps_its_own_reason():
    github = FakeGitHub().__enter__()
    ask(github, "GET", "/nothing/like/that")
    github.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert github.violations


def test_an_answer_that_github_would_not_give_fails_the_test(monkeypatch):
    monkeypatch.setattr("support.github_documents.comment", lambda *_: {"id": "seven"})
    github = FakeGitHub().__enter__()
    github.state.add_pull(7)
    github.state.add_comment(7, "x")
    ask(github, "GET", f"{REPOSITORY}/issues/7/comments")
    with pytest.raises(AssertionError, match="no such thing"):
        github.__exit__(None, None, None)
    assert any("'seven' is not of type 'integer'" in violation for violation in github.violations)


@pytest.mark.parametrize(("method", "template"), OPERATIONS)
def test_every_operation_of_the_description_is_served(method, template):
    operation = description().document["paths"][template][method]
    assert operation["operationId"] in {*_HANDLERS, "users/get-authenticated"}


def test_the_description_is_as_its_tool_would_leave_it():
    document = json.loads(FILE.read_bytes())
    assert [(method, path) for path, found in document["paths"].items() for method in found] == sorted(
        OPERATIONS, key=lambda one: list(document["paths"]).index(one[1])
    )
    again = subset(document)
    assert {name: again[name] for name in ("paths", "components")} == {
        name: document[name] for name in ("paths", "components")
    }
    assert "MIT" in Path(FILE.with_name("LICENSE")).read_text()


def test_the_tool_keeps_what_is_referred_to_and_fields_that_are_called_like_prose():
    schema = {
        "type": "object",
        "description": "prose",
        "properties": {"description": {"$ref": "#/components/schemas/b"}},
    }
    schemas = {"a": schema, "b": {"type": "string", "example": "x"}, "c": {"type": "string"}}
    operation = {"summary": "prose", "responses": {"200": {"schema": {"$ref": "#/components/schemas/a"}}}}
    paths = {path: {method: operation for method, other in OPERATIONS if other == path} for _, path in OPERATIONS}
    found = subset({"openapi": "3.0.3", "paths": paths, "components": {"schemas": schemas}})
    assert found["components"] == {
        "schemas": {
            "a": {"type": "object", "properties": {"description": {"$ref": "#/components/schemas/b"}}},
            "b": {"type": "string"},
        }
    }
    assert "summary" not in found["paths"]["/user"]["get"]


def test_pages_are_linked_as_github_links_them():
    with FakeGitHub() as github:
        github.state.add_pull(7)
        for number in range(5):
            github.state.add_comment(7, str(number))
        path = f"{REPOSITORY}/issues/7/comments"
        _, first, headers = ask(github, "GET", f"{path}?per_page=2")
        assert [one["body"] for one in first] == ["0", "1"]
        url = f"{github.url}{path}?per_page=2"
        assert headers["link"] == f'<{url}&page=2>; rel="next", <{url}&page=3>; rel="last"'
        _, last, headers = ask(github, "GET", f"{path}?per_page=2&page=3")
        assert [one["body"] for one in last] == ["4"]
        assert headers["link"] == f'<{url}&page=2>; rel="prev", <{url}&page=1>; rel="first"'
        _, every, headers = ask(github, "GET", path)
        assert len(every) == 5
        assert headers["link"] is None


@pytest.mark.parametrize(("token", "status"), [("", 401), ("ghs_nobody", 401), ("ghs_jobReadToken0123456789", 403)])
def test_tokens_may_do_what_theirs_may(token, status):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        authorization = f"Bearer {token}" if token else ""
        found, *_ = ask(github, "POST", f"{REPOSITORY}/issues/7/comments", {"body": "x"}, authorization=authorization)
        assert found == status
        assert github.state.comments == []


def test_the_store_takes_its_signature_and_no_token():
    with FakeGitHub() as github:
        artifact = github.state.add_artifact(github.state.add_run().id, "x", {"a": "b"})
        url = github.store_url(artifact.id)
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == artifact.content
        for request in (
            urllib.request.Request(url, headers={"authorization": f"Bearer {github.token('write')}"}),
            urllib.request.Request(url.replace("sig=", "sig=0")),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            caught.value.close()
            assert caught.value.code in (400, 403)


def test_a_rate_limit_that_is_used_up_says_until_when():
    with FakeGitHub() as github:
        github.fault("GET", "/user", status=403, reset_in=30)
        _, _, headers = ask(github, "GET", "/user")
        assert headers["x-ratelimit-remaining"] == "0"
        status, _, headers = ask(github, "GET", "/user")
        assert (status, headers["x-ratelimit-remaining"]) == (403, "999")
