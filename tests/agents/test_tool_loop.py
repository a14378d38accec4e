"""The tool loop in front of a model that follows a script: what it asks, how it goes on, and how it ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support.context import kept
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import Answer, Asked, Says, ScriptedProvider, document, provider
from support.worlds import world_of

from keystone_action.agents import loop_models
from keystone_action.agents.program import AgentCall, agent_environment, write_inputs
from keystone_action.agents.run import call_agent
from keystone_action.errors import HarnessError
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.gateway.upstreams import ModelAddress
from keystone_action.spec.models.agents import LoopAgent

pytestmark = pytest.mark.sandbox

KEY = "keystone-worthless-key-of-the-cell"
APIS = ("anthropic", "openai")
HELLO = Turn(text="hello")
WORKS = Turn(text="I look.", calls=[("bash", {"command": "true"})])


@dataclass
class Played:
    """asked: all requests to the model, as documents. paths: what the workspace holds afterwards."""

    run: AgentRun
    asked: list[Any]
    paths: list[str]
    workspace: str


def agent(api: str, **fields: Any) -> LoopAgent:
    return LoopAgent(type=api, **{"model": "m-1", **fields})  # type: ignore[arg-type]


def play(
    played: LoopAgent,
    *answers: Answer,
    prompt: str = "do it",
    stop: Callable[[ScriptedProvider], bool] | None = None,
    **call: Any,
) -> Played:
    """Run it to its end, straight in front of the provider. stop: ends the agent once it says so."""
    with provider(*answers) as behind:
        base = behind.url + ("/v1" if played.api == "openai" else "")
        return kept().call(_play(played, behind, ModelAddress(base, KEY), prompt, stop, call))


async def _play(
    played: LoopAgent,
    behind: ScriptedProvider,
    address: ModelAddress,
    prompt: str,
    stop: Callable[[ScriptedProvider], bool] | None,
    call: Mapping[str, Any],
) -> Played:
    async with world_of(await kept().sandboxes()) as world:
        inputs = write_inputs(world.area / "task", prompt, played, bytes)
        sandbox = await world.open(inputs.directory)
        inside = sandbox.workspace_inside
        environment = agent_environment(prompt=prompt, prompt_file=inputs.prompt_file, workspace=inside)
        event = asyncio.Event()
        task = AgentCall(
            prompt=prompt,
            environment=environment,
            inputs=inputs,
            stop=event,
            **{"gateways": {played.api: address}, **call},
        )
        watching = asyncio.create_task(_set_once(event, lambda: stop is not None and stop(behind)))
        try:
            run = await call_agent(played, sandbox, task)
            paths = sorted(path.name for path in world.workspace.iterdir())
            return Played(run, [one.document for one in behind.asked], paths, inside)
        finally:
            watching.cancel()
            await sandbox.close()


async def _set_once(event: asyncio.Event, told: Callable[[], bool]) -> None:
    while not told():  # noqa: ASYNC110 - another thread's work
        await asyncio.sleep(0.01)
    event.set()


def scripted(*turns: Turn) -> Callable[[Asked], Says]:
    return ScriptedModel(turns, offers_tools=False).answer


def message(content: Sequence[Any], stop: str) -> Says:
    usage = {"input_tokens": 1, "output_tokens": 1}
    return document({"type": "message", "role": "assistant", "content": content, "stop_reason": stop, "usage": usage})


def completion(said: Mapping[str, Any], stop: str) -> Says:
    return document({"choices": [{"message": {"role": "assistant", **said}, "finish_reason": stop}]})


def results_in(asked: Any, api: str) -> list[str]:
    """The texts of all results in a request, in order."""
    if api == "openai":
        return [one["content"] for one in asked["messages"] if one["role"] == "tool"]
    blocks = [block for one in asked["messages"] for block in one["content"]]
    return [one["content"] for one in blocks if one["type"] == "tool_result"]


@pytest.mark.parametrize("api", APIS)
def test_it_does_what_the_model_calls_for_until_an_answer_without_calls(api: str) -> None:
    found = play(
        agent(api),
        scripted(
            Turn(text="I look.", calls=[("bash", {"command": "echo one"}), ("write", {"path": "a", "content": "two"})]),
            Turn(calls=[("read", {"path": "a"}), ("nothing", {})]),
            Turn(text="All is done."),
        ),
        system="Be brief.",
    )
    run = found.run
    assert (run.exit_code, run.timed_out, run.limit, run.problem, run.output) == (0, False, None, "", "All is done.")
    assert found.paths == ["a"]
    assert results_in(found.asked[-1], api) == [
        "one",
        "a was written",
        "two",
        "there is no tool 'nothing'; there is bash, read, write, edit",
    ]
    assert run.stdout.splitlines() == [
        "I look.",
        '> bash {"command": "echo one"}',
        "one",
        '> write {"path": "a", "content": "two"}',
        "a was written",
        '> read {"path": "a"}',
        "two",
        "> nothing {}",
        "there is no tool 'nothing'; there is bash, read, write, edit",
        "All is done.",
    ]
    assert run.stderr == ""


@pytest.mark.parametrize("api", APIS)
def test_nothing_of_ours_is_in_its_prompt_but_the_workspace(api: str) -> None:
    place = "Your working directory is {}."
    first = play(agent(api, tools=[]), scripted(HELLO), prompt="what is it?", system="Be brief.")
    second = play(agent(api, tools=["read"]), scripted(HELLO), prompt="what is it?")
    for found, system in ((first, f"Be brief.\n\n{place}"), (second, place)):
        (asked,) = found.asked
        told = system.format(found.workspace)
        if api == "openai":
            assert asked["messages"] == [
                {"role": "system", "content": told},
                {"role": "user", "content": "what is it?"},
            ]
        else:
            assert asked["system"] == told
            block = {"type": "text", "text": "what is it?", "cache_control": {"type": "ephemeral"}}
            assert asked["messages"] == [{"role": "user", "content": [block]}]
        assert asked["model"] == "m-1"
    assert "tools" not in first.asked[0]
    assert len(second.asked[0]["tools"]) == 1


def test_results_of_parallel_calls_are_in_one_message_in_order() -> None:
    calls = [("bash", {"command": f"sleep 0.{3 - number}; echo {number}"}) for number in range(3)]
    found = play(agent("anthropic"), scripted(Turn(calls=calls), HELLO))
    last = found.asked[-1]["messages"][-1]
    assert last["role"] == "user"
    assert [(one["type"], one["content"]) for one in last["content"]] == [("tool_result", str(n)) for n in range(3)]


@pytest.mark.parametrize("api", APIS)
def test_the_next_turn_goes_on_with_the_conversation(api: str) -> None:
    first = play(agent(api), scripted(Turn(calls=[("bash", {"command": "echo one"})]), Turn(text="one")))
    second = play(agent(api), scripted(Turn(text="two")), prompt="and now?", turn=2, earlier=(first.run,))
    assert second.run.output == "two"
    assert results_in(second.asked[0], api) == ["one"]
    said = [one["role"] for one in second.asked[0]["messages"] if one["role"] != "system"]
    tool = "tool" if api == "openai" else "user"
    assert said == ["user", "assistant", tool, "assistant", "user"]
    assert "and now?" in json.dumps(second.asked[0]["messages"][-1])


@pytest.mark.parametrize("api", APIS)
def test_max_turns_end_it_like_a_limit(api: str) -> None:
    found = play(agent(api, max_turns=3), scripted(Turn(text="on and on", calls=[("bash", {"command": "true"})])))
    assert found.run.limit == "max_turns: the model answered 3 times, 3 allowed"
    assert (found.run.exit_code, found.run.output, len(found.asked)) == (None, "on and on", 3)


CALL = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "touch made"}}
TEXT = {"type": "text", "text": "so far"}
FUNCTION = {"id": "t1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "touch made"}'}}


@pytest.mark.parametrize(("answer", "code", "said"), [
    (message([TEXT], "refusal"), 1, "the model refused to answer"),
    (message([TEXT, CALL], "refusal"), 1, "the model refused to answer"),
    (message([TEXT], "max_tokens"), 1, "the model's last answer was cut at its limit of tokens"),
    (message([TEXT, CALL], "model_context_window_exceeded"), 1, "the conversation is longer than the model can read"),
    (message([TEXT], "end_turn"), 0, ""),
    (message([TEXT], "stop_sequence"), 0, ""),
    (message([TEXT], "a new reason"), 0, ""),
    (message([TEXT], "tool_use"), 0, ""),
    (completion({"content": "so far"}, "content_filter"), 1, "the model refused to answer"),
    (completion({"content": None, "refusal": "so far"}, "stop"), 1, "the model refused to answer"),
    (completion({"content": "so far"}, "length"), 1, "the model's last answer was cut at its limit of tokens"),
    (completion({"content": "so far"}, "stop"), 0, ""),
    (completion({"content": "so far", "tool_calls": None}, "tool_calls"), 0, ""),
])  # fmt: skip
def test_every_way_that_an_answer_ends(answer: Says, code: int, said: str) -> None:
    api = "openai" if b"choices" in answer.pieces[0] else "anthropic"
    found = play(agent(api), answer)
    assert (found.run.exit_code, found.run.output, found.paths) == (code, "so far", [])
    assert found.run.stderr.strip() == said
    assert said in found.run.problem + found.run.advice


@pytest.mark.parametrize(("cut", "more"), [
    (message([TEXT, CALL], "max_tokens"), message([TEXT], "end_turn")),
    (completion({"content": "", "tool_calls": [FUNCTION]}, "length"), completion({"content": "so far"}, "stop")),
])  # fmt: skip
def test_calls_of_an_answer_that_was_cut_are_not_made(cut: Says, more: Says) -> None:
    api = "openai" if b"choices" in cut.pieces[0] else "anthropic"
    found = play(agent(api), cut, more)
    assert (found.run.exit_code, found.paths) == (0, [])
    (told,) = results_in(found.asked[-1], api)
    assert told.startswith("this call was not made")


def test_an_answer_that_pauses_goes_on() -> None:
    found = play(
        agent("anthropic"), message([TEXT], "pause_turn"), message([{"type": "text", "text": "done"}], "end_turn")
    )
    assert (found.run.exit_code, found.run.output) == (0, "done")
    assert found.asked[-1]["messages"][-1] == {"role": "assistant", "content": [TEXT]}


def test_thoughts_are_sent_back_as_they_came_and_empty_texts_are_not() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    empty = {"type": "text", "text": ""}
    found = play(agent("anthropic"), message([thought, empty, CALL], "tool_use"), message([], "end_turn"))
    assert (found.run.exit_code, found.run.output, found.paths) == (0, "", ["made"])
    assert found.asked[-1]["messages"][1] == {"role": "assistant", "content": [thought, CALL]}


@pytest.mark.parametrize(
    "arguments", ['{"command": "touch ma', "[]", "3", '"touch made"', "[" * 100_000, None, 7, "\ud800"]
)
def test_arguments_that_are_no_object_get_an_error_and_the_loop_goes_on(arguments: Any) -> None:
    broken = {**FUNCTION, "function": {"name": "bash", "arguments": arguments}}
    found = play(
        agent("openai"),
        completion({"tool_calls": [broken, FUNCTION]}, "tool_calls"),
        completion({"content": "ok"}, "stop"),
    )
    assert (found.run.exit_code, found.run.output, found.paths) == (0, "ok", ["made"])
    assert results_in(found.asked[-1], "openai") == ["the arguments are not a JSON object", "(no output)"]
    sent = found.asked[-1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {}


@pytest.mark.parametrize("api", APIS)
def test_half_a_character_comes_to_nothing(api: str) -> None:
    half = Turn(
        text="\ud800 so", calls=[("bash", {"command": "echo \udfff"}), ("bash", {"command": "echo \U0001f600"})]
    )
    found = play(agent(api), scripted(half, HELLO))
    assert (found.run.exit_code, found.run.output) == (0, "hello")
    assert results_in(found.asked[-1], api)[1] == "\U0001f600"


@pytest.mark.parametrize(("api", "answer"), [
    ("anthropic", document({"type": "message", "content": "text"})),
    ("anthropic", document({"type": "message", "content": ["text"]})),
    ("anthropic", document([1, 2])),
    ("anthropic", Says(pieces=[b"<html>log in</html>"], headers=[("content-type", "text/html")])),
    ("openai", document({"choices": []})),
    ("openai", document({"choices": [{"message": "text"}]})),
    ("openai", document("text")),
    ("openai", Says(pieces=[b"<html>log in</html>"], headers=[("content-type", "text/html")])),
    ("openai", Says(pieces=[b"[" * 100_000])),
])  # fmt: skip
def test_an_answer_that_is_no_answer_is_an_agent_that_failed(api: str, answer: Says) -> None:
    found = play(agent(api), scripted(WORKS), answer)
    assert found.run.exit_code == 1
    assert found.run.problem.startswith("the model")
    assert found.run.stdout


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits before it tries again."""
    import anthropic._base_client

    monkeypatch.setattr(loop_models, "_wait", lambda *_: 0.0)
    monkeypatch.setattr(anthropic._base_client, "INITIAL_RETRY_DELAY", 0.0)
    monkeypatch.setattr(anthropic._base_client, "MAX_RETRY_DELAY", 0.0)


def fault(status: int, said: str = "busy", **headers: str) -> Says:
    kept_headers = [("content-type", "application/json"), *headers.items()]
    error = {"type": "error", "error": {"type": "api_error", "message": said}}
    return Says(status, [json.dumps(error).encode()], kept_headers)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "first", [fault(429), fault(500), fault(529), Says(pieces=[b"{"], cut=True), Says(raw=True, pieces=[])]
)
def test_what_may_pass_is_tried_again(api: str, first: Says) -> None:
    found = play(agent(api), first, first, scripted(HELLO))
    assert (found.run.exit_code, found.run.output, len(found.asked)) == (0, "hello", 3)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("answer", "tries", "said"), [
    (fault(529), 5, "the model's provider refused the request (529): busy"),
    (fault(401, "no such key"), 1, "the model's provider refused the request (401): no such key"),
    (fault(400, "bad"), 1, "the model's provider refused the request (400): bad"),
    (fault(400, "prompt is too long: 210000 tokens > 200000 maximum"), 1, "the conversation is longer than"),
    (fault(400, "This model's maximum context length is 8192 tokens."), 1, "the conversation is longer than"),
    (fault(413, "request_too_large"), 1, "the conversation is longer than"),
    (Says(500, [b"<html>"]), 5, "the model's provider refused the request (500)"),
])  # fmt: skip
def test_a_request_that_is_refused_for_good(api: str, answer: Says, tries: int, said: str) -> None:
    found = play(agent(api), scripted(WORKS), answer)
    assert (found.run.exit_code, found.run.output, len(found.asked)) == (1, "I look.", 1 + tries)
    assert found.run.problem.startswith(said)


@pytest.mark.parametrize("api", APIS)
def test_where_no_model_ever_answered_that_is_what_is_said(api: str) -> None:
    found = play(agent(api), fault(404, "no such model"))
    assert found.run.problem == "no model answered: the model's provider refused the request (404): no such model"
    first = play(agent(api), scripted(HELLO))
    later = play(agent(api), fault(404, "no such model"), turn=2, earlier=(first.run,))
    assert later.run.problem == "the model's provider refused the request (404): no such model"


@pytest.mark.parametrize(("asked", "seconds"), [
    ("3", 3.0), ("60", 60.0), ("61", 0.5), ("86400", 0.5), ("-1", 0.5), ("nan", 0.5), ("inf", 0.5),
    ("soon", 0.5), ("", 0.5),
])  # fmt: skip
def test_how_long_a_provider_may_have_us_wait(asked: str, seconds: float) -> None:
    assert loop_models._wait(0, asked) == seconds
    assert loop_models._wait(9) == 8.0


@pytest.mark.parametrize("api", APIS)
def test_its_time_limit_ends_a_model_that_never_answers_and_a_tool_that_never_ends(api: str) -> None:
    async def never(_number: int) -> None:
        await asyncio.sleep(60)

    stalls = play(agent(api, timeout="1s"), Says(before=never))
    assert (stalls.run.timed_out, stalls.run.exit_code) == (True, None)
    endless = scripted(Turn(calls=[("bash", {"command": "touch a; sleep 60; touch b"})]))
    found = play(agent(api, timeout="2s"), endless, lists_processes=True)
    assert (found.run.timed_out, found.paths) == (True, ["a"])
    assert "sleep" in str(found.run.processes)


@pytest.mark.parametrize("api", APIS)
def test_it_is_ended_with_its_budget(api: str) -> None:
    calls = scripted(Turn(calls=[("bash", {"command": "sleep 60"})]))
    found = play(agent(api), calls, stop=lambda behind: bool(behind.asked))
    assert (found.run.timed_out, found.run.exit_code, len(found.asked)) == (False, 1, 1)


@pytest.mark.parametrize("api", APIS)
def test_no_proxy_of_our_environment_is_asked(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "not-for-the-agent")
    with provider(scripted(HELLO)) as behind:
        base = behind.url + ("/v1" if api == "openai" else "")
        found = kept().call(_play(agent(api), behind, ModelAddress(base, KEY), "do it", None, {}))
        headers = dict(behind.asked[0].headers)
    assert found.run.output == "hello"
    assert KEY in headers.get("x-api-key", "") + headers.get("authorization", "")
    assert "not-for-the-agent" not in str(headers)


def test_without_a_provider_of_its_api_it_is_not_run() -> None:
    with pytest.raises(HarnessError, match=r"needs the provider openai; gateway.providers has anthropic"):
        play(agent("openai"), scripted(HELLO), gateways={"anthropic": ModelAddress("http://127.0.0.1:9", KEY)})


def test_the_sdk_is_imported_by_an_agent_that_needs_it() -> None:
    code = "import sys, keystone_action.agents.run, keystone_action.agents.tool_loop; print('anthropic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_long_answer_is_kept_whole_in_a_file(tmp_path: Any) -> None:
    text = "x" * (3 << 20)
    found = play(agent("openai"), scripted(Turn(text=text)), private=tmp_path)
    assert len(found.run.output) < len(text)
    assert found.run.whole_output() == text
    assert len(found.run.whole_stdout()) < 3000
