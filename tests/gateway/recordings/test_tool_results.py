"""What commands print of time and processes counts as equal, also where a program sends it as JSON in a text."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from keystone_action.gateway.recordings.names import Names
from keystone_action.gateway.recordings.request_key import Sameness, key_of_request, normal_form
from keystone_action.gateway.recordings.tool_results import with_equal_results, with_results_in_order

NO = Sameness()
IDS = ["toolu_01ABCDEFGHJKLMNPQRSTUVWX", "toolu_02ABCDEFGHJKLMNPQRSTUVWX", "toolu_03ABCDEFGHJKLMNPQRSTUVWX"]


def shown(text: str) -> str:
    return str(with_equal_results({"role": "tool", "content": text})["content"])


PAIRS = [
    ("Mon Nov 23 14:23:32 UTC 2026", "Tue Dec  1 04:23:42 CET 2026"),
    ("Mon Nov 23 02:23:32 -12 2026", "Tue Nov 24 04:23:42 +14 2026"),
    ("Mon 23 Nov 2026 02:23:32 -03", "Tue 24 Nov 2026 14:23:32 +0530"),
    ("3 passed in 0.12s", "3 passed in 1.3s"),
    ("0.12 seconds", "17 seconds"),
    ("[1] 12590", "[1] 317"),
    ("  12590 pts/0 sh", "    317 pts/0 sh"),
    ("pid 12590", "pid 317"),
    ("0x7f0a12345678", "0x7ffd12345679"),
    ("-rw-r--r-- 1 61001 61001 5 Nov 23 14:23 a.txt", "-rw-r--r-- 1 agent agent 5 Dec  1 04:11 a.txt"),
    ("uid=61001 gid=61001 groups=61001", "uid=1000(agent) gid=1000(agent) groups=1000(agent)"),
]


@pytest.mark.parametrize("around", ["{}", "hello\n{}\nmore", "<untrusted_context>\nOutput: {}\n</untrusted_context>"])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_as_it_is_and_as_json_in_a_text(around: str, one: str, other: str) -> None:
    one, other = around.format(one), around.format(other)
    assert shown(one) == shown(other)
    as_json = [json.dumps({"returncode": 0, "output": text}, indent=2) for text in (one, other)]
    assert shown(as_json[0]) == shown(as_json[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1] 12590 eggs", "[1] 317 eggs"),
        ("12590", "317"),
        ("the file n3 s", "the file n4 s"),
        ("version 1.12", "version 1.13"),
        ("is 3 + 4 ? no", "is 3 + 5 ? no"),
    ],
)
def test_other_figures_stay(one: str, other: str) -> None:
    as_json = [json.dumps({"returncode": 0, "output": text}, indent=2) for text in (one, other)]
    assert shown(one) != shown(other)
    assert shown(as_json[0]) != shown(as_json[1])


def anthropic(calls: list[str], ended: list[str]) -> list[Any]:
    made = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in calls]
    results = [{"type": "tool_result", "tool_use_id": one, "content": f"of {one}"} for one in ended]
    reminder = {"type": "text", "text": "a reminder"}
    return [{"role": "assistant", "content": made}, {"role": "user", "content": [*results, reminder]}]


def anthropic_apart(calls: list[str], ended: list[str]) -> list[Any]:
    """As a client keeps them that takes the blocks of an answer for messages."""
    first, second = anthropic(calls, ended)
    return [{**message, "content": [part]} for message in (first, second) for part in message["content"]]


def chat(calls: list[str], ended: list[str]) -> list[Any]:
    made = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in calls]
    results = [{"role": "tool", "tool_call_id": one, "content": f"of {one}"} for one in ended]
    return [{"role": "assistant", "content": None, "tool_calls": made}, *results]


def responses(calls: list[str], ended: list[str]) -> list[Any]:
    made = [{"type": "function_call", "id": f"fc_{one}", "call_id": one, "name": "f"} for one in calls]
    return [*made, *({"type": "function_call_output", "call_id": one, "output": f"of {one}"} for one in ended)]


def gemini(calls: list[str], ended: list[str]) -> list[Any]:
    made = [{"functionCall": {"name": one, "args": {}}} for one in calls]
    results = [{"functionResponse": {"id": f"own-{one}", "name": one, "response": {"of": one}}} for one in ended]
    return [{"role": "model", "parts": made}, {"role": "user", "parts": results}]


@pytest.mark.parametrize("form", [anthropic, anthropic_apart, chat, responses, gemini])
def test_results_of_calls_made_at_once_stand_in_the_order_of_the_calls(form: Any) -> None:
    before = [{"role": "user", "content": "do it"}]
    expected = [*before, *form(["a", "b", "c"], ["a", "b", "c"]), *form(["d", "e"], ["d", "e"])]
    for ended in itertools.permutations("abc"):
        for later in (["d", "e"], ["e", "d"]):
            told = [*before, *form(["a", "b", "c"], list(ended)), *form(["d", "e"], later)]
            kept = copy.deepcopy(told)
            assert with_results_in_order(told) == expected
            assert told == kept, "what came in stays as it is"


@pytest.mark.parametrize("form", [anthropic, chat, responses, gemini])
def test_results_of_calls_that_nobody_made_stay_where_they_are(form: Any) -> None:
    told = form(["a", "b"], ["x", "b", "y", "a"])
    assert with_results_in_order(told) == form(["a", "b"], ["x", "a", "y", "b"])
    assert with_results_in_order([None, 1, "x", {}]) == [None, 1, "x", {}]


def test_results_of_two_answers_never_change_places() -> None:
    told = [*chat(["a"], ["a"]), *chat(["b"], ["b"])]
    assert with_results_in_order(told) == told
    swapped = [*chat(["a"], ["b"]), *chat(["b"], ["a"])]
    assert with_results_in_order(swapped) == swapped


def test_results_of_one_tool_without_ids_keep_their_order() -> None:
    told = gemini(["f", "g", "f"], ["g", "f", "f"])
    for number, part in enumerate(told[1]["parts"]):
        part["functionResponse"]["response"] = {"number": number}
    said = [part["functionResponse"]["response"]["number"] for part in with_results_in_order(told)[1]["parts"]]
    assert said == [1, 0, 2]


@pytest.mark.parametrize("has_ids", [False, True])
def test_gemini_s_results_of_later_turns_stand_in_the_order_of_their_own_calls(has_ids: bool) -> None:
    """The same tools in each of three turns, by their names alone or with ids that begin anew in each turn."""

    def told(*arrivals: Sequence[int]) -> list[Any]:
        found: list[Any] = []
        for turn, arrived in enumerate(arrivals, 1):
            names = ["f", "g", "f"][:turn] if turn < 3 else ["g", "f", "g"]
            ids = [{"id": f"call_{number}"} if has_ids else {} for number in range(len(names))]
            calls = [{"functionCall": {"name": name, **one}} for name, one in zip(names, ids, strict=True)]
            results = [
                {"functionResponse": {"name": names[place], **ids[place], "response": {"output": f"{turn} {place}"}}}
                for place in arrived
            ]
            found += [{"role": "user", "parts": [{"text": "go on"}]}, {"role": "model", "parts": calls}]
            found.append({"role": "user", "parts": results})
        return found

    expected = told([0], [0, 1], [0, 1, 2])
    for second in itertools.permutations(range(2)):
        for third in itertools.permutations(range(3)):
            if has_ids or third.index(0) < third.index(2):  # which of two results of one tool came first is not known
                assert with_results_in_order(told([0], second, third)) == expected


def test_requests_whose_results_came_in_another_order_have_one_key() -> None:
    def key(ended: list[str]) -> str:
        return key_of_request(
            "anthropic", "m", normal_form("anthropic", {"messages": anthropic(IDS, ended)}, Names({}), NO)
        )

    assert key(IDS) == key(IDS[::-1])
    other = anthropic(IDS, IDS)
    other[1]["content"][0]["content"] = "of another"
    assert key(IDS) != key_of_request("anthropic", "m", normal_form("anthropic", {"messages": other}, Names({}), NO))


def test_a_result_that_gemini_s_client_tells_again_counts_once() -> None:
    """Its session has the result of a call as often as the call's state changed, which depends on the moment."""

    def key(*told: dict[str, Any]) -> str:
        parts = [{"functionResponse": one} for one in told]
        body = {"contents": [{"role": "user", "parts": parts}]}
        return key_of_request("gemini", "m", normal_form("gemini", body, Names({}), NO))

    once = {"id": "own-1", "name": "shell", "response": {"output": "took 3 s"}}
    again = {**once, "response": {"output": "took 4 s"}}
    assert key(once) == key(once, once) == key(once, again, once)
    assert key(once) != key(once, {**once, "response": {"output": "else"}})
    assert key(once) != key(once, {**once, "id": "own-2"})
    nameless = {name: value for name, value in once.items() if name != "id"}
    assert key(nameless) != key(nameless, nameless)  # without an id, two calls may have had equal results
