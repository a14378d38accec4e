"""What a container may use, and what is said when it wants more."""

from __future__ import annotations

from typing import Any

import pytest
from support.docker_world import fresh, in_shell, run_bounded, shell, world

from keystone_action.system.command import Command, CommandLimits

pytestmark = pytest.mark.docker

BOMB = """
import os, time
refused = 0
for _ in range(8):
    try:
        os.fork()
    except OSError:
        refused += 1
if refused:
    os.write(1, b"%d\\n" % refused)
time.sleep(2)
"""
"""At most 256 processes, were there no limit: each turn doubles those that there are."""


def test_a_fork_bomb_stays_inside_its_limit(engine: Any) -> None:
    async def main() -> None:
        async with world(engine, CommandLimits(pids=64, memory=512 << 20)) as (provider, sandbox):
            bomb = await sandbox.run(Command(("python3", "-c", BOMB), timeout=60))
            assert not bomb.timed_out
            assert sum(map(int, bomb.stdout.text().split())) > 0
            other = await fresh(provider, CommandLimits(pids=64))
            assert (await other.run(shell("echo untouched"))).stdout.text() == "untouched\n"
            count = await sandbox.run(shell("cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null"))
            assert count.stdout.text().split() == ["64"]

    run_bounded(main)


def test_without_a_limit_there_is_one_for_processes(engine: Any) -> None:
    done = in_shell(engine, "cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null; ulimit -c")
    assert done.stdout.text().split() == ["4096", "0"]


def test_who_uses_too_much_memory_is_killed_and_it_is_said(engine: Any) -> None:
    async def main() -> None:
        async with world(engine, CommandLimits(memory=64 << 20)) as (_, sandbox):
            done = await sandbox.run(Command(("python3", "-c", "b'x' * (1 << 28)")))
            assert (done.signal, done.limit) == (9, "memory: the container was killed at 64.0 MiB allowed")
            child = await sandbox.run(shell("python3 -c \"b'x' * (1 << 28)\"; exit 5"))
            assert (child.exit_code, child.limit) == (
                5,
                "memory: a process in the container was killed at 64.0 MiB allowed",
            )
            fine = await sandbox.run(shell("kill -9 $$"))
            assert (fine.signal, fine.limit) == (9, None)

    run_bounded(main)


@pytest.mark.parametrize(
    ("mode", "where"),
    [("bind", "$PWD"), ("bind", "$HOME"), ("bind", "$TMPDIR"), ("bind", "/tmp"), ("copy", "$PWD"), ("copy", "$TMPDIR")],
)
def test_who_fills_the_disk_is_stopped_and_it_is_said(engine: Any, mode: str, where: str) -> None:
    done = in_shell(
        engine,
        f'while :; do head -c 1M /dev/zero >>"{where}/large" && sleep 0.01; done',
        CommandLimits(disk=20 << 20),
        mode=mode,
        timeout=60,
    )
    assert done.limit is not None
    assert done.limit.startswith("disk: ")
    assert done.limit.endswith(" used, 20.0 MiB allowed")
    assert not done.timed_out


def test_who_fills_the_disk_quickly_is_found_afterwards(engine: Any) -> None:
    done = in_shell(engine, "for n in 1 2 3; do head -c 10M /dev/zero >large$n; done", CommandLimits(disk=20 << 20))
    assert done.limit is not None  # with 30 MiB used, unless it was stopped in the midst of the third
    assert done.limit.endswith(" used, 20.0 MiB allowed")


@pytest.mark.parametrize(("mode", "where"), [("bind", "$PWD"), ("bind", "/tmp"), ("copy", "$PWD")])
def test_a_single_file_ends_at_the_limit_however_fast_it_grows(engine: Any, mode: str, where: str) -> None:
    text = f'head -c 1G /dev/zero >"{where}/large"; stat -c %s "{where}/large"'
    done = in_shell(engine, text, CommandLimits(disk=20 << 20), mode=mode)
    assert done.stdout.text() in ("", f"{20 << 20}\n")  # it may have been stopped before it could say
    assert done.limit is not None
    assert done.limit.startswith("disk: 20.")
    below = in_shell(
        engine, f'head -c 19M /dev/zero >"{where}/large"; stat -c %s "{where}/large"', CommandLimits(disk=20 << 20)
    )
    assert (below.stdout.text(), below.limit) == (f"{19 << 20}\n", None)


def test_processor_time_is_limited(engine: Any) -> None:
    text = """
        if [ -e /sys/fs/cgroup/cpu.max ]; then cat /sys/fs/cgroup/cpu.max
        else cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us; fi
    """
    quota, period = in_shell(engine, text, CommandLimits(cpu=0.5)).stdout.text().split()
    assert int(quota) / int(period) == 0.5
