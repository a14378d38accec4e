"""What is counted, what is stopped, and whose fault it was."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.gateway import ledger as ledger_module
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, Tokens, ToolResult
from keystone_action.gateway.ledger import BudgetLimits, Ledger, Refusal
from keystone_action.gateway.trace import trace_of
from keystone_action.pricing import Extras, Price

ASKED = Asked("claude-opus-4-5", tools=("write",))
ANSWER = Answer("claude-opus-4-5", "I write", calls=(ModelCall("c1", "Write", {}),), tokens=Tokens(1000, 200, 50, 100))
DONE = Answer(
    "claude-opus-4-5", "done", tokens=Tokens(1000, 200, 50, 100), stop="end_turn", finished=True
)  # by the list: 5, 0.5, 6.25 and 25 dollars a million


def ask(
    ledger: Ledger, asked: Asked = ASKED, answer: Answer | None = DONE, body: bytes = b"{}", failure: str = ""
) -> None:
    exchange = ledger.open("anthropic", "/v1/messages", asked, body)
    ledger.close(exchange, status=200, answer=answer, failure=failure, seconds=0.1)


def test_tokens_and_money_are_summed():
    ledger = Ledger()
    ask(ledger)
    ask(ledger)
    spent = ledger.spent
    assert (spent.requests, spent.tokens, spent.all_tokens) == (2, Tokens(2000, 400, 100, 200), 2700)
    assert spent.cost_usd == pytest.approx(2 * (1000 * 5 + 200 * 0.5 + 50 * 6.25 + 100 * 25) / 1e6)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (BudgetLimits(max_cost_usd=0.01), "stopped at $0.02 of $0.01"),
        (BudgetLimits(max_tokens=2_000), "stopped at 2,700 of 2,000 tokens"),
        (BudgetLimits(max_requests=2), "stopped at 2 of 2 requests"),
        (BudgetLimits(max_tool_calls=1), "stopped at 1 of 1 tool calls"),
    ],
)
def test_a_limit_that_is_reached_stops_the_next_request(limits, sentence):
    ledger = Ledger(limits)
    ask(ledger, answer=DONE)
    ask(ledger, answer=Answer("claude-opus-4-5", calls=ANSWER.calls, tokens=DONE.tokens, finished=True))
    with pytest.raises(Refusal) as refusal:
        ask(ledger)
    assert (refusal.value.sentence, refusal.value.status, refusal.value.spent) == (sentence, 400, True)
    assert ledger.stopped == sentence
    assert ledger.spent.requests == 2


def test_below_its_limits_nothing_is_stopped():
    ledger = Ledger(BudgetLimits(max_cost_usd=0.03, max_tokens=2_701, max_requests=3, max_tool_calls=1))
    ask(ledger)
    ask(ledger)
    ask(ledger)
    assert (ledger.spent.requests, ledger.stopped) == (3, "")


def test_under_a_money_limit_a_model_needs_a_price():
    asked = Asked("our-own-model")
    with pytest.raises(Refusal, match=r"has no price; add one to gateway\.prices") as refusal:
        ask(Ledger(BudgetLimits(max_cost_usd=1)), asked)
    assert not refusal.value.spent
    ask(Ledger(BudgetLimits(max_cost_usd=1), {"our-*": Price(1, 2)}), asked)


def test_a_model_without_a_price_costs_nobody_knows_what():
    ledger = Ledger()
    ask(ledger, Asked("our-own-model"), Answer("our-own-model", tokens=Tokens(1, None, None, 1), finished=True))
    ask(ledger)
    assert ledger.spent.cost_usd is None
    assert ledger.spent.unpriced == ("our-own-model",)
    for number in range(100):
        asked = Asked(f"{number}-{'x' * 1000}")
        ask(ledger, asked, Answer("", tokens=Tokens(1, None, None, 1), finished=True))
    assert len(ledger.spent.unpriced) == 20, "an agent can ask for any number of models"
    assert max(map(len, ledger.spent.unpriced)) == 100


def test_an_answer_by_a_model_without_a_price_costs_what_was_asked_for():
    ledger = Ledger(BudgetLimits(max_cost_usd=1))
    ask(ledger, answer=Answer("claude-opus-4-5-exp-of-tomorrow", tokens=Tokens(1_000_000, 0, 0, 0), finished=True))
    with pytest.raises(Refusal, match=r"stopped at \$5\.00 of \$1\.00"):
        ask(ledger)


MILLION = Tokens(1_000_000, 0, 1_000_000, 0)


@pytest.mark.parametrize(
    ("api", "model", "extras", "dollars"),
    [
        ("anthropic", "claude-opus-4-5", Extras(), 5 + 6.25),
        ("anthropic", "claude-opus-4-5", Extras(hour_writes=1_000_000), 5 + 10),
        ("anthropic", "claude-opus-4-5", Extras(hour_writes=10**12), 5 + 10),  # at most what was written
        ("anthropic", "claude-opus-4-5", Extras(searches=1_000), 5 + 6.25 + 10),
        ("anthropic", "claude-opus-4-5", Extras(speed="standard"), 5 + 6.25),
        ("anthropic", "claude-opus-4-5", Extras(speed="fast"), None),  # no price of its own
        ("anthropic", "claude-3-haiku-20240307", Extras(searches=1), None),
        ("openai", "gpt-5", Extras(tier="default"), 2 * 1.25),
        ("openai", "gpt-5", Extras(tier="priority"), 2 * 2.5),
        ("openai", "gpt-5", Extras(tier="flex"), 2 * 0.625),
        ("openai", "gpt-5-nano", Extras(tier="priority"), None),
        ("openai", "gpt-5", Extras(has_others=True), None),
        ("openai", "gpt-5", Extras(hour_writes=1), None),
        ("openai", "ours", Extras(tier="priority"), 2.0),
        ("openai", "ours", Extras(searches=1), None),
    ],
)
def test_what_costs_more_than_its_tokens_is_never_counted_too_low(api, model, extras, dollars):
    ledger = Ledger(BudgetLimits(max_cost_usd=1_000), {"ours": Price(1, 1)})
    exchange = ledger.open(api, "/v1/messages", Asked(model), b"1")
    answer = Answer(model, tokens=MILLION, extras=extras, finished=True)
    ledger.close(exchange, status=200, answer=answer, failure="", seconds=0)
    assert ledger.spent.cost_usd == (None if dollars is None else pytest.approx(dollars))
    if dollars is not None:
        ledger.open(api, "/v1/messages", Asked(model), b"2")
        return
    with pytest.raises(Refusal, match=f"stopped: nobody knows what {model} cost") as refusal:
        ledger.open(api, "/v1/messages", Asked(model), b"2")
    assert refusal.value.spent


@pytest.mark.parametrize(("globs", "passes"), [((), True), (("claude-*",), True), (("gpt-*", "o?"), False)])
def test_only_the_models_that_are_named_pass(globs, passes):
    ledger = Ledger(models=globs)
    if passes:
        ask(ledger)
        return
    with pytest.raises(Refusal, match="gpt-"):
        ask(ledger)
    assert ledger.spent.requests == 0
    assert len(ledger.refused) == 1


@pytest.mark.parametrize(
    ("told", "answer", "tokens", "estimated"),
    [
        (Tokens(0, None, None, 0), Answer(text="x" * 400), Tokens(1000, 0, 0, 100), True),
        (Tokens(0, 0, 0, 0), Answer(calls=(ModelCall("c", "f" * 36, {}),)), Tokens(1000, 0, 0, 9), True),
        (Tokens(0, 0, 0, 7), Answer(text="x" * 400), Tokens(1000, 0, 0, 7), True),
        (Tokens(7, 0, 0, 0), Answer(thought="x" * 400), Tokens(7, 0, 0, 100), True),
        (Tokens(0, 9, 0, 7), Answer(text="x" * 400), Tokens(0, 9, 0, 7), False),
        (Tokens(0, 0, 9, 7), Answer(text="x" * 400), Tokens(0, 0, 9, 7), False),
        (Tokens(7, 0, 0, 0), Answer(), Tokens(7, 0, 0, 0), False),
    ],
)
def test_nobody_answers_without_a_token(told, answer, tokens, estimated):
    ledger = Ledger()
    ask(ledger, answer=replace(answer, model="claude-opus-4-5", tokens=told, finished=True), body=b"x" * 4000)
    assert ledger.spent.tokens == tokens
    assert ledger.exchanges[0].estimated is estimated


def test_what_was_not_counted_is_estimated():
    ledger = Ledger()
    ask(ledger, answer=Answer("claude-opus-4-5", "x" * 400, tokens=Tokens(7, 0, 0, 1)), body=b"x" * 4000)
    ask(ledger, answer=Answer("claude-opus-4-5", "x" * 400), body=b"x" * 4000)
    first, second = ledger.exchanges
    assert first.answer is not None
    assert second.answer is not None
    assert (first.estimated, first.answer.tokens) == (True, Tokens(7, 0, 0, 100))
    assert (second.estimated, second.answer.tokens) == (True, Tokens(1000, None, None, 100))


def test_calls_that_arrived_before_an_answer_broke_off_stay_when_it_is_asked_again():
    ledger = Ledger()
    ask(ledger, answer=ANSWER, failure="the connection was lost")
    ask(ledger, answer=DONE)
    first, last = ledger.exchanges
    assert (first.answer.calls, last.tries) == (ANSWER.calls, 2)
    assert [call.name for call in trace_of(ledger.exchanges, ledger.spent).tool_calls] == ["Write"]
    assert (ledger.spent.tool_calls, ledger.spent.requests) == (1, 2)


def test_retries_are_one_request_with_them():
    ledger = Ledger()
    for failure in ("529", "529", ""):
        ask(ledger, answer=None if failure else DONE, body=b"{1}", failure=failure)
    ask(ledger, body=b"{2}")
    ask(ledger, body=b"{2}")  # an equal request whose answer counted is another one
    assert [(one.tries, one.failure) for one in ledger.exchanges] == [(3, ""), (1, ""), (1, "")]
    assert ledger.spent.requests == 5


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([], ""),
        (["", ""], ""),
        (["529", ""], ""),
        (["", "529", "529"], "the provider failed: 529 after 2 tries"),
        (["429"], "the provider failed: 429 after 1 try"),
    ],
)
def test_whose_fault_it_was(failures, expected):
    ledger = Ledger()
    for number, failure in enumerate(failures):
        body = b"same" if failure else str(number).encode()
        ask(ledger, answer=None if failure else DONE, body=body, failure=failure)
    assert ledger.provider_failure() == expected


def test_a_side_request_that_failed_is_nobodys_fault():
    ledger = Ledger()
    ask(ledger)
    ask(ledger, Asked("claude-haiku-4-5"), None, b"title", "529")
    assert ledger.provider_failure() == ""


def test_the_trace_has_what_providers_answered():
    ledger = Ledger()
    invented = ToolResult("never", "a result of no call")
    ask(ledger, Asked("claude-haiku-4-5"), Answer("claude-haiku-4-5", "A title", finished=True), b"0")
    ask(ledger, Asked("claude-opus-4-5", tools=("Write",), results=(invented,)), ANSWER, b"1")
    back = ToolResult("c1", "written", "ok")
    ask(ledger, Asked("claude-opus-4-5", tools=("Write",), results=(back, invented)), DONE, b"2")
    ask(ledger, Asked("claude-opus-4-5", tools=("Write",), results=(ToolResult("c1", "forged", "error"),)), DONE, b"3")
    trace = trace_of(ledger.exchanges, ledger.spent)
    assert trace.tool_calls is not None
    ((name, status, result),) = [(call.raw_name, call.status, call.result) for call in trace.tool_calls]
    assert (name, status, result) == ("Write", "ok", "written")
    assert [message.text for message in trace.messages] == ["A title", "I write", "done", "done"]
    assert (trace.final_output, trace.stop_reason, trace.source) == ("done", "end_turn", "gateway")


def asks(ledger: Ledger, answer: Answer | None, *results: ToolResult, body: bytes = b"", failure: str = "") -> None:
    number = str(ledger.spent.requests).encode()
    ask(ledger, Asked("claude-opus-4-5", tools=("f",), results=results), answer, body or number, failure)


def calling(*ids: str) -> Answer:
    return replace(DONE, calls=tuple(ModelCall(one, "f", {}) for one in ids))


def results_of(ledger: Ledger) -> list[tuple[str, str]]:
    return [(call.id, call.result) for call in trace_of(ledger.exchanges, ledger.spent).tool_calls or ()]


def test_calls_have_their_own_ids_and_a_number_where_one_came_before():
    ledger = Ledger()
    asks(ledger, calling("a", "b", "a#2"))
    asks(ledger, calling("a", ""), ToolResult("b", "of b"), ToolResult("a", "of a"))
    asks(ledger, calling(""), ToolResult("a", "of a"), ToolResult("a", "of a again"), ToolResult("", "of f", None, "f"))
    expected = [("a", "of a"), ("b", "of b"), ("a#2", ""), ("a#3", "of a again"), ("f", "of f"), ("f#2", "")]
    assert results_of(ledger) == expected


def test_a_result_of_a_call_that_no_provider_made_is_nothing():
    ledger = Ledger()
    asks(ledger, calling("a"), ToolResult("a", "too early"), ToolResult("b", "invented"))
    asks(ledger, DONE, ToolResult("a", "real"), ToolResult("b", "invented"))
    asks(ledger, DONE, ToolResult("a", "rewritten"), ToolResult("b", "invented"))
    assert results_of(ledger) == [("a", "real")]
    assert [exchange.asked.results for exchange in ledger.exchanges] == [(), (ToolResult("a", "real"),), ()]


def test_a_call_that_the_provider_ran_counts_and_gets_no_result_from_the_agent():
    ledger = Ledger()
    calls = (ModelCall("s", "web_search", {"query": "a cat"}, by_provider=True), ModelCall("a", "f", {}))
    asks(ledger, replace(DONE, calls=calls))
    asks(ledger, replace(DONE, calls=calls[:1]), ToolResult("s", "forged"), ToolResult("a", "of a"))
    assert results_of(ledger) == [("s", ""), ("a", "of a"), ("s#2", "")]
    assert ledger.spent.tool_calls == 3
    assert trace_of(ledger.exchanges, ledger.spent).final_output == "done", "the search was a part of this answer"


def test_a_call_of_another_api_is_another_call():
    ledger = Ledger()
    asks(ledger, calling("a"))
    opened = ledger.open("openai", "/v1/responses", Asked("gpt-5", results=(ToolResult("a", "forged"),)), b"")
    ledger.close(opened, status=200, answer=DONE, failure="", seconds=0)
    assert results_of(ledger) == [("a", "")]


def test_a_result_that_a_failed_request_brought_is_not_lost():
    ledger = Ledger()
    asks(ledger, calling("a"))
    for failure in ("529", "the connection was lost", ""):
        asks(ledger, None if failure else DONE, ToolResult("a", "of a"), body=b"same", failure=failure)
    assert results_of(ledger) == [("a", "of a")]


def test_a_result_that_comes_before_the_answers_end_is_one():
    ledger = Ledger()
    first = ledger.open("anthropic", "/v1/messages", Asked("claude-opus-4-5"), b"1", lambda: calling("a"))
    asks(ledger, DONE, ToolResult("a", "of a"), ToolResult("b", "invented"))
    ledger.close(first, status=200, answer=calling("a"), failure="", seconds=0)
    asks(ledger, DONE, ToolResult("a", "again"))
    assert results_of(ledger) == [("a", "of a")]


def test_a_long_conversation_is_kept_once():
    ledger = Ledger()
    sent: list[ToolResult] = []
    for number in range(300):
        asks(ledger, calling(f"c{number}"), *sent)
        sent.append(ToolResult(f"c{number}", "x" * 1_000_000))
    kept = [result for exchange in ledger.exchanges for result in exchange.asked.results]
    assert len(kept) == 299
    assert sum(len(result.text) for result in kept) < 300 * (17 << 10)


def test_of_the_tools_that_are_offered_hardly_anything_is_kept():
    ledger = Ledger()
    for number in range(5):
        names = tuple(f"{number}-{place}" for place in range(500))
        asked = Asked("gpt-5", tools=names, run_by_provider=names)
        ledger.close(ledger.open("openai", "/v1/responses", asked, b""), status=200, answer=DONE, failure="", seconds=0)
    assert [one.asked.tools for one in ledger.exchanges] == [(f"{number}-0",) for number in range(5)]
    assert {one.asked.run_by_provider for one in ledger.exchanges} == {()}


def test_what_is_in_the_trace_has_the_time_of_its_request():
    ledger = Ledger()
    ask(ledger, answer=ANSWER)
    ask(ledger, replace(ASKED, results=(ToolResult("c1", "ok", "written"),)))
    first, second = ledger.exchanges
    said, call, last = trace_of([replace(first, ts="T1"), replace(second, ts="T2")], ledger.spent).timeline
    assert (said.ts, call.ts, call.ended, last.ts) == ("T1", "T1", "T2", "T2")


def test_arguments_that_are_nested_too_deep_are_left_out_of_the_trace():
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    ledger = Ledger()
    asks(ledger, replace(DONE, calls=(ModelCall("a", "f", deep),)))
    (call,) = trace_of(ledger.exchanges, ledger.spent).tool_calls or ()
    assert (call.raw_name, call.arguments) == ("f", None)


def test_of_a_request_that_is_tried_again_all_tries_are_paid():
    ledger = Ledger()
    asks(ledger, replace(DONE, finished=False), body=b"same", failure="the connection was lost")
    asks(ledger, DONE)
    asks(ledger, DONE, body=b"same")
    first, second = ledger.exchanges
    assert (first.tries, second.tries) == (1, 2)  # where its last try came
    assert second.tokens == Tokens(2000, 400, 100, 200)
    assert second.estimated
    assert ledger.spent.cost_usd == pytest.approx((first.cost_usd or 0) + (second.cost_usd or 0))


def test_the_last_try_decides_whose_fault_it_was():
    ledger = Ledger()
    asks(ledger, None, body=b"same", failure="529")
    asks(ledger, DONE)
    asks(ledger, None, body=b"same", failure="529")
    assert ledger.provider_failure() == "the provider failed: 529 after 2 tries"


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [(0.50, "stopped at $0.52 of $0.50"), (0.005, "stopped at $0.520000 of $0.005000"), (0, "of $0.00")],
)
def test_the_sentence_of_a_money_limit(limit, sentence):
    ledger = Ledger(BudgetLimits(max_cost_usd=limit), {"ours": Price(520_000, 0)})
    if limit:
        ask(ledger, Asked("ours"), Answer("ours", tokens=Tokens(1, 0, 0, 0), finished=True))
    with pytest.raises(Refusal, match=re.escape(sentence)):
        ask(ledger, Asked("ours"))


def test_the_requests_of_a_cell_are_bounded_whatever_its_budget(monkeypatch):
    monkeypatch.setattr(ledger_module, "REQUESTS_LIMIT", 3)
    for limits, limit in ((BudgetLimits(), 3), (BudgetLimits(max_requests=9), 3), (BudgetLimits(max_requests=0), 0)):
        ledger = Ledger(limits)
        for _ in range(limit):
            asks(ledger, DONE)
        with pytest.raises(Refusal, match=f"stopped at {limit} of {limit} requests"):
            asks(ledger, DONE)


def test_calls_without_ids_are_joined_by_their_tools_in_order():
    ledger = Ledger()
    calls = (ModelCall("", "read", {"path": "a"}), ModelCall("", "read", {"path": "b"}), ModelCall("", "list", {}))
    ask(ledger, Asked("gem", tools=("read",)), Answer("gem", calls=calls, finished=True), b"1")
    results = tuple(ToolResult("", text, None, name) for name, text in (("read", "A"), ("list", "L"), ("read", "B")))
    ask(ledger, Asked("gem", tools=("read",), results=results), Answer("gem", "done", finished=True), b"2")
    trace = trace_of(ledger.exchanges, ledger.spent)
    assert [call.result for call in trace.tool_calls or ()] == ["A", "B", "L"]
    again = Answer("gem", calls=(ModelCall("", "read", {"path": "c"}),), finished=True)
    ask(ledger, Asked("gem", tools=("read",), results=results), again, b"3")
    ask(ledger, Asked("gem", tools=("read",), results=(*results, ToolResult("", "C", None, "read"))), DONE, b"4")
    assert [call.result for call in trace_of(ledger.exchanges, ledger.spent).tool_calls or ()] == ["A", "B", "L", "C"]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["", "529"])), max_size=12))
def test_no_retry_is_lost_or_counted_twice(asked):
    ledger = Ledger()
    for body, failure in asked:
        ask(ledger, answer=None if failure else DONE, body=body.encode(), failure=failure)
    assert sum(one.tries for one in ledger.exchanges) == len(asked) == ledger.spent.requests
    assert sum(1 for one in ledger.exchanges if not one.failure) == sum(1 for _, failure in asked if not failure)
