"""One comment a key: found by marker and author over all pages, updated in place, made again, never doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.fake_github import FakeGitHub
from support.github_client import probe
from support.github_state import ACTIONS_BOT

from keystone_action.github.api.errors import (
    ApiForbidden,
    BodyTooLong,
    GitHubError,
    NoPermission,
    NotFound,
    Unavailable,
)
from keystone_action.github.comment import SMALLER, StickyComment
from keystone_action.report.comment.history import LastResult, Marker, Previous

MARKER = Marker.of_key("a key")
MEMORY = LastResult("fail", 0.5, "1" * 40, {})


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        fake.state.add_pull(7)
        yield fake


def sticky(github: FakeGitHub, kind: str = "write") -> StickyComment:
    return StickyComment(probe(github, kind).client, 7, MARKER)


def text(body: str = "the result") -> Callable[[Previous | None, int], str]:
    return lambda before, limit: MARKER.sign(body)


def writes(github: FakeGitHub) -> list[str]:
    return [call for call in github.calls() if call.startswith(("POST /issues", "PATCH"))]


def test_the_first_is_made_and_the_next_updates_it(github: FakeGitHub) -> None:
    first = sticky(github).write(text("one"))
    second = sticky(github).write(text("two"))
    assert first is not None
    assert second is not None
    (comment,) = github.state.comments
    assert first.id == second.id == comment.id
    assert comment.body == MARKER.sign("two")
    assert writes(github) == ["POST /issues/7/comments", f"PATCH /issues/comments/{comment.id}"]


def test_the_same_text_is_not_written_again(github: FakeGitHub) -> None:
    sticky(github).write(text())
    sticky(github).write(text())
    assert writes(github) == ["POST /issues/7/comments"]


@pytest.mark.parametrize(
    ("kind", "author"), [("write", ACTIONS_BOT), ("app", "our-reviewer[bot]"), ("person", "octocat")]
)
def test_it_is_known_by_its_author_whoever_that_is(github: FakeGitHub, kind: str, author: str) -> None:
    ours = github.state.add_comment(7, MARKER.sign("old"), created_by=author.upper().replace("[BOT]", "[bot]"))
    sticky(github, kind).write(text())
    assert [comment.id for comment in github.state.comments] == [ours.id]
    assert ours.body == MARKER.sign("the result")


def test_where_nobody_tells_whose_the_token_is_the_new_comment_does(github: FakeGitHub) -> None:
    """The older one is then found after all, and speaks alone."""
    ours = github.state.add_comment(7, MARKER.sign("old"), created_by="our-reviewer[bot]")
    github.fault("POST", "/graphql", status=502, times=None)
    written = sticky(github, "app").write(text())
    assert written is not None
    assert written.id == ours.id
    assert ours.body == MARKER.sign("the result")
    assert [comment.id for comment in github.state.comments if MARKER.is_in(comment.body)] == [ours.id]


@pytest.mark.parametrize("author", ["mallory", "another[bot]", "octocat", None])
def test_an_impostor_is_never_touched(github: FakeGitHub, author: str | None) -> None:
    forged = MARKER.sign("✅ Passed", LastResult("pass", 1.0).encode())
    impostor = github.state.add_comment(7, forged, created_by=author)
    seen = []
    ours = sticky(github).write(lambda before, limit: seen.append(before) or MARKER.sign("real"))
    assert ours is not None
    assert ours.id != impostor.id
    assert impostor.body == forged
    assert seen == [None, None]


@pytest.mark.parametrize("body", [f"{MARKER.line}", f"quoting {MARKER.line} here", MARKER.sign("x") + "more"])
def test_a_marker_elsewhere_than_at_the_end_is_somebodys_text(github: FakeGitHub, body: str) -> None:
    other = github.state.add_comment(7, body, created_by=ACTIONS_BOT)
    sticky(github).write(text())
    assert other.body == body
    assert len(github.state.comments) == 2


def test_another_key_has_another_comment(github: FakeGitHub) -> None:
    other = github.state.add_comment(7, Marker.of_key("other").sign("x"), created_by=ACTIONS_BOT)
    sticky(github).write(text())
    assert other.body == Marker.of_key("other").sign("x")


def test_it_is_found_on_the_last_page(github: FakeGitHub) -> None:
    for number in range(230):
        github.state.add_comment(7, f"comment {number}")
    ours = github.state.add_comment(7, MARKER.sign("old"), created_by=ACTIONS_BOT)
    sticky(github).write(text())
    assert ours.body == MARKER.sign("the result")
    assert github.calls().count("GET /issues/7/comments") == 3


def test_what_it_remembers_reaches_the_next(github: FakeGitHub) -> None:
    github.state.add_comment(7, MARKER.sign("old", MEMORY.encode()), created_by=ACTIONS_BOT)
    seen = []
    sticky(github).write(lambda before, limit: seen.append((before, limit)) or MARKER.sign("new"))
    assert seen == [(Previous("old", MEMORY, MEMORY.sha), 65_536)]


def test_of_several_the_oldest_is_kept_and_the_others_refer_to_it(github: FakeGitHub) -> None:
    old, new, newest = (
        github.state.add_comment(7, MARKER.sign(body), created_by=ACTIONS_BOT) for body in ("❌", "✅", "❌")
    )
    sticky(github).write(text())
    assert old.body == MARKER.sign("the result")
    assert all(f"#issuecomment-{old.id}" in comment.body for comment in (new, newest))
    assert not any(MARKER.is_in(comment.body) for comment in (new, newest))
    sticky(github).write(text("again"))
    assert old.body == MARKER.sign("again")
    assert len(writes(github)) == 4


def test_an_extra_one_that_goes_away_meanwhile_is_no_failure(github: FakeGitHub) -> None:
    for body in ("old", "new"):
        github.state.add_comment(7, MARKER.sign(body), created_by=ACTIONS_BOT)
    github.fault("PATCH", "/issues/comments/*", status=404, skip=1)
    written = sticky(github).write(text())
    assert written is not None
    assert github.state.comments[0].body == MARKER.sign("the result")


def test_a_deleted_comment_is_made_again(github: FakeGitHub) -> None:
    sticky(github).write(text("one"))
    github.state.comments.clear()
    sticky(github).write(text("two"))
    assert [comment.body for comment in github.state.comments] == [MARKER.sign("two")]


def test_one_that_is_deleted_while_it_is_updated_is_made_again(github: FakeGitHub) -> None:
    ours = github.state.add_comment(7, MARKER.sign("old"), created_by=ACTIONS_BOT)

    def render(before: Previous | None, limit: int) -> str:
        github.state.comments[:] = [one for one in github.state.comments if one.id != ours.id]
        return MARKER.sign("new")

    sticky(github).write(render)
    assert [comment.body for comment in github.state.comments] == [MARKER.sign("new")]


def test_a_comment_that_is_there_but_can_not_be_updated_is_not_doubled(github: FakeGitHub) -> None:
    github.state.add_comment(7, MARKER.sign("old"), created_by=ACTIONS_BOT)
    github.fault("PATCH", "/issues/comments/*", status=404, times=None)
    with pytest.raises(NotFound):
        sticky(github).write(text())
    assert len(github.state.comments) == 1


def test_without_one_a_passing_run_may_leave_it_so(github: FakeGitHub) -> None:
    assert sticky(github).write(text(), create=False) is None
    assert github.state.comments == []
    old = github.state.add_comment(7, MARKER.sign("❌"), created_by=ACTIONS_BOT)
    assert sticky(github).write(text("✅"), create=False) is not None
    assert old.body == MARKER.sign("✅")


@pytest.mark.parametrize("fault", [{"status": 502}, {"how": "reset"}, {"how": "cut"}])
def test_one_that_was_made_although_the_answer_was_lost_is_not_doubled(
    github: FakeGitHub, fault: dict[str, Any]
) -> None:
    github.fault("POST", "/issues/7/comments", done=True, **fault)
    found = sticky(github).write(text())
    (comment,) = github.state.comments
    assert found is not None
    assert (found.id, comment.body) == (comment.id, MARKER.sign("the result"))


def test_one_that_the_list_does_not_have_yet_is_not_made_again(github: FakeGitHub) -> None:
    github.fault("GET", "/issues/7/comments", status=200, body=b"[]", times=None)
    written = sticky(github).write(text())
    assert written is not None
    assert [comment.id for comment in github.state.comments] == [written.id]


def test_two_jobs_that_race_leave_one_comment(github: FakeGitHub) -> None:
    """The other job makes its comment at the worst time: between our look and our writing."""
    rendered: list[int] = []

    def render(before: Previous | None, limit: int) -> str:
        if not rendered:
            github.state.add_comment(7, MARKER.sign("the other's"), created_by=ACTIONS_BOT)
        rendered.append(limit)
        return MARKER.sign("ours")

    sticky(github).write(render)
    speaking = [comment.body for comment in github.state.comments if MARKER.is_in(comment.body)]
    assert speaking == [MARKER.sign("ours")]
    assert len(github.state.comments) == 2
    assert "Superseded" in github.state.comments[1].body


def test_racing_jobs_in_any_order_leave_one_comment(github: FakeGitHub) -> None:
    """Both have looked before either writes; what follows is as it comes."""
    barrier = threading.Barrier(2, timeout=30)

    def render(body: str) -> Callable[[Previous | None, int], str]:
        waited: list[int] = []

        def now(before: Previous | None, limit: int) -> str:
            if not waited:
                waited.append(1)
                barrier.wait()
            return MARKER.sign(body)

        return now

    jobs = [threading.Thread(target=sticky(github).write, args=(render(name),)) for name in ("a", "b")]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    speaking = [comment.body for comment in github.state.comments if MARKER.is_in(comment.body)]
    assert len(speaking) == 1
    assert speaking[0] in (MARKER.sign("a"), MARKER.sign("b"))


def test_too_long_a_text_is_made_smaller_once(github: FakeGitHub) -> None:
    asked = []

    def render(before: Previous | None, limit: int) -> str:
        asked.append(limit)
        return MARKER.sign("x" * (70_000 if limit > SMALLER else 5))

    assert sticky(github).write(render) is not None
    assert SMALLER in asked
    with pytest.raises(BodyTooLong):
        StickyComment(probe(github).client, 7, Marker.of_key("b")).write(lambda before, limit: "x" * 70_000)


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [("read-only", NoPermission, "pull-requests: write"), ("write", ApiForbidden, "locked")],
)
def test_a_refusal_is_an_error_with_its_cause(
    github: FakeGitHub, kind: str, error: type[GitHubError], said: str
) -> None:
    if error is ApiForbidden:
        github.state.locked.add(7)
    with pytest.raises(error) as caught:
        sticky(github, kind).write(text())
    assert said in caught.value.sentences


def test_an_api_that_is_down_is_an_error(github: FakeGitHub) -> None:
    github.fault("GET", "/issues/7/comments", status=503, times=None)
    with pytest.raises(Unavailable):
        sticky(github).write(text())


def test_the_look_after_an_update_comes_a_second_later(github: FakeGitHub) -> None:
    """What was read before it, at the same time, is written by then."""
    github.state.add_comment(7, MARKER.sign("old"), created_by=ACTIONS_BOT)
    ours = probe(github)
    kept = StickyComment(ours.client, 7, MARKER).write(text(), holds=lambda there: there.text == "the result")
    assert kept is not None
    assert kept.body == MARKER.sign("the result")
    assert ours.time.waits == [1.0]
    assert writes(github) == [f"PATCH /issues/comments/{kept.id}"]
