"""What a recording answers: equal requests by content, the n-th by turn, and what is a miss."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.gateway_world import ANSWER, ASK, STREAM, USAGE
from support.recorded_world import Recorded, Replayed, recorded, replayed
from support.scripted_provider import Says, document, stream

from keystone_action.gateway.recordings import recorder, request_key

TOOLS = [{"name": "Bash", "input_schema": {}}, {"name": "Read", "input_schema": {}}]


def call(ident: str, command: str = "cat /tmp/run-1/workspace/a.txt", name: str = "Bash") -> dict[str, Any]:
    block = {"type": "tool_use", "id": ident, "name": name, "input": {"command": command}}
    return {**ANSWER, "id": f"msg_{ident}", "role": "assistant", "content": [block], "stop_reason": "tool_use"}


def says(text: str) -> dict[str, Any]:
    return {**ANSWER, "content": [{"type": "text", "text": text}]}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def result(ident: str, content: str) -> dict[str, Any]:
    return user([{"type": "tool_result", "tool_use_id": ident, "content": content}])


def ask(world: Recorded | Replayed, *messages: Any, status: int = 200, **more: Any) -> Any:
    body = {"model": ASK["model"], "messages": list(messages), "tools": TOOLS, **more}
    answer = world.world.ask(body=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_conversation_goes_on_with_this_run_s_values() -> None:
    with recorded(document(call("toolu_1")), document(says("done in /tmp/run-1/workspace"))) as one:
        first = ask(one, user("work in /tmp/run-1/workspace"))
        turn = {"role": "assistant", "content": first["content"]}
        ask(one, user("work in /tmp/run-1/workspace"), turn, result("toolu_1", "pid 12, took 3 ms"))
        recording = one.recording()
    assert json.dumps(recording.entries[0].answer).count("{workspace}") == 1
    with replayed(recording) as one:
        first = ask(one, user("work in /home/ci/run-2/ws"))
        block = first["content"][0]
        assert block["input"] == {"command": "cat /home/ci/run-2/ws/a.txt"}
        turn = {"role": "assistant", "content": first["content"]}
        last = ask(one, user("work in /home/ci/run-2/ws"), turn, result(block["id"], "pid 4711, took 9 ms"))
        assert last["content"][0]["text"] == "done in /home/ci/run-2/ws"
        assert (one.replay.answered, one.replay.left_over, one.replay.stale) == (2, 0, ())
        tokens = one.world.ledger.spent.tokens
        assert (tokens.uncached, tokens.output) == (20, 4)
        assert [len(exchange.asked.results) for exchange in one.world.settled()] == [0, 1]


def test_equal_requests_get_their_answers_in_order_and_then_the_last() -> None:
    with recorded(document(says("one")), document(says("two"))) as one:
        assert [ask(one, user("x"))["content"][0]["text"] for _ in range(2)] == ["one", "two"]
        recording = one.recording()
    with replayed(recording) as one:
        assert [ask(one, user("x"))["content"][0]["text"] for _ in range(3)] == ["one", "two", "two"]
        assert one.replay.left_over == 0


def test_a_miss_is_told_to_agent_and_run_and_ends_the_agent() -> None:
    with recorded(document(says("one"))) as one:
        ask(one, user("count the files"))
        recording = one.recording()
    with replayed(recording) as one:
        refused = ask(one, user("count all files"), status=400)
        assert "record anew with --gateway record" in refused["error"]["message"]
        assert one.replay.miss.startswith(
            "no recording for request 1 of spec.r0.jsonl: nearest differs at messages[0].content"
        )
        assert "count all files" in one.replay.miss
        assert one.world.spent == [True]
        assert (one.replay.answered, one.replay.left_over) == (0, 1)
        # A miss is nobody's failure to answer, and costs nothing.
        assert one.world.ledger.provider_failure() == ""
        assert one.world.ledger.spent.all_tokens == 0


def test_an_empty_recording_says_so() -> None:
    with recorded() as one:
        recording = one.recording()
    with replayed(recording) as one:
        ask(one, user("x"), status=400)
        assert "the recording holds no request" in one.replay.miss


def test_by_turn_another_prompt_gets_the_same_answers() -> None:
    with recorded(document(call("toolu_1")), document(says("done"))) as one:
        first = ask(one, user("a"))
        ask(one, user("a"), {"role": "assistant", "content": first["content"]}, result("toolu_1", "x"))
        recording = one.recording()
    with replayed(recording, "turn") as one:
        first = ask(one, user("b"), system="another")
        block = first["content"][0]
        turn = {"role": "assistant", "content": first["content"]}
        assert ask(one, user("b"), turn, result(block["id"], "y"), system="another")["content"][0]["text"] == "done"
        assert one.replay.stale[0].startswith("request 1 differs (turn): ")
        third = ask(one, user("b"), turn, result(block["id"], "y"), user("more"), system="another", status=400)
        assert "the recorded conversation has 2 answers and no further one" in third["error"]["message"]


def test_by_turn_a_call_of_a_tool_no_longer_offered_is_a_miss() -> None:
    with recorded(document(call("toolu_1"))) as one:
        ask(one, user("a"))
        recording = one.recording()
    with replayed(recording, "turn") as one:
        ask(one, user("a"), tools=TOOLS[1:], status=400)
        assert "it no longer offers the tool Bash, which the recorded answer calls" in one.replay.miss
    with replayed(recording, "turn") as one:
        ask(one, user("a"), tools=TOOLS[:1])
        assert one.replay.miss == ""
        assert "tools" in one.replay.stale[0]


def test_by_turn_conversations_that_begin_in_another_order_keep_their_answers() -> None:
    with recorded(document(says("of a")), document(says("of b"))) as one:
        ask(one, user("a"))
        ask(one, user("b"))
        recording = one.recording()
    with replayed(recording, "turn") as one:
        assert ask(one, user("b"))["content"][0]["text"] == "of b"
        assert ask(one, user("a"))["content"][0]["text"] == "of a"
        assert one.replay.stale == ()


def test_by_turn_a_title_asked_for_without_tools_is_not_the_conversation() -> None:
    with recorded(document(says("a title")), document(says("the work"))) as one:
        ask(one, user("a"), tools=[])
        ask(one, user("a"))
        recording = one.recording()
    with replayed(recording, "turn") as one:
        assert ask(one, user("changed"))["content"][0]["text"] == "the work"
        assert ask(one, user("changed"), tools=[])["content"][0]["text"] == "a title"


def test_what_is_ignored_is_equal_and_stale() -> None:
    ignore = ("build [0-9]+",)
    with recorded(document(says("one")), ignore=ignore) as one:
        ask(one, user("build 1"))
        recording = one.recording()
    with replayed(recording, ignore=ignore) as one:
        ask(one, user("build 1"))
        assert one.replay.stale == ()
        ask(one, user("build 2"))
        assert one.replay.stale[0].startswith("request 2 differs (ignore): messages[0].content")
    with replayed(recording) as one:
        ask(one, user("build 2"), status=400)


def test_a_refusal_of_the_provider_is_replayed_with_its_status() -> None:
    refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}
    with recorded(document(refusal, 400), document(says("shorter"))) as one:
        ask(one, user("long"), status=400)
        ask(one, user("short"))
        recording = one.recording()
    with replayed(recording) as one:
        assert ask(one, user("long"), status=400) == refusal
        assert ask(one, user("short"))["content"][0]["text"] == "shorter"
        assert one.replay.miss == ""


@pytest.mark.parametrize("failing", [document({"error": {}}, 529), Says(500), Says(cut=True), document({}, 429)])
def test_a_failure_of_the_provider_is_not_recorded_and_its_retry_is(failing: Says) -> None:
    with recorded(failing, document(says("done"))) as one:
        body = {"model": "m", "messages": [user("x")]}
        if failing.cut:
            with pytest.raises(httpx.RemoteProtocolError):
                one.world.ask(body=body)
        else:
            assert one.world.ask(body=body).status_code == failing.status
        one.world.ask(body={"model": "m", "messages": [user("x")]})
        recording = one.recording()
    assert [entry.answer["content"][0]["text"] for entry in recording.entries] == ["done"]
    with replayed(recording) as one:
        assert one.world.ask(body={"model": "m", "messages": [user("x")]}).json()["content"][0]["text"] == "done"


def test_a_stream_is_recorded_once_and_replayed_as_what_is_asked_for() -> None:
    with recorded(stream(*STREAM)) as one:
        assert "text_delta" in one.world.ask(body={**ASK, "stream": True}).text
        recording = one.recording()
    with replayed(recording) as one:
        streamed = one.world.ask(body={**ASK, "stream": True})
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.text.count('"text_delta"') == 1
        assert one.world.ask(body=ASK).json()["content"] == [{"type": "text", "text": "done"}]


def test_usage_in_a_stream_of_chat_comes_only_when_asked_for() -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}
    text = {**chunk, "choices": [{"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}]}
    body = {"model": "gpt-5", "messages": [user("x")], "stream": True}
    with recorded(stream(text, {**chunk, **USAGE})) as one:
        assert '"usage"' not in one.world.ask("/openai/v1/chat/completions", body).text
        recording = one.recording()
    usage = recording.entries[0].usage
    assert (usage["uncached"], usage["output"]) == (10, 2)
    with replayed(recording) as one:
        assert '"usage"' not in one.world.ask("/openai/v1/chat/completions", body).text.replace('"usage": null', "")
        asked = {**body, "stream_options": {"include_usage": True}}
        assert '"prompt_tokens"' in one.world.ask("/openai/v1/chat/completions", asked).text
        assert one.world.ledger.spent.all_tokens == 24


def test_counts_of_tokens_and_lists_of_models_are_estimates_and_marked() -> None:
    with recorded(document(says("x"))) as one:
        ask(one, user("a"))
        recording = one.recording()
    with replayed(recording) as one:
        counted = one.world.ask("/anthropic/v1/messages/count_tokens", {"model": "m", "messages": [user("a" * 400)]})
        assert counted.headers["x-keystone-estimated"] == "true"
        assert 100 <= counted.json()["input_tokens"] <= 150
        models = one.world.ask("/anthropic/v1/models", method="GET")
        assert ASK["model"] in models.text
        assert models.headers["x-keystone-estimated"] == "true"
        model = one.world.ask("/anthropic/v1/models/some-model", method="GET")
        assert (model.json()["type"], model.json()["id"]) == ("model", "some-model")
        assert one.replay.estimates == 3
        assert one.world.ledger.spent.all_tokens == 0


def test_many_at_once_each_get_their_own_answer() -> None:
    answers = [document(says(f"answer {number}")) for number in range(20)]
    with recorded(*answers) as one:
        texts = [ask(one, user(f"question {number}"))["content"][0]["text"] for number in range(20)]
        recording = one.recording()
    for match in ("content", "turn"):
        with replayed(recording, match) as one, ThreadPoolExecutor(20) as pool:  # type: ignore[arg-type]
            asked = [pool.submit(ask, one, user(f"question {number}")) for number in reversed(range(20))]
            found = [future.result()["content"][0]["text"] for future in reversed(asked)]
            assert found == texts
            assert (one.replay.left_over, one.replay.stale) == (0, ())


def test_a_request_that_repeats_its_conversation_is_kept_by_what_is_new() -> None:
    answers = [document(call(f"toolu_{number}")) for number in range(30)]
    messages: list[Any] = [user("begin " + "x" * 5000)]
    with recorded(*answers) as one:
        for number in range(30):
            answer = ask(one, *messages)
            messages += [{"role": "assistant", "content": answer["content"]}, result(f"toolu_{number}", "y" * 5000)]
        entries = one.recording().entries
    shared = {id(message) for entry in entries for message in entry.request["messages"]}
    assert len(shared) == 1 + 2 * 29
    assert [entry.turn for entry in entries] == list(range(30))
    assert {entry.conversation for entry in entries} == {0}


def test_a_request_that_can_not_be_recorded_is_the_run_s_problem() -> None:
    nested: Any = "x"
    for _ in range(300):
        nested = [nested]
    with recorded(document(says("x"))) as one:
        refused = one.world.ask(body={"model": "m", "messages": [user([{"type": "text", "text": nested}])]})
        assert refused.status_code == 400
        assert "more than 200 lists and objects" in one.recorder.problem
        assert one.world.spent == [True]


def test_an_answer_that_can_not_be_recorded_is_the_run_s_problem() -> None:
    nested: Any = "x"
    for _ in range(300):
        nested = {"a": nested}
    answer = call("toolu_1")
    answer["content"][0]["input"] = nested
    with recorded(document(answer)) as one:
        assert ask(one, user("x")) == answer
        assert one.recorder.entries == ()
        assert "request 1: a request or an answer has more than 200 lists and objects" in one.recorder.problem


def test_after_a_problem_no_provider_is_asked_and_paid_any_more() -> None:
    with recorded(Says(400, (b"not JSON",)), document(says("x"))) as one:
        one.world.ask(body={"model": ASK["model"], "messages": [user("a")]})
        assert "there is nothing to replay" in one.recorder.problem
        refused = ask(one, user("b"), status=400)
        assert "this cell can't be recorded any more" in refused["error"]["message"]
        assert len(one.world.behind.asked) == 1
        assert one.world.spent == [True]


@pytest.mark.slow
def test_what_requests_hold_in_our_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert request_key.KEPT_LIMIT == 128 << 20
    monkeypatch.setattr(request_key, "KEPT_LIMIT", 10_000)
    with recorded(*(document(says("x")) for _ in range(20))) as one:
        for _ in range(15):  # what is said again counts once
            ask(one, user("x" * 5_000))
        refused = ask(one, user("y" * 5_000), status=400)
        assert "can't be recorded" in refused["error"]["message"]
        assert one.recorder.problem == "the requests of a cell hold more than 0 MiB in all"
        assert len(one.world.behind.asked) == 15
    with recorded(*(document(says("x")) for _ in range(9))) as one:
        for number in range(4):
            fields = {f"{number}-{place:0>100}": 1 for place in range(20)}
            ask(one, user("x"), **fields)
        ask(one, user("x"), **{"z" * 5_000: 1}, status=400)


def test_what_could_not_be_read_again_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LINES_LIMIT", 3)
    with recorded(*(document(says("x")) for _ in range(5))) as one:
        for number in range(3):
            ask(one, user(f"{number}"))
        assert one.recorder.problem == ""
        ask(one, user("3"))
        assert one.recorder.problem == "there are more requests than a recording may hold (3)"
    monkeypatch.setattr(recorder, "LINES_LIMIT", 30)
    monkeypatch.setattr(recorder, "MESSAGES_LIMIT", 40)
    with recorded(*(document(says("x")) for _ in range(5))) as one:
        ask(one, *[user("x")] * 30)
        assert one.recorder.problem == ""
        ask(one, *[user("x")] * 30)
        assert "more than a recording may hold (40 messages in all)" in one.recorder.problem
