"""Agents that want credit they did not earn: many in one run of the real command, each in a cell of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.command_line import Called, run_spec
from support.graded_tests import lay_out

_AGENT = """import json, os, shutil
from pathlib import Path
def write(path, text=""):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
def retired(path):
    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    return path
exec(json.loads(Path(__file__).with_name("attacks.json").read_text())[os.environ["ATTACK"]])
"""


def planting(files: Mapping[str, str]) -> str:
    """An agent that writes these files."""
    return "".join(f"write({path!r}, {text!r})\n" for path, text in files.items())


Entries = dict[str, dict[str, Any]]


def attack_all(
    directory: Path, attacks: Mapping[str, str], check: Mapping[str, Any], **more: Any
) -> tuple[Called, Entries]:
    """Run one check over what each of these agents leaves; its entry in results.json by the attack's name. more: as
    for attack_each."""
    called, found = attack_each(directory, attacks, {"it": check}, **more)
    return called, found["it"]


def attack_each(
    directory: Path,
    attacks: Mapping[str, str],
    checks: Mapping[str, Mapping[str, Any]],
    *,
    author: Mapping[str, str | bytes | None] | None = None,
    start: Mapping[str, str | None] | None = None,
    of_agent: Mapping[str, Any] | None = None,
    code: int = 1,
    run: Callable[[Path, str], Called] = run_spec,
    **more: Any,
) -> tuple[Called, dict[str, Entries]]:
    """Run all of these checks over what each of these agents leaves: name of the check → the attack's → its entry in
    results.json.

    attacks: Python by name; `write(path, text)` is there, and `retired(path)`, which removes what is there. checks: as
    in a spec; `weight`, `gate` and `timeout` are the invariant's. author: files beside the spec. start: files of the
    workspace before the agent. code: the exit code. run: runs a spec in a directory.
    """
    files = {"agent/agent.py": _AGENT, "agent/attacks.json": json.dumps(dict(attacks)), **(author or {})}
    lay_out(directory, files)
    lay_out(directory / "start", {"README": "", **(start or {})})
    document = {
        "version": 1,
        "id": "attacked",
        "task": {"prompt": "do it"},
        "workspace": "start",
        "agent": {
            "type": "command",
            "command": ["python3", "{{ agent.dir }}/agent.py"],
            "dir": "agent",
            "env": {"ATTACK": "{{ params.attack }}"},
            **(of_agent or {}),
        },
        "parallelism": {"matrix": {"attack": list(attacks)}},
        "invariants": {name: _invariant(check) for name, check in checks.items()},
        "scoring": {"pass_threshold": 0.1},
        **more,
    }
    called = run(directory, json.dumps(document))
    assert not called.has_traceback, called.err
    assert called.code == code, called.out + called.err
    found: dict[str, Entries] = {name: {} for name in checks}
    for cell in called.cells:
        attack = cell["params"]["attack"]
        assert cell["agent"]["exit_code"] == 0, (attack, cell["agent"])
        for entry in cell["invariants"]:
            found[entry["name"]][attack] = {**entry, "cell": cell}
    return called, found


def _invariant(check: Mapping[str, Any]) -> dict[str, Any]:
    outer = {key: check[key] for key in ("weight", "gate", "timeout") if key in check}
    return {**outer, "check": {key: value for key, value in check.items() if key not in outer}}


def earned(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Those of the attacks that came to something else than a failure with the score 0, for an assertion that shows
    them: {} when nobody earned anything."""
    return {
        name: (entry["status"], entry["score"], entry["cell"]["verdict"], entry["message"])
        for name, entry in found.items()
        if (entry["status"], entry["score"], entry["cell"]["verdict"]) != ("fail", 0.0, "fail")
    }
