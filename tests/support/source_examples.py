"""Examples of the source documents through the real command, as cells of one run: one that passes, one that fails."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.called_once import called_once
from support.command_line import ROOT, Called, keystone, run_spec
from support.graded_tests import lay_out

_POSTGRES_CLIENT = ROOT / "examples" / "reconcile" / "agent" / "postgres.py"
_BEGIN = """import json, os
from pathlib import Path
good = os.environ["WAY"] == "good"
def send(service, path, body=b"", method="POST", **headers):
    import urllib.request
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    url = os.environ[f"KEYSTONE_SERVICE_{service}_URL"] + path
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    urllib.request.urlopen(urllib.request.Request(url, data, named, method=method)).read()
"""
"""What agents of examples find ready: `good` is the way that they are to go."""


@dataclass(frozen=True)
class BothWays:
    """A finished run. good, bad: the cells of results.json."""

    called: Called
    good: dict[str, Any]
    bad: dict[str, Any]

    def check(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """One invariant as each of the cells has it."""
        return _named(self.good, name), _named(self.bad, name)

    @property
    def statuses(self) -> tuple[dict[str, str], dict[str, str]]:
        """Of all invariants, for each of the cells."""
        good, bad = ({one["name"]: one["status"] for one in cell["invariants"]} for cell in (self.good, self.bad))
        return good, bad


def both_ways(
    directory: Path, example: str, agent: str, *, environ: Mapping[str, str] | None = None, **fields: Any
) -> BothWays:
    """Run an example for an agent that goes both ways; asserts that it passes for one and not for the other. Besides,
    what `write_example` takes."""
    text = write_example(directory, example, agent, **fields)
    called = run_spec(directory, text, environ=dict(environ or {}))
    assert called.code in (1, 3), called.out + called.err
    return ways_of(called, bad={1: "fail", 3: "error"}[called.code])


def run_examples(
    factory: pytest.TempPathFactory, name: str, examples: Mapping[str, Mapping[str, Any]], *words: str
) -> Callable[[str], BothWays]:
    """Run all of these, by the arguments of `write_example`, in one call for all workers. What it returns gives one of
    them, and asserts that it passes for one way and fails for the other."""

    def call(directory: Path) -> Called:
        for each, fields in examples.items():
            (directory / each).mkdir()
            text = write_example(directory / each, **fields, id=each)
            (directory / each / "keystone.yaml").write_text(text, "utf-8")
        specs = [f"{each}/keystone.yaml" for each in examples]
        return keystone("run", *specs, "--output", "out", *words, directory=directory)

    called = called_once(factory, name, call)
    assert called.code == 1, called.out + called.err
    return functools.partial(ways_of, called)


def ways_of(called: Called, spec_id: str = "", bad: str = "fail") -> BothWays:
    """Both cells of a spec, of the only one if none is named; asserts that one passed and what became of the other."""
    assert not called.has_traceback, called.err
    (cells,) = (spec["cells"] for spec in called.document["specs"] if spec_id in ("", spec["id"]))
    ways = {cell["params"]["way"]: cell for cell in cells}
    found = BothWays(called, ways["good"], ways["bad"])
    assert found.good["verdict"] == "pass", found.good
    assert found.bad["verdict"] == bad, found.bad
    return found


def write_example(
    directory: Path,
    example: str,
    agent: str,
    *,
    author: Mapping[str, str | bytes | None] | None = None,
    start: Mapping[str, str | None] | None = None,
    env: Mapping[str, str] | None = None,
    of_agent: Mapping[str, Any] | None = None,
    **more: Any,
) -> str:
    """Write what an example needs beside its spec, and return the spec.

    example: `invariants:` (and `scoring:`) as a document has it. agent: Python, after _BEGIN. author: files beside the
    spec. start: files of the workspace before the agent. env, of_agent: the agent's environment and its other keys.
    more: further keys of the spec.
    """
    program = {"agent.py": _BEGIN + agent, "postgres.py": _POSTGRES_CLIENT.read_text("utf-8")}
    lay_out(directory, {**{f"agent/{name}": text for name, text in program.items()}, **(author or {})})
    if start is not None:
        lay_out(directory / "start", {"README": "", **start})
        more["workspace"] = "start"
    declared: dict[str, Any] = {
        "version": 1,
        "id": "example",
        "task": {"prompt": "do it"},
        "agent": {
            "type": "command",
            "command": ["python3", "{{ agent.dir }}/agent.py"],
            "dir": "agent",
            "env": {"WAY": "{{ params.way }}", **(env or {})},
            **(of_agent or {}),
        },
        "parallelism": {"matrix": {"way": ["good", "bad"]}},
        **more,
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in declared.items()) + example


def printing(good: Any, bad: Any) -> str:
    """An agent that prints one of two JSON documents."""
    return f"print(json.dumps({good!r} if good else {bad!r}))\n"


def as_invariants(graders: str) -> str:
    """Graders as Touchstone has them (a list of `type`, `weight`, `gate` and the fields of each) as invariants."""
    found: dict[str, Any] = {}
    for document in yaml.safe_load(graders):
        outer = {key: document.pop(key) for key in ("weight", "gate") if key in document}
        found[f"{document['type']}-{len(found)}"] = {**outer, "check": document}
    return f"invariants: {json.dumps(found)}\n"


def _named(cell: Mapping[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in cell["invariants"] if one["name"] == name)
    return dict(found)
