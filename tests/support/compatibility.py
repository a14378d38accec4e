"""The rows of docs/compatibility.md, and the small spec, suite or case that a refused one is about."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.command_line import ROOT
from support.graded_tests import lay_out

PAGE = ROOT / "docs" / "compatibility.md"
SYSTEMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = yaml.safe_load(
    (ROOT / "tests" / "data" / "compatibility.yaml").read_text("utf-8")
)
"""System → id of the row → what shows that it is true."""
_ROW = re.compile(r'^\| <a id="([a-z0-9-]+)"></a>(.+) \| (supported|differs|refused) \| (.*) \|$')
_CODE = re.compile(r"`([^`]+)`")

_SPEC = {
    "version": 1,
    "id": "small",
    "task": {"prompt": "do it"},
    "agent": {"type": "command", "command": ["true"]},
    "invariants": {"it_holds": {"check": {"type": "file_absent", "path": "x"}}},
}
_SCENARIO = {"name": "one", "input": json.dumps({"output": "x"})}
_CASE = {
    "id": "small",
    "availability": "required",
    "task": {"prompt": "do it"},
    "matrix": {"harnesses": ["echo"], "models": ["m"]},
    "graders": [{"type": "command", "cmd": "true"}],
}
_ADAPTER = (ROOT / "tests" / "data" / "differential" / "agenticassure" / "adapter.py").read_text("utf-8")


@dataclass(frozen=True)
class Row:
    """One row of the page. told: its last cell."""

    system: str
    name: str
    what: str
    status: str
    told: str

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the table of the tests has of it."""
        return SYSTEMS[self.system][self.name]

    @property
    def message(self) -> str:
        """Of a refused row: what it begins with."""
        return _CODE.match(self.told).group(1)  # type: ignore[union-attr]


def rows() -> list[Row]:
    """Every row of the page, in its order. Raises ValueError for a line of a table that is none."""
    found, system = [], ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            system = line.removeprefix("## ").lower()
        if not line.startswith("|") or line in ("| What | Here | |", "|---|---|---|"):
            continue
        match = _ROW.match(line)
        if match is None:
            raise ValueError(f"no row: {line}")
        found.append(Row(system, *match.groups()))
    return found


def differences(system: str) -> set[str]:
    """The rows that cases for both tools may name, and each of which some case must."""
    return {name for name, row in SYSTEMS[system].items() if row.get("shown") == "by comparison"}


def released_verdicts(system: str) -> dict[str, str]:
    """Rows of what is refused here and runs there: id → the released tool's verdict."""
    return {name: row["released"] for name, row in SYSTEMS[system].items() if "released" in row}


def write_refused(directory: Path, system: str, name: str) -> list[str]:
    """The files that a refused row is about; the words of the call that refuses them."""
    more = dict(SYSTEMS[system][name]["refused"])
    words = more.pop("words", [])
    files = {
        "keystone": lambda: {"keystone.yaml": yaml.safe_dump({**_SPEC, **more}, sort_keys=False)},
        "agenticassure": lambda: suite_files(name, more),
        "touchstone": lambda: {"case.yaml": yaml.safe_dump({**_CASE, **more}, sort_keys=False)},
    }[system]()
    lay_out(directory, files)
    if words and not words[0].startswith("-"):
        return list(words)
    return ["run", next(iter(files)), *words]


def suite_files(name: str, more: Mapping[str, Any]) -> dict[str, str]:
    """A suite of one scenario with an adapter."""
    if "text" in more:
        return {"suite.yaml": more["text"], "adapter.py": _ADAPTER, "agenticassure.yaml": "adapter: adapter.Agent\n"}
    suite = {"suite": more.get("suite", {"name": name}), "scenarios": [{**_SCENARIO, **more.get("scenario", {})}]}
    files = {"suite.yaml": yaml.safe_dump(suite, sort_keys=False)}
    adapter = "adapter: my_agent.MyAgent\n" if "adapter" in more else "adapter: adapter.Agent\n"
    if more.get("config") != "":
        files["agenticassure.yaml"] = more.get("config", adapter)
    return {**files, "adapter.py": _ADAPTER, "my_agent.py": more.get("adapter", "")}


def case_of(name: str) -> dict[str, Any]:
    """The Touchstone case of a refused row, by that name."""
    return {**_CASE, **SYSTEMS["touchstone"][name]["refused"], "id": name}
