"""Downloading an artifact: from a store elsewhere, without the token, and never more than was agreed."""

from __future__ import annotations

import pytest
from support.certificates import make_certificate, pem
from support.fake_github import FakeGitHub
from support.github_client import probe

from keystone_action.github.api import errors
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.requests import RequestLimits
from keystone_action.github.baseline import unpack_artifact


def stored(github: FakeGitHub, content: bytes | None = None, *, expired: bool = False) -> int:
    """The id of an artifact in the store."""
    run = github.state.add_run()
    files = {"results.json": "{}"} if content is None else content
    return github.state.add_artifact(run.id, "keystone-results-x", files, expired=expired).id


@pytest.mark.parametrize("kind", ["write", "read-only", "app", "person"])
def test_the_store_gets_no_token_and_nothing_else_of_ours(kind, tmp_path):
    with FakeGitHub() as github:
        artifact = stored(github)
        content = probe(github, kind).client.download_artifact(artifact)
        asked, fetched = github.requests
        assert asked.headers["authorization"] == f"Bearer {github.token(kind)}"
        assert fetched.path == f"/store/{artifact}"
        assert fetched.headers["host"].startswith("localhost:")
        assert not {"authorization", "x-github-api-version", "cookie"} & set(fetched.headers)
    assert [path.read_text() for path in unpack_artifact(content, tmp_path / "results")] == ["{}"]


def test_an_expired_artifact_is_not_found():
    with FakeGitHub() as github, pytest.raises(errors.NotFound, match="expired"):
        probe(github).client.download_artifact(stored(github, expired=True))


def test_without_a_token_there_are_no_artifacts():
    with FakeGitHub() as github, pytest.raises(errors.BadToken):
        probe(github, "none").client.download_artifact(stored(github))


def test_an_artifact_is_as_large_as_agreed_and_no_larger():
    with FakeGitHub() as github:
        artifact = stored(github, b"z" * 100_000)
        client = probe(github).client
        assert client.download_artifact(artifact, limit=100_000) == b"z" * 100_000
        with pytest.raises(errors.UnexpectedAnswer, match="answered more than 99999 bytes"):
            client.download_artifact(artifact, limit=99_999)


@pytest.mark.parametrize("how", [pytest.param("hang", marks=pytest.mark.waits), "reset", "cut", "answer"])
def test_a_store_that_fails_is_asked_again_by_way_of_github(how):
    """The address that GitHub gives is good for a minute, so that every try asks for a new one."""
    with FakeGitHub() as github:
        artifact = stored(github)
        github.fault("GET", f"/store/{artifact}", how=how, status=503, times=2)
        checked = probe(github, limits=RequestLimits(seconds=1))
        assert checked.client.download_artifact(artifact) == github.state.artifacts[artifact].content
        assert github.calls() == [f"GET /actions/artifacts/{artifact}/zip", f"GET /store/{artifact}"] * 3
    assert checked.time.waits == [1, 2]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_of_the_store_is_not_blamed_on_the_token(status):
    with FakeGitHub() as github:
        artifact = stored(github)
        github.fault("GET", f"/store/{artifact}", status=status, body=b"<Error/>")
        with pytest.raises(errors.Rejected, match=f"the place that GitHub sent us to answered {status}"):
            probe(github).client.download_artifact(artifact)


def test_from_https_nothing_is_followed_to_http(tmp_path):
    certificate = make_certificate(tmp_path)
    with FakeGitHub(certificate=certificate) as github, FakeGitHub() as plain:
        artifact = stored(github)
        headers = {"location": f"{plain.url}/store/1?sig=x"}
        github.fault("GET", f"/actions/artifacts/{artifact}/zip", status=302, headers=headers)
        with pytest.raises(errors.UnexpectedAnswer, match="without encryption"):
            probe(github, ca_bundle=pem(certificate)).client.download_artifact(artifact)
        assert plain.requests == []


def test_stores_that_send_each_other_around_are_left():
    with FakeGitHub() as github:
        artifact = stored(github)
        headers = {"location": github.store_url(artifact)}
        github.fault("GET", f"/store/{artifact}", status=302, headers=headers, times=None)
        with pytest.raises(errors.UnexpectedAnswer, match="redirects more than 3 times"):
            probe(github).client.download_artifact(artifact)
        assert len(github.requests) == 4


def test_a_store_that_leads_back_to_github_gets_the_token_there_only():
    with FakeGitHub() as github:
        artifact = stored(github)
        back = {"location": f"{github.url}/repos/octo-org/evals/pulls/7"}
        github.state.add_pull(7)
        github.fault("GET", f"/store/{artifact}", status=302, headers=back)
        assert probe(github).client.download_artifact(artifact)
        assert ["authorization" in request.headers for request in github.requests] == [True, False, True]


def test_the_download_is_part_of_the_client_that_a_step_makes():
    with FakeGitHub(same_host=True) as github:
        artifact = stored(github)
        environ = github.environ("read-only")
        with GitHubClient.from_environ(environ, token=environ["INPUT_GITHUB-TOKEN"], log=print) as client:
            assert client.download_artifact(artifact) == github.state.artifacts[artifact].content
