"""Servers that hang, drip, break off or answer too much, and writes that may have been done all the same."""

from __future__ import annotations

import signal
import socket
import threading

import pytest
from support.fake_github import FakeGitHub
from support.github_client import FakeTime, probe
from support.github_state import HEAD_SHA

from keystone_action.github.api import errors
from keystone_action.github.api.answers import Comment
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.requests import RequestLimits

QUICK = RequestLimits(seconds=1)
"""Long for an answer on this machine, short for one that never comes."""
LATE = [pytest.param(how, marks=pytest.mark.waits) for how in ("hang", "drip")]
LOST = [*LATE, "reset", "cut"]
CREATE = ("POST", "/issues/7/comments")


def by_marker(client: GitHubClient, marker: str = "<!-- ours -->"):
    """What the caller of `create_comment` looks with."""

    def find() -> Comment | None:
        return next((comment for comment in client.comments(7) if marker in comment.body), None)

    return find


def of_nobody(server: socket.socket, scheme: str = "http", *, seconds: float = 0.5) -> GitHubClient:
    """A client of a server that is not a GitHub, with two tries."""
    return GitHubClient(
        api_url=f"{scheme}://127.0.0.1:{server.getsockname()[1]}",
        repository="o/r",
        token="ghs_secretOfNobody",
        log=print,
        limits=RequestLimits(tries=2, seconds=seconds),
        clock=FakeTime().clock,
    )


@pytest.mark.parametrize("how", LOST)
def test_a_lost_answer_to_a_question_is_asked_for_again(how):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault("GET", "/pulls/7", how=how, times=2)
        checked = probe(github, limits=QUICK)
        assert checked.client.pull(7).number == 7
        assert len(github.requests) == 3
    assert checked.time.waits == [1, 2]
    assert len(checked.log) == 2


@pytest.mark.parametrize("how", LOST)
def test_a_server_that_never_answers_is_given_up(how):
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", how=how, times=None)
        checked = probe(github, limits=RequestLimits(seconds=0.3))
        words = "did not answer within 0.3 s" if how in ("hang", "drip") else "cut the connection"
        with pytest.raises(errors.Unavailable, match=words) as caught:
            checked.client.pull(7)
    assert checked.time.waits == [1, 2, 4]
    assert not caught.value.maybe_done


@pytest.mark.parametrize("how", [*LOST, "answer"])
@pytest.mark.parametrize("done", [True, False])
def test_a_comment_whose_answer_was_lost_is_there_once(how, done):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.state.add_comment(7, "of somebody")
        github.fault(*CREATE, how=how, status=502, done=done)
        client = probe(github, limits=QUICK).client
        made = client.create_comment(7, "text <!-- ours -->", find_existing=by_marker(client))
        assert [comment.body for comment in github.state.comments_of(7)] == ["of somebody", "text <!-- ours -->"]
        assert made.id == github.state.comments_of(7)[-1].id
        assert github.calls().count("POST /issues/7/comments") == (1 if done else 2)


@pytest.mark.parametrize("how", ["reset", "answer"])
def test_a_comment_that_was_made_by_the_last_try_is_found(how):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault(*CREATE, how=how, status=500, times=3)
        github.fault(*CREATE, how=how, status=500, done=True)
        client = probe(github).client
        made = client.create_comment(7, "<!-- ours -->", find_existing=by_marker(client))
        assert [comment.id for comment in github.state.comments_of(7)] == [made.id]
        assert github.calls().count("POST /issues/7/comments") == 4


def test_a_comment_that_can_never_be_made_may_have_been_made():
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault(*CREATE, status=500, times=None)
        client = probe(github).client
        with pytest.raises(errors.Unavailable) as caught:
            client.create_comment(7, "<!-- ours -->", find_existing=by_marker(client))
        assert github.calls().count("POST /issues/7/comments") == 4
        assert github.state.comments_of(7) == []
    assert caught.value.maybe_done


def test_where_it_can_not_be_looked_up_nothing_is_posted_twice():
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault(*CREATE, status=502, done=True)
        github.fault("GET", "/issues/7/comments", status=503, times=None)
        client = probe(github).client
        with pytest.raises(errors.Unavailable, match="whether it was done all the same could not be told") as caught:
            client.create_comment(7, "<!-- ours -->", find_existing=by_marker(client))
        assert len(github.state.comments_of(7)) == 1
        assert github.calls().count("POST /issues/7/comments") == 1
    assert caught.value.maybe_done


@pytest.mark.parametrize("how", [{"status": 429}, {"status": 403, "headers": {"retry-after": "1"}}])
def test_what_was_refused_for_its_rate_needs_no_look(how):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault(*CREATE, **how)
        client = probe(github).client
        client.create_comment(7, "<!-- ours -->", find_existing=by_marker(client))
        assert github.calls() == ["POST /issues/7/comments"] * 2


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b'{"id": 3'])
@pytest.mark.parametrize("done", [True, False])
def test_a_comment_whose_answer_can_not_be_read_is_looked_for(body, done):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault(*CREATE, status=201, body=body, done=done)
        client = probe(github).client
        if done:
            assert client.create_comment(7, "<!-- ours -->", find_existing=by_marker(client)).body == "<!-- ours -->"
        else:
            with pytest.raises(errors.UnexpectedAnswer):
                client.create_comment(7, "<!-- ours -->", find_existing=by_marker(client))
        assert github.calls().count("POST /issues/7/comments") == 1


@pytest.mark.parametrize("how", LOST)
def test_what_is_no_harm_twice_is_simply_done_again(how):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        comment = github.state.add_comment(7, "old")
        github.fault("PATCH", f"/issues/comments/{comment.id}", how=how, done=True)
        github.fault("POST", f"/statuses/{HEAD_SHA}", how=how, done=True)
        client = probe(github, limits=QUICK).client
        assert client.update_comment(comment.id, "new").body == "new"
        client.create_status(HEAD_SHA, state="success", context="x")
        assert [status["state"] for status in github.state.statuses] == ["success"] * 2


def test_a_server_that_is_not_there_was_sent_nothing():
    with FakeGitHub() as github:
        environ = github.environ()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and listening to nobody
        log: list[str] = []
        port = taken.getsockname()[1]
        client = GitHubClient(
            api_url=f"http://127.0.0.1:{port}",
            repository=environ["GITHUB_REPOSITORY"],
            token="ghs_secretOfNobody",
            log=log.append,
            limits=RequestLimits(tries=2),
            clock=FakeTime().clock,
        )

        def never() -> None:
            raise AssertionError("nothing was sent, so there is nothing to look for")

        refused = r"can't be reached at 127\.0\.0\.1 \(Connection refused\)"
        with client, pytest.raises(errors.Unavailable, match=refused) as caught:
            client.create_comment(7, "text", find_existing=never)
    assert not caught.value.maybe_done
    assert len(log) == 1


def test_a_name_that_nobody_has_is_said():
    client = GitHubClient(
        api_url="http://nobody.invalid", repository="o/r", token="", log=print, limits=RequestLimits(tries=1)
    )
    with client, pytest.raises(errors.Unavailable, match=r"nobody\.invalid|did not answer"):
        client.pull(7)


def test_an_answer_without_end_is_cut_off():
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=200, body=b" " * (65 * 1024 * 1024), times=None)
        with pytest.raises(errors.UnexpectedAnswer, match="answered more than 67108864 bytes"):
            probe(github).client.pull(7)
        assert len(github.requests) == 1


def test_of_an_error_only_the_beginning_is_read():
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=404, body=b" " * (20 * 1024 * 1024))
        with pytest.raises(errors.NotFound):
            probe(github).client.pull(7)


def test_a_compressed_answer_is_measured_by_what_it_holds():
    import gzip

    bomb = gzip.compress(b" " * (70 * 1024 * 1024))
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=200, body=bomb, headers={"content-encoding": "gzip"})
        with pytest.raises(errors.UnexpectedAnswer, match="answered more than"):
            probe(github).client.pull(7)


def test_an_encoding_that_is_none_is_said():
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=200, body=b"no gzip", headers={"content-encoding": "gzip"})
        with pytest.raises(errors.UnexpectedAnswer, match="can't be read"):
            probe(github).client.pull(7)


@pytest.mark.parametrize(
    "raw", [b"\0" * 50, b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nx" + b"y" * 200_000, b"SSH-2.0-x\r\n"]
)
def test_what_is_no_http_is_given_up(raw):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(raw)

        threading.Thread(target=serve, daemon=True).start()
        answers = (errors.Unavailable, errors.UnexpectedAnswer)
        with of_nobody(server, seconds=5) as client, pytest.raises(answers) as caught:
            client.pull(7)
        server.shutdown(socket.SHUT_RDWR)
    assert "ghs_secretOfNobody" not in str(caught.value)


def test_the_status_of_an_error_counts_even_if_the_rest_never_comes():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b'HTTP/1.1 404 Not Found\r\ncontent-length: 100\r\n\r\n{"message": ')
                while connection.recv(65_536):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        with of_nobody(server) as client, pytest.raises(errors.NotFound):
            client.pull(7)


def test_a_server_that_never_agrees_on_encryption_was_sent_nothing():
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = r"did not answer within 0.5 s \(there was no connection\)"
        with (
            of_nobody(server, "https") as client,
            pytest.raises(errors.Unavailable, match=words) as caught,
        ):
            client.create_status(HEAD_SHA, state="success", context="x")
    assert not caught.value.maybe_done


@pytest.mark.parametrize("by_signal", [False, True])
def test_what_was_broken_off_sends_nothing_any_more(monkeypatch, by_signal):
    """Looking up a name has no time limit: a comment must not be posted when the answer comes after the try ended."""
    released, ended, looked_up, others = threading.Event(), threading.Event(), socket.getaddrinfo, threading.enumerate()

    def slow(*given, **named):
        if by_signal:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        released.wait(60)
        try:
            return looked_up(*given, **named)
        finally:
            ended.set()

    def never() -> None:
        raise AssertionError("nothing was sent, so there is nothing to look for")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    seconds, ending = (60.0, KeyboardInterrupt) if by_signal else (1.0, errors.Unavailable)
    before = signal.signal(signal.SIGALRM, interrupt)
    with FakeGitHub(host="localhost") as github:
        github.state.add_pull(7)
        client = probe(github, limits=RequestLimits(tries=1, seconds=seconds)).client
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        try:
            with pytest.raises(ending) as caught:
                client.create_comment(7, "text", find_existing=never)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert not ended.is_set()
        (thread,) = [one for one in threading.enumerate() if one.name == "github" and one not in others]
        released.set()
        assert ended.wait(60)
        if by_signal:
            thread.join(60)
            assert not thread.is_alive()
        else:
            assert client.pull(7).number == 7  # looked up and sent after it, by the very connections that it had
        assert github.calls() == ([] if by_signal else ["GET /pulls/7"])
    if isinstance(caught.value, errors.Unavailable):
        assert "did not answer within 1 s" in caught.value.message
        assert not caught.value.maybe_done


def test_a_signal_ends_the_wait_for_an_answer():
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", how="hang", times=None)
        client = probe(github, limits=RequestLimits(seconds=60)).client
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                client.pull(7)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
