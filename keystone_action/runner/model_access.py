"""What the cells of a run share to ask models: the gateways, the judge, and the money for both.

Each is made when the first cell asks for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keystone_action.gateway.server import Gateways
    from keystone_action.judge.judgement import Judge, Judgement, JudgeRequest
    from keystone_action.options.model import Options
    from keystone_action.runner.progress import Progress
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.gateway import Gateway
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.plan import Cell


class LazyGateways:
    """The model gateways of a run: started with the first cell that has one, stopped with the run."""

    def __init__(self) -> None:
        self._gateways: Gateways | None = None

    def started(self) -> Gateways:
        """Those of this run, serving. Raises ServiceError."""
        if self._gateways is None:
            from keystone_action.gateway.server import Gateways

            made = Gateways()
            made.start()
            self._gateways = made
        return self._gateways

    async def close(self) -> None:
        """End all of them."""
        if self._gateways is not None:
            await anyio.to_thread.run_sync(self._gateways.stop)


def gateway_of(spec: Spec, agent: AgentBase, options: Options) -> Gateway | None:
    """The gateway of cells with this agent: as the spec asks for it, else as the call does; None where none does, or
    the spec switches it off. An option of the call replaces its mode."""
    asked = spec.gateway_for(agent)
    if asked is None and (spec.gateway == "off" or not options.needs_gateway):
        return None
    from keystone_action.spec.models.gateway import Gateway

    asked = asked or Gateway()
    return asked if options.running.gateway is None else asked.model_copy(update={"mode": options.running.gateway})


def provider_keys(cells: Iterable[Cell], options: Options) -> tuple[str, ...]:
    """The keys of our environment that stand behind the gateways of cells: masked like secrets."""
    found = {
        (cell.loaded.spec.id, cell.agent_type): gateway_of(cell.loaded.spec, cell.agent, options) for cell in cells
    }
    keys: dict[str, None] = {}
    for gateway in found.values():
        if gateway is not None:
            from keystone_action.gateway.cell import keys_of_environment

            keys |= dict.fromkeys(keys_of_environment(gateway, options.caller.environ))
    return tuple(keys)


_ROUNDING = 1e-9
"""US dollars: a sum of cents may be a little less than they are."""


class Spending:
    """What a job has spent on agents and judges, against its limit (contract, 5.6 "Budgets"). Judges, cells and the
    threads of gateways report it. limit: US dollars, None = any."""

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._spent = 0.0

    @property
    def spent(self) -> float:
        """US dollars so far."""
        with self._lock:
            return self._spent

    def spend(self, usd: float) -> None:
        """Count what was paid."""
        with self._lock:
            self._spent += usd

    def refusal(self) -> str:
        """Why nothing more may be asked of a model; empty while something may."""
        spent = self.spent
        if self.limit is None or spent < self.limit - _ROUNDING:
            return ""
        return f"stopped at ${spent:.2f} of ${self.limit:.2f}"


class LazyJudge:
    """The run's judge, made (and its modules imported) when the first check asks it."""

    def __init__(self, options: Options, progress: Progress, spending: Spending) -> None:
        self._options, self._progress, self._spending = options, progress, spending
        self._judge: Judge | None = None

    async def require(self, models: tuple[str, ...]) -> None:
        """See `judge.judgement.Judge`."""
        await self._make_judge().require(models)

    async def judge(self, request: JudgeRequest) -> Judgement:
        """See `judge.judgement.Judge`."""
        return await self._make_judge().judge(request)

    def _make_judge(self) -> Judge:
        if self._judge is None:
            from keystone_action.judge.jury import ModelJudge

            options = self._options
            self._judge = ModelJudge(
                options.caller.environ,
                fast=options.running.judge_fast,
                strong=options.running.judge_strong,
                cache_dir=options.running.cache_dir / "judge" if options.running.cache_dir else None,
                purse=self._spending,
                on_note=self._progress.note,
            )
        return self._judge
