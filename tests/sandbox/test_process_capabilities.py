"""What is left of root's powers in the process sandbox: nothing, whoever a command runs as."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.process_world import ROOT, run, shell, world

WORLDS = [
    {},
    pytest.param({"landlock": False}, marks=pytest.mark.skipif(not ROOT, reason="then nothing isolates")),
    {"uid_isolation": False},
]


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours with a secret in its environment."""
    process = subprocess.Popen(["sleep", "1000"], env={"A_TOKEN": "SECRET"})
    yield process
    process.kill()
    process.wait()


@hostile("host scripts", "root under Landlock alone reads the environment of others", held_by="no capabilities")
@pytest.mark.parametrize("options", WORLDS)
def test_no_environment_of_others_can_be_read(options: dict[str, bool], other: subprocess.Popen[bytes]) -> None:
    async def main() -> None:
        async with world(**options) as (_, sandbox):
            result = await sandbox.run(shell(f"cat /proc/{other.pid}/environ /proc/1/environ /proc/$PPID/environ"))
            assert (result.exit_code, result.stdout.total) == (1, 0)

    run(main)


@pytest.mark.parametrize("options", WORLDS)
def test_no_capability_is_left_or_can_be_had(options: dict[str, bool]) -> None:
    async def main() -> None:
        async with world(**options) as (_, sandbox):
            result = await sandbox.run(shell("grep ^Cap /proc/self/status"))
            found = {line.split()[0]: int(line.split()[1], 16) for line in result.stdout.text().splitlines()}
            bounding = found.pop("CapBnd:")
            assert set(found.values()) == {0}
            assert bounding == 0 or not ROOT  # who has none can't give it up either

    run(main)


PARENT_WITH_INHERITABLE_ONES = """
import ctypes, sys
sys.path[:0] = {paths!r}
from support.process_world import run, shell, world
libc = ctypes.CDLL(None, use_errno=True)
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(header, sets) == 0
sets[2], sets[5] = sets[1], sets[4]
assert libc.capset(header, sets) == 0 and sets[2] != 0
async def main():
    async with world(**{options!r}) as (_, sandbox):
        print((await sandbox.run(shell("grep ^Cap /proc/self/status"))).stdout.text())
run(main)
"""


@pytest.mark.skipif(not ROOT, reason="only root has capabilities to hand on")
@pytest.mark.parametrize("options", WORLDS)
def test_no_inheritable_capability_is_left(options: dict[str, bool]) -> None:
    """Older container engines start their containers with inheritable capabilities (CVE-2022-24769). The bounding set
    does not bound those: a program that root executes would get them back."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script = PARENT_WITH_INHERITABLE_ONES.format(paths=paths, options=options)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = {line.split()[0]: int(line.split()[1], 16) for line in done.stdout.splitlines() if line}
    assert len(found) == 5
    assert set(found.values()) == {0}


@honest("host scripts", "root under Landlock alone reads the environment of others")
@pytest.mark.parametrize("options", WORLDS)
def test_a_command_reads_its_own_environment_and_workspace(options: dict[str, bool]) -> None:
    async def main() -> None:
        async with world(**options) as (_, sandbox):
            text = 'echo x > file && mkdir -p a/b && chmod 700 a && cat file && tr "\\0" "\\n" < /proc/self/environ'
            result = await sandbox.run(shell(text, env={"MINE": "1"}))
            assert result.exit_code == 0
            assert "MINE=1" in result.stdout.text()

    run(main)
