"""Nothing stays behind, whatever happens; and what is not ours stays."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from support.docker_world import IMAGE, HostOnly, Proxy, fresh, left, place, run_bounded, shell, world
from support.process_world import alive, eventually, token

from keystone_action.engine.connect import connect
from keystone_action.engine.sweep import find_leftovers, sweep
from keystone_action.errors import SandboxError
from keystone_action.sandbox.containers.sandboxes import start_docker
from keystone_action.system.command import CommandLimits

pytestmark = pytest.mark.docker


def test_daemons_are_gone_when_a_command_ends(engine: Any) -> None:
    mark = token()

    async def main() -> None:
        async with world(engine) as (provider, sandbox):
            done = await sandbox.run(shell(f"setsid sh -c 'sleep {mark} & sleep {mark}' >/dev/null 2>&1 & echo done"))
            assert done.stdout.text() == "done\n"
            assert alive(mark) == []
            assert left(engine, provider.engine.run_id) == []

    run_bounded(main)


@pytest.mark.parametrize("mode", ["bind", "copy"])
def test_a_cancelled_command_leaves_nothing(engine: Any, mode: str) -> None:
    mark = token()

    async def main() -> None:
        async with world(engine, mode=mode) as (provider, sandbox):
            task = asyncio.create_task(sandbox.run(shell(f"trap '' TERM INT; yes & sleep {mark}")))
            assert await asyncio.to_thread(eventually, lambda: alive(mark) != [])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert alive(mark) == []
            assert left(engine, provider.engine.run_id) == []
            assert (await sandbox.run(shell("echo again"))).stdout.text() == "again\n"

    run_bounded(main)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.25, 0.4])
def test_cancelled_at_any_moment_it_leaves_nothing(engine: Any, delay: float) -> None:
    async def main() -> None:
        async with world(engine) as (provider, sandbox):
            task = asyncio.create_task(sandbox.run(shell("sleep 600")))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert left(engine, provider.engine.run_id) == []

    run_bounded(main)


def test_closing_ends_what_runs(engine: Any) -> None:
    mark = token()

    async def main() -> None:
        async with world(engine) as (provider, sandbox):
            task = asyncio.create_task(sandbox.run(shell(f"sleep {mark}")))
            assert await asyncio.to_thread(eventually, lambda: alive(mark) != [])
            await provider.close()
            with pytest.raises(SandboxError, match="closed while a command ran"):
                await task
            assert alive(mark) == []
            assert not list(provider.engine.root.glob("private-*"))
            with pytest.raises(SandboxError, match="closed"):
                await sandbox.run(shell("true"))

    run_bounded(main)


@pytest.mark.parametrize("mode", ["bind", "copy"])
def test_closing_ends_many_that_would_rather_go_on(engine: Any, mode: str) -> None:
    """Those that ignore signals, that never stop talking, that fork, and a setup in the middle of its work."""
    mark = token()
    texts = (
        f"trap '' TERM INT HUP; sleep {mark}",
        f"yes & sleep {mark}",
        f"for i in 1 2 3 4 5 6 7 8; do setsid sleep {mark} & done; wait",
        f"head -c 20M /dev/urandom >$TMPDIR/large; sleep {mark}",
    )

    async def main() -> None:
        async with world(engine, mode=mode) as (provider, sandbox):
            setup = provider.with_commands(sandbox, [f"touch /opt/x; sleep {mark}"], networks=("none",))
            others = [await fresh(provider) for _ in texts]
            runs = [one.run(shell(text)) for one, text in zip(others, texts, strict=True)]
            tasks = [asyncio.create_task(one) for one in (setup, *runs)]
            # `sleep` once in each but for the one with eight.
            assert await asyncio.to_thread(eventually, lambda: len(alive(mark)) >= 12)
            await provider.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [str(result) for result in results if not isinstance(result, SandboxError)] == []
            assert alive(mark) == []
            assert left(engine, provider.engine.run_id) == []
            assert find_leftovers(engine, provider.engine.run_id) == []
            assert not list(provider.engine.root.glob("private-*"))

    run_bounded(main)


def test_ten_at_once_do_not_meet(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            sandboxes = [await fresh(provider, CommandLimits(memory=128 << 20, pids=64)) for _ in range(10)]

            async def one(number: int) -> str:
                sandbox = sandboxes[number]
                await sandbox.run(shell(f"echo {number} >mine; echo {number} >$HOME/mine; echo {number} >$TMPDIR/mine"))
                done = await sandbox.run(shell("cat mine $HOME/mine $TMPDIR/mine; ls | wc -l"))
                return done.stdout.text()

            results = await asyncio.gather(*(one(number) for number in range(10)))
            assert results == [f"{number}\n{number}\n{number}\n1\n" for number in range(10)]

    run_bounded(main)


def test_runs_on_one_engine_do_not_meet(engine: Any) -> None:
    mark = token()

    async def main() -> None:
        async with world(engine) as (_, sandbox):
            task = asyncio.create_task(sandbox.run(shell(f"while [ ! -e stop ]; do sleep 0.1; done; echo {mark}")))
            assert await asyncio.to_thread(eventually, lambda: alive(mark) != [])
            async with world(engine) as (other, second):
                assert (await second.run(shell("true"))).exit_code == 0
                await sweep(engine, other.engine.run_id)
            (sandbox.workspace / "stop").touch()
            assert (await task).stdout.text() == f"{mark}\n"

    run_bounded(main)


def test_the_engine_over_tcp(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy()
    monkeypatch.setenv("DOCKER_HOST", proxy.address)

    async def main() -> None:
        for mode in ("auto", "copy"):
            async with world(engine, mode=mode, client=None) as (_, sandbox):
                (sandbox.workspace / "given").write_text("x")
                done = await sandbox.run(shell("cat given -; echo made >made", stdin=b"over tcp"))
                assert done.stdout.text() == "xover tcp"
                assert (sandbox.workspace / "made").read_text() == "made\n"

    try:
        run_bounded(main)
    finally:
        proxy.cut()


def test_an_engine_that_goes_away_is_said(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, run_id = token(), f"test-{uuid.uuid4().hex}"
    proxy = Proxy()
    client = connect({"DOCKER_HOST": proxy.address}, timeout=10)

    async def main() -> None:
        with place() as root:
            provider = await start_docker(
                image=IMAGE, run_id=run_id, root=root, host=HostOnly(), client=client, network="none"
            )
            sandbox = await fresh(provider)
            task = asyncio.create_task(sandbox.run(shell(f"sleep {mark}")))
            assert await asyncio.to_thread(eventually, lambda: alive(mark) != [])
            proxy.cut()
            with pytest.raises(SandboxError, match="the container engine does not answer"):
                await task
            with pytest.raises(SandboxError):
                await provider.close()
        swept = await sweep(engine, run_id)
        assert (swept.containers, swept.problems) == (1, [])

    run_bounded(main)
    assert left(engine, run_id) == []
    assert eventually(lambda: alive(mark) == [])


def test_a_sweep_takes_all_of_one_run_and_nothing_else(engine: Any) -> None:
    ours, theirs = f"test-{uuid.uuid4().hex}", f"test-{uuid.uuid4().hex}"

    def litter(run_id: str) -> None:
        labels = {"keystone.run": run_id, "keystone.kind": "sandbox"}
        network = engine.networks.create(f"keystone-{run_id}", labels=labels, internal=True)
        volume = engine.volumes.create(f"keystone-{run_id}", labels=labels)
        engine.containers.run(
            IMAGE, ["sleep", "600"], detach=True, labels=labels, network=network.name, volumes=[f"{volume.name}:/v"]
        )

    litter(ours)
    litter(theirs)
    stranger = engine.containers.create(IMAGE, ["true"])
    joined = engine.networks.get(f"keystone-{ours}")
    joined.connect(stranger)
    try:
        swept = run_bounded(lambda: sweep(engine, ours))
        assert (swept.containers, swept.networks, swept.volumes, swept.problems) == (1, 1, 1, [])
        assert left(engine, ours) == []
        assert len(left(engine, theirs)) == 3
        assert engine.containers.get(stranger.id)
    finally:
        stranger.remove()
        run_bounded(lambda: sweep(engine, theirs))
    assert left(engine, theirs) == []


def test_a_sweep_takes_the_images_of_a_killed_run(engine: Any) -> None:
    """Two of them, the second made of the first, as after a SIGKILL: nobody closed anything."""
    run_id = f"test-{uuid.uuid4().hex}"

    async def main() -> None:
        with place() as root:
            provider = await start_docker(
                image=IMAGE, run_id=run_id, root=root, host=HostOnly(), client=engine, network="none"
            )
            first = await provider.with_commands(await fresh(provider), ["touch /opt/x"], networks=("none",))
            await asyncio.sleep(1)  # the engine tells when images were made in seconds
            second = await first.with_commands(await fresh(first), ["touch /opt/y"], networks=("none",))
            assert {one.identifier for one in find_leftovers(engine, run_id)} == {
                first.image.identifier,
                second.image.identifier,
            }
            swept = await sweep(engine, run_id)
            assert (swept.containers, swept.images, swept.problems) == (0, 2, [])
            assert find_leftovers(engine, run_id) == []
            assert engine.images.get(IMAGE).id == provider.image.identifier
            await provider.close()

    run_bounded(main)


def test_ten_that_are_cancelled_at_once_leave_nothing(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            sandboxes = [await fresh(provider) for _ in range(10)]
            tasks = [asyncio.create_task(one.run(shell("trap '' TERM; sleep 600"))) for one in sandboxes]
            run_id = provider.engine.run_id
            assert await asyncio.to_thread(eventually, lambda: len(left(engine, run_id)) == 10)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert left(engine, run_id) == []

    run_bounded(main)
