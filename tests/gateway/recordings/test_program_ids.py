"""Ids that an agent's program makes anew in each run, shows to the model, and gets back in a call."""

from __future__ import annotations

from typing import Any

import pytest

from keystone_action.gateway.recordings.names import Names
from keystone_action.gateway.recordings.recording import RecordingError
from keystone_action.gateway.recordings.request_key import Keys, NormalForms, Sameness

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


SESSION = r"running with session ID (\d+)\n"


def session(number: int, more: str = "") -> tuple[dict[str, Any], Names]:
    result = {"type": "function_call_output", "call_id": "1", "output": f"running with session ID {number}\n{more}"}
    names = Names({})
    return NormalForms(names, Sameness(ids=(SESSION,))).of({"input": [result]}), names


def test_a_short_number_is_one_after_the_word_id_alone() -> None:
    (one, recorded), (other, replayed) = session(73187), session(2515)
    assert one == other
    for form in ('{{"session_id":{}}}', '{{"session_id": {}, "chars": ""}}', '"{{\\"session_id\\": {}}}"', "ID {}"):
        answer = {"arguments": form.format(73187)}
        assert replayed.filled(recorded.named(answer)) == {"arguments": form.format(2515)}
    for text in ("73187", "port 73187", "id 731870", "id 7318.7", "the 73187th"):
        assert recorded.named(text) == text
    assert session(73187, "73187")[0] != session(2515, "2515")[0]


@pytest.mark.parametrize("pattern", ["(", "[a"])
def test_a_pattern_that_is_none_is_named(pattern: str) -> None:
    with pytest.raises(RecordingError, match="can't be used"):
        key("bs4ag4mi2", (pattern,))
