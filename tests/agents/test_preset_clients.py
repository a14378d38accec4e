"""The real programs of known agents by preset, through the gateway, in front of a model that follows a script."""

from __future__ import annotations

import io

import pytest
from support.agent_clients import CLIENTS, Client, installed
from support.preset_runs import REAL, WORTHLESS, Play, PresetRun, play
from support.scripted_models import Turn

from keystone_action.agents.presets.preset import load_preset
from keystone_action.evidence.trace_readers.reading import read_trace
from keystone_action.pricing import cost_of
from keystone_action.spec.models.agents import PresetAgent

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

HELLO = "hello from the script"
_ENVIRONMENTS = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"


@pytest.fixture(params=[client.kind for client in CLIENTS.values() if client.command])
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


def run(client: Client, one: Play) -> PresetRun:
    """Its program does what the model says."""
    place = installed(client.kind)
    one.readable = [place.folder]
    agent = PresetAgent(type=client.kind, binary=str(place.program), model=client.model, timeout=240.0)
    return play(agent, one)


def require_same(client: Client, found: PresetRun) -> None:
    """The gateway's trace is what the provider said: calls, arguments, tokens and money."""
    said, trace, spent = found.model.said, found.trace, found.ledger.spent
    assert [(call.name, call.arguments) for call in trace.tool_calls] == found.model.calls
    read, cached, written = (sum(getattr(turn, name) for turn in said) for name in ("read", "cached", "written"))
    counted = (spent.requests, spent.tokens.uncached, spent.tokens.cache_read, spent.tokens.output)
    assert counted == (len(said), read - cached, cached, written)
    cost = sum(
        cost_of(client.api, model, uncached=turn.read - turn.cached, output=turn.written, cache_read=turn.cached)
        for turn, model in zip(said, found.model.models, strict=True)
    )
    assert trace.usage.cost_usd == pytest.approx(cost)


def require_key_with_provider_alone(client: Client, found: PresetRun) -> None:
    """The real key is in the headers of what the provider got, and nowhere else."""
    posted = [asked for asked in found.asked if asked.method == "POST"]
    assert len(posted) == len(found.model.said)
    for asked in posted:
        assert asked.target.startswith(client.path)
        assert REAL in {value.removeprefix("Bearer ") for _, value in asked.headers}
        assert WORTHLESS not in str(asked.headers)
        assert REAL.encode() not in asked.body
    assert REAL not in found.run.stdout + found.run.stderr


def require_same_transcript(client: Client, found: PresetRun) -> None:
    """What the program tells of itself agrees with what the provider said."""
    declared = load_preset(client.kind).trace
    if declared is None:
        return
    told = read_trace(io.BytesIO(found.run.stdout.encode()), declared.format, "the trace")
    assert (told.problem, told.not_understood) == ("", ())
    assert len(told.tool_calls) == len(found.model.calls)
    read, cached, written = (
        sum(getattr(turn, name) for turn in found.model.said) for name in ("read", "cached", "written")
    )
    without_cache = client.kind == "claude-code"
    assert (told.usage.input_tokens, told.usage.output_tokens) == (read - cached * without_cache, written)


def test_the_task_is_done_and_the_trace_is_what_the_provider_said(client: Client) -> None:
    def turns(workspace: str) -> list[Turn]:
        looks = client.runs(f"cat hello.txt; {_ENVIRONMENTS}")
        return [client.writes(f"{workspace}/hello.txt", HELLO), looks, client.runs("ls /nowhere"), *client.ends]

    found = run(client, Play(turns))
    assert (found.run.exit_code, found.files) == (0, {"hello.txt": HELLO}), found.run.stderr
    assert HELLO in found.results[1]
    assert WORTHLESS in found.results[1]  # good for nothing but this gateway
    assert found.ledger.refused == ()
    require_same(client, found)
    require_key_with_provider_alone(client, found)
    require_same_transcript(client, found)


def test_without_tools_of_the_provider_and_with_a_prompt_longer_than_any_argument(client: Client) -> None:
    def turns(workspace: str) -> list[Turn]:
        return [*client.searches("weather"), client.writes(f"{workspace}/hello.txt", HELLO), *client.ends]

    prompt = "Write hello.txt.\n" + "".join(f"{number} é " for number in range(30_000)) + "the end of it"
    assert len(prompt.encode()) > 200 << 10
    found = run(client, Play(turns, prompt=prompt, deny_provider_tools=True))
    assert (found.run.exit_code, found.files) == (0, {"hello.txt": HELLO}), found.run.stderr
    assert found.ledger.refused == ()  # a request with such a tool would have got 400
    assert '"web_search"' not in "".join(found.bodies)
    bodies = [body for body in found.bodies if " 15000 é 15001 é " in body]
    assert bodies
    assert "29998 é 29999 é the end of it" in bodies[0]
    require_same(client, found)


def test_aider_which_has_no_tools_edits_what_the_model_writes_down() -> None:
    block = f"hello.txt\n```\n<<<<<<< SEARCH\n=======\n{HELLO}\n>>>>>>> REPLACE\n```\n"
    found = run(CLIENTS["aider"], Play(lambda _: [Turn(text=block, cached=100)], offers_tools=False))
    assert (found.run.exit_code, found.files) == (0, {"hello.txt": f"{HELLO}\n"}), found.run.stdout
    assert found.trace.messages[-1].text == block
    require_same(CLIENTS["aider"], found)
    require_key_with_provider_alone(CLIENTS["aider"], found)
