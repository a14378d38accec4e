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
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
WAYS = ("silence", "halve", "freeze")
HANGS = pytest.mark.parametrize("how", WAYS)


@dataclass(frozen=True)
class Play:
    """A run, and what becomes of its engine once its second agent waits. agent, rest: further YAML of the spec."""

    hang: Callable[[EngineProxy], None]
    agent: str = ""
    rest: str = ""
    is_cancelled: bool = False


PLAYS = {
    **{f"cancelled, {how}": Play(getattr(EngineProxy, how), is_cancelled=True) for how in WAYS},
    "cancelled, late": Play(lambda proxy: proxy.slow_down(0.05), is_cancelled=True),
    **{f"cell, {how}": Play(getattr(EngineProxy, how), rest="resources: {timeout: 30s}") for how in WAYS},
    "agent, silence": Play(EngineProxy.silence, agent="timeout: 25s,"),
    "agent, late": Play(lambda proxy: proxy.slow_down(0.2), agent="timeout: 25s,", rest="resources: {timeout: 10m}"),
}


class HungRun:
    """A run of two cells, the second of which waits in its container. proxy: between it and the engine."""

    code, err, run_id = -1, "", ""

    def __init__(self, directory: Path, engine: DockerClient, base: str, play: Play) -> None:
        self.directory, self.engine, self.play = directory, engine, play
        self.proxy = EngineProxy(directory / "engine.sock")
        self.mark = f"9{secrets.randbelow(10**9):09}"
        text = SPEC.replace("BASE", base).replace("MARK", self.mark)
        text = text.replace("AGENT", play.agent).replace("REST", play.rest)
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

    def to_its_end(self) -> HungRun:
        """The engine never answers: an end is the run's own."""
        self.until_agent_runs()
        self.play.hang(self.proxy)
        if self.play.is_cancelled:
            self.process.send_signal(signal.SIGTERM)
        _, self.err = self.process.communicate(timeout=170)
        self.code = self.process.returncode
        return self

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


@pytest.fixture(scope="module")
def playing(
    tmp_path_factory: pytest.TempPathFactory, engine: DockerClient, image: Callable[[str], str]
) -> Iterator[dict[str, Future[HungRun]]]:
    """All runs at once: each of them does little but wait."""
    base = image("python:3.12-slim")
    runs = {name: HungRun(tmp_path_factory.mktemp("hung"), engine, base, play) for name, play in PLAYS.items()}
    with ThreadPoolExecutor(len(runs)) as pool:
        yield {name: pool.submit(run.to_its_end) for name, run in runs.items()}
    for run in runs.values():
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
        run.proxy.close()
        if run.run_id:
            run.clean("--run", run.run_id)


@pytest.fixture
def ended(playing: dict[str, Future[HungRun]]) -> Callable[[str], HungRun]:
    """The run of this name, once it has ended."""
    return lambda name: playing[name].result()


@hostile(
    "engine",
    "the engine answers nothing, or half, when a job is cancelled",
    held_by="connections are cut",
    sandbox="docker",
)
@HANGS
def test_a_cancelled_run_keeps_its_results_though_the_engine_hangs(ended: Callable[[str], HungRun], how: str) -> None:
    run = ended(f"cancelled, {how}")
    assert run.code == 130, run.err
    assert "Traceback" not in run.err
    assert run.verdicts == ["pass"]
    assert f"keystone clean --run {run.run_id}" in run.err
    assert run.left, "else there is nothing to find again"
    run.clean()
    assert run.left == []
    assert not list((run.directory / "tmp").glob("*.lock"))


@honest("engine", "the engine answers nothing, or half, when a job is cancelled", sandbox="docker")
def test_a_cancelled_run_leaves_nothing_on_an_engine_that_answers_late(ended: Callable[[str], HungRun]) -> None:
    run = ended("cancelled, late")
    assert (run.code, run.verdicts) == (130, ["pass"]), run.err
    assert run.left == []


@hostile("engine", "the engine hangs at the limit of a cell", held_by="the cell is left to itself", sandbox="docker")
@HANGS
def test_the_limit_of_a_cell_ends_it_though_the_engine_hangs(ended: Callable[[str], HungRun], how: str) -> None:
    run = ended(f"cell, {how}")
    assert run.code == 3, run.err
    assert run.verdicts == ["pass", "error"]
    run.clean()
    assert run.left == []


@hostile(
    "engine",
    "the engine hangs at the time limit of an agent",
    held_by="a doubtful engine gets little time",
    sandbox="docker",
)
def test_the_time_limit_of_an_agent_ends_it_though_the_engine_hangs(ended: Callable[[str], HungRun]) -> None:
    run = ended("agent, silence")
    assert run.code == 3, run.err
    assert run.verdicts == ["pass", "error"]
    assert "the Docker engine did not answer within 30 s" in (run.directory / "out" / "results.json").read_text()
    run.clean()
    assert run.left == []


@honest("engine", "the engine hangs at the limit of a cell", sandbox="docker")
@honest("engine", "the engine hangs at the time limit of an agent", sandbox="docker")
def test_an_agent_is_ended_at_its_time_limit_by_an_engine_that_answers_late(ended: Callable[[str], HungRun]) -> None:
    run = ended("agent, late")
    assert (run.code, run.verdicts) == (0, ["pass", "pass"]), run.err
    assert run.left == []
