"""What hostile code in a container can't do to the sandbox it runs in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import Any

import pytest
from support.attacks import hostile
from support.docker_world import run_bounded, shell, world

from keystone_action.engine import archives as docker_unpack
from keystone_action.errors import SandboxError
from keystone_action.system.command import Command, CommandLimits

pytestmark = pytest.mark.docker
MODES = pytest.mark.parametrize("mode", ["bind", "copy"])

DEEP = "cd /tmp; n=$(printf 'd%.0s' $(seq 200)); for i in $(seq 40); do mkdir $n; cd -P $n 2>/dev/null || break; done"
FILL = "i=0; while [ $i -lt 80 ]; do head -c 5000000 /dev/zero >/var/tmp/$i; i=$((i + 1)); sleep 0.2; done"


@hostile(
    "containers",
    "leaves links, FIFOs and modes in HOME that engines refuse",
    held_by="archives are checked by us, both ways",
    sandbox="docker",
)
def test_links_that_lead_far_up_from_home_don_t_keep_it_from_the_next_command(engine: Any) -> None:
    """An engine takes such a link for an attack on itself, and refuses the archive that it is in."""

    async def main() -> tuple[int | None, str]:
        async with world(engine, mode="copy") as (_, sandbox):
            links = (
                'mkdir -p "$HOME/a"; ln -s ../../../../../../../../../../etc "$HOME/a/up"; ln -s /etc "$TMPDIR/down"'
            )
            odd = 'mkfifo "$HOME/pipe"; echo same > "$HOME/one"; ln "$HOME/one" "$TMPDIR/two"; chmod 6755 "$HOME/one"'
            done = await sandbox.run(shell(f"{links}; {odd}"))
            assert done.exit_code == 0, done.stderr.text()
            look = (
                'cd "$HOME"; readlink a/up; readlink "$TMPDIR/down"; test -p pipe; cat "$TMPDIR/two"; stat -c %a:%u one'
            )
            done = await sandbox.run(shell(f"set -e; {look}"))
            assert sandbox.transfer.holds_only_caches() is False
            return done.exit_code, done.stdout.text() + done.stderr.text()

    code, printed = run_bounded(main)
    assert code == 0, printed
    assert printed.split() == ["../../../../../../../../../../etc", "/etc", "same", "755:65532"]


@MODES
@hostile(
    "containers", "removes its own program", held_by="what the image had before it started counts", sandbox="docker"
)
def test_a_program_that_takes_itself_away_was_there(engine: Any, mode: str) -> None:
    """Else an agent could make its failure look like ours: exit 3 is for programs that don't exist."""

    async def main() -> tuple[Any, Any]:
        async with world(engine, mode=mode) as (_, sandbox):
            await sandbox.run(
                shell("printf '#!/bin/sh\\nrm run; exit 127\\n' > run; chmod 755 run; mkdir bin; cp run bin")
            )
            first = await sandbox.run(Command(("./run",)))
            return first, await sandbox.run(Command(("./run",)))

    first, second = run_bounded(main)
    assert (first.exit_code, first.not_found) == (127, False)
    assert second.not_found


@MODES
@hostile(
    "containers",
    "hides files in directories too deep to be counted",
    held_by="what can't be counted stops it",
    sandbox="docker",
)
def test_directories_too_deep_for_the_engine_don_t_lift_the_disk_limit(engine: Any, mode: str) -> None:
    """It can't tell then how much a container has written."""

    async def main() -> Any:
        async with world(engine, CommandLimits(disk=50 << 20), mode=mode) as (_, sandbox):
            return await sandbox.run(shell(f"({DEEP}); {FILL}", timeout=60))

    done = run_bounded(main)
    assert done.limit == "disk: directories nested too deeply to be watched", done
    assert not done.timed_out


@hostile(
    "containers",
    "leaves a workspace too large to be copied back",
    held_by="what is lost counts as its failure",
    sandbox="docker",
)
def test_a_file_of_terabytes_is_not_waited_for_and_what_was_lost_is_said(engine: Any) -> None:
    async def main() -> tuple[Any, Any, str]:
        async with world(engine, mode="copy") as (_, sandbox):
            (sandbox.workspace / "before").write_text("x")
            done = await sandbox.run(shell("rm before; truncate -s 7T big", timeout=100))
            return done, await sandbox.run(shell("true")), sandbox.loss

    done, next_one, lost = run_bounded(main)
    assert done.limit == "disk: what is left to copy out is larger than 16.0 GiB"
    assert done.duration_s < 60
    assert "larger than the 16.0 GiB" in lost
    assert next_one.exit_code == 126
    assert lost in next_one.stderr.text()


def test_the_workspace_comes_back_whatever_is_in_home(engine: Any) -> None:
    """What isn't had of the workspace would be graded as it was before."""

    async def main() -> tuple[Any, str, str]:
        async with world(engine, CommandLimits(disk=20 << 20), mode="copy") as (_, sandbox):
            # One file alone ends at the limit.
            fill = 'echo bad > found; for n in $(seq 160); do truncate -s 19M "$HOME/big$n"; done'
            done = await sandbox.run(shell(fill))
            return done, sandbox.loss, (sandbox.workspace / "found").read_text()

    done, lost, found = run_bounded(main)
    assert done.limit is not None
    assert (lost, found) == ("", "bad\n")


def test_a_copy_that_breaks_off_here_keeps_no_container(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that waits for us to read on would not let go of it: `world` finds it then."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        async with world(engine, mode="copy") as (_, sandbox):
            monkeypatch.setattr(docker_unpack, "_write", full)
            # Else it says that the container can't be removed.
            with pytest.raises(SandboxError, match="No space left"):
                await sandbox.run(shell("head -c 200000000 /dev/urandom > large", timeout=100))

    run_bounded(main)


def test_many_files_don_t_hold_up_whoever_cancels(engine: Any) -> None:
    """An agent has more of them made in a minute than come back in one; a cancelled run has seconds."""
    count = 60_000

    async def main() -> tuple[int, int]:
        async with world(engine, mode="copy") as (_, sandbox):

            def came_back() -> int:
                return len(list(sandbox.workspace.iterdir()))

            script = f"seq 0 {count - 1} | xargs touch"
            task = asyncio.create_task(sandbox.run(shell(script, timeout=100)))
            while came_back() < 100:  # noqa: ASYNC110 - a file system tells nobody
                await asyncio.sleep(0.01)
            at_cancel = came_back()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return at_cancel, came_back()

    at_cancel, at_end = run_bounded(main)
    assert at_cancel < count / 2
    assert at_end < count * 3 / 4
