from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.gateway.recordings.recording import Entry
from keystone_action.gateway.recordings.replay import first_differences

LONG = "You are a careful engineer. " * 200


def entry(request: dict[str, Any]) -> Entry:
    return Entry("anthropic", "m", "k", "k", 0, 0, True, request, {})


def request(**changes: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "system": LONG,
        "tools": [{"name": "bash", "description": "runs"}, {"name": "read"}],
        "messages": [{"role": "user", "content": f"task {n}"} for n in range(5)],
        **changes,
    }


def messages(number: int, **last: Any) -> list[dict[str, Any]]:
    return [*request()["messages"][: number - 1], {"role": "user", **last}]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            request(messages=[*messages(4, content="other 3"), request()["messages"][4]]),
            'messages[3].content: recorded "task 3", asked "other 3"',
        ),
        (request(model="n"), 'model: recorded "m", asked "n"'),
        (request(tools=[{"name": "bash", "description": "runs"}]), 'tools: recorded and not asked: "read"'),
        (
            request(tools=[*request()["tools"], *({"name": f"t{n}"} for n in range(7))]),
            'tools: asked and not recorded: "t0", "t1", "t2", "t3", "t4" and 2 more',
        ),
        (
            request(tools=[{"name": "bash", "description": "starts"}, {"name": "read"}]),
            'tools[0].description: recorded "runs", asked "starts"',
        ),
        (request(messages=request()["messages"] + [{}, {}]), "messages: recorded 5, asked 7"),
        (request(messages=messages(5, content=[])), 'messages[4].content: recorded "task 4", asked an empty list'),
        (request(messages=messages(5)), 'messages[4].content: recorded "task 4", not asked'),
        (request(max_tokens=7), "max_tokens: not recorded, asked 7"),
        (
            request(system=f"{LONG[:3000]}{'reckless'}{LONG[3008:]}"),
            f'system: recorded "…{LONG[2960:3040]}…", asked "…{LONG[2960:3000]}reckless{LONG[3008:3040]}…"',
        ),
        (request(), 'the API or the model: recorded "anthropic" and "m"'),
    ],
)
def test_the_first_difference_is_told(wanted: dict[str, Any], sentence: str) -> None:
    assert first_differences(wanted, [entry(request())]) == sentence


def test_the_nearest_request_is_compared() -> None:
    entries = [entry({"model": "m", "messages": ["title"]})]
    entries += [entry(request(messages=request()["messages"][:n])) for n in range(1, 5)]
    wanted = request(messages=messages(3, content="changed"))
    assert first_differences(wanted, entries) == 'messages[2].content: recorded "task 2", asked "changed"'
    assert first_differences({"messages": ["titles"]}, entries).startswith(
        'model: recorded "m", not asked; messages[0]: recorded'
    )


def test_with_several_differences_the_first_are_told() -> None:
    wanted = request(model="n", system="x", temperature=1, max_tokens=2, messages=[])
    found = first_differences(wanted, [entry(request())])
    assert found.startswith('model: recorded "m", asked "n"; system: recorded "You are')
    assert found.endswith("; and more")
    assert found.count("; ") == 3


def test_tools_of_every_api_have_names() -> None:
    def tools(name: str) -> list[Any]:
        return [
            {"type": "function", "function": {"name": f"chat{name}"}},
            {"functionDeclarations": [{"name": f"gemini{name}"}]},
            {"type": "namespace", "name": "ns", "tools": [{"name": f"inner{name}"}]},
            None,
        ]

    found = first_differences({"tools": tools("1")}, [entry({"tools": tools("2")})])
    assert found == (
        'tools: recorded and not asked: "chat2", "gemini2", "inner2"; '
        'asked and not recorded: "chat1", "gemini1", "inner1"'
    )


def test_without_entries_there_is_none() -> None:
    assert first_differences(request(), []) == "the recording holds no request"


@pytest.mark.slow
def test_large_requests_make_a_short_sentence() -> None:
    big = [{"role": "user", "content": [{"type": "text", "text": "x" * 1_000}]} for _ in range(200)]
    entries = []
    for n in range(500):
        mine = copy.deepcopy(big)
        mine[n % 200]["content"][0]["text"] = f"{'x' * 900}{n}"
        entries.append(entry({"model": "m", "messages": mine}))
    wanted = {"model": "m", "messages": [*copy.deepcopy(big)[:-1], {"role": "user", "content": "y" * 1_000_000}]}
    found = first_differences(wanted, entries)
    assert found.startswith("messages[199].content: recorded 1 items")
    assert len(found) < 1_000


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=200), inner, max_size=4),
    max_leaves=20,
)
requests = st.dictionaries(st.sampled_from(["model", "messages", "tools", "system"]), values)


@given(requests, st.lists(requests, max_size=3))
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_every_difference_is_a_short_line(wanted: dict[str, Any], recorded: list[dict[str, Any]]) -> None:
    found = first_differences(wanted, [entry(one) for one in recorded])
    assert found
    assert "\n" not in found
    assert len(found) < 4_000
