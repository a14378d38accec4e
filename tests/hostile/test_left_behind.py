"""What an agent leaves outside of its own folders, when the run is killed with all that would have cleaned up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.attack_runs import area
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, NO_ENGINE, keystone

from keystone_action.sandbox.processes import system_v
from keystone_action.sandbox.users import Users

__all__ = ["area"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a user of its own for each sandbox needs root")

MEMORY = Path("/dev/shm")
SPEC = """\
version: 1
id: leaves
task: {prompt: x}
agent: {type: command, command: [python3, -c, SCRIPT]}
invariants: {any: {check: {type: file_absent, path: x}}}
"""
SHORT = SPEC.replace("[python3, -c, SCRIPT]", "'true'")
LEAVES = """
import ctypes, os, time
assert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0
open("/dev/shm/left-NAME", "w").write("x" * 4096)
while not os.path.exists("/dev/shm/go-on-NAME"):
    time.sleep(0.05)
"""


def eventually(condition: Callable[[], object]) -> object:
    end = time.monotonic() + 60
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def segments(uid: int) -> int:
    return sum(uid in (each.maker, each.owner) for each in system_v.system_v_objects("shm"))


def processes_of(uid: int) -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*") if _owner(path) == uid]


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except OSError:
        return -1


@dataclass(frozen=True)
class Going:
    """A run whose agent has left a file in memory (`left`) and a System V segment, and waits for the file `go_on`."""

    process: subprocess.Popen[bytes]
    left: Path
    go_on: Path
    uid: int

    def kill(self) -> None:
        """Kill the run; its agent is gone soon after."""
        self.process.kill()
        self.process.wait()
        assert eventually(lambda: not processes_of(self.uid))

    @property
    def is_there(self) -> tuple[bool, bool]:
        """Whether the file is, and whether the segment is."""
        return self.left.exists(), bool(segments(self.uid))


@pytest.fixture
def going(area: Path) -> Iterator[Going]:
    left, go_on = MEMORY / f"left-{area.name}", MEMORY / f"go-on-{area.name}"
    script = json.dumps(LEAVES.replace("NAME", area.name))
    (area / "keystone.yaml").write_text(SPEC.replace("SCRIPT", script))
    (area / "short.keystone.yaml").write_text(SHORT)
    process = subprocess.Popen(
        [sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"],
        cwd=area,
        env={**ENVIRONMENT, **NO_ENGINE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert eventually(lambda: left.exists() and left.stat().st_size), process.poll()
        yield Going(process, left, go_on, left.stat().st_uid)
    finally:
        process.kill()
        process.wait()
        for path in (left, go_on):
            path.unlink(missing_ok=True)


def clean(area: Path) -> None:
    called = keystone("clean", directory=area, environ={**NO_ENGINE, "TMPDIR": str(area)})
    assert called.code == 3, "no engine answers, and nothing else is wrong"
    assert "can't be removed" not in called.err


def next_run(area: Path) -> None:
    called = keystone("run", "short.keystone.yaml", "--output", "next", directory=area, environ=NO_ENGINE)
    assert called.code == 0, called.err


def swept(area: Path, going: Going, sweep: Callable[[Path], None]) -> bool:
    """The lease is locked until the last supervisor of the run is gone."""
    sweep(area)
    return going.is_there == (False, False)


@hostile(
    "processes",
    "leaves files in memory and System V objects behind a run that is killed",
    held_by="a mark of its user's lease; `clean` and the next run remove them",
)
@pytest.mark.parametrize("sweep", [clean, next_run])
def test_what_a_killed_run_leaves_in_memory_goes(area: Path, going: Going, sweep: Callable[[Path], None]) -> None:
    assert going.uid != 0
    assert going.is_there == (True, True)
    going.kill()
    assert eventually(lambda: swept(area, going, sweep)), going.is_there


@honest("processes", "leaves files in memory and System V objects behind a run that is killed")
@pytest.mark.parametrize("sweep", [clean, next_run])
def test_what_a_run_that_goes_on_has_in_memory_stays(area: Path, going: Going, sweep: Callable[[Path], None]) -> None:
    sweep(area)
    assert going.is_there == (True, True)
    going.go_on.touch()
    assert going.process.wait(120) == 0
    assert going.is_there == (False, False)


def test_what_others_left_in_memory_is_not_ours(area: Path) -> None:
    """Of a user that no sandbox had: one of ours has its mark until it is given back."""
    users = Users()
    lease = users.lease()
    lease.release()
    left = MEMORY / f"left-{area.name}"
    left.touch()
    os.chown(left, lease.uid, lease.uid)
    try:
        clean(area)
        assert left.exists()
    finally:
        left.unlink()
