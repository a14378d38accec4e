"""The real programs of known agents by preset, through the gateway, in front of a model that follows a script."""

from __future__ import annotations

import io

import pytest
from support.agent_clients import CLIENTS, Client, installed
from support.preset_runs import REAL, WORTHLESS, Play, PresetRun, play

from keystone_action.agents.presets.preset import load_preset
from keystone_action.evidence.trace import Trace, Usage
from keystone_action.evidence.trace_readers.reading import read_trace
from keystone_action.pricing import cost_of
from keystone_action.spec.models.agents import PresetAgent

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

HELLO = "hello from the script"


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


def run(client: Client, one: Play, *, model: str | None = None) -> PresetRun:
    """Its program does what the model says."""
    place = installed(client.kind)
    one.readable = [place.folder]
    agent = PresetAgent(type=client.kind, binary=str(place.program), model=model or client.model, timeout=120.0)
    return play(agent, one)


def transcript(client: Client, found: PresetRun) -> Trace:
    return read_trace(io.BytesIO(found.run.stdout.encode()), load_preset(client.kind).trace.format, "the trace")


def test_the_task_is_done_and_the_trace_is_what_the_provider_said(client: Client) -> None:
    def turns(workspace: str):
        looks = client.runs("cat hello.txt; env; cat /proc/self/environ /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
        return [client.writes(f"{workspace}/hello.txt", HELLO), looks, *client.ends]

    found = run(client, Play(turns))
    assert (found.run.exit_code, found.files) == (0, {"hello.txt": HELLO}), found.run.stderr
    said, trace = found.model.said, found.trace
    assert [(call.name, call.arguments) for call in trace.tool_calls] == [
        (name, dict(a)) for name, a in found.model.calls
    ]
    read, cached, written = (sum(getattr(turn, name) for turn in said) for name in ("read", "cached", "written"))
    cost = cost_of(
        client.api, client.model.rpartition("/")[2], uncached=read - cached, output=written, cache_read=cached
    )
    assert (trace.usage.input_tokens, trace.usage.output_tokens) == (read - cached, written)
    assert trace.usage.cost_usd == pytest.approx(cost)
    assert (found.ledger.spent.requests, found.ledger.spent.tokens.cache_read) == (len(said), cached)
    assert found.ledger.refused == ()
    assert HELLO in found.results[1]
    assert WORTHLESS in found.results[1]  # the agent sees a key that is good for nothing


def test_the_real_key_is_with_the_provider_and_nowhere_else(client: Client) -> None:
    looks = client.runs(
        "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; grep -rs sk-real / --include=*.env | head"
    )
    found = run(client, Play(lambda _: [looks, *client.ends]))
    posted = [asked for asked in found.asked if asked.method == "POST"]
    assert len(posted) == len(found.model.said)
    for asked in posted:
        assert asked.target.startswith(client.path)
        assert REAL in {value.removeprefix("Bearer ") for _, value in asked.headers}
        assert WORTHLESS not in str(asked.headers)
        assert REAL.encode() not in asked.body
    assert REAL not in found.run.stdout + found.run.stderr


def test_its_own_transcript_tells_the_same(client: Client) -> None:
    def turns(workspace: str):
        return [client.writes(f"{workspace}/hello.txt", HELLO), client.runs("false; ls /nowhere"), *client.ends]

    found = run(client, Play(turns))
    told = transcript(client, found)
    assert (told.problem, told.not_understood) == ("", ())
    assert len(told.tool_calls) == len(found.model.calls)
    assert told.usage.output_tokens == sum(turn.written for turn in found.model.said)
    read, cached = sum(turn.read for turn in found.model.said), sum(turn.cached for turn in found.model.said)
    assert told.usage.input_tokens == (read - cached if client.kind == "claude-code" else read)
    assert told.usage != Usage()


def test_tools_of_the_provider_are_not_even_asked_for_where_they_are_denied(client: Client) -> None:
    def turns(workspace: str):
        return [*client.searches("weather"), client.writes(f"{workspace}/hello.txt", HELLO), *client.ends]

    found = run(client, Play(turns, deny_provider_tools=True))
    assert (found.run.exit_code, found.files) == (0, {"hello.txt": HELLO})
    assert found.ledger.refused == ()  # one request would have got 400
    assert '"web_search"' not in "".join(found.bodies)


def test_a_prompt_longer_than_an_argument_can_be_arrives_whole(client: Client) -> None:
    prompt = "Write hello.txt.\n" + "".join(f"{number} é " for number in range(30_000)) + "the end of it"
    assert len(prompt.encode()) > 200 << 10
    found = run(client, Play(lambda _: client.ends, prompt=prompt))
    assert found.run.exit_code == 0, found.run.stderr
    tail = "29997 é 29998 é 29999 é the end of it"
    assert tail in found.bodies[0]
    assert " 15000 é 15001 é " in found.bodies[0]
