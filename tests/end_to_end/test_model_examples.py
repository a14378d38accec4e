"""The examples whose agents ask models: those with a recording, replayed without a key; those of known agents, which
are what docs/agents.md shows, where tests run them with the real programs; and the table of all examples."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.called_once import called_once
from support.command_line import ROOT, Called, keystone
from support.recorded_examples import REPLAYED, SCRIPTS, record

from keystone_action.agents.presets.preset import load_preset, preset_names
from keystone_action.gateway.upstreams import VARIABLES

EXAMPLES = ROOT / "examples"
AGENTS = EXAMPLES / "agents"
OTHERS = ("agents/total.yaml", "agenticassure/agenticassure.yaml", "touchstone/harnesses.yaml")
"""YAML files that are parts of specs."""


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Called:
    """All of them in one call, where no provider is reached and there is no key."""
    words = ["run", *(EXAMPLES / name for name in REPLAYED), "--output", "out"]
    nobody = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
    return called_once(
        tmp_path_factory, "model-examples", lambda directory: keystone(*words, directory=directory, environ=nobody)
    )


def cell_of(called: Called, spec: str) -> dict[str, Any]:
    (found,) = [one for one in called.document["specs"] if one["path"].endswith(f"/{spec}")]
    (cell,) = found["cells"]
    return dict(cell)


@pytest.mark.parametrize("spec", SCRIPTS)
def test_it_replays_to_its_last_request_for_nothing_and_the_broken_variant_fails(replayed: Called, spec: str) -> None:
    cell = cell_of(replayed, spec)
    assert cell["verdict"] == ("fail" if "broken" in spec else "pass"), cell
    assert cell["trace"]["replayed"] == "exact"
    assert (cell["usage"]["spent_usd"], cell["usage"]["cost_usd"] > 0) == (0, True)
    assert cell["composite"] == (0 if "broken" in spec else 1)


def test_each_says_what_it_is_there_for(replayed: Called) -> None:
    gate = cell_of(replayed, "recorded/broken.keystone.yaml")["reason"]
    assert "gate total_is_right" in gate
    broken = cell_of(replayed, "forbidden/broken.keystone.yaml")
    rules = {one["rule"]: one["violated"] for one in broken["forbidden"]}
    assert rules == {"tools": False, "commands": True, "file_writes_outside": True, "secrets_in_logs": True}
    assert {one["name"]: one["status"] for one in broken["invariants"]} == {"total_is_right": "pass"}
    assert not any(one["violated"] for one in cell_of(replayed, "forbidden/keystone.yaml")["forbidden"])
    stopped = cell_of(replayed, "budget/broken.keystone.yaml")["agent"]
    assert (stopped["stopped"], "4 of 4 tool calls" in stopped["note"]) == ("budget", True)


def keys(folder: Path) -> list[str]:
    (path,) = folder.glob("recorded/recordings/recorded/*.jsonl")
    return [found["key"] for line in path.read_text("utf-8").splitlines() if "key" in (found := json.loads(line))]


@pytest.mark.command
def test_recorded_anew_the_requests_are_the_same(tmp_path: Path) -> None:
    copy = tmp_path / "examples"
    shutil.copytree(EXAMPLES, copy)
    shutil.rmtree(copy / "recorded" / "recordings")
    record(copy, "recorded/keystone.yaml")
    assert keys(copy) == keys(EXAMPLES) != []


def test_each_known_agent_has_one_which_is_that_of_its_page() -> None:
    page = (ROOT / "docs" / "agents.md").read_text("utf-8")
    (task,) = re.findall(r"^```yaml\n(version: 1\nid: total\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert {**yaml.safe_load(task), "workspace": "project"} == yaml.safe_load((AGENTS / "total.yaml").read_text())
    assert {path.name.partition(".")[0] for path in AGENTS.glob("*.keystone.yaml")} == set(preset_names())
    for name in preset_names():
        preset, text = load_preset(name), (AGENTS / f"{name}.keystone.yaml").read_text("utf-8")
        (shown, *_) = re.findall(
            r"^```yaml\n(.*?)^```", page.split(f"## {preset.title}\n")[1], re.MULTILINE | re.DOTALL
        )
        expected = {"extends": "total.yaml", "id": f"total-{name}", **yaml.safe_load(shown)}
        assert yaml.safe_load(text) == expected
        for said in (preset.title, preset.install_command(), VARIABLES[preset.providers[0]][0]):
            assert said in text


def test_all_examples_are_valid_and_in_the_table(tmp_path: Path) -> None:
    valid = keystone("validate", EXAMPLES, directory=tmp_path)
    assert valid.code == 0, valid.err
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    files = [path for path in EXAMPLES.rglob("*.yaml") if str(path.relative_to(EXAMPLES)) not in OTHERS]
    for path in files:
        name = str(path.relative_to(EXAMPLES))
        assert f"/{name}: " in valid.out, name
        if "broken" not in name:
            assert f"]({name})" in readme, name
    assert len(files) > 20
