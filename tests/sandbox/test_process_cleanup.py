"""Nothing of a command outlives it, whatever it does to; and whoever dies, nothing is left."""

# ruff: noqa: ASYNC110, ASYNC240 - the loop has nothing else to do meanwhile

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from support.process_world import ROOT, alive, another, eventually, run, runs, shell, token, world

from keystone_action.errors import SandboxError
from keystone_action.sandbox.processes import process_tree as killing
from keystone_action.system.command import Command, CommandLimits

ESCAPES = {
    "background": "sleep {mark} &",
    "double fork": "( ( sleep {mark} & ) & )",
    "own session": "setsid sleep {mark} &",
    "empty environment, closed streams": "( setsid env -i $(command -v sleep) {mark} <&- >&- 2>&- & )",
    "ignores signals": "( trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM; sleep {mark}; sleep {mark}' & )",
    "stopped": "sleep {mark} & kill -STOP $!",
    "keeps the streams": "sleep {mark} 2>&1 & sleep {mark} &",
}


def test_descendants_are_looked_for_until_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    monkeypatch.setattr(killing, "_kill_tree", lambda root, _: passes.append(root))
    answers = [False] * 5  # it asks before and after each pass
    read, write = os.pipe2(os.O_NONBLOCK)
    try:
        assert killing.end_descendants(lambda: not answers or answers.pop(), None, read)
    finally:
        os.close(read)
        os.close(write)
    assert answers == []
    assert passes == [os.getpid()] * 3


@pytest.mark.parametrize("isolation", [{}, {"uid_isolation": False}, {"landlock": False}])
def test_descendants_end_with_their_command(isolation: dict[str, bool]) -> None:
    async def main() -> None:
        async with world(**isolation) as (_, sandbox):
            for escape, text in ESCAPES.items():
                mark = token()
                leave = text.format(mark=mark)
                result = await sandbox.run(shell(f"{leave}\nexit 3"))
                assert result.exit_code == 3, escape
                assert alive(mark) == [], escape
                # Those may have lived for too short a time to be counted.
                again = await sandbox.run(shell(f"{leave}\nsleep 0.3"))
                assert again.leftovers >= 1, escape
                assert alive(mark) == [], escape

    run(main)


def test_descendants_end_with_a_timeout() -> None:
    mark = token()

    async def main() -> None:
        async with world() as (_, sandbox):
            result = await sandbox.run(shell(f"(setsid sleep {mark} &) ; sleep {mark}", timeout=0.4))
            assert result.timed_out
            assert alive(mark) == []

    run(main)


RACES = {
    "bomb": "b() {{ : {mark}; b | b & }}; b; sleep 0.3",
    "hopping from process to process": "sh -c 'h() {{ : {mark}; (h &) ; }}; h' & sleep 0.3",
    "respawning": "i=0; while [ $i -lt 20 ]; do (while :; do (sleep {mark} &); done) & i=$((i+1)); done; sleep 0.3",
}


# Without a user of its own nothing bounds a bomb of root's: that would be an attack on this machine, not a test.
@pytest.mark.parametrize("own_user", [None] if os.geteuid() == 0 else [None, False])
@pytest.mark.parametrize("race", RACES)
def test_processes_that_fork_faster_than_they_are_found(race: str, own_user: bool | None) -> None:
    mark = token()

    async def main() -> None:
        async with world(CommandLimits(pids=150), uid_isolation=own_user) as (_, sandbox):
            text = "exec 2>/dev/null; " + RACES[race].format(mark=mark)
            result = await sandbox.run(shell(text, timeout=20))
            assert not result.timed_out
            assert alive(mark) == []
            assert (await sandbox.run(Command(("true",)))).exit_code == 0

    run(main)


def test_a_bomb_stays_inside_its_limit() -> None:
    mark = token()
    peak = 0

    async def main() -> None:
        nonlocal peak
        async with world(CommandLimits(pids=60)) as (_, sandbox):
            bomb = f"exec 2>/dev/null; while :; do sh -c 'while :; do sleep {mark} & done' & sleep 0.01; done"
            running = asyncio.ensure_future(sandbox.run(shell(bomb, timeout=60)))
            while not running.done():
                await asyncio.sleep(0.005)
                peak = max(peak, len(alive(mark)))
            result = await running
            assert result.limit is not None
            assert result.limit.startswith("processes: ")
            assert result.limit.endswith(" running, 60 allowed")
            assert alive(mark) == []
            if sandbox.uid is not None:
                assert peak <= 68

    run(main)


def test_cancelling_waits_until_everything_is_gone() -> None:
    mark = token()

    async def main() -> None:
        async with world() as (_, sandbox):
            async with anyio.create_task_group() as group:
                group.start_soon(sandbox.run, shell(f"(setsid sleep {mark} &); touch ready; sleep {mark}"))
                while not (sandbox.workspace / "ready").exists():
                    await asyncio.sleep(0.01)
                group.cancel_scope.cancel()
            assert alive(mark) == []
            task = asyncio.ensure_future(sandbox.run(shell(f"rm ready; touch again; sleep {mark}")))
            while not (sandbox.workspace / "again").exists():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert alive(mark) == []
            assert (await sandbox.run(Command(("true",)))).exit_code == 0

    run(main)


def test_closing_ends_what_runs_and_may_be_repeated() -> None:
    mark = token()

    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            running = asyncio.ensure_future(sandbox.run(shell(f"touch ready; sleep {mark}")))
            while not (sandbox.workspace / "ready").exists():
                await asyncio.sleep(0.01)
            await sandboxes.close()
            await sandboxes.close()
            await sandbox.close()
            assert (await running).signal == 9
            assert alive(mark) == []
            assert not sandboxes.root.exists()
            with pytest.raises(SandboxError, match="closed"):
                await sandbox.run(Command(("true",)))

    run(main)


def test_an_agent_that_kills_all_it_can() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            if sandboxes.isolation == ("none",):
                return  # there is nothing then that would keep it from killing us
            other = await another(sandboxes)
            bystander = asyncio.ensure_future(other.run(shell("touch ready; sleep 1; echo unharmed")))
            while not (other.workspace / "ready").exists():
                await asyncio.sleep(0.01)
            await sandbox.run(shell("kill -9 -1"))
            await sandbox.run(shell("for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done"))
            assert (await bystander).stdout.text() == "unharmed\n"
            assert (await sandbox.run(shell("echo fine"))).stdout.text() == "fine\n"

    run(main)


def test_a_supervisor_that_is_killed_is_an_error_and_leaves_nothing() -> None:
    mark = token()

    async def main() -> None:
        async with world() as (_, sandbox):
            running = asyncio.ensure_future(sandbox.run(shell(f"(setsid sleep {mark} &); touch ready; sleep {mark}")))
            while not (sandbox.workspace / "ready").exists() or len(alive(mark)) < 3:
                await asyncio.sleep(0.01)
            first = min(alive(mark), key=_age)
            os.kill(_parent(first), signal.SIGKILL)
            with pytest.raises(SandboxError, match="supervisor was killed"):
                await running
            assert alive(mark) == []
            assert (await sandbox.run(shell("echo fine"))).stdout.text() == "fine\n"

    run(main)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _age(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_supervisor_that_dies_between_commands_is_replaced() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            assert (await sandbox.run(Command(("true",)))).exit_code == 0
            children = (
                Path(f"/proc/{sandboxes.launcher.pid}/task/{sandboxes.launcher.pid}/children").read_text().split()
            )
            for pid in map(int, children):
                os.kill(pid, signal.SIGKILL)
            assert await asyncio.to_thread(
                eventually, lambda: not any(Path(f"/proc/{pid}").exists() for pid in children)
            )
            assert (await sandbox.run(Command(("true",)))).exit_code == 0

    run(main)


def test_a_launcher_that_is_killed_is_an_error() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            os.kill(sandboxes.launcher.pid, signal.SIGKILL)
            # The idle supervisor still serves; a second one at the same time would have to be forked.
            results = await asyncio.gather(*(sandbox.run(shell("sleep 0.2")) for _ in range(3)), return_exceptions=True)
            assert any(isinstance(result, SandboxError) for result in results)

    run(main)


VICTIM = """
import asyncio, sys
from pathlib import Path
from keystone_action.system.command import Command, CommandLimits
from keystone_action.sandbox.processes.sandboxes import start

async def main():
    sandboxes = await start()
    workspace = sandboxes.root / "w"
    workspace.mkdir()
    sandbox = await sandboxes.open(workspace, limits=CommandLimits())
    mark = sys.argv[1]
    service = await sandboxes.spawn_service(["sleep", mark], {"PATH": "/usr/bin:/bin"}, Path("/"), uid=True)
    print(sandboxes.root, sandboxes.launcher.pid, flush=True)
    await sandbox.run(Command(("sh", "-c", f"(setsid sleep {mark} &); while :; do (sleep {mark} &); sleep 0.05; done")))

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_we_are_killed_nothing_is_left(number: int) -> None:
    mark = token()
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, mark], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    root, launcher = victim.stdout.readline().split()
    assert eventually(lambda: len(alive(mark)) > 6)
    victim.send_signal(number)
    victim.wait()
    victim.stdout.close()
    assert eventually(lambda: not alive(mark))
    assert eventually(lambda: not runs(launcher))
    assert not Path(root).exists()


def test_what_a_user_leaves_in_shared_places_goes_with_its_sandbox() -> None:
    mark = token()

    async def main() -> None:
        async with world() as (_, sandbox):
            if not ROOT or sandbox.uid is None:
                return  # without a user of its own it can't write there
            made = await sandbox.run(shell(f"echo x > /dev/shm/{mark} && ipcmk -M 4096 -Q -S 1"))
            assert made.exit_code == 0, made.stderr.text()
            user = str(sandbox.uid)
            assert Path(f"/dev/shm/{mark}").exists()
            assert [user in Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem", "msg")] == [True] * 3
            await sandbox.close()
            assert not Path(f"/dev/shm/{mark}").exists()
            assert [user in Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem", "msg")] == [False] * 3

    run(main)


def test_directories_that_resist_removal() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            nest = """
            cd $HOME; mkdir -p a/b; chmod 0 a/b a
            cd $TMPDIR; ln -s /etc etc
            python3 -c "import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(1500)]; os.chmod('.', 0)"
            """
            assert (await sandbox.run(shell(nest))).exit_code == 0
            await sandbox.close()
            assert not sandbox._private.place.exists()
            assert Path("/etc/passwd").exists()

    run(main)
