"""Where the client connects to, whom it trusts, and that the token goes nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from support.certificates import make_certificate, pem
from support.fake_github import FakeGitHub
from support.github_client import nothing, probe
from support.github_state import HEAD_SHA

from keystone_action.github.api import errors
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.transport import MAX_BUNDLE, read_ca_bundle

TOKEN = "ghs_jobWriteToken0123456789"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """Of the fake's own address."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("prefix", ["", "/api/v3"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_an_enterprise_server_is_below_its_path(prefix, slash):
    with FakeGitHub(prefix=prefix, page_limit=1, same_host=True) as github:
        github.state.add_pull(7)
        github.state.add_comment(7, "one")
        github.state.add_comment(7, "two")
        run = github.state.add_run()
        artifact = github.state.add_artifact(run.id, "x", {"a": "b"})
        client = github.clients.enter_context(
            GitHubClient(api_url=github.url + slash, repository=github.state.repository, token=TOKEN, log=[].append)
        )
        assert [comment.body for comment in client.comments(7)] == ["one", "two"]
        assert client.authenticated_login() == "github-actions[bot]"
        assert client.create_comment(7, "three", find_existing=nothing).body == "three"
        assert client.download_artifact(artifact.id) == artifact.content
        assert not any("outside" in call for call in github.calls())


def test_the_server_and_the_repository_are_the_jobs():
    client = GitHubClient.from_environ({"GITHUB_REPOSITORY": "octo-org/evals"}, token=TOKEN, log=print)
    assert repr(client) == "GitHubClient(https://api.github.com/repos/octo-org/evals)"


BAD_SETTINGS = [
    ({"api_url": "api.github.com"}, "GITHUB_API_URL"),
    ({"api_url": "ftp://api.github.com"}, "GITHUB_API_URL"),
    ({"api_url": "https://"}, "GITHUB_API_URL"),
    ({"api_url": "https://[::1"}, "GITHUB_API_URL"),
    ({"api_url": "https://user:secretOfUser@api.github.com"}, "GITHUB_API_URL"),
    ({"api_url": "https://api.github.com?x=1"}, "GITHUB_API_URL"),
    ({"api_url": "https://api.github.com#x"}, "GITHUB_API_URL"),
    ({"repository": ""}, "GITHUB_REPOSITORY"),
    ({"repository": "only"}, "GITHUB_REPOSITORY"),
    ({"repository": "a/b/c"}, "GITHUB_REPOSITORY"),
    ({"repository": "a/.."}, "GITHUB_REPOSITORY"),
    ({"repository": "a/b?c"}, "GITHUB_REPOSITORY"),
    ({"token": "ghs_secretOfUser\nx: y"}, "github-token"),
    ({"token": "ghs secretOfUser"}, "github-token"),
    ({"token": "ghs_secretOfUserü"}, "github-token"),
]


@pytest.mark.parametrize(("given", "named"), BAD_SETTINGS)
def test_what_can_not_be_used_is_named_and_secrets_are_not_shown(given, named):
    good = {"api_url": "https://api.github.com", "repository": "o/r", "token": TOKEN}
    with pytest.raises(errors.BadSetting, match=named) as caught:
        GitHubClient(log=print, **{**good, **given})
    assert "secretOfUser" not in caught.value.sentences


@pytest.mark.parametrize("sha", ["", "main", "a" * 39, "A" * 40, "../" + "a" * 37, "a" * 40 + "\n"])
def test_only_full_commit_ids_are_asked_about(sha):
    with FakeGitHub() as github:
        client = probe(github).client
        with pytest.raises(errors.BadSetting):
            client.create_status(sha, state="success", context="x")
        with pytest.raises(errors.BadSetting):
            list(client.pulls_of_commit(sha))
        assert github.requests == []


@pytest.mark.parametrize("name", ["..", ".", ""])
def test_a_name_that_is_a_step_in_a_path_is_refused(name):
    with FakeGitHub() as github:
        with pytest.raises(errors.BadSetting):
            list(probe(github).client.workflow_runs(name))
        assert github.requests == []


def test_names_stay_one_part_of_the_path():
    with FakeGitHub() as github:
        with pytest.raises(errors.NotFound):
            list(probe(github).client.workflow_runs("../../x?y#z.yml"))
        assert github.requests[0].path == "/actions/workflows/..%2F..%2Fx%3Fy%23z.yml/runs"


def test_a_certificate_that_nobody_knows_is_refused_once_and_its_setting_named(certificate):
    with FakeGitHub(certificate=certificate) as github:
        checked = probe(github)
        with pytest.raises(errors.UntrustedCertificate, match=r"127\.0\.0\.1 has a certificate") as caught:
            checked.client.pull(7)
        assert "ca-bundle" in caught.value.help
        assert github.requests == []
    assert checked.time.waits == []


@pytest.mark.parametrize("how", ["path", "relative", "text", "indented"])
def test_a_certificate_that_is_named_is_trusted(certificate, how, tmp_path):
    (tmp_path / "ca.pem").write_text("# Our own authority, in Köln\n" + pem(certificate))
    value = {
        "path": str(tmp_path / "ca.pem"),
        "relative": "ca.pem",
        "text": pem(certificate),
        "indented": "  \n" + pem(certificate) + "\n" + pem(certificate),
    }[how]
    with FakeGitHub(certificate=certificate) as github:
        github.state.add_pull(7)
        run = github.state.add_run()
        artifact = github.state.add_artifact(run.id, "x", {"a": "b"})
        client = probe(github, ca_bundle=read_ca_bundle(value, tmp_path)).client
        assert client.pull(7).number == 7
        assert client.download_artifact(artifact.id) == artifact.content


def test_a_trusted_certificate_of_another_host_is_none(tmp_path):
    elsewhere = make_certificate(tmp_path, "DNS:github.example")
    with FakeGitHub(certificate=elsewhere) as github:
        with pytest.raises(errors.UntrustedCertificate, match="mismatch"):
            probe(github, ca_bundle=pem(elsewhere)).client.pull(7)
        assert github.requests == []


def bad_bundles(folder: Path) -> dict[str, str]:
    """Values of `ca-bundle` by what is wrong with them."""
    (folder / "empty.pem").touch()
    (folder / "noise.pem").write_bytes(os.urandom(1000))
    (folder / "huge.pem").write_bytes(b"x" * (MAX_BUNDLE + 1))
    os.mkfifo(folder / "fifo")
    return {
        "missing": "missing.pem",
        "empty": "empty.pem",
        "noise": "noise.pem",
        "huge": "huge.pem",
        "a FIFO": "fifo",
        "a folder": ".",
        "a NUL": "a\0b",
        "no certificate": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
        "half of one": "-----BEGIN CERTIFICATE-----\nMIIB",
        "a broken one": "-----BEGIN CERTIFICATE-----\nMIIBAAAA\n-----END CERTIFICATE-----",
    }


@pytest.mark.parametrize(
    "what",
    [
        "missing",
        "empty",
        "noise",
        "huge",
        "a FIFO",
        "a folder",
        "a NUL",
        "no certificate",
        "half of one",
        "a broken one",
    ],
)
def test_a_bundle_that_is_none_is_said(what, tmp_path):
    with pytest.raises(errors.BadSetting, match="ca-bundle"):
        read_ca_bundle(bad_bundles(tmp_path)[what], tmp_path)


def test_a_proxy_is_taken_from_the_environment(monkeypatch):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        for name in ("http_proxy", "NO_PROXY", "no_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", github.origin)
        environ = github.environ() | {"GITHUB_API_URL": "http://github.invalid"}
        with GitHubClient.from_environ(environ, token=TOKEN, log=print) as client:
            assert client.pull(7).number == 7
        assert github.requests[0].headers["host"] == "github.invalid"


@pytest.mark.parametrize("proxy", ["ftp://proxy:1", "http://user:secretOfUser@[::1", "socks5://secretOfUser@proxy:1"])
def test_a_proxy_that_can_not_be_used_is_said(monkeypatch, proxy):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(errors.BadSetting, match="proxy") as caught:
        GitHubClient(api_url="https://api.github.com", repository="o/r", token=TOKEN, log=print)
    assert "secretOfUser" not in caught.value.sentences


@pytest.mark.parametrize(("status", "write"), [(301, False), (302, False), (307, False), (308, True), (307, True)])
def test_a_repository_that_moved_is_followed_on_the_same_host(status, write):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        method = "POST" if write else "GET"
        path = f"/statuses/{HEAD_SHA}" if write else "/pulls/7"
        target = f"{github.url}/repos/octo-org/evals{path}"
        github.fault(method, path, status=status, headers={"location": target})
        client = probe(github).client
        if write:
            client.create_status(HEAD_SHA, state="success", context="x")
            assert len(github.state.statuses) == 1
        else:
            assert client.pull(7).number == 7
        assert [request.headers["authorization"] for request in github.requests] == [f"Bearer {TOKEN}"] * 2


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_other_host_is_followed_to(status):
    with FakeGitHub() as github, FakeGitHub() as other:
        headers = {"location": f"{other.url}/repos/octo-org/evals/pulls/7"}
        github.fault("GET", "/pulls/7", status=status, headers=headers)
        with pytest.raises(errors.UnexpectedAnswer, match=r"redirects to 127\.0\.0\.1, which is not followed"):
            probe(github).client.pull(7)
        assert other.requests == []


@pytest.mark.parametrize("location", ["", "http://", "file:///etc/passwd", "https://[", "http://a b/", "//x:y@z/"])
def test_a_redirect_to_nowhere_is_said(location):
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=302, headers={"location": location}, times=None)
        with pytest.raises(errors.UnexpectedAnswer, match="redirects"):
            probe(github).client.pull(7)
        assert len(github.requests) <= 4


def test_a_post_is_not_turned_into_something_else():
    with FakeGitHub() as github:
        path = f"/statuses/{HEAD_SHA}"
        target = f"{github.url}/repos/octo-org/evals/pulls/7"
        github.fault("POST", path, status=302, headers={"location": target})
        with pytest.raises(errors.UnexpectedAnswer, match="302"):
            probe(github).client.create_status(HEAD_SHA, state="success", context="x")
        assert len(github.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 502, 200, 302])
def test_the_token_is_in_no_log_and_no_error_even_when_the_server_repeats_it(status):
    with FakeGitHub() as github:
        headers = {"content-type": f"text/{TOKEN}", "location": f"https://{TOKEN}.invalid/"}
        body = None if status >= 400 else b"<html>" + TOKEN.encode()
        github.fault("GET", "/pulls/7", status=status, message=TOKEN, headers=headers, body=body, times=None)
        checked = probe(github)
        with pytest.raises(errors.GitHubError) as caught:
            checked.client.pull(7)
    shown = "\n".join(
        [
            *traceback.format_exception(caught.value),
            repr(caught.value),
            repr(caught.value.__context__),
            caught.value.sentences,
            repr(checked.client),
            *checked.log,
        ]
    )
    assert TOKEN.lower() not in shown.lower()


def test_what_the_client_says_of_itself():
    with FakeGitHub() as github:
        github.state.add_pull(7)
        probe(github).client.pull(7)
        assert github.requests[0].headers["user-agent"].startswith("keystone-action/")
        assert github.requests[0].headers["x-github-api-version"] == "2022-11-28"


def test_httpx_is_imported_when_it_is_used():
    modules = "from keystone_action.github import baseline; from keystone_action.github.api import client"
    code = f"import sys; {modules}; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
