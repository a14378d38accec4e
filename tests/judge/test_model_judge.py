"""The judge with the real SDK and a real HTTP client, against a scripted server."""

from __future__ import annotations

import importlib
import json
import socket

import anyio
import pytest
from support.judging import BOTH, ask
from support.model_server import KEY, ModelServer, Received, Reply, answer, error, says

from keystone_action.judge.judgement import JudgeFailed, JudgeRequest, JudgeUnavailable
from keystone_action.judge.jury import ModelJudge


@BOTH
def test_a_score(model: str) -> None:
    with ModelServer([answer(0.75, "mostly")]) as server:
        judgement = ask(server, models=(model,), task="Do it", temperature=0.3)
    assert (judgement.score, judgement.reason) == (0.75, "mostly")
    assert judgement.opinions[0].model == model.removeprefix("openai:")
    assert (judgement.usage.input_tokens, judgement.usage.output_tokens) == (100, 20)
    assert (judgement.usage.requests, judgement.usage.cached) == (1, 0)
    (request,) = server.requests
    assert request.body["temperature"] == 0.3
    assert "a haiku of mine" in request.prompt
    assert "a haiku of mine" not in request.system
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in json.dumps(request.body)


def test_structured_output_is_asked_for() -> None:
    with ModelServer([answer(1)]) as server:
        ask(server, models=("claude-sonnet-4-6", "openai:m"))
    by_path = {request.path: request.body for request in server.requests}
    schema = by_path["/v1/messages"]["output_config"]["format"]
    assert schema["type"] == "json_schema"
    assert schema["schema"]["required"] == ["reason", "score", "passed"]
    # A forced tool call, the older way, is refused by models that always think.
    assert "tools" not in by_path["/v1/messages"]
    response_format = by_path["/v1/chat/completions"]["response_format"]
    assert response_format["json_schema"]["strict"] is True
    assert response_format["json_schema"]["schema"] == schema["schema"]


def test_a_thinking_model_is_read_by_its_text_alone() -> None:
    thought = json.dumps({"score": 1.0, "reason": "the thoughts"})
    with ModelServer([Reply('{"score": 0.2, "reason": "the answer"}', thinking=thought)]) as server:
        assert ask(server).score == 0.2


@BOTH
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (says('{"score": 0.9, "pas'), "not JSON"),
        (answer(1.5), "found 1.5"),
        (answer(-1), "found -1"),
        (says('{"score": NaN, "passed": true, "reason": ""}'), "found NaN"),
        (answer("0.9"), "found the text '0.9'"),
        (answer(True), "found true"),
        (says("I would give it 8 out of 10."), "not JSON"),
    ],
)
def test_an_unusable_answer_is_told_and_asked_again(model: str, bad: Reply, told: str) -> None:
    with ModelServer([bad, answer(0.4, "second")]) as server:
        judgement = ask(server, models=(model,))
    assert (judgement.score, judgement.reason) == (0.4, "second")
    assert judgement.usage.requests == 2  # both were paid for
    first, second = server.requests
    assert second.prompt == first.prompt
    said = [turn for turn in second.body["messages"] if turn["role"] != "system"]
    assert [turn["role"] for turn in said] == ["user", "assistant", "user"]
    assert said[1]["content"] == bad.text
    assert told in said[2]["content"]


@BOTH
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (answer(5), "found 5"),
        (says(""), "an empty answer"),
        (Reply("", stop="refusal"), "refused to answer"),
        (Reply('{"score": 0.9, "reason": "it is a', stop="max_tokens"), "cut off"),
        # A truncated answer is not an answer, even if what came happens to be readable.
        (Reply('{"score": 0.9}', stop="max_tokens"), "cut off"),
    ],
)
def test_three_unusable_answers_are_a_failure(model: str, bad: Reply, said: str) -> None:
    with ModelServer([bad]) as server, pytest.raises(JudgeFailed) as problem:
        ask(server, models=(model,))
    assert said in str(problem.value)
    assert "3 attempts" in str(problem.value)
    assert len(server.requests) == 3
    assert problem.value.usage.input_tokens == 300


@BOTH
def test_passed_is_not_believed(model: str) -> None:
    with ModelServer([says('{"score": 0.1, "passed": "false", "reason": "r"}')]) as server:
        assert ask(server, models=(model,)).score == 0.1
    assert len(server.requests) == 1


@BOTH
@pytest.mark.parametrize(
    "trouble",
    [
        error(429, kind="rate_limit_error", retry_after="0.01"),
        error(429, kind="rate_limit_error", retry_after="Thu, 01 Jan 1970 00:00:00 GMT"),
        error(429, retry_after="soon"),
        error(529, kind="overloaded_error"),
        error(500),
        error(503, retry_after_ms="1"),
        Reply(fault="reset"),
        Reply(body="<html>Bad gateway</html>", content_type="text/html"),
        Reply(body='{"content": "no list"}'),
        Reply(body="[" * 50_000),
        Reply(body="null"),
    ],
)
def test_trouble_that_passes(model: str, trouble: Reply) -> None:
    with ModelServer([trouble, trouble, answer(0.6)]) as server:
        judgement = ask(server, models=(model,))
    assert judgement.score == 0.6
    assert len(server.requests) == 3
    assert judgement.usage.requests == 1


@BOTH
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (error(529, "so busy"), "is overloaded (529): so busy"),
        (error(429, "slow down"), "limiting our rate (429): slow down"),
        (Reply(fault="reset"), "can't be reached"),
        (Reply(body="<html>", content_type="text/html"), "answered text/html that is not JSON"),
        (Reply(status=502, body="<html>", content_type="text/html"), "could not answer (502)"),
    ],
)
def test_trouble_that_stays(model: str, trouble: Reply, said: str) -> None:
    with ModelServer([trouble]) as server, pytest.raises(JudgeFailed) as problem:
        ask(server, models=(model,))
    assert said in str(problem.value)
    assert "(tried 5 times)" in str(problem.value)
    assert len(server.requests) == 5


@BOTH
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "_API_KEY (401)"),
        (403, "check the key"),
        (404, "has no model"),
        (413, "prompt too large"),
        (400, "refused the request (400): scripted"),
    ],
)
def test_what_asking_again_would_not_mend(model: str, status: int, said: str) -> None:
    with ModelServer([error(status)]) as server, pytest.raises(JudgeFailed) as problem:
        ask(server, models=(model,))
    assert said in str(problem.value)
    assert len(server.requests) == 1


@BOTH
def test_a_wait_beyond_the_timeout_is_not_waited(model: str) -> None:
    with ModelServer([error(429, retry_after="86400")]) as server, pytest.raises(JudgeFailed) as problem:
        ask(server, models=(model,), timeout=30)
    assert "asks us to wait 86400 s" in str(problem.value)
    assert len(server.requests) == 1


@BOTH
def test_a_wait_of_our_own_is_not_called_the_servers(model: str) -> None:
    with ModelServer([error(529)]) as server, pytest.raises(JudgeFailed) as problem:
        ask(server, models=(model,), timeout=10, backoff=1000)
    assert "asks us to wait" not in str(problem.value)
    assert "before another try we would wait 20 s" in str(problem.value)


@pytest.mark.waits
@BOTH
def test_no_answer_in_time(model: str) -> None:
    importlib.import_module("anthropic")  # whose first import may take as long as the judge has here
    with ModelServer([answer(2), Reply(fault="hang")]) as server, pytest.raises(JudgeFailed) as problem:
        ask(server, models=(model,), timeout=4)
    assert str(problem.value).startswith("the judge gave no answer within 4 s; the last: expected score")
    assert problem.value.usage.requests == 1


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    judge = ModelJudge({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}, backoff=0.001)
    with pytest.raises(JudgeFailed, match=r"127\.0\.0\.1 can't be reached"):
        anyio.run(judge.judge, JudgeRequest(criteria="c", judged="j"))


@BOTH
def test_a_temperature_that_is_refused_is_left_out(model: str) -> None:
    def reply(received: Received) -> Reply:
        refused = "temperature" in received.body
        return error(400, "`temperature` is deprecated for this model.") if refused else answer(0.5)

    notes: list[str] = []
    with ModelServer(reply) as server:
        judgement = ask(server, models=(model,), samples=3, notes=notes)
    assert [opinion.score for opinion in judgement.opinions] == [0.5] * 3
    assert "temperature" not in server.requests[-1].body
    assert notes == [f"{model.removeprefix('openai:')} takes no temperature (0 was asked); it is left out"]


def test_a_model_known_to_take_no_temperature_is_sent_none() -> None:
    notes: list[str] = []
    with ModelServer([answer(0.5)]) as server:
        ask(server, models=("claude-opus-5-5",), samples=2, notes=notes)
    assert [("temperature" in request.body) for request in server.requests] == [False, False]
    assert len(notes) == 1
    assert "claude-opus-5-5 takes no temperature" in notes[0]


def test_structured_output_that_is_refused_is_asked_for_in_a_weaker_form() -> None:
    def reply(received: Received) -> Reply:
        kind = received.body.get("response_format", {}).get("type")
        return error(400, f"response_format {kind} is not supported") if kind else answer(0.5)

    with ModelServer(reply) as server:
        ask(server, models=("openai:old",))
    kinds = [request.body.get("response_format", {}).get("type") for request in server.requests]
    assert kinds == ["json_schema", "json_object", None]

    def messages(received: Received) -> Reply:
        refused = "output_config" in received.body
        return error(400, "output_config: Extra inputs are not permitted") if refused else answer(0.5)

    with ModelServer(messages) as server:
        ask(server, models=("claude-sonnet-4-6",))
    assert [("output_config" in request.body) for request in server.requests] == [True, False]


def test_a_400_that_always_names_the_temperature_ends() -> None:
    with ModelServer([error(400, "temperature")]) as server, pytest.raises(JudgeFailed, match=r"\(400\): temperature"):
        ask(server, models=("claude-sonnet-4-6",))
    assert len(server.requests) == 2


@pytest.mark.parametrize("key", [None, "", " \n"])
def test_no_key_is_unavailable(key: str | None) -> None:
    environ = {} if key is None else {"ANTHROPIC_API_KEY": key}
    with pytest.raises(JudgeUnavailable, match="needs ANTHROPIC_API_KEY, which is not set; set it"):
        anyio.run(ModelJudge(environ).judge, JudgeRequest(criteria="c", judged="j"))


def test_keys_of_the_process_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-process")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-of-the-process")
    with pytest.raises(JudgeUnavailable):
        anyio.run(ModelJudge({}).judge, JudgeRequest(criteria="c", judged="j"))
    with ModelServer([answer(1)]) as server:
        ask(server)
    assert "of-the-process" not in json.dumps(dict(server.requests[0].headers))


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ANTHROPIC_API_KEY", "sk with spaces", "ANTHROPIC_API_KEY holds characters that no key has"),
        ("ANTHROPIC_API_KEY", "schlüssel", "ANTHROPIC_API_KEY holds characters that no key has"),
        ("ANTHROPIC_BASE_URL", "localhost:80", "ANTHROPIC_BASE_URL is not an address"),
        ("ANTHROPIC_BASE_URL", "https://user:pass@host", "ANTHROPIC_BASE_URL is not an address"),
    ],
)
def test_settings_that_can_not_work(variable: str, value: str, said: str) -> None:
    judge = ModelJudge({"ANTHROPIC_API_KEY": KEY, variable: value})
    with pytest.raises(JudgeFailed) as problem:
        anyio.run(judge.judge, JudgeRequest(criteria="c", judged="j"))
    assert said in str(problem.value)
    assert value not in str(problem.value)


def test_a_key_with_a_line_end_still_works() -> None:
    with ModelServer([answer(1)]) as server:
        assert ask(server, environ={"ANTHROPIC_API_KEY": f"{KEY}\n"}).score == 1
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@BOTH
def test_an_error_never_shows_the_key(model: str) -> None:
    with ModelServer([error(401, f"invalid x-api-key {KEY}")]) as server, pytest.raises(JudgeFailed) as problem:
        ask(server, models=(model,))
    assert "invalid x-api-key ***" in str(problem.value)
    with ModelServer([answer(0.5, f"your key is {KEY}")]) as server:
        assert KEY not in ask(server, models=(model,)).reason
