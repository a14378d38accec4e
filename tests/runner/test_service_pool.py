"""The services that cells share: who has them, and when they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from keystone_action.runner.shared_services import ServiceGroup, ServicePool, ServicesDefinition

DEFINITION = ServicesDefinition((), Path())


class Starter:
    """Starts nothing, when it is let."""

    def __init__(self) -> None:
        self.may_go_on = anyio.Event()
        self.stopped = 0

    async def start(self, _definition: ServicesDefinition) -> ServiceGroup:
        await self.may_go_on.wait()
        return ServiceGroup((), self.stop)

    async def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_waiter_that_is_cancelled_keeps_nothing_in_use(cancelled: bool) -> None:
    async def play() -> tuple[int, int]:
        starter = Starter()
        pool = ServicePool(starter.start)
        waiting = anyio.CancelScope()

        async def wait() -> None:
            with waiting:
                await pool.acquire(DEFINITION)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.acquire, DEFINITION)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            if cancelled:
                waiting.cancel()
            await anyio.wait_all_tasks_blocked()
            starter.may_go_on.set()
        await pool.release(DEFINITION, last=True)
        before = starter.stopped
        if not cancelled:
            await pool.release(DEFINITION, last=True)
        return before, starter.stopped

    before, after = anyio.run(play)
    assert before == int(cancelled)
    assert after == 1


def test_who_comes_after_the_last_starts_them_anew() -> None:
    async def play() -> Any:
        starter = Starter()
        starter.may_go_on.set()
        pool = ServicePool(starter.start)
        for _ in range(2):
            await pool.acquire(DEFINITION)
            await pool.release(DEFINITION, last=True)
        return starter.stopped

    assert anyio.run(play) == 2
