"""A machine that has no process left for us: starting is tried again, nothing of ours dies, and the cause is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.started_as import cap_on_processes, run_in
from support.started_as import interpreter as python

from keystone_action.system import shortage

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making a control group with a cap needs root")

STARTS = """
import asyncio, json, sys
from pathlib import Path
from keystone_action.errors import SandboxError
from keystone_action.system.command import Command, CommandLimits
from keystone_action.sandbox.processes.sandboxes import start

group, seconds = Path(sys.argv[1]), float(sys.argv[2])

async def main():
    sandboxes = await start()
    try:
        workspace = sandboxes.root / "w"
        workspace.mkdir()
        sandbox = await sandboxes.open(workspace, limits=CommandLimits())
        async def release():
            await asyncio.sleep(seconds)
            (group / "pids.max").write_text("max")
        async def run():
            try:
                return (await sandbox.run(Command(("echo", "done")))).stdout.text()
            except SandboxError as error:
                return str(error)
        await sandbox.run(Command(("true",)))
        # One supervisor is idle, and has no process for its command; for the other command there is no supervisor.
        (group / "pids.max").write_text("1")
        _, *told = await asyncio.gather(release(), run(), run())
        told.append((await sandbox.run(Command(("echo", "later")))).stdout.text())
    finally:
        await sandboxes.close()
    print(json.dumps(told))

asyncio.run(main())
"""


def told(tmp_path: Path, seconds: float) -> list[str]:
    with cap_on_processes(1000) as group:
        done = run_in(group, [python(0), "-c", STARTS, group, seconds], tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    answers: list[str] = json.loads(done.stdout)
    return answers


@needs_root
def test_what_the_cap_refuses_is_tried_again(tmp_path: Path) -> None:
    assert told(tmp_path, 1) == ["done\n", "done\n", "later\n"]


@needs_root
def test_a_cap_that_stays_is_told_and_nothing_dies_of_it(tmp_path: Path) -> None:
    first, second, later = told(tmp_path, 13)
    assert first.startswith("the machine caps processes (pids.max is ")
    assert second.startswith("the machine caps processes (pids.max is ")
    assert later == "later\n"


@needs_root
def test_refusals_are_counted(tmp_path: Path) -> None:
    count = "from keystone_action.system import shortage as cap; import os; before = cap.refused_processes()\n"
    refused = "try: os.fork()\nexcept OSError: pass\nprint(cap.refused_processes() - before)"
    with cap_on_processes(1) as group:
        done = run_in(group, [python(0), "-c", count + refused], tmp_path)
    assert done.stdout.decode().strip() == "1", done.stderr.decode()


def test_places_of_control_groups() -> None:
    v1 = ["8:pids:/docker/abc", "4:memory:/x", "0::/docker/abc"]
    inside = [
        "104 96 0:36 /docker/abc /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids",
        "99 96 0:31 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset",
    ]
    assert [str(place / path) for place, path in shortage._places(v1, inside)] == ["/sys/fs/cgroup/pids"]
    v2 = ["0::/system.slice/runner.service"]
    outside = ["31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"]
    places = [str(place / path) for place, path in shortage._places(v2, outside)]
    assert places == ["/sys/fs/cgroup/system.slice/runner.service"]
    own_namespace = ["31 23 0:28 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw"]
    assert [str(place / path) for place, path in shortage._places(["0::/"], own_namespace)] == ["/sys/fs/cgroup"]
