"""Touchstone cases through the real command: models `good` and `bad` of one harness are the two ways to go."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.command_line import Called, keystone
from support.graded_tests import lay_out
from support.source_examples import BothWays

HARNESS = """mine:
  argv: [sh, -c, 'exec python3 "$KEYSTONE_AGENT_DIR/agent.py" "$@"', sh, "{model}", "{prompt}"]
  timeout_s: 60
  dir: harness
"""
_AGENT = """import json, sys
from pathlib import Path
good, prompt = sys.argv[1] == "good", sys.argv[2]
events = []
def event(kind, /, **payload):
    events.append({"seq": len(events), "id": str(len(events)), "ts": 1.0, "type": kind, "payload": payload})
def calls(kind, times=1):
    for _ in range(times):
        event("tool_call", tool_call_id=str(len(events)), raw_name=kind.title(), name=kind.title(), kind=kind, input={})
"""
"""What a harness finds ready: `good` is the way that it is to go."""
_TRACED = "Path('trace.jsonl').write_text(''.join(json.dumps(one) + '\\n' for one in events))\n"


def write_case(
    directory: Path,
    graders: str,
    agent: str = "",
    *,
    author: Mapping[str, str | bytes] | None = None,
    traced: bool = False,
    **more: Any,
) -> None:
    """case.yaml, harnesses.yaml and the harness. more: further keys of the case, or others than these; None for
    none."""
    harness = HARNESS + ("  trace: {format: touchstone, path: trace.jsonl}\n" if traced else "")
    program = _AGENT + agent + "\n" + (_TRACED if traced else "")
    lay_out(directory, {"harnesses.yaml": harness, "harness/agent.py": program, **(author or {})})
    document = {
        "id": "example",
        "task": {"prompt": "do it"},
        "matrix": {"harnesses": ["mine"], "models": ["good", "bad"]},
        **more,
    }
    head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in document.items() if value is not None)
    (directory / "case.yaml").write_text(f"{head}graders:\n{graders}", "utf-8")


def run_case(directory: Path, *words: object, environ: Mapping[str, str] | None = None) -> Called:
    """`keystone run case.yaml`."""
    called = keystone("run", "case.yaml", "--output", "out", *words, directory=directory, environ=dict(environ or {}))
    assert not called.has_traceback, called.err
    return called


def both_models(
    directory: Path, graders: str, agent: str = "", *, environ: Mapping[str, str] | None = None, **fields: Any
) -> BothWays:
    """Run a case; asserts that the good model passes and the bad one fails."""
    write_case(directory, graders, agent, **fields)
    called = run_case(directory, environ=environ)
    assert called.code == 1, called.out + called.err
    return models_of(called)


def run_cases(
    directory: Path, cases: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str] | None = None
) -> Called:
    """Run cases by the arguments of `write_case`, each in a folder of its own, in one call."""
    for name, fields in cases.items():
        (directory / name).mkdir()
        write_case(directory / name, **{"id": name, **fields})
    places = [f"{name}/case.yaml" for name in cases]
    called = keystone("run", *places, "--output", "out", directory=directory, environ=dict(environ or {}))
    assert not called.has_traceback, called.err
    return called


def models_of(called: Called, case: str = "") -> BothWays:
    """Both models of a case, of the only one if none is named; asserts that the good one passed and the bad one
    failed."""
    (cells,) = (spec["cells"] for spec in called.document["specs"] if case in ("", spec["id"]))
    models = {cell["params"]["model"]: cell for cell in cells}
    found = BothWays(called, models["good"], models["bad"])
    assert found.good["verdict"] == "pass", found.good
    assert found.bad["verdict"] == "fail", found.bad
    return found


def repository(directory: Path, files: Mapping[str, str]) -> str:
    """A new git repository with one commit, whose name is returned."""
    lay_out(directory, files)

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        done = subprocess.run(["git", *identity, *words], cwd=directory, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    return git("rev-parse", "HEAD")
