"""A container engine that takes requests and answers none, or half of one: the run ends at its limits and by a signal,
with its results, and what it had to leave is the next `keystone clean`'s.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, keystone
from support.engine_proxy import EngineProxy

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = [pytest.mark.docker, pytest.mark.waits]

SPEC = """\
version: 1
id: hanging
task: {prompt: "do it"}
base: BASE
agent: {type: command, command: 'if [ "$NUMBER" = 1 ]; then exec sleep MARK; fi', AGENT
  env: {NUMBER: "{{ cell.replica }}"}}
parallelism: {replicas: 2, max_concurrency: 1}
REST
invariants:
  it: {check: {type: file_absent, path: other.txt}}
"""
HANGS = pytest.mark.parametrize("how", ["silence", "halve", "freeze"])


class HungRun:
    """A run of two cells, the second of which waits in its container. proxy: between it and the engine."""

    def __init__(self, directory: Path, engine: DockerClient, base: str, *, agent: str = "", rest: str = "") -> None:
        self.directory, self.engine = directory, engine
        self.proxy = EngineProxy(directory / "engine.sock")
        self.mark = f"9{secrets.randbelow(10**9):09}"
        text = SPEC.replace("BASE", base).replace("MARK", self.mark).replace("AGENT", agent).replace("REST", rest)
        (directory / "keystone.yaml").write_text(text)
        (directory / "tmp").mkdir()
        self.environ = {"TMPDIR": str(directory / "tmp")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"],
            cwd=directory,
            env={**ENVIRONMENT, **self.environ, "DOCKER_HOST": self.proxy.address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_agent_runs(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()
            for one in self.engine.containers.list(filters={"status": "running"}, ignore_removed=True):
                if self.mark in " ".join(one.attrs["Args"]) and "NUMBER=1" in one.attrs["Config"]["Env"]:
                    self.run_id = one.labels["keystone.run"]
                    return
            time.sleep(0.1)
        raise AssertionError("the agent never ran")

    def end(self) -> tuple[int, str]:
        """Its exit code and stderr. The engine never answers: an end is the run's own."""
        _, err = self.process.communicate(timeout=170)
        return self.process.returncode, err

    @property
    def verdicts(self) -> list[str]:
        document = json.loads((self.directory / "out" / "results.json").read_text("utf-8"))
        return [cell["verdict"] for one in document["specs"] for cell in one["cells"]]

    @property
    def left(self) -> list[str]:
        label = {"label": f"keystone.run={self.run_id}"}
        found: list[Any] = self.engine.containers.list(all=True, filters=label, ignore_removed=True)
        return [str(one.name) for one in [*found, *self.engine.networks.list(filters=label)]]

    def clean(self, *words: str) -> str:
        cleaned = keystone("clean", *words, directory=self.directory, environ=self.environ)
        assert cleaned.code == 0, cleaned.err
        return cleaned.out


@pytest.fixture
def hung(tmp_path: Path, engine: DockerClient, image: Callable[[str], str]) -> Iterator[Callable[..., HungRun]]:
    made: list[HungRun] = []

    def start(**more: str) -> HungRun:
        made.append(HungRun(tmp_path, engine, image("python:3.12-slim"), **more))
        made[-1].until_agent_runs()
        return made[-1]

    yield start
    for run in made:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
        run.proxy.close()
        run.clean("--run", run.run_id)


@hostile(
    "engine",
    "the engine answers nothing, or half, when a job is cancelled",
    held_by="connections are cut",
    sandbox="docker",
)
@HANGS
def test_a_cancelled_run_keeps_its_results_though_the_engine_hangs(hung: Callable[..., HungRun], how: str) -> None:
    run = hung()
    getattr(run.proxy, how)()
    run.process.send_signal(signal.SIGTERM)
    code, err = run.end()
    assert code == 130, err
    assert "Traceback" not in err
    assert run.verdicts == ["pass"]
    assert f"keystone clean --run {run.run_id}" in err
    assert run.left, "else there is nothing to find again"
    run.clean()
    assert run.left == []
    assert not list((run.directory / "tmp").glob("*.lock"))


@honest("engine", "the engine answers nothing, or half, when a job is cancelled", sandbox="docker")
def test_a_cancelled_run_leaves_nothing_on_an_engine_that_answers_late(hung: Callable[..., HungRun]) -> None:
    run = hung()
    run.proxy.slow_down(0.05)
    run.process.send_signal(signal.SIGTERM)
    code, err = run.end()
    assert (code, run.verdicts) == (130, ["pass"]), err
    assert run.left == []


@hostile("engine", "the engine hangs at the limit of a cell", held_by="the cell is left to itself", sandbox="docker")
@HANGS
def test_the_limit_of_a_cell_ends_it_though_the_engine_hangs(hung: Callable[..., HungRun], how: str) -> None:
    run = hung(rest="resources: {timeout: 20s}")
    getattr(run.proxy, how)()
    code, err = run.end()
    assert code == 3, err
    assert run.verdicts == ["pass", "error"]
    run.clean()
    assert run.left == []


@hostile(
    "engine",
    "the engine hangs at the time limit of an agent",
    held_by="a doubtful engine gets little time",
    sandbox="docker",
)
def test_the_time_limit_of_an_agent_ends_it_though_the_engine_hangs(hung: Callable[..., HungRun]) -> None:
    run = hung(agent="timeout: 15s,")
    run.proxy.silence()
    code, err = run.end()
    assert code == 3, err
    assert run.verdicts == ["pass", "error"]
    assert "the Docker engine did not answer within 30 s" in (run.directory / "out" / "results.json").read_text()
    run.clean()
    assert run.left == []


@honest("engine", "the engine hangs at the limit of a cell", sandbox="docker")
@honest("engine", "the engine hangs at the time limit of an agent", sandbox="docker")
def test_an_agent_is_ended_at_its_time_limit_by_an_engine_that_answers_late(hung: Callable[..., HungRun]) -> None:
    run = hung(agent="timeout: 15s,", rest="resources: {timeout: 10m}")
    run.proxy.slow_down(0.2)
    code, err = run.end()
    assert (code, run.verdicts) == (0, ["pass", "pass"]), err
    assert run.left == []
