"""Lists over all their pages, and `Link` headers that lead astray."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_github import FakeGitHub
from support.github_client import probe
from support.github_state import WORKFLOW

from keystone_action.github.api import errors
from keystone_action.github.api.requests import MAX_PAGES, next_query

LINKS = [
    ("", None),
    ('<https://api.github.com/x?page=2>; rel="next"', (("page", "2"),)),
    ('<https://api.github.com/x?a=b%20c&page=2&d=>; rel="next"', (("a", "b c"), ("page", "2"), ("d", ""))),
    (
        '<https://h/x?page=1>; rel="prev", <https://h/x?page=3>; rel="next", <https://h/x?page=9>; rel="last"',
        (("page", "3"),),
    ),
    ("<https://h/x?after=Y3Vyc29y>; rel=next", (("after", "Y3Vyc29y"),)),
    ('<https://h/x?page=2> ; title="a, b" ; REL="Next"', (("page", "2"),)),
    ('<https://h/x?page=2>; rel="last next"', (("page", "2"),)),
    ('<https://h/x?page=2>; rel="nextish"', None),
    ('<https://h/x?page=2>; title="rel=next"', None),
    ('<https://h/x>; rel="next"', None),
    ("<https://h/x?page=2", None),
    ("<<<>>>;;;===", None),
]


@pytest.mark.parametrize(("link", "query"), LINKS)
def test_the_next_page_by_the_link_header(link, query):
    assert next_query(link) == query


@given(st.text(max_size=200) | st.text(alphabet='<>;=", relnext?&page2', max_size=200))
def test_no_link_header_breaks_it(link):
    query = next_query(link)
    assert query is None or all(isinstance(part, str) for pair in query for part in pair)


@settings(max_examples=25)
@given(count=st.integers(0, 23), size=st.integers(1, 8), data=st.data())
def test_every_comment_comes_once_and_in_order_whatever_the_pages(count, size, data):
    bodies = data.draw(st.lists(st.text(max_size=5), min_size=count, max_size=count))
    with FakeGitHub(page_limit=size) as github:
        github.state.add_pull(7)
        for body in bodies:
            github.state.add_comment(7, body)
            github.state.add_comment(8, "of another")
        found = list(probe(github).client.comments(7))
        assert [comment.body for comment in found] == bodies
        assert len(github.requests) == max(-(-count // size), 1)
        assert all(request.query["per_page"] == "100" for request in github.requests)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 200, 201])
def test_around_the_size_of_a_page(count):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        for number in range(count):
            github.state.add_comment(7, str(number))
        assert [comment.body for comment in probe(github).client.comments(7)] == [str(n) for n in range(count)]
        assert len(github.requests) == max(-(-count // 100), 1)


def test_pages_keep_the_filters_and_are_asked_for_when_they_are_needed():
    with FakeGitHub(page_limit=2) as github:
        runs = [github.state.add_run(event=event) for event in ("push", "schedule", "push", "push", "push")]
        for name in ("a", "b", "c"):
            github.state.add_artifact(runs[0].id, name, {"x": "y"})
        client = probe(github).client
        pushes = client.workflow_runs(WORKFLOW, branch="main", event="push")
        assert [next(pushes).id, next(pushes).id] == [runs[4].id, runs[3].id]
        assert len(github.requests) == 1
        assert [run.id for run in pushes] == [runs[2].id, runs[0].id]
        assert [request.query.get("event") for request in github.requests] == ["push", "push"]
        assert [artifact.name for artifact in client.artifacts(runs[0].id)] == ["a", "b", "c"]


def test_three_pull_requests_of_one_commit_are_three():
    with FakeGitHub(page_limit=1) as github:
        for number in (3, 4, 5):
            github.state.add_pull(number)
        client = probe(github).client
        assert [pull.number for pull in client.pulls_of_commit("a" * 40)] == [3, 4, 5]


def test_a_link_to_another_host_gets_neither_a_request_nor_the_token():
    with FakeGitHub() as github, FakeGitHub() as other:
        github.state.add_pull(7)
        link = {"link": f'<{other.url}/repos/octo-org/evals/issues/7/comments?page=2&per_page=100>; rel="next"'}
        github.fault("GET", "/issues/7/comments", status=200, body=b"[]", headers=link)
        assert list(probe(github).client.comments(7)) == []
        assert [request.query.get("page") for request in github.requests] == [None, "2"]
        assert other.requests == []


def test_pages_that_go_in_circles_are_left():
    with FakeGitHub() as github:
        circle = {"link": f'<{github.url}/x?page=2>; rel="next"'}
        github.fault("GET", "/issues/7/comments", status=200, body=b"[]", headers=circle, times=None)
        with pytest.raises(errors.UnexpectedAnswer, match="was read already"):
            list(probe(github).client.comments(7))
        assert len(github.requests) == 2


def test_pages_without_end_are_left():
    with FakeGitHub(page_limit=1) as github:
        github.state.add_pull(7)
        for number in range(MAX_PAGES + 1):
            github.state.add_comment(7, str(number))
        with pytest.raises(errors.UnexpectedAnswer, match=f"more than {MAX_PAGES} pages"):
            list(probe(github).client.comments(7))
        assert len(github.requests) == MAX_PAGES


def test_a_page_that_is_lost_is_asked_for_again():
    with FakeGitHub(page_limit=2) as github:
        github.state.add_pull(7)
        for number in range(5):
            github.state.add_comment(7, str(number))
        github.fault("GET", "/issues/7/comments", status=502, skip=1)
        assert [comment.body for comment in probe(github).client.comments(7)] == ["0", "1", "2", "3", "4"]
        assert [request.query.get("page") for request in github.requests] == [None, "2", "2", "3"]
