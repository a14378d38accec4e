"""One opinion of one model: ask, read strictly, and ask again with the error, within bounds. A score is never guessed
and never clamped (spec 5.1, 5.3)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from keystone_action.judge.clients import CallFailed, Feature, JudgeClient, JudgeReply, Question, Turn
from keystone_action.judge.judgement import JudgeCost, JudgeFailed, JudgeModel
from keystone_action.judge.prompt import Prompt, visible_material
from keystone_action.pricing import Purse, cost_of

REASON_LIMIT = 2000
"""Characters of a model's reason that are kept."""

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n```", re.DOTALL)


class BadAnswer(ValueError):  # noqa: N818 - an outcome of an attempt
    """The answer has no usable score; the sentence is told to the model before it is asked again."""


def parse_answer(text: str) -> tuple[float, str]:
    """(score in [0, 1], reason) from `{"score": …, "passed": …, "reason": …}`. `passed` is not looked at: the
    threshold decides. Raises BadAnswer."""
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    document = _load(fenced[1] if fenced else text)
    if not isinstance(document, dict):
        raise BadAnswer(f"expected a JSON object, found {_kind(document)}")
    if "score" not in document:
        raise BadAnswer('expected the key "score" in the JSON object, found none')
    score = document["score"]
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise BadAnswer(f"expected score to be a number from 0 to 1, found {_kind(score)}")
    if not _finite(score) or not 0 <= score <= 1:
        raise BadAnswer(f"expected score to be a number from 0 to 1, found {str(score)[:40]}")
    reason = document.get("reason", "")
    return float(score), (reason if isinstance(reason, str) else "").strip()[:REASON_LIMIT]


def _finite(score: int | float) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:  # an integer of thousands of digits
        return False


def _load(text: str) -> Any:
    if not text:
        raise BadAnswer("expected a JSON object, found an empty answer")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except BadAnswer:
        raise
    except (ValueError, RecursionError):
        raise BadAnswer("expected one JSON object and nothing else, found text that is not JSON") from None


def _refuse_constant(name: str) -> NoReturn:
    raise BadAnswer(f"expected score to be a number from 0 to 1, found {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise BadAnswer("expected each key once, found one twice")
    return document


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return f"{value!r}"[:40]


ATTEMPTS = 3
"""Answers that are read before a judge counts as broken."""
CALL_TRIES = 5
"""Tries to get one answer through (rate limits, overload, lost connections)."""
BACKOFF_LIMIT = 20.0
"""Seconds at most between two tries, where the server asks for none."""


@dataclass
class Tally:
    """Counts what a judgement costs while it goes on."""

    purse: Purse | None = None
    """The job's, which pays for it."""
    usage: JudgeCost = field(default_factory=JudgeCost)
    """The sum so far."""

    def add(self, model: JudgeModel, reply: JudgeReply) -> None:
        """A reply that was paid for, usable or not."""
        cost = cost_of(
            model.provider,
            model.name,
            uncached=reply.input_tokens,
            output=reply.output_tokens,
            cache_read=reply.cache_read_tokens,
            cache_write=reply.cache_write_tokens,
        )
        if self.purse is not None and cost is not None:
            self.purse.spend(cost)
        was = self.usage
        self.usage = replace(
            was,
            input_tokens=was.input_tokens + reply.input_tokens,
            output_tokens=was.output_tokens + reply.output_tokens,
            cache_read_tokens=was.cache_read_tokens + reply.cache_read_tokens,
            cache_write_tokens=was.cache_write_tokens + reply.cache_write_tokens,
            cost_usd=None if cost is None or was.cost_usd is None else was.cost_usd + cost,
            requests=was.requests + 1,
            unpriced=was.unpriced if cost is not None else tuple(dict.fromkeys([*was.unpriced, model.name])),
        )

    def refusal(self) -> str:
        """Why the job pays for nothing more; empty while it does."""
        return "" if self.purse is None else self.purse.refusal()

    def add_cached(self) -> None:
        """An answer from the cache: costs nothing, is counted."""
        self.usage = replace(self.usage, cached=self.usage.cached + 1)


@dataclass
class Asker:
    """Asks for one judgement."""

    tally: Tally
    without: dict[str, frozenset[Feature]]
    """What each model was found to refuse; the whole run shares it."""
    note: Callable[[str], None]
    backoff: float
    """Seconds before the second try of a call, doubled for each further one."""
    remaining: Callable[[], float]
    trouble: str = ""
    """What went wrong last: a time-out is explained by it."""

    async def opinion(
        self, client: JudgeClient, model: JudgeModel, prompt: Prompt, temperature: float
    ) -> tuple[float, str]:
        """(score, reason). Raises JudgeFailed after ATTEMPTS unusable answers, or when no answer can be had."""
        question = Question(
            model=model.name,
            system=prompt.system,
            turns=(("user", prompt.user),),
            temperature=temperature if model.takes_temperature else None,
        )
        turns = question.turns
        for _ in range(ATTEMPTS):
            reply = await self._reply(client, model, replace(question, turns=turns))
            try:
                return _read(reply)
            except BadAnswer as problem:
                self.trouble = str(problem)
                turns = question.turns + _correction(reply, str(problem))
        raise JudgeFailed(f"{model.name} gave no usable answer in {ATTEMPTS} attempts; the last: {self.trouble}")

    async def _reply(self, client: JudgeClient, model: JudgeModel, question: Question) -> JudgeReply:
        """One answer through the provider, not yet read. Raises JudgeFailed."""
        tries = 0
        while True:
            question = replace(question, without=self.without.get(model.name, frozenset()))
            if refusal := self.tally.refusal():
                raise JudgeFailed(refusal)
            try:
                reply = await client.ask(question)
            except CallFailed as problem:
                self.trouble = str(problem)
                if problem.refuses is not None:
                    self._leave_out(model, problem.refuses, question)
                    continue
                tries += 1
                if not problem.transient or tries >= CALL_TRIES:
                    times = f" (tried {tries} times)" if tries > 1 else ""
                    raise JudgeFailed(f"{problem}{times}") from None
                await self._wait(problem, tries)
            else:
                self.tally.add(model, reply)
                return reply

    def _leave_out(self, model: JudgeModel, feature: Feature, question: Question) -> None:
        known = self.without.get(model.name, frozenset())
        self.without[model.name] = known | {feature}
        if feature in known:
            return  # another sample found it out meanwhile
        if feature == "temperature":
            self.note(f"{model.name} takes no temperature ({question.temperature:g} was asked); it is left out")
        else:
            self.note(f"{model.name} takes no {feature} output format; a weaker one is asked for")

    async def _wait(self, problem: CallFailed, tries: int) -> None:
        import anyio

        seconds = problem.retry_after
        if seconds is None:
            seconds = min(self.backoff * 2 ** (tries - 1), BACKOFF_LIMIT)
        if seconds >= self.remaining():
            who = "it asks us to wait" if problem.retry_after is not None else "before another try we would wait"
            raise JudgeFailed(f"{problem}; {who} {seconds:g} s, longer than this check's timeout allows")
        await anyio.sleep(seconds)


def _read(reply: JudgeReply) -> tuple[float, str]:
    if reply.stop == "refused":
        raise BadAnswer("the model refused to answer")
    if reply.stop == "truncated":
        raise BadAnswer("the answer was cut off at the model's limit of tokens")
    score, reason = parse_answer(reply.text)
    return score, visible_material(reason)


def _correction(reply: JudgeReply, problem: str) -> tuple[Turn, ...]:
    """What is added to the conversation before the next attempt. Only an answer that can be mended is shown to the
    model again: after a refusal or a cut the question is simply asked anew."""
    if reply.stop != "end" or not reply.text.strip():
        return ()
    told = f"That answer can't be used: {problem}. Answer again, with the one JSON object asked for and nothing else."
    return (("assistant", reply.text[:4000].rstrip()), ("user", told))
