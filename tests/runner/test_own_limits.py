"""A time limit of ours, and a TimeoutError of somebody below us, which is none."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from keystone_action.files.git import commands as git
from keystone_action.invariants import own_process
from keystone_action.invariants.check import Check, Outcome, passed
from keystone_action.invariants.http_exchange import ExpectedResponse, Probe
from keystone_action.runner.cell import cell as limit
from keystone_action.runner.cell import judge as checks
from keystone_action.runner.cell.cell import LimitReached, within
from keystone_action.services.postgres.embedded_server import EmbeddedServer

LOST = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
"""What the kernel says of a connection whose other end no longer answers."""


class Waits(Check):
    type_name: ClassVar[str] = "waits"
    seconds: float = 0.0
    fails: bool = False

    async def evaluate(self, context: object) -> Outcome:
        await anyio.sleep(self.seconds)
        if self.fails:
            raise LOST
        return passed("done")


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (Waits(type="waits"), "done"),
        (Waits(type="waits", fails=True), "the check itself broke: TimeoutError: [Errno 110] Connection timed out"),
        (Waits(type="waits", seconds=3600), "the check took longer than 0.1 s and was stopped"),
    ],
)
def test_a_check(monkeypatch: pytest.MonkeyPatch, check: Waits, said: str) -> None:
    monkeypatch.setattr(checks, "GRACE_SECONDS", 0.1)
    outcome = anyio.run(checks._evaluate, check, None, 0.1 if check.seconds else 60.0)
    assert outcome.message == said


def test_a_program_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> Any:
        raise LOST

    program = tmp_path / "program.py"
    program.write_text("import time\ntime.sleep(3600)\n")
    with pytest.raises(own_process.NotFinished, match=r"it took longer than 0\.2 s"):
        anyio.run(lambda: own_process.ask_program(program, {}, timeout=0.2))
    monkeypatch.setattr(anyio, "run_process", fails)
    with pytest.raises(TimeoutError):
        anyio.run(lambda: own_process.ask_program(program, {}, timeout=60))


@pytest.mark.parametrize(
    ("hangs", "said"),
    [(True, "no whole response came within"), (False, "it could not be reached: Connection timed out")],
)
def test_a_request_to_what_the_agent_built(*, hangs: bool, said: str) -> None:
    async def ask() -> Any:
        if hangs:
            await anyio.sleep(3600)
        raise LOST

    probe = Probe(ExpectedResponse(), retries=0, deadline=time.monotonic() + (0.2 if hangs else 60))
    answer = anyio.run(lambda: probe._try(ask, 1))
    assert answer.problems[0].startswith(said)


async def _returned() -> str:
    return "there"


async def _lost() -> str:
    raise LOST


async def _long() -> str:
    await anyio.sleep(3600)
    return "late"


async def _deaf() -> str:
    """Waits for a thread that hears of no cancellation."""
    await anyio.to_thread.run_sync(time.sleep, 3)
    return "late"


async def _stubborn() -> str:
    while True:
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(BaseException):  # as code that loses every cancellation
                await anyio.sleep(1)
            if time.monotonic() > _END:
                return "late"


_END = 0.0


@pytest.mark.waits
def test_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert anyio.run(within, 60.0, _returned) == "there"
    with pytest.raises(TimeoutError):
        anyio.run(within, 60.0, _lost)
    with pytest.raises(LimitReached):
        anyio.run(within, 0.1, _long)
    monkeypatch.setattr(limit, "_CLEANUP_SECONDS", 0.1)
    monkeypatch.setattr(limit, "_UNWIND_SECONDS", 0.1)
    for work in (_deaf, _stubborn):
        monkeypatch.setitem(globals(), "_END", time.monotonic() + 4)
        with pytest.raises(LimitReached):
            anyio.run(within, 0.1, work)


def test_a_cell_that_is_cancelled_cleans_up_first() -> None:
    done: list[str] = []

    async def cleans() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
                done.append("clean")

    async def cancelled() -> None:
        with anyio.move_on_after(0.1):
            await within(60.0, cleans)
        assert done == ["clean"]

    anyio.run(cancelled)


def test_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing_is_spawned: Any = None
    server = EmbeddedServer("db", tmp_path, nothing_is_spawned)
    monkeypatch.setattr(EmbeddedServer, "_start", lambda _: _lost())
    with pytest.raises(TimeoutError):
        anyio.run(server.start, 60.0)


def test_a_command_of_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Lost:
        pid, returncode = 2**30, 0

        async def communicate(self) -> Any:
            raise LOST

    async def start(*_: object, **__: object) -> Lost:
        return Lost()

    monkeypatch.setattr("asyncio.create_subprocess_exec", start)
    with pytest.raises(TimeoutError):
        anyio.run(lambda: git.run_cancellable("fetch", directory=tmp_path, timeout=60))
