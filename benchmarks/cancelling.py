"""From SIGINT to nothing left: of a run's processes, containers, networks and volumes. The runner kills at 10 s."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.engine import BASE, LABEL, Missing, action_image, client, docker, left
from benchmarks.measure import KEYSTONE, Row, interleaved

BUDGET = 7.0
CELLS = 4
SERVICE = "postgres:16"
_PATIENCE = 180.0
_PAUSE = 0.02
_SPEC = f"""\
version: 1
id: bench
task: {{prompt: "wait"}}
base: {BASE}
agent: {{type: command, command: ["sleep", "600"]}}
services:
  - {{name: db, image: "{SERVICE}"}}
  - {{name: api, type: http_mock}}
parallelism: {{replicas: {CELLS}, max_concurrency: {CELLS}}}
invariants:
  there: {{check: {{type: file_exists, path: done}}}}
"""
_SOCKET = "/var/run/docker.sock"


def cancelling(rounds: int) -> list[Row | str]:
    """The rows, or lines that say why there are none."""
    rows: list[Row | str] = []
    things: dict[str, Callable[[], float]] = {}
    try:
        engine = client(BASE, SERVICE)
    except Missing as missing:
        return [f"cancelling a run: not measured ({missing})"]
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        directory = Path(name)
        (directory / "keystone.yaml").write_text(_SPEC)
        things["containers"] = _removing
        things["laptop"] = lambda: _on_a_laptop(directory)
        try:
            tag = action_image(engine)
            things["image"] = lambda: _in_the_image(directory, tag)
        except Missing as missing:
            rows.append(f"cancelling the action's image: not measured ({missing})")
        samples = interleaved(things, rounds)
    engine.close()
    labels = {"laptop": f"SIGINT to nothing left, {CELLS} cells", "image": "the same, in the action's image"}
    beside = f"docker rm -f of {CELLS + 1}"
    rows[:0] = [
        Row(label, samples[key].median, beside, samples["containers"].median, BUDGET)
        for key, label in labels.items()
        if key in samples
    ]
    return rows


def _removing() -> float:
    """As many containers, ended by hand and all at once."""
    run = ["run", "--detach", "--label", LABEL]
    made = [docker([*run, BASE, "sleep", "600"]) for _ in range(CELLS + 1)]
    started = time.perf_counter()
    docker(["rm", "--force", *made])
    return time.perf_counter() - started


def _on_a_laptop(directory: Path) -> float:
    output = directory / f"out-{secrets.token_hex(4)}"
    return _interrupted([*KEYSTONE, "run", "keystone.yaml", "--output", output.name, "--quiet"], directory)


def _in_the_image(directory: Path, tag: str) -> float:
    output = f"out-{secrets.token_hex(4)}"
    words = ["docker", "run", "--rm", "--label", LABEL, "--volume", f"{_SOCKET}:{_SOCKET}"]
    words += ["--volume", f"{directory}:{directory}", "--workdir", str(directory), tag]
    return _interrupted([*words, "run", "keystone.yaml", "--output", output, "--quiet"], directory)


def _interrupted(words: Sequence[str], directory: Path) -> float:
    """Seconds from the signal until the process has ended and the engine has nothing of its run."""
    before = _agents()
    with subprocess.Popen(words, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            run_id = _until_all_run(process, before)
            started = time.perf_counter()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=_PATIENCE)
        except BaseException:
            process.send_signal(signal.SIGTERM)
            raise
    while found := left(run_id):
        if time.perf_counter() - started > _PATIENCE:
            raise RuntimeError(f"left on the engine: {found}")
        time.sleep(_PAUSE)
    elapsed = time.perf_counter() - started
    if process.returncode != 130:
        raise RuntimeError(f"{words} ended with {process.returncode}: {said.decode(errors='replace')[-2000:]}")
    return elapsed


def _until_all_run(process: subprocess.Popen[bytes], before: Mapping[str, str]) -> str:
    """The run's id, once the agents of all cells are in their containers."""
    deadline = time.perf_counter() + _PATIENCE
    while time.perf_counter() < deadline and process.poll() is None:
        new = {container: run for container, run in _agents().items() if container not in before}
        for run_id in set(new.values()):
            if list(new.values()).count(run_id) == CELLS:
                return run_id
        time.sleep(_PAUSE)
    raise RuntimeError(f"the cells did not come to their agents (exit code {process.poll()})")


def _agents() -> dict[str, str]:
    """By container, the run of each agent of this benchmark that runs now."""
    wanted = ["--filter", "label=keystone.kind=sandbox", "--filter", f"ancestor={BASE}"]
    listed = docker(["ps", "--no-trunc", *wanted, "--format", "{{json .}}"]).splitlines()
    rows = [json.loads(line) for line in listed]
    labels = {row["ID"]: dict(pair.partition("=")[::2] for pair in row["Labels"].split(",")) for row in rows}
    return {row["ID"]: labels[row["ID"]]["keystone.run"] for row in rows if "sleep 600" in row["Command"]}
