"""The judge of a run: juries of models, with bounds, a count of what they cost, and a cache of answers.

Only answers at temperature 0 are cached: with another temperature the author wants the model's variation, and a cache
would freeze the first draw. No key is part of a name or an entry. An entry that can't be read counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action import pricing
from keystone_action.judge.clients import AnthropicClient, Feature, JudgeClient, OpenAIClient
from keystone_action.judge.judgement import (
    JudgeFailed,
    Judgement,
    JudgeModel,
    JudgeProvider,
    JudgeRequest,
    JudgeUnavailable,
    Opinion,
    resolve,
)
from keystone_action.judge.opinion import Asker, BadAnswer, Tally, parse_answer
from keystone_action.judge.prompt import bound_material, build

if TYPE_CHECKING:
    import anyio

_VERSION = 1
_ENTRY_LIMIT = 64 * 1024


def cache_key(**parts: str | int | float | None) -> str:
    """sha256 over everything that decides an answer, as hex. Values by name, so that no two can run together."""
    text = json.dumps({"version": _VERSION, **parts}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class AnswerCache:
    """A directory of answers. Safe for several processes: entries appear whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str) -> tuple[float, str] | None:
        """(score, reason), or None."""
        try:
            with self._path(key).open("rb") as file:
                entry = file.read(_ENTRY_LIMIT + 1)
            # The same strict reading as for a model: a damaged entry must not become a score.
            return parse_answer(entry.decode()) if len(entry) <= _ENTRY_LIMIT else None
        except (OSError, UnicodeDecodeError, BadAnswer):
            return None

    def put(self, key: str, score: float, reason: str) -> None:
        """Raises OSError when the directory can't be written."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"score": score, "reason": reason}, file)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"


_CLIENTS: Mapping[JudgeProvider, type[AnthropicClient] | type[OpenAIClient]] = {
    "anthropic": AnthropicClient,
    "openai": OpenAIClient,
}
QUESTIONS = 8
"""Questions that a run has open at once; the time that the others wait counts."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where a provider is reached, and with what."""

    key: str = field(repr=False)
    base_url: str


@dataclass
class _Sitting:
    """What one judgement shares between its questions."""

    request: JudgeRequest
    asker: Asker
    clients: dict[JudgeProvider, JudgeClient]
    stack: AsyncExitStack
    scope: anyio.CancelScope
    opinions: dict[tuple[int, int], Opinion] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def fail(self, message: str) -> None:
        """The judgement is broken: nothing more is asked or paid for."""
        self.failures.append(message)
        self.scope.cancel()


class ModelJudge:
    """Implements `judge.judgement.Judge` with real models.

    environ: our own environment, the only place that keys and base URLs are read from. fast, strong: what the aliases
    mean (inputs); None or empty = `KEYSTONE_JUDGE_FAST`, `KEYSTONE_JUDGE_STRONG`, else our defaults. cache_dir: where
    answers are kept, None = nowhere. purse: what the job may spend; under a limit a model without a price is not asked.
    on_note: told once of each thing that people should know.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        fast: str | None = None,
        strong: str | None = None,
        cache_dir: Path | None = None,
        purse: pricing.Purse | None = None,
        on_note: Callable[[str], None] = lambda _: None,
        backoff: float = 0.5,
    ) -> None:
        self._environ = environ
        self._fast = fast
        self._strong = strong
        self._cache = AnswerCache(cache_dir) if cache_dir is not None else None
        self._purse = purse
        self._on_note = on_note
        self._backoff = backoff
        self._noted: set[str] = set()
        self._without: dict[str, frozenset[Feature]] = {}
        self._questions: anyio.CapacityLimiter | None = None

    async def require(self, models: tuple[str, ...]) -> None:
        """See `judge.judgement.Judge`."""
        self._jurors(models)

    async def judge(self, request: JudgeRequest) -> Judgement:
        """Ask every model `samples` times; the mean over the models of the means of their samples counts.

        A juror without a key is left out, and said; a juror that breaks breaks the judgement, so that a failure can
        never raise a score. Raises JudgeUnavailable (no juror has a key) or JudgeFailed (with what it cost).
        """
        import anyio

        jurors, notes = self._jurors(request.models)
        if self._questions is None:
            self._questions = anyio.CapacityLimiter(QUESTIONS)
        deadline = anyio.current_time() + request.timeout
        asker = Asker(
            tally=Tally(self._purse),
            without=self._without,
            note=self._note,
            backoff=self._backoff,
            remaining=lambda: deadline - anyio.current_time(),
        )
        with anyio.move_on_after(request.timeout) as limit:
            sitting = await self._sit(request, jurors, asker)
        if limit.cancelled_caught:
            why = f"; the last: {asker.trouble}" if asker.trouble else ""
            message = f"the judge gave no answer within {request.timeout:g} s{why}"
            raise JudgeFailed(self._scrub(message), usage=asker.tally.usage)
        if sitting.failures:
            raise JudgeFailed(self._scrub(sitting.failures[0]), usage=asker.tally.usage)
        cut = bound_material(request.judged, size=request.judged_size)[1]
        if cut:
            notes.append(f"what was judged was cut: {cut}")
        return _judgement(sitting, len(jurors), notes)

    def _jurors(self, models: tuple[str, ...]) -> tuple[list[tuple[JudgeModel, Access]], list[str]]:
        jurors, missing = [], []
        for name in models:
            model = resolve(name, environ=self._environ, fast=self._fast, strong=self._strong)
            try:
                jurors.append((model, self._access(model)))
            except JudgeUnavailable as problem:
                missing.append(str(problem))
        if not jurors:
            raise JudgeUnavailable("; ".join(dict.fromkeys(missing)) or "no judge is named")
        for message in missing:
            self._note(f"a juror was left out: {message}")
        return jurors, [f"a juror was left out: {message}" for message in missing]

    def _access(self, model: JudgeModel) -> Access:
        kind = _CLIENTS[model.provider]
        self._refuse_unpriced(model)
        variable, url_variable = kind.key_variable, kind.base_url_variable
        if importlib.util.find_spec(kind.package) is None:
            raise JudgeUnavailable(f"{model.name} needs the package {kind.package}: pip install {kind.package}")
        key = self._environ.get(variable, "").strip()
        if not key:
            raise JudgeUnavailable(f"{model.name} needs {variable}, which is not set; set it to judge with this model")
        if not re.fullmatch(r"[!-~]+", key):
            raise JudgeFailed(f"{variable} holds characters that no key has; copy it again")
        base_url = self._environ.get(url_variable, "").strip() or kind.default_base_url
        if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", base_url):
            raise JudgeFailed(
                f"{url_variable} is not an address that can be asked; expected http(s)://host[:port][/path]"
            )
        return Access(key, base_url)

    def _refuse_unpriced(self, model: JudgeModel) -> None:
        if self._purse is None or self._purse.limit is None:
            return
        if pricing.cost_of(model.provider, model.name, uncached=0, output=0) is None:
            raise JudgeUnavailable(f"{model.name} has no price, so max-cost-usd can't count what it costs")

    async def _sit(self, request: JudgeRequest, jurors: list[tuple[JudgeModel, Access]], asker: Asker) -> _Sitting:
        import anyio

        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            sitting = _Sitting(request, asker, {}, stack, group.cancel_scope)
            for juror, (model, access) in enumerate(jurors):
                for sample in range(request.samples):
                    group.start_soon(self._opinion, sitting, (juror, sample), model, access)
        return sitting

    async def _opinion(self, sitting: _Sitting, place: tuple[int, int], model: JudgeModel, access: Access) -> None:
        request, asker = sitting.request, sitting.asker
        key = self._key(request, model, access, place[1])
        kept = self._cache.get(key) if self._cache and key else None
        if kept is not None:
            asker.tally.add_cached()
            sitting.opinions[place] = Opinion(model.name, *kept, cached=True)
            return
        assert self._questions is not None
        async with self._questions:
            try:
                client = await self._client(sitting, model, access)
                score, reason = await asker.opinion(client, model, build(request), request.temperature)
            except JudgeFailed as problem:
                sitting.fail(str(problem))
                return
        reason = self._scrub(reason)
        self._keep(key, score, reason)
        sitting.opinions[place] = Opinion(model.name, score, reason)

    async def _client(self, sitting: _Sitting, model: JudgeModel, access: Access) -> JudgeClient:
        import anyio

        kind = _CLIENTS[model.provider]
        # Off the event loop: importing the SDK takes seconds, and other cells are being run meanwhile.
        for package in (kind.package, pricing.PACKAGE):
            await anyio.to_thread.run_sync(importlib.import_module, package)
        client = sitting.clients.get(model.provider)
        if client is None:
            client = kind(key=access.key, base_url=access.base_url)
            sitting.stack.push_async_callback(client.close)
            sitting.clients[model.provider] = client
            if not model.takes_temperature:
                asked = sitting.request.temperature
                self._note(f"{model.name} takes no temperature ({asked:g} was asked): its answers can vary a little")
        return client

    def _key(self, request: JudgeRequest, model: JudgeModel, access: Access, sample: int) -> str:
        """Empty when this answer may not be kept (see `cache`)."""
        if self._cache is None or request.temperature != 0:
            return ""
        prompt = build(request, nonce="0" * 32)
        return cache_key(
            provider=model.provider,
            base_url=access.base_url,
            model=model.name,
            system=prompt.system,
            user=prompt.user,
            temperature=request.temperature,
            sample=sample,
        )

    def _keep(self, key: str, score: float, reason: str) -> None:
        if self._cache is None or not key:
            return
        try:
            self._cache.put(key, score, reason)
        except OSError as problem:
            self._note(f"judges' answers can't be kept: {problem.strerror or problem}")

    def _note(self, message: str) -> None:
        message = self._scrub(message)
        if message not in self._noted:
            self._noted.add(message)
            self._on_note(message)

    def _scrub(self, text: str) -> str:
        """Without any key of ours: a server may send back what it was given."""
        for kind in _CLIENTS.values():
            key = self._environ.get(kind.key_variable, "").strip()
            if len(key) >= 4:
                text = text.replace(key, "***")
        return text


def _judgement(sitting: _Sitting, jurors: int, notes: list[str]) -> Judgement:
    opinions = tuple(opinion for _, opinion in sorted(sitting.opinions.items(), key=lambda item: item[0]))
    means = []
    for juror in range(jurors):
        scores = [opinion.score for place, opinion in sitting.opinions.items() if place[0] == juror]
        means.append(sum(scores) / len(scores))
    # A mean of numbers in [0, 1] can leave it by a rounding error only.
    score = min(1.0, max(0.0, sum(means) / len(means)))
    if len(opinions) == 1:
        reason = opinions[0].reason
    else:
        reason = "\n".join(f"{opinion.model}: {opinion.score:.2f}, {opinion.reason}" for opinion in opinions)
    return Judgement(score, reason, opinions, sitting.asker.tally.usage, tuple(notes))
