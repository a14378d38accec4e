"""The image where the machine allows it little, and what its processes show while a step runs."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.action_image import action_base, action_image
from support.attacks import honest, hostile
from support.container_step import ContainerStep
from support.fake_runner import ID_TOKEN, RUNTIME_TOKEN, TOKEN, FakeRunner

__all__ = ["action_base", "action_image"]

pytestmark = pytest.mark.docker

MOST_PROCESSES = 64
BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.001)
"""
SOME_PROCESSES = """
import subprocess
for child in [subprocess.Popen(["sleep", "0.2"]) for _ in range(10)]:
    child.wait()
"""
SLEEP = 7654321
"""Seconds that nothing else sleeps."""
PRIVATE = (TOKEN, RUNTIME_TOKEN, ID_TOKEN, "sk-ant-", "INPUT_", "ACTIONS_", "GITHUB_TOKEN")
SHOWN = """
for place in /proc/[0-9]*; do
    echo "PROCESS ${place#/proc/}"; tr '\\0' '\\n' < "$place/environ" 2>/dev/null || true
done
"""
OPENED = """
for place in /proc/[0-9]*/fd/*; do
    name=$(readlink "$place") || continue
    case $name in
        /memfd:*|/tmp/*|*deleted*) echo "OPENED $name"; timeout 5 cat "$place" 2>/dev/null || true ;;
    esac
done
"""


def run_capped(image: str, directory: Path, script: str, timeout: str) -> tuple[int, dict[str, object]]:
    """The exit code of a run in a container that may have few processes, and its only cell. When this returns, the
    container is gone, and so is all that ran in it. timeout: the agent's."""
    spec = {
        "version": 1,
        "id": "capped",
        "task": {"prompt": "do it"},
        "agent": {
            "type": "command", "command": ["python3", "-c", script], "timeout": timeout, "must_exit_zero": True
        },
        "invariants": {"any": {"check": {"type": "command_exit", "command": "true"}}},
    }  # fmt: skip
    (directory / "keystone.yaml").write_text(json.dumps(spec))
    name = f"keystone-test-{uuid.uuid4().hex[:12]}"
    options = ["--pids-limit", str(MOST_PROCESSES), "-v", f"{directory}:/data", "-w", "/data"]
    command = ["docker", "run", "--rm", "--name", name, *options, image, "run", "keystone.yaml", "--output", "out"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
    (one,) = json.loads((directory / "out" / "results.json").read_text())["specs"]
    (cell,) = one["cells"]
    return done.returncode, cell


@hostile(
    "processes",
    "a fork bomb fills the cap on processes of the container that all of us runs in",
    held_by="killed by user, without making a process for it",
)
def test_a_bomb_below_the_containers_cap_fails_as_an_agent(action_image: str, tmp_path: Path) -> None:
    code, cell = run_capped(action_image, tmp_path, BOMB, "3s")
    assert (code, cell["verdict"], cell["agent"]["timed_out"]) == (1, "fail", True), cell
    assert [one["status"] for one in cell["invariants"]] == ["pass"]


@honest("processes", "a fork bomb fills the cap on processes of the container that all of us runs in")
def test_an_agent_below_the_containers_cap_passes(action_image: str, tmp_path: Path) -> None:
    code, cell = run_capped(action_image, tmp_path, SOME_PROCESSES, "10s")
    assert (code, cell["verdict"]) == (0, "pass"), cell


@pytest.fixture(scope="module")
def step(action_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerStep]:
    """A step whose agent left an orphan that ends, and sleeps; the tests that look at it share it."""
    runner = FakeRunner(tmp_path_factory.mktemp("step"))
    spec = {
        "version": 1,
        "id": "shown",
        "task": {"prompt": "do it"},
        "agent": {"type": "command", "command": f"(sh -c 'sleep 0.1' &); sleep {SLEEP}"},
        "invariants": {"any": {"check": {"type": "file_absent", "path": "x"}}},
    }
    (runner.workspace / "keystone.yaml").write_text(json.dumps(spec))
    started = runner.start_container(action_image, env={"ANTHROPIC_API_KEY": "sk-ant-that-nobody-may-see"})
    try:
        started.until(
            lambda: f"sleep {SLEEP}" in exec_in(started, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), "it slept"
        )
        yield started
    finally:
        started.abandon()


def exec_in(step: ContainerStep, script: str, *options: str) -> str:
    command = ["docker", "exec", *options, step.name, "env", "-i", "PATH=/usr/bin:/bin", "sh", "-c"]
    return subprocess.run([*command, script], capture_output=True, text=True, timeout=60, check=False).stdout


@hostile(
    "host scripts",
    "a token of the job is read from process 1 of the action's container",
    held_by="an init that takes our place",
    sandbox="none",
)
def test_no_process_shows_a_token(step: ContainerStep) -> None:
    for user in ("0", "4321"):
        processes = dict(one.split("\n", 1) for one in exec_in(step, SHOWN, "--user", user).split("PROCESS ")[1:])
        assert len(processes) > 3
        assert ("PATH=" in processes["1"]) == (user == "0"), "then there is nothing to look at"
        assert not [number for number, text in processes.items() if any(token in text for token in PRIVATE)]


def test_no_descriptor_shows_a_token(step: ContainerStep) -> None:
    """What was handed on is emptied: the init still has the file open."""
    assert "/memfd:keystone-environment" in exec_in(step, "ls -l /proc/1/fd"), "then there is nothing to look at"
    opened = exec_in(step, OPENED)
    assert "OPENED /memfd:keystone-environment" in opened
    assert not [token for token in PRIVATE if token in opened]
    assert "/memfd:" not in exec_in(step, OPENED, "--user", "4321")


def test_orphans_are_reaped(step: ContainerStep) -> None:
    time.sleep(0.5)
    states = exec_in(step, "cat /proc/[0-9]*/status | grep ^State")
    assert "zombie" not in states
    assert states.count("State:") > 3


def test_an_init_of_the_engine_is_enough(action_image: str) -> None:
    command = ["docker", "run", "--rm", "--init", "-e", "GITHUB_TOKEN=x", action_image, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
