"""Juries: means, jurors without a key, jurors that break; bounds and cost."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Lock

import anyio
import pytest
from support.judging import ask
from support.model_server import ModelServer, Received, Reply, answer, error

from keystone_action.judge.judgement import JudgeFailed, JudgeRequest, JudgeUnavailable
from keystone_action.judge.jury import QUESTIONS, ModelJudge
from keystone_action.runner.model_access import Spending


def test_a_jury_is_the_mean_of_its_jurors_means() -> None:
    scores = {"claude-sonnet-4-6": iter([0.0, 0.2, 0.4]), "our-own": iter([1.0, 1.0, 1.0])}

    def reply(received: Received) -> Reply:
        return answer(next(scores[received.body["model"]]), "said")

    with ModelServer(reply) as server:
        judgement = ask(server, models=("claude-sonnet-4-6", "openai:our-own"), samples=3)
    assert judgement.score == pytest.approx(0.6)
    assert len(judgement.opinions) == len(server.requests) == 6
    assert [opinion.model for opinion in judgement.opinions] == ["claude-sonnet-4-6"] * 3 + ["our-own"] * 3
    assert "our-own: 1.00, said" in judgement.reason
    assert judgement.usage.cost_usd is None  # one of the prices is unknown
    assert judgement.usage.input_tokens == 600


def test_a_juror_without_a_key_is_left_out_and_said() -> None:
    notes: list[str] = []
    with ModelServer([answer(0.5)]) as server:
        judgement = ask(server, models=("judge-fast", "gpt-4o"), environ={"OPENAI_API_KEY": ""}, notes=notes)
    assert [opinion.model for opinion in judgement.opinions] == ["claude-haiku-5-5"]
    assert "gpt-4o needs OPENAI_API_KEY" in judgement.notes[0]
    assert any("gpt-4o needs OPENAI_API_KEY" in note for note in notes)


def test_a_juror_that_breaks_breaks_the_judgement() -> None:
    """Leaving it out could raise the score."""

    def reply(received: Received) -> Reply:
        return answer(1.0) if received.body["model"] == "claude-sonnet-4-6" else error(404)

    with ModelServer(reply) as server, pytest.raises(JudgeFailed, match="has no model gpt-4o"):
        ask(server, models=("claude-sonnet-4-6", "gpt-4o"))


def test_the_cost_of_what_was_asked() -> None:
    with ModelServer([Reply(answer(0.5).text, usage=(1_000_000, 100_000))]) as server:
        assert ask(server, models=("claude-opus-5-5",)).usage.cost_usd == pytest.approx(6.0)


def test_prices_are_by_the_length_of_the_request() -> None:
    """The default judge costs more for a long request; several short ones are never one long one."""
    with ModelServer(
        [Reply(answer(0.5).text, usage=(200_000, 0)), Reply(answer(0.5).text, usage=(90_000, 0))]
    ) as server:
        first = ask(server, models=("claude-haiku-5-5",)).usage.cost_usd
        assert first == pytest.approx(0.1)
        assert ask(server, models=("claude-haiku-5-5",)).usage.cost_usd == pytest.approx(0.009)


@pytest.mark.parametrize(
    ("model", "read", "written", "cost"),
    [
        ("claude-opus-4-8", 1000, 50, (1000 * 5 + 200 * 0.5 + 50 * 6.25 + 100 * 25) / 1e6),
        ("openai:gpt-4o", 800, 0, (800 * 2.5 + 200 * 1.25 + 100 * 10) / 1e6),
    ],
)
def test_what_a_cache_held_is_counted_once(model: str, read: int, written: int, cost: float) -> None:
    with ModelServer([Reply(answer(0.5).text, usage=(1000, 100), cache=(200, written))]) as server:
        usage = ask(server, models=(model,)).usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (read, 200, written)
    assert usage.cost_usd == pytest.approx(cost)


@pytest.mark.waits
def test_no_more_questions_at_once_than_allowed() -> None:
    open_now, most = 0, 0
    lock, together = Lock(), Barrier(QUESTIONS)

    def reply(_: Received) -> Reply:
        nonlocal open_now, most
        with lock:
            open_now += 1
            most = max(most, open_now)
        together.wait(60)  # so many do come at once, or this breaks
        with lock:
            open_now -= 1
        return answer(0.5)

    with ModelServer(reply) as server:
        assert ask(server, samples=2 * QUESTIONS).score == 0.5
    assert most == QUESTIONS
    assert len(server.requests) == 2 * QUESTIONS


@pytest.mark.waits
def test_one_judge_serves_many_judgements_at_once() -> None:
    def reply(received: Received) -> Reply:
        number = int(received.prompt.split("work number ")[1].split("\n")[0])
        return answer(number / 100)

    async def many(judge: ModelJudge) -> dict[int, float]:
        found: dict[int, float] = {}

        async def one(number: int) -> None:
            request = JudgeRequest(criteria="c", judged=f"work number {number}")
            found[number] = (await judge.judge(request)).score

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(one, number)
        return found

    with ModelServer(reply) as server:
        assert anyio.run(many, ModelJudge(server.environ())) == {number: number / 100 for number in range(30)}


def test_what_judges_cost_is_spent_with_each_answer() -> None:
    spending = Spending(10)
    replies = [Reply("no score", usage=(100_000, 0)), Reply(answer(0.5).text, usage=(100_000, 0))]
    with ModelServer(replies) as server:
        usage = ask(server, models=("claude-opus-4-8",), purse=spending).usage
    assert usage.cost_usd == spending.spent == pytest.approx(1.0)


def test_a_judge_is_not_asked_once_the_money_is_spent() -> None:
    """An answer under way is the last, of several attempts at one too."""
    spending = Spending(0.5)
    with ModelServer([Reply("no score", usage=(100_000, 4_000))] * 3) as server:
        with pytest.raises(JudgeFailed, match=r"^stopped at \$0\.60 of \$0\.50$") as problem:
            ask(server, models=("claude-opus-4-8",), purse=spending)
        assert len(server.requests) == 1
        with pytest.raises(JudgeFailed, match=r"stopped at \$0\.60"):
            ask(server, models=("claude-opus-4-8",), purse=spending)
        assert len(server.requests) == 1
    assert problem.value.usage.cost_usd == pytest.approx(0.6)


def test_a_kept_answer_is_free_when_the_money_is_spent(tmp_path: Path) -> None:
    spending = Spending(0.001)
    with ModelServer([Reply(answer(0.5).text, usage=(100_000, 0))]) as server:
        for _ in range(2):
            assert ask(server, models=("claude-opus-4-8",), purse=spending, cache_dir=tmp_path).score == 0.5
    assert len(server.requests) == 1


def test_under_a_limit_a_judge_without_a_price_is_skipped_by_name() -> None:
    with ModelServer([answer(0.5)]) as server:
        with pytest.raises(JudgeUnavailable, match="our-own has no price, so max-cost-usd can't count what it costs"):
            ask(server, models=("openai:our-own",), purse=Spending(1))
        assert ask(server, models=("openai:our-own",), purse=Spending()).usage.cost_usd is None
        jury = ask(server, models=("openai:our-own", "claude-opus-4-8"), purse=Spending(1))
    assert [opinion.model for opinion in jury.opinions] == ["claude-opus-4-8"]
    assert "our-own has no price" in jury.notes[0]
