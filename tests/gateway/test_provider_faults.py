"""Providers that refuse our key or can't be reached: when they are given up, and what is said."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import httpx
import pytest
from support.gateway_world import ANSWER, ASK, REAL, world
from support.process_world import eventually
from support.scripted_provider import Says, document

from keystone_action.gateway.faults import Fault, Faults, fault_of_answer, fault_of_error
from keystone_action.gateway.upstreams import Upstream

OURS = Upstream("anthropic", "anthropic", "https://api.anthropic.com", "sk-ant-1", "ANTHROPIC_API_KEY")
REFUSED = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
NOT_VALID = {"error": {"code": 400, "message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]}}
KEY_SHOWN = {"error": {"message": "Incorrect API key provided: sk-proj-ab12********wxyz. See the page."}}
REFUSES = "anthropic refused the key in ANTHROPIC_API_KEY"


def refuses(status: int = 401, body: Any = REFUSED) -> Says:
    return document(body, status)


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (401, REFUSED, f"{REFUSES} (401): invalid x-api-key"),
        (401, None, f"{REFUSES} (401)"),
        (402, {"error": {"message": "pay first"}}, f"{REFUSES} (402): pay first"),
        (400, NOT_VALID, f"{REFUSES} (400): API key not valid."),
        (403, {"error": {"message": "your API key may not"}}, f"{REFUSES} (403): your API key may not"),
        (401, KEY_SHOWN, f"{REFUSES} (401): Incorrect API key provided: (a key). See the page."),
        (403, {"error": {"message": "not in your country"}}, None),
        (400, {"error": {"message": "the key `model` is missing"}}, None),
        (429, {"error": {"message": "too many with this key"}}, None),
        (500, {"error": {"message": "authentication is down"}}, None),
    ],
)
def test_what_is_a_refused_key(status: int, body: Any, sentence: str | None) -> None:
    fault = fault_of_answer(OURS, status, body)
    assert (fault and fault.sentence) == sentence


def test_a_key_of_the_spec_and_none_at_all_are_named() -> None:
    for key, words in (("k-1", "the key that gateway.providers has for it"), ("", "a request without a key")):
        fault = fault_of_answer(Upstream("router", "openai", "https://r/v1", key), 401, None)
        assert fault == Fault("key", f"router refused {words} (401)")


def test_errors_before_an_answer_are_told_apart() -> None:
    untrusted = httpx.ConnectError("x")
    untrusted.__cause__ = ssl.SSLCertVerificationError(1, "failed")
    kinds = [
        (untrusted, "certificate"),
        (httpx.ProxyError("407 Proxy Authentication Required"), "proxy"),
        (httpx.ConnectError("x"), "unreachable"),
        (httpx.ConnectTimeout("x"), "unreachable"),
        (httpx.ReadError("x"), None),
        (httpx.ReadTimeout("x"), None),
    ]
    assert [(fault := fault_of_error(OURS, error)) and fault.kind for error, _ in kinds] == [kind for _, kind in kinds]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


KEY, AWAY = Fault("key", "refused"), Fault("unreachable", "away")


def test_two_refusals_in_a_row_are_enough_and_those_at_once_are_one() -> None:
    clock = Clock()
    faults = Faults(clock=clock)
    clock.now = 2
    for _ in range(3):
        faults.add("a", KEY, began=1)
    assert faults.hopeless == ""
    faults.add("b", KEY, began=3)
    assert faults.hopeless == ""
    faults.add("a", None, began=3)
    clock.now = 4
    faults.add("a", KEY, began=3)
    assert faults.hopeless == ""
    clock.now = 6
    faults.add("a", KEY, began=5)
    assert faults.hopeless == "refused"


def test_an_upstream_that_is_away_gets_its_time_and_one_try_decides_nothing() -> None:
    clock = Clock()
    faults = Faults(20, clock)
    assert faults.add("a", AWAY, began=0)
    clock.now = 20
    faults.look("a")
    assert faults.hopeless == ""
    clock.now = 19
    assert not faults.add("a", AWAY, began=18)
    faults.look("a")
    assert faults.hopeless == ""
    clock.now = 20
    faults.look("a")
    assert faults.hopeless == "away (for 20 s)"


def test_one_that_came_back_is_not_given_up() -> None:
    clock = Clock()
    faults = Faults(20, clock)
    faults.add("a", AWAY, began=0)
    clock.now = 10
    faults.add("a", AWAY, began=5)
    faults.add("a", None, began=11)
    clock.now = 30
    faults.look("a")
    faults.add("a", AWAY, began=29)
    assert faults.hopeless == ""


def test_a_second_refusal_ends_the_agent() -> None:
    ended: list[bool] = []
    with world(refuses(), on_hopeless=lambda: ended.append(True)) as one:
        assert one.ask().status_code == 401
        one.settled()
        assert (one.ledger.faults.hopeless, ended) == ("", [])
        assert one.ask().status_code == 401
        assert eventually(lambda: bool(ended))
    assert one.ledger.faults.hopeless.endswith("(401): invalid x-api-key")
    assert one.ledger.fails_for_certain
    assert REAL not in one.ledger.faults.hopeless


def test_what_is_refused_once_the_key_was_taken_is_the_agent_s_doing() -> None:
    ended: list[bool] = []
    answers = (document(ANSWER), refuses(), refuses(), refuses())
    with world(*answers, on_hopeless=lambda: ended.append(True)) as one:
        for _ in range(4):
            one.ask()
        one.settled()
    assert (ended, one.ledger.provider_failure()) == ([], "")


def test_a_login_page_never_reaches_the_agent() -> None:
    page = Says(200, [b"<html>Log in"], headers=(("content-type", "text/html; charset=utf-8"),))
    with world(page) as one:
        answer = one.ask()
        one.settled()
    assert answer.status_code == 502
    assert b"<html>" not in answer.content
    assert "a page of HTML (status 200)" in one.ledger.provider_failure()
    assert not one.ledger.unreadable


def test_a_dead_port_is_given_up_after_its_time() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = Upstream("dead", "anthropic", f"http://127.0.0.1:{unused.getsockname()[1]}", REAL)
        ended: list[bool] = []
        with world(on_hopeless=lambda: ended.append(True), others={"dead": dead}) as one:
            one.ledger.faults.seconds = 0.2
            assert one.ask("/dead/v1/messages", ASK).status_code == 502
            assert one.ask("/dead/v1/messages", ASK).status_code == 502
            assert eventually(lambda: bool(ended))
    assert "could not be reached at 127.0.0.1:" in one.ledger.faults.hopeless
