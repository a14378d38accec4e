"""When the client tries again, how long it waits for that, and when it gives up."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_github import FakeGitHub
from support.github_client import FakeTime, nothing, probe
from support.github_state import HEAD_SHA

from keystone_action.github import reporting
from keystone_action.github.api import errors
from keystone_action.github.api.requests import Patience, RequestLimits, seconds_to_wait

NOW = 1_700_000_000
DATE = formatdate(NOW, usegmt=True)

WAITS = [
    # headers, rate limited, tried, seconds
    ({}, False, 1, 1),
    ({}, False, 2, 2),
    ({}, False, 3, 4),
    ({"retry-after": "7"}, False, 3, 7),
    ({"retry-after": " 7 "}, True, 1, 7),
    ({"retry-after": "0"}, True, 1, 1),
    ({"retry-after": formatdate(NOW + 25, usegmt=True)}, True, 1, 25),
    ({"retry-after": formatdate(NOW - 25, usegmt=True)}, True, 1, 1),
    ({"retry-after": "9" * 400}, True, 1, 10**9),
    ({"retry-after": "10000000001"}, True, 1, 10**9),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9" * 12}, True, 1, 10**9),
    ({"retry-after": "-3"}, False, 1, 1),
    ({"retry-after": "soon"}, False, 2, 2),
    ({"retry-after": "٣"}, False, 1, 1),
    ({"retry-after": "1.5"}, True, 1, 60),
    ({}, True, 1, 60),
    ({}, True, 2, 120),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 30)}, True, 1, 31),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 30)}, True, 3, 31),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW - 30)}, True, 1, 1),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "tomorrow"}, True, 1, 60),
    ({"x-ratelimit-remaining": "0"}, True, 1, 60),
    ({"x-ratelimit-remaining": "12", "x-ratelimit-reset": str(NOW + 30)}, True, 1, 60),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 30), "retry-after": "5"}, True, 1, 5),
    # A limit of requests says nothing about a server that is broken.
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 30)}, False, 1, 1),
]


@pytest.mark.parametrize(("headers", "rate_limited", "tried", "seconds"), WAITS)
def test_how_long_to_wait(headers, rate_limited, tried, seconds):
    assert seconds_to_wait(headers, rate_limited=rate_limited, tried=tried, now=NOW) == seconds


@pytest.mark.parametrize("ours", [NOW - 86_400, NOW, NOW + 86_400])
def test_times_of_the_server_are_by_its_clock(ours):
    reset = {"date": DATE, "x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 30)}
    assert seconds_to_wait(reset, rate_limited=True, tried=1, now=ours) == 31
    after = {"date": DATE, "retry-after": formatdate(NOW + 12, usegmt=True)}
    assert seconds_to_wait(after, rate_limited=True, tried=1, now=ours) == 12


header = st.text(max_size=30) | st.integers().map(str) | st.just(DATE)


@given(
    st.dictionaries(
        st.sampled_from(["date", "retry-after", "x-ratelimit-remaining", "x-ratelimit-reset"]), header, max_size=4
    ),
    st.booleans(),
    st.integers(1, 4),
)
def test_whatever_headers_say_the_wait_is_a_second_at_least_and_finite(headers, rate_limited, tried):
    assert 1 <= seconds_to_wait(headers, rate_limited=rate_limited, tried=tried, now=NOW) <= 10**9


@given(st.lists(st.floats(0, 90), max_size=20))
def test_all_waits_together_stay_within_the_limit_and_each_is_said(asked):
    time, log = FakeTime(), []
    patience = Patience(RequestLimits(), time.clock, log.append)
    waited = [seconds for seconds in asked if patience.wait(seconds, "because")]
    assert sum(waited) <= 60 + 1e-9
    assert time.waits == waited
    assert len(log) == len(waited)


RETRIED = [500, 501, 502, 503, 504, 520, 599]


@pytest.mark.parametrize("status", RETRIED)
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_server_that_is_broken_for_a_while_is_asked_again(status, failures):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault("GET", "/pulls/7", status=status, times=failures)
        checked = probe(github)
        assert checked.client.pull(7).number == 7
        assert checked.time.waits == [1, 2, 4][:failures]
        assert len(github.requests) == failures + 1
    assert len(checked.log) == failures
    assert all("#7" in line and str(status) in line and "waiting" in line for line in checked.log)


@pytest.mark.parametrize("status", RETRIED)
def test_after_four_tries_it_is_unavailable(status):
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=status, message="Server Error", times=None)
        checked = probe(github)
        with pytest.raises(errors.Unavailable, match=f"{status} .Server Error.; gave up after 4 tries"):
            checked.client.pull(7)
        assert len(github.requests) == 4
    assert checked.time.waits == [1, 2, 4]


def test_what_was_down_gets_one_try_until_it_answers_again():
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault("GET", "/pulls/7", status=503, times=5)
        checked = probe(github)
        for gave_up in ("4 tries", "1 try"):
            with pytest.raises(errors.Unavailable, match=f"gave up after {gave_up}"):
                checked.client.pull(7)
        assert checked.client.pull(7).number == 7
        github.fault("GET", "/pulls/7", status=503, times=3)
        assert checked.client.pull(7).number == 7
        assert len(github.requests) == 4 + 1 + 1 + 4


LIMITED = [
    # how the fault is made, seconds waited
    ({"status": 429, "headers": {"retry-after": "3"}}, 3),
    ({"status": 429, "reset_in": 20}, 21),
    ({"status": 429}, 60),
    ({"status": 403, "headers": {"retry-after": "2"}}, 2),
    ({"status": 403, "reset_in": 41}, 42),
    ({"status": 403, "message": "You have exceeded a secondary rate limit. Please wait."}, 60),
    ({"status": 503, "headers": {"retry-after": "9"}}, 9),
]


@pytest.mark.parametrize(("how", "seconds"), LIMITED)
@pytest.mark.parametrize("write", [False, True])
def test_a_limit_of_the_rate_is_waited_out(how, seconds, write):
    with FakeGitHub() as github:
        github.state.add_pull(7)
        method, path = ("POST", f"/statuses/{HEAD_SHA}") if write else ("GET", "/pulls/7")
        github.fault(method, path, **how)
        checked = probe(github)
        if write:
            checked.client.create_status(HEAD_SHA, state="success", context="x")
        else:
            checked.client.pull(7)
        assert len(github.requests) == 2
    assert checked.time.waits == [seconds]
    assert f"waiting {seconds} s" in checked.log[0]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"status": 429, "headers": {"retry-after": "61"}}, "asks to wait 61 s, more than the 60 s left"),
        ({"status": 403, "reset_in": 1800}, "asks to wait 1801 s, more than the 60 s left"),
        ({"status": 403, "headers": {"retry-after": "9" * 50}}, "more than the 60 s left"),
    ],
)
def test_a_limit_that_lasts_too_long_is_not_waited_for(how, words):
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", times=None, **how)
        checked = probe(github)
        with pytest.raises(errors.RateLimited, match=words):
            checked.client.pull(7)
        assert len(github.requests) == 1
    assert checked.time.waits == []


def test_the_minute_of_waiting_is_one_for_all_requests():
    with FakeGitHub() as github:
        github.state.add_pull(7)
        github.fault("GET", "/pulls/7", status=429, headers={"retry-after": "25"}, times=3)
        checked = probe(github)
        with pytest.raises(errors.RateLimited, match="asks to wait 25 s, more than the 10 s left"):
            checked.client.pull(7)
        github.fault("GET", "/pulls/7", status=502, times=None)
        with pytest.raises(errors.Unavailable, match="gave up after 4 tries"):
            checked.client.pull(7)
        assert checked.time.waits == [25, 25, 1, 2, 4]


def test_a_limit_that_never_ends_is_given_up_after_four_tries():
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=429, headers={"retry-after": "5"}, times=None)
        checked = probe(github)
        with pytest.raises(errors.RateLimited, match="after 4 tries"):
            checked.client.pull(7)
        assert len(github.requests) == 4
    assert checked.time.waits == [5, 5, 5]


def test_by_default_they_are_those_of_the_contract():
    assert reporting.LIMITS == RequestLimits() == RequestLimits(tries=4, seconds=10.0, waiting=60.0, between_writes=1.0)


def test_limits_are_the_callers_to_choose():
    with FakeGitHub() as github:
        github.fault("GET", "/pulls/7", status=502, times=None)
        checked = probe(github, limits=RequestLimits(tries=1, waiting=0))
        with pytest.raises(errors.Unavailable, match="gave up after 1 try"):
            checked.client.pull(7)
        assert len(github.requests) == 1


def test_between_writes_there_is_a_second_and_between_reads_there_is_none():
    with FakeGitHub() as github:
        github.state.add_pull(7)
        checked = probe(github)
        made = checked.client.create_comment(7, "one", find_existing=nothing)
        checked.client.pull(7)
        assert checked.time.waits == []
        checked.client.update_comment(made.id, "two")
        assert checked.time.waits == [1]
        checked.time.at += 0.75
        checked.client.create_status(HEAD_SHA, state="success", context="x")
        assert checked.time.waits == [1, 0.25]
        checked.time.at += 5
        checked.client.create_status(HEAD_SHA, state="success", context="x")
        assert checked.time.waits == [1, 0.25]
    assert len(checked.log) == 2


def test_writes_that_are_tried_again_are_paced_too():
    with FakeGitHub() as github:
        github.fault("POST", f"/statuses/{HEAD_SHA}", status=502, times=1)
        checked = probe(github, limits=RequestLimits(between_writes=3))
        checked.client.create_status(HEAD_SHA, state="success", context="x")
    assert checked.time.waits == [1, 2]
