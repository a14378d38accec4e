"""What an agent says to models goes through the gateway: its trace, keys, budgets, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import keystone
from support.gateway_world import STREAM
from support.hostile import everything_written
from support.images import BASE
from support.model_agents import REAL_KEY, behind, calls, fails, run, says, spec_of, trace_events
from support.scripted_provider import stream

ONE_CALL = """
status, first = ask([user("do it")])
call = first["content"][0]
open("made.txt", "w").write("made")
status, last = ask([user("do it"), {"role": "assistant", "content": first["content"]}, result(call["id"], "a b c")])
print(last["content"][0]["text"])
"""
TRACED: dict[str, Any] = {
    "called": {"check": {"type": "trace", "require_tools": [{"name": "Bash", "args": {"command": "ls"}}]}},
    "correct": {"check": {"type": "tool_correctness", "expected": [{"name": "Bash"}]}},
    "cheap": {"check": {"type": "budget", "max_cost_usd": 0.02, "max_tool_calls": 1, "max_tokens": 2000}},
}
LS = ("toolu_1", "Bash", {"command": "ls"})


def test_what_was_asked_answered_and_spent_is_observed(tmp_path: Path) -> None:
    with behind(calls(LS), says("done")) as (provider, environ):
        called = run(tmp_path, spec_of(ONE_CALL, invariants=TRACED), environ)
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    assert cell["usage"]["input_tokens"] == 1010
    assert cell["usage"]["output_tokens"] == 202
    # Opus 4.5 costs 5 and 25 dollars a million.
    assert cell["usage"]["cost_usd"] == pytest.approx((1010 * 5 + 202 * 25) / 1e6)
    assert cell["usage"]["requests"] == 2
    assert cell["usage"]["spent_usd"] == cell["usage"]["cost_usd"]
    assert cell["trace"] == {"source": "gateway", "replayed": None, "recorded_at": None, "differs": ""}
    events = [(event["type"], event["payload"]) for event in trace_events(called)]
    assert events[0][1]["source"] == "gateway"
    assert [one["input"] for kind, one in events if kind == "tool_call"] == [{"command": "ls"}]
    assert [one["output"] for kind, one in events if kind == "tool_result"] == ["a b c"]
    assert [asked.header("x-api-key") for asked in provider.asked] == [REAL_KEY, REAL_KEY]
    (log,) = called.output.glob("cells/*/audit.jsonl")
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [(line["type"], line["details"]["calls"]) for line in lines] == [
        ("model_request", ["Bash"]),
        ("model_request", []),
    ]
    assert lines[0]["details"]["tokens"] == {"uncached": 1000, "cache_read": 0, "cache_write": 0, "output": 200}


@pytest.mark.docker
@pytest.mark.parametrize("egress", ["allow", "deny"])
def test_in_a_container_too_with_and_without_another_way_out(tmp_path: Path, image: Any, egress: str) -> None:
    image(BASE)
    spec = spec_of(ONE_CALL, invariants=TRACED, base=BASE, network={"egress": {"default": egress}})
    with behind(calls(LS), says("done")) as (provider, environ):
        called = run(tmp_path, spec, environ)
    assert called.code == 0, called.err + called.out
    assert called.cells[0]["trace"]["source"] == "gateway"
    assert len(provider.asked) == 2
    assert [where for where, data in everything_written(called).items() if REAL_KEY.encode() in data] == []


def test_a_key_of_ours_in_the_agent_s_environment_is_the_cell_s(tmp_path: Path) -> None:
    script = "print('done', os.environ['MINE'] == os.environ['ANTHROPIC_API_KEY'])"
    spec = spec_of(script, agent={"env": {"MINE": "{{ env.ANTHROPIC_API_KEY }}"}})
    with behind(says("done")) as (_, environ):
        called = run(tmp_path, spec, environ)
    (cell,) = called.cells
    assert cell["agent"]["output"] == "done True\n"
    assert "MINE: the agent got the gateway's key instead of the provider's" in cell["notices"]
    assert [where for where, data in everything_written(called).items() if REAL_KEY.encode() in data] == []


def test_names_in_agent_env_win(tmp_path: Path) -> None:
    script = "print('done', os.environ['ANTHROPIC_BASE_URL'], os.environ['OPENAI_BASE_URL'][-10:])"
    spec = spec_of(script, agent={"env": {"ANTHROPIC_BASE_URL": "http://elsewhere"}})
    with behind(says("done")) as (_, environ):
        called = run(tmp_path, spec, environ)
    assert called.cells[0]["agent"]["output"] == "done http://elsewhere /openai/v1\n"


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ({"max_requests": 2}, "stopped at 2 of 2 requests"),
        ({"max_tool_calls": 1}, "stopped at 1 of 1 tool calls"),
        ({"max_tokens": 1100}, "stopped at 1,200 of 1,100 tokens"),
        ({"max_cost_usd": 0.01}, "stopped at $0.01 of $0.01"),
    ],
)
def test_a_spent_budget_is_told_and_ends_the_cell(tmp_path: Path, budget: dict[str, Any], sentence: str) -> None:
    script = """
while True:
    status, answer = ask([user("go on")])
    if status != 200:
        print("done", status, answer["error"]["message"])
        break
"""
    with behind(calls(LS)) as (_, environ):
        called = run(tmp_path, spec_of(script, gateway={"budget": budget}, agent={"must_exit_zero": True}), environ)
    (cell,) = called.cells
    assert cell["agent"]["output"] == f"done 400 {sentence}\n"
    assert cell["agent"]["stopped"] == "budget"
    assert (called.code, cell["verdict"]) == (1, "fail")
    assert sentence in cell["agent"]["note"]


ASKS_AND_WAITS = """
body = {"model": "claude-opus-4-5", "max_tokens": 9, "stream": True, "messages": [user("do it")]}
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}
asked = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(), headers)
answer = urllib.request.urlopen(asked, timeout=60)
answer.readline()
print("done", flush=True)
if WAITS:
    answer.read()
"""


@pytest.mark.parametrize(("waits", "stalls", "estimated"), [(True, 40.0, True), (False, 4.0, False)])
def test_a_stalled_answer_is_waited_for_until_the_time_is_up(
    tmp_path: Path, waits: bool, stalls: float, estimated: bool
) -> None:
    """An agent whose time is up, and one that left early; the rest of the answer comes after so many seconds."""

    async def before(number: int) -> None:
        await asyncio.sleep(stalls if number == 1 else 0)

    agent = {"timeout": "4s" if waits else "2m"}
    with behind(stream(*STREAM, before=before)) as (_, environ):
        called = run(tmp_path, spec_of(ASKS_AND_WAITS.replace("WAITS", str(waits)), agent=agent), environ)
    (cell,) = called.cells
    assert cell["agent"]["timed_out"] is waits
    (log,) = called.output.glob("cells/*/audit.jsonl")
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [one["details"]["estimated"] for one in lines if one["type"] == "model_request"] == [estimated]


def test_a_provider_that_counts_nothing_spends_an_estimate(tmp_path: Path) -> None:
    script = 'for _ in range(6): ask([user("do it")])\nprint("done")'
    with behind(says("word " * 400, tokens=(0, 0))) as (provider, environ):
        called = run(tmp_path, spec_of(script, gateway={"budget": {"max_tokens": 1_000}}), environ)
    (cell,) = called.cells
    assert cell["agent"]["stopped"] == "budget"
    assert 1_000 <= cell["usage"]["output_tokens"] < 2_000
    assert len(provider.asked) < 6
    (log,) = called.output.glob("cells/*/audit.jsonl")
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert {one["details"]["estimated"] for one in lines if one["type"] == "model_request"} == {True}


def test_an_agent_that_goes_on_after_its_budget_is_ended(tmp_path: Path) -> None:
    script = "print('done', flush=True)\nwhile True:\n    ask([user('go on')])"
    with behind(calls(LS)) as (provider, environ):
        called = run(
            tmp_path, spec_of(script, gateway={"budget": {"max_requests": 3}}, agent={"timeout": "60s"}), environ
        )
    (cell,) = called.cells
    assert len(provider.asked) == 3
    assert cell["agent"]["stopped"] == "budget"
    assert not cell["agent"]["timed_out"]
    # Graded on what it left, as after a time-out.
    assert (called.code, cell["verdict"]) == (0, "pass")


GIVES_UP = """
for attempt in range(3):
    status, answer = ask([user("do it")])
sys.exit(1 if status != 200 else print("done"))
"""


@pytest.mark.parametrize("status", [429, 500, 529])
def test_a_provider_that_failed_is_no_failure_of_the_agent(tmp_path: Path, status: int) -> None:
    with behind(fails(status)) as (_, environ):
        called = run(tmp_path, spec_of(GIVES_UP), environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert f"the provider failed: {status} after 3 tries" in cell["error"]


def test_a_cell_whose_provider_failed_is_tried_again_where_the_spec_says_so(tmp_path: Path) -> None:
    with behind(fails(529), fails(529), fails(529), says("done")) as (_, environ):
        called = run(tmp_path, spec_of(GIVES_UP, scoring={"retry_errors": 1}), environ)
    assert called.code == 0, called.err + called.out


def test_an_agent_that_did_without_the_provider_s_answer_is_graded(tmp_path: Path) -> None:
    with behind(fails(529)) as (_, environ):
        called = run(tmp_path, spec_of('ask([user("do it")])\nprint("done")'), environ)
    assert (called.code, called.cells[0]["verdict"]) == (0, "pass")


def test_a_request_of_its_own_making_that_is_refused_is_the_agent_s_failure(tmp_path: Path) -> None:
    with behind(fails(400)) as (_, environ):
        called = run(tmp_path, spec_of(GIVES_UP), environ)
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail")


def test_without_a_key_an_agent_that_asks_is_told_which_one(tmp_path: Path) -> None:
    script = 'status, answer = ask([user("do it")])\nprint("done", status, answer["error"]["message"])'
    called = run(tmp_path, spec_of(script), {})
    (cell,) = called.cells
    missing = "there is no key for the provider anthropic: ANTHROPIC_API_KEY is not set"
    assert f"done 401 {missing}" in cell["agent"]["output"]
    # A key that we lack is not a failure of the agent.
    assert (called.code, cell["verdict"]) == (3, "error")
    assert missing in cell["error"]
    assert "Set ANTHROPIC_API_KEY" in cell["error"]


def test_a_provider_that_the_spec_names_must_have_a_key_before_the_agent_starts(tmp_path: Path) -> None:
    called = run(tmp_path, spec_of("print('done')", gateway={"providers": ["openai"]}), {})
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert "there is no key for the provider openai: OPENAI_API_KEY is not set" in cell["error"]
    assert "Set OPENAI_API_KEY" in cell["error"]
    assert cell["agent"] is None


def test_a_provider_of_the_spec_s_own_gets_only_its_own_key(tmp_path: Path) -> None:
    own = {"name": "router", "api": "anthropic", "key": "{{ secrets.ROUTER }}"}
    script = """
for name in ("ROUTER", "BARE"):
    status, answer = ask([user("do it")], base=os.environ[name])
print(answer["content"][0]["text"], os.environ["ANTHROPIC_BASE_URL"] == os.environ["ROUTER"])
"""
    with behind(says("done")) as (provider, environ):
        providers = [{**own, "base_url": provider.url}, {"name": "bare", "api": "anthropic", "base_url": provider.url}]
        env = {"ROUTER": "{{ gateway.router.url }}", "BARE": "{{ gateway.bare.url }}"}
        fields = {"gateway": {"providers": providers}, "agent": {"env": env}, "secrets": ["ROUTER"]}
        called = run(tmp_path, spec_of(script, **fields), {**environ, "ROUTER": "sk-of-the-router"})
    assert called.cells[0]["agent"]["output"] == "done True\n", called.err + called.out
    assert [asked.header("x-api-key") for asked in provider.asked] == ["sk-of-the-router", None]


def test_an_option_of_the_call_switches_it_on_and_gateway_off_refuses_that(tmp_path: Path) -> None:
    spec = spec_of(ONE_CALL, invariants=TRACED)
    del spec["gateway"]
    with behind(calls(LS), says("done")) as (_, environ):
        called = run(tmp_path, spec, environ, "--gateway", "live")
        assert called.code == 0, called.err + called.out
        refused = run(tmp_path, {**spec, "gateway": "off"}, environ, "--gateway", "live")
    assert refused.code == 2
    assert "--gateway needs what `gateway: off` switches off" in refused.err


def test_an_agent_that_asks_no_model_is_seen_by_its_own_word_alone(tmp_path: Path) -> None:
    said = {"output": "done", "tool_calls": [{"name": "Bash"}], "token_usage": {"input_tokens": 5}}
    spec = spec_of(f"print({json.dumps(json.dumps(said))})", agent={"output": {"json": "stdout"}})
    with behind(says("done")) as (_, environ):
        called = run(tmp_path, spec, environ)
    assert called.cells[0]["trace"] == {"source": "agent", "replayed": None, "recorded_at": None, "differs": ""}
    assert called.cells[0]["usage"]["input_tokens"] == 5


def test_a_known_agent_that_asks_no_model_is_broken_not_bad(tmp_path: Path) -> None:
    broken = "#!/bin/sh\necho 'error: unexpected argument' >&2\nexit 2\n"
    spec = spec_of("", setup={"files": [{"path": "codex", "content": broken, "mode": "0755"}]})
    spec["agent"] = {"type": "codex", "binary": "./codex"}
    environ = {"OPENAI_API_KEY": REAL_KEY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    called = run(tmp_path, spec, environ)
    assert called.code == 3
    error = called.cells[0]["error"]
    assert error.startswith("Codex asked no model and exited with 2\nerror: unexpected argument\nVersion 0.")
    assert "`npm install --global @openai/codex@0." in error


def test_a_run_is_not_resumed_with_models_from_elsewhere(tmp_path: Path) -> None:
    with behind(says("done")) as (_, environ):
        called = run(tmp_path, spec_of('ask([user("do it")])\nprint("done")'), environ)
        assert called.code == 0, called.err
        (called.output / "results.json").unlink()
        elsewhere = {**environ, "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
        again = keystone("run", "keystone.yaml", "--resume", "out", directory=tmp_path, environ=elsewhere)
        assert again.code == 2
        assert "ANTHROPIC_BASE_URL" in again.err
        same = keystone("run", "keystone.yaml", "--resume", "out", directory=tmp_path, environ=environ)
    assert same.code == 0, same.err
