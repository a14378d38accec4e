"""Ids that an agent's program makes anew in each run, shows to the model, and gets back in a call."""

from __future__ import annotations

from typing import Any

import pytest

from keystone_action.gateway.recordings.names import Names
from keystone_action.gateway.recordings.request_key import Keys, NormalForms, Sameness
from keystone_action.gateway.recordings.walking import RecordingError

PATTERN = r"tasks/([a-z0-9]+)\.output"


def request(ident: str) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": "toolu_000000000001", "content": f"see /tmp/tasks/{ident}.output"}
    return {"model": "m", "messages": [{"role": "user", "content": "go"}, {"role": "user", "content": [result]}]}


def key(ident: str, ids: tuple[str, ...] = (PATTERN,)) -> tuple[str, Names]:
    names = Names({})
    normal = NormalForms(names, Sameness(ids=ids)).of(request(ident))
    return Keys().key_of("anthropic", "m", normal), names


def test_they_count_as_equal_and_are_said_back_as_this_run_s() -> None:
    (one, recorded), (other, replayed) = key("bs4ag4mi2"), key("bx9qz1ab7")
    assert one == other
    answer = {"input": {"file_path": "/tmp/tasks/bs4ag4mi2.output"}}
    assert replayed.filled(recorded.named(answer)) == {"input": {"file_path": "/tmp/tasks/bx9qz1ab7.output"}}


def test_without_a_pattern_they_differ() -> None:
    assert key("bs4ag4mi2", ())[0] != key("bx9qz1ab7", ())[0]


def test_a_short_one_could_be_anything_and_stays() -> None:
    _, names = key("b1")
    assert names.named("b1") == "b1"


@pytest.mark.parametrize("pattern", ["(", "[a"])
def test_a_pattern_that_is_none_is_named(pattern: str) -> None:
    with pytest.raises(RecordingError, match="can't be used"):
        key("bs4ag4mi2", (pattern,))
