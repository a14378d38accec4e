"""Calls of ours that others on the server get in the way of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from keystone_action.services import own_role
from keystone_action.services.own_role import OwnRole


class Role(OwnRole):
    """Of no server: only `retry` is tried."""

    def _make(self, name: str, password: str) -> None: ...

    def _prove(self, fields: Mapping[str, Any]) -> None: ...

    def _drop(self, name: str) -> None: ...

    def _drop_left_over(self) -> None: ...

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_role, "_PAUSE_SECONDS", 0.0)


def attempts(error: Exception, times: int) -> tuple[Any, list[int]]:
    """A call that fails so often before it succeeds; and its calls so far."""
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return call, calls


def test_it_goes_on_as_long_as_sessions_are_ended():
    call, calls = attempts(ConnectionResetError("ended"), 50)
    assert Role({}).retry(call) == "done"
    assert len(calls) == 51


def test_what_will_not_pass_is_not_tried_again():
    call, calls = attempts(PermissionError("no"), 1)
    with pytest.raises(PermissionError):
        Role({}).retry(call)
    assert len(calls) == 1


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_role, "_RETRY_SECONDS", 0.0)
    call, _ = attempts(ConnectionResetError("ended"), 1_000_000)
    with pytest.raises(ConnectionResetError):
        Role({}).retry(call)
