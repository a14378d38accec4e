"""Processes that are meant to outlive the run, or to bring it down, on a machine that caps processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.hostile import area
from support.started_as import PLAIN_USER, cap_on_processes, keystone_in, processes_in

__all__ = ["area"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making a control group with a cap needs root")

CAP = 60
USERS = pytest.mark.parametrize("user", [0, PLAIN_USER], ids=["root", "plain user"])

MARK = "an agent of this test"
BOMB = f"""
import os, time  # {MARK}
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.001)
"""
SOME_PROCESSES = f"""
import subprocess  # {MARK}
for child in [subprocess.Popen(["sleep", "0.2"]) for _ in range(10)]:
    child.wait()
"""


def spec(script: str, **agent: Any) -> str:
    return json.dumps(
        {
            "version": 1,
            "id": "capped",
            "task": {"prompt": "do it"},
            "agent": {"type": "command", "command": ["python3", "-c", script], "must_exit_zero": True, **agent},
            "invariants": {"any": {"check": {"type": "command_exit", "command": "true"}}},
        }
    )


@hostile(
    "processes",
    "a fork bomb fills the machine's cap on processes (pids.max)",
    held_by="killed by user and by process group, without making a process for it",
)
@USERS
def test_a_bomb_that_fills_the_machines_cap_is_gone_after_the_run(area: Path, user: int) -> None:
    with cap_on_processes(CAP) as group:
        called = keystone_in(group, area, spec(BOMB, timeout="3s"), user)
        assert processes_in(group, MARK) == []
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["agent"]["timed_out"]) == (1, "fail", True), called.out + called.err
    assert called.checks["any"]["status"] == "pass"


@honest("processes", "a fork bomb fills the machine's cap on processes (pids.max)")
@USERS
def test_an_agent_that_starts_some_processes_below_the_cap(area: Path, user: int) -> None:
    with cap_on_processes(CAP) as group:
        called = keystone_in(group, area, spec(SOME_PROCESSES), user)
        assert processes_in(group, MARK) == []
    assert called.code == 0, called.out + called.err
