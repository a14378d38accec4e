from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.gateway.recordings import request_key
from keystone_action.gateway.recordings.names import Names
from keystone_action.gateway.recordings.recording import RecordingError
from keystone_action.gateway.recordings.request_key import KEY_LENGTH, Keys, Sameness, key_of_request, normal_form

NOTHING = Sameness()
CALL = "toolu_01ABCDEFGHJKLMNPQRSTUVWX"


def normal(body: dict[str, Any], names: Names | None = None, sameness: Sameness = NOTHING) -> dict[str, Any]:
    return normal_form("anthropic", body, names or Names({}), sameness)


def key(body: dict[str, Any], names: Names | None = None, sameness: Sameness = NOTHING) -> str:
    return key_of_request("anthropic", "m", normal(body, names, sameness), sameness.ignore)


def anthropic(result: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": CALL, "content": result}
    return {"messages": [{"role": "user", "content": [block]}]}


def anthropic_blocks(result: Any) -> dict[str, Any]:
    return anthropic([{"type": "text", "text": result}])


def chat(result: Any) -> dict[str, Any]:
    return {"messages": [{"role": "tool", "tool_call_id": CALL, "content": result}]}


def responses(result: Any) -> dict[str, Any]:
    return {"input": [{"type": "function_call_output", "call_id": CALL, "output": result}]}


def gemini(result: Any) -> dict[str, Any]:
    told = {"name": "run_shell_command", "response": {"output": result}}
    return {"contents": [{"role": "user", "parts": [{"functionResponse": told}]}]}


RESULTS = [anthropic, anthropic_blocks, chat, responses, gemini]


@pytest.mark.parametrize(
    "field",
    [
        {"metadata": {"user_id": "x"}},
        {"user": "x"},
        {"safety_identifier": "x"},
        {"prompt_cache_key": "x"},
        {"prompt_cache_retention": "24h"},
        {"client_metadata": {"x": "y"}},
        {"store": False},
        {"stream": True},
        {"stream_options": {"include_usage": True}},
        {"cache_control": {"type": "ephemeral"}},
        {"labels": {"team": "x"}},
    ],
)
def test_what_does_not_change_the_answer_is_left_out(field: dict[str, Any]) -> None:
    assert key({"messages": [], **field}) == key({"messages": []})
    assert not set(field) & set(normal({"messages": [], **field}))


@pytest.mark.parametrize(
    "field",
    [
        {"system": "x"},
        {"temperature": 0.5},
        {"max_tokens": 7},
        {"tools": [{"name": "x"}]},
        {"tool_choice": "any"},
        {"reasoning": {"effort": "low"}},
        {"previous_response_id": "resp_1"},
        {"something_new": None},
    ],
)
def test_everything_else_counts(field: dict[str, Any]) -> None:
    assert key({"messages": [], **field}) != key({"messages": []})


def test_what_is_cached_counts_nowhere() -> None:
    cached = {"type": "ephemeral", "ttl": "1h"}
    text = {"type": "text", "text": "x"}
    bare = {"system": [text], "messages": [{"role": "user", "content": [text]}], "tools": [{"name": "a"}]}
    body = copy.deepcopy(bare)
    for place in (body["system"], body["messages"][0]["content"], body["tools"]):
        place[0]["cache_control"] = cached
    assert normal(body) == bare
    # An argument of a tool that is called so is its own.
    assert normal({"tools": [{"cache_control": "name"}]}) == {"tools": [{"cache_control": "name"}]}


def test_the_key_is_of_api_model_and_request() -> None:
    body = normal({"messages": [{"role": "user", "content": "x"}]})
    keys = {
        key_of_request("anthropic", "m", body),
        key_of_request("openai", "m", body),
        key_of_request("anthropic", "n", body),
    }
    keys |= {
        key_of_request("anthropic", "m", {**body, "messages": "x"}),
        key_of_request("anthropic", "m", {"messages": []}),
    }
    assert len(keys) == 5
    assert all(len(one) == KEY_LENGTH and int(one, 16) >= 0 for one in keys)
    assert key_of_request("anthropic", "m", {"a": 1, "b": 2}) == key_of_request("anthropic", "m", {"b": 2, "a": 1})


def test_lists_are_told_from_what_they_look_like() -> None:
    inner = key_of_request("a", "m", {"x": ["a", "b"]})
    assert inner != key_of_request("a", "m", {"x": ["ab"]})
    assert inner != key_of_request("a", "m", {"x": [["a", "b"]]})
    assert key_of_request("a", "m", {"x": []}) != key_of_request("a", "m", {"x": ""})


EQUAL = {
    "durations": ("3 passed in 0.12s", "3 passed in 4.5s", "3 passed in {duration}"),
    "milliseconds": ("(5 ms)", "(17ms)", "({duration})"),
    "time of a shell": ("real\t0m0.005s", "real\t1m10.2s", "real\t{duration}"),
    "duration by its name": ('{"duration_seconds":0.1}', '{"duration_seconds":2}', '{"duration_seconds":{duration}}'),
    "ISO": ("at 2026-11-23T14:05:00Z", "at 2027-01-01T00:00:00.123Z", "at {time}"),
    "with a zone": ("2026-11-23 14:05:00 +0100 x", "2027-01-01 00:00:00 +0000 x", "{time} x"),
    "log": ("2026-11-23 14:05:00,123 INFO", "2027-01-01 00:00:00,001 INFO", "{time} INFO"),
    "git log": ("Date:   Mon Nov 23 14:05:00 2026 +0000", "Date:   Tue Dec 1 04:05:00 2026 +0000", "Date:   {time}"),
    "date": ("Mon Nov 23 14:05:00 UTC 2026", "Fri Jan  1 00:00:00 CET 2027", "{time}"),
    "ls": ("-rw-r--r-- 1 root root 5 Nov 23 14:05 a.py", "-rw-r--r-- 1 root root 5 Dec  1 09:00 a.py", None),
    "HTTP": ("Date: Mon, 23 Nov 2026 14:05:00 GMT", "Date: Fri, 01 Jan 2027 00:00:00 GMT", "Date: {time}"),
    "access log": ("[23/Nov/2026:14:05:00 +0000]", "[01/Jan/2027:00:00:00 +0000]", "[{time}]"),
    "clock": ("14:05:00 up", "00:00:01 up", "{time} up"),
    "process": ("pid 123 died", "pid 4567 died", "pid {pid} died"),
    "process in JSON": ('{\\"pid\\": 123}', '{\\"pid\\": 4}', '{\\"pid\\": {pid}}'),
    "server": ("Started server process [123]", "Started server process [4567]", "Started server process [{pid}]"),
    "job": ("[1] 12345", "[1] 67", "[1] {pid}"),
    "address": ("<X object at 0x7f1122334455>", "<X object at 0x55aabbccddee>", "<X object at {address}>"),
    "port": ("on http://127.0.0.1:41234/", "on http://127.0.0.1:51234/", "on http://127.0.0.1:{address}/"),
}  # fmt: skip


@pytest.mark.parametrize("kind", EQUAL)
@pytest.mark.parametrize("shape", RESULTS)
def test_in_results_of_tools_times_and_addresses_are_equal(kind: str, shape: Any) -> None:
    one, other, named = EQUAL[kind]
    assert key(shape(one)) == key(shape(other))
    assert named is None or normal(shape(one)) == normal(shape("@")) | json.loads(
        json.dumps(normal(shape("@"))).replace('"@"', json.dumps(named))
    )


@pytest.mark.parametrize("kind", EQUAL)
@pytest.mark.parametrize(
    "shape",
    [
        lambda text: {"system": text, "messages": []},
        lambda text: {"messages": [{"role": "user", "content": text}]},
        lambda text: {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]},
        lambda text: {"input": [{"type": "message", "role": "user", "content": text}]},
        lambda text: {"input": [{"type": "function_call", "call_id": "1", "arguments": text}]},
        lambda text: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
    ],
)
def test_in_prompts_and_calls_they_are_not(kind: str, shape: Any) -> None:
    one, other, _ = EQUAL[kind]
    assert key(shape(one)) != key(shape(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5 apples", "6 apples"),
        ("2026-11-23", "2026-11-24"),
        ("a.py:12:34", "a.py:12:35"),
        ("version 1.2.3", "version 1.2.4"),
        ("0xff", "0xfe"),
        ("5 strings", "6 strings"),
        ("exit code 1", "exit code 2"),
        ("process 5 items", "process 6 items"),
        ("index 1a2b3c4..5d6e7f8", "index 1a2b3c4..5d6e7f9"),
        ("example.com:8080", "example.com:8081"),
    ],
)
def test_other_numbers_in_results_count(one: str, other: str) -> None:
    assert key(anthropic(one)) != key(anthropic(other))


def test_ids_of_a_client_are_numbered_within_the_request() -> None:
    def body(one: str, two: str) -> dict[str, Any]:
        calls = [{"id": one, "function": {"name": "f", "arguments": f'{{"id":"{one}"}}'}}, {"id": two}]
        results = [{"role": "tool", "tool_call_id": name, "content": "x"} for name in (two, one)]
        return {"messages": [{"role": "assistant", "tool_calls": calls}, *results]}

    found = normal(body("f-1763900000000-abc", "f-1763900000001-def"))
    assert [call["id"] for call in found["messages"][0]["tool_calls"]] == ["{id:own-1}", "{id:own-2}"]
    assert [message["tool_call_id"] for message in found["messages"][1:]] == ["{id:own-1}", "{id:own-2}"]
    assert key(body("a", "b")) != key(body("b", "c"))  # what stands in arguments is not an id
    stripped = copy.deepcopy(found)
    stripped["messages"][0]["tool_calls"][0]["function"]["arguments"] = "{}"
    assert "f-17639" not in json.dumps(stripped)


def test_ids_of_a_provider_have_their_numbers_in_every_run() -> None:
    recorded, replayed = Names({}), Names({})
    recorded.number([CALL])
    answer = recorded.named({"content": [{"type": "tool_use", "id": CALL}]})
    made = replayed.filled(answer)["content"][0]["id"]
    assert made != CALL
    first, second = anthropic("x"), json.loads(json.dumps(anthropic("x")).replace(CALL, made))
    assert normal(first, recorded) == normal(second, replayed)
    assert "{id:1}" in json.dumps(normal(first, recorded))


def test_forms_of_a_value_are_equal() -> None:
    """Whether a URL-encoded path differs from the plain one depends on the path."""
    plain = Names({"workspace": "/tmp/plain-1"})
    assert normal({"messages": "%2Ftmp%2Fplain-1"}, plain) == {"messages": "{workspace}"}
    assert normal({"messages": "x {workspace:url}"}, plain) == {"messages": "x {=workspace:url}"}


def test_the_temporary_folder_that_all_share_is_compared_as_this_run_s() -> None:
    """In one sandbox it is the agent's own, in another it has one of its own beside it."""
    shared, own = Names({"tmp": "/tmp"}), Names({"tmp": "/tmp/keystone-1/cell/tmp"})
    body = {"messages": [{"role": "user", "content": "cp /tmp/a.txt '/tmp' && ls \\n/tmp/x /srv/tmp /tmpfs"}]}
    assert normal(body, shared) == normal(body, own)
    assert "cp {tmp}/a.txt '{tmp}' && ls \\\\n{tmp}/x /srv/tmp /tmpfs" in json.dumps(normal(body, own))
    there = json.loads(json.dumps(body).replace("/tmp/a", "/tmp/keystone-1/cell/tmp/a"))
    assert normal(there, own) == normal(body, shared)


def test_what_varies_is_left_out_and_what_is_ignored_only_in_the_key() -> None:
    def body(date: str, name: str) -> dict[str, Any]:
        return {"system": f"Today is {date}. You are {name}.", "messages": []}

    sameness = Sameness(varies={"system": (r"Today is [^.]*",)}, ignore=(r"You are \w+",))
    one, other = (normal(body(date, name), sameness=sameness) for date, name in [("Monday", "Ann"), ("Friday", "Bob")])
    assert one == {"system": "{varies}. You are Ann.", "messages": []}
    assert key_of_request("a", "m", one) != key_of_request("a", "m", other)
    assert key_of_request("a", "m", one, sameness.ignore) == key_of_request("a", "m", other, sameness.ignore)


VARIED = "Today is Monday."
SPOKEN: list[tuple[str, dict[str, Any]]] = [
    ("system", {"system": VARIED}),
    ("system", {"system": [{"type": "text", "text": VARIED}]}),
    ("system", {"instructions": VARIED}),
    ("system", {"systemInstruction": {"parts": [{"text": VARIED}]}}),
    ("system", {"messages": [{"role": "system", "content": VARIED}]}),
    ("system", {"input": [{"role": "developer", "content": [{"type": "input_text", "text": VARIED}]}]}),
    ("messages", {"messages": [{"role": "user", "content": VARIED}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": VARIED}]}]}),
    ("messages", {"input": [{"role": "user", "content": [{"type": "input_text", "text": VARIED}]}]}),
    ("messages", {"contents": [{"role": "user", "parts": [{"text": VARIED}]}]}),
    ("results", {"messages": [{"role": "tool", "tool_call_id": "1", "content": VARIED}]}),
    ("results", {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": VARIED}]}]}),
    ("results", {"input": [{"type": "function_call_output", "call_id": "1", "output": VARIED}]}),
    ("results", {"contents": [{"role": "user", "parts": [{"functionResponse": {"response": {"output": VARIED}}}]}]}),
    ("tools", {"tools": [{"name": "a", "description": VARIED}]}),
]


@pytest.mark.parametrize(("place", "body"), SPOKEN)
def test_what_varies_is_left_out_only_where_the_program_writes_it(place: Any, body: dict[str, Any]) -> None:
    for other in ("system", "messages", "results", "tools"):
        found = json.dumps(normal(body, sameness=Sameness(varies={other: ("Today is [^.]*",)})))
        assert ("{varies}" in found) == (other == place), other


def test_a_pattern_that_matches_nothing_changes_nothing() -> None:
    assert normal({"system": "abc"}, sameness=Sameness(varies={"system": ("x*",)})) == {"system": "abc"}


def test_a_pattern_that_takes_forever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_key, "PATTERN_SECONDS", 0.2)
    body = {"system": "a" * 60 + "!"}
    with pytest.raises(RecordingError, match=r"the pattern '\(a\|aa\)\+\$' of gateway.ignore hit the limit of 0.2 s"):
        key_of_request("a", "m", body, ["(a|aa)+$"])
    with pytest.raises(RecordingError, match=r"of the agent's preset hit the limit"):
        normal(body, sameness=Sameness(varies={"system": ("(a|aa)+$",)}))


def test_a_pattern_that_is_none_is_an_error() -> None:
    with pytest.raises(RecordingError, match=r"the pattern '\(' of gateway.ignore can't be used"):
        key_of_request("a", "m", {"system": "x"}, ["("])


def test_a_request_nested_without_end_is_an_error() -> None:
    value: Any = "x"
    for _ in range(300):
        value = [value]
    for body in ({"messages": [value]}, {"tools": value}):
        with pytest.raises(RecordingError, match="more than 200 lists and objects"):
            normal(body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "text", "input": 7, "contents": {"a": 1}},
        {"messages": [None, 7, "x", [], {}, {"content": None}, {"content": [None, 7, []]}]},
        {"input": [{"type": 7, "output": "x"}, {"type": "x_output"}]},
        {"contents": [{"parts": [{"functionResponse": None}, {"functionResponse": {"response": None}}]}]},
        {"messages": [{"role": "tool"}, {"role": "tool", "content": None}], "system": "\ud800\0\u2028"},
        {"temperature": float("nan"), "top_p": float("inf"), "n": 10**400},
    ],
)
def test_odd_requests_have_a_key(body: dict[str, Any]) -> None:
    assert len(key(body)) == KEY_LENGTH


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["content", "id", "role", "type"]), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["messages", "input", "contents", "system", "tools"]), values))
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_every_request_has_one_key(body: dict[str, Any]) -> None:
    names = Names({"workspace": "/tmp/keystone-1/ws"})
    before = json.dumps(body)
    first = normal(body, names)
    assert json.dumps(body) == before
    assert key_of_request("a", "m", first) == key_of_request("a", "m", json.loads(json.dumps(first)))
    keys = Keys()
    assert keys.key_of("a", "m", first) == keys.key_of("a", "m", first) == key_of_request("a", "m", first)


@pytest.mark.slow
def test_megabytes_of_what_looks_like_times_are_read() -> None:
    texts = ["x7 " * 300_000, "12:34:5" * 150_000, "{" * 300_000, "7" * 1_000_000, "toolu_" * 200_000]
    assert len(key(anthropic([{"type": "text", "text": text} for text in texts]))) == KEY_LENGTH
