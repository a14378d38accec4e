"""Examples of the source documents through the real command, as cells of one run: one that passes, one that fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.command_line import ROOT, Called, run_spec
from support.graded_tests import lay_out

_POSTGRES_CLIENT = ROOT / "examples" / "reconcile" / "agent" / "postgres.py"
_BEGIN = """import json, os, urllib.request
from pathlib import Path
good = os.environ["WAY"] == "good"
def send(service, path, body=b"", method="POST", **headers):
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
    directory: Path,
    example: str,
    agent: str,
    *,
    author: Mapping[str, str | bytes | None] | None = None,
    start: Mapping[str, str | None] | None = None,
    environ: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    of_agent: Mapping[str, Any] | None = None,
    **more: Any,
) -> BothWays:
    """Run an example for an agent that goes both ways; asserts that it passes for one and not for the other.

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
    head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in declared.items())
    called = run_spec(directory, f"{head}{example}", environ=dict(environ or {}))
    assert not called.has_traceback, called.err
    assert called.code in (1, 3), called.out + called.err
    cells = {cell["params"]["way"]: cell for cell in called.cells}
    found = BothWays(called, cells["good"], cells["bad"])
    assert found.good["verdict"] == "pass", found.good
    assert found.bad["verdict"] == {1: "fail", 3: "error"}[called.code], found.bad
    return found


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
