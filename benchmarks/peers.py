"""promptfoo and Inspect beside us: one trivial scenario with every report written, and what each further one costs.

None of them starts a process for a sample, as we do: promptfoo's provider echoes the prompt, Inspect's solver sets the
answer, and both look for a word in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.installed import node_program, python_program
from benchmarks.measure import IDLE, KEYSTONE, TRIVIAL, Row, command, interleaved, write_start

PROMPTFOO, INSPECT = "promptfoo@0.121.20", "inspect-ai==0.3.285"
"""Of promptfoo the last that runs with Node.js 20."""
FURTHER = 100
_TASK = """\
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, TaskState, solver

@solver
def answer():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state.output = ModelOutput.from_content("none/none", "the word is done")
        return state
    return solve

@task
def bench():
    samples = [Sample(input=f"nothing to do {{number}}", target="done") for number in range({count})]
    return Task(dataset=samples, solver=answer(), scorer=includes())
"""
_QUIET = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    "PROMPTFOO_DISABLE_SHARING": "1",
    "CI": "1",
}


def peers(rounds: int) -> Iterator[Row | str]:
    """All of it, interleaved. A peer that can't be installed here is a line that says so."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        directory = Path(name)
        things: dict[str, Callable[[], float]] = {}
        for who, prepare in {"ours": _ours, "promptfoo": _promptfoo, "inspect": _inspect}.items():
            try:
                for count in (1, 1 + FURTHER):
                    things[f"{who} {count}"] = prepare(directory, count)
            except (OSError, subprocess.SubprocessError) as error:
                yield f"peers: {who} can't be had here: {error}"
        seconds = {what: sample.median for what, sample in interleaved(things, rounds).items()}
    for who in ("promptfoo", "inspect"):
        if f"{who} 1" in seconds:
            yield Row("one trivial scenario", seconds["ours 1"], who, seconds[f"{who} 1"], 0.5)
            yield Row("each further cell, 2 at a time", _slope(seconds, "ours"), who, _slope(seconds, who), 0.005)


def _slope(seconds: dict[str, float], who: str) -> float:
    return (seconds[f"{who} {1 + FURTHER}"] - seconds[f"{who} 1"]) / FURTHER


def _ours(directory: Path, count: int) -> Callable[[], float]:
    write_start(directory)
    spec = directory / f"{count}.keystone.yaml"
    spec.write_text(TRIVIAL.format(agent=IDLE, replicas=count, concurrency=2))
    done = 0

    def once() -> float:
        nonlocal done
        done += 1
        return command([*KEYSTONE, "run", spec.name, "--output", f"ours-{count}-{done}", "--quiet"], directory)()

    return once


def _promptfoo(directory: Path, count: int) -> Callable[[], float]:
    program = node_program(PROMPTFOO, "promptfoo")
    tests = [{"vars": {"n": n}, "assert": [{"type": "contains", "value": "done"}]} for n in range(count)]
    config = directory / f"promptfoo-{count}.json"
    config.write_text(json.dumps({"prompts": ["done {{n}}"], "providers": ["echo"], "tests": tests}))
    reports = [word for kind in ("json", "html", "junit.xml") for word in ("-o", f"promptfoo-out.{kind}")]
    words = [str(program), "eval", "-c", config.name, "--no-cache", "--no-table", "--no-progress-bar", *reports]
    return _checked(words, directory, lambda: _promptfoo_passed(directory) == count, _QUIET)


def _promptfoo_passed(directory: Path) -> int:
    passed: int = json.loads((directory / "promptfoo-out.json").read_text())["results"]["stats"]["successes"]
    return passed


def _inspect(directory: Path, count: int) -> Callable[[], float]:
    program = python_program(INSPECT, "inspect")
    task = directory / f"bench_{count}.py"
    task.write_text(_TASK.format(count=count))
    logs = directory / f"inspect-{count}"
    words = [str(program), "eval", task.name, "--model", "none/none", "--display", "none"]
    words += ["--log-dir", str(logs), "--log-format", "json"]
    return _checked(words, directory, lambda: _inspect_passed(logs) == count, {})


def _inspect_passed(logs: Path) -> int:
    newest = max(logs.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    log = json.loads(newest.read_text())
    return log["results"]["completed_samples"] if log["status"] == "success" else -1


def _checked(
    words: list[str], directory: Path, holds: Callable[[], bool], environment: dict[str, str]
) -> Callable[[], float]:
    """A thing to time whose result is read back each time: a peer that fails fast must not count as a fast peer."""
    once = command(words, directory, environment={**os.environ, **environment})

    def timed() -> float:
        seconds = once()
        if not holds():
            raise RuntimeError(f"{words} did not do what was asked of it")
        return seconds

    return timed
