"""The specs that together use every field of the contract (spec/test_every_field.py holds that) run in the built image:
by the runner's own command line, on a live engine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.action_job import ActionJob
from support.audit import require_valid_audit
from support.every_field import FOLDER, SPECS
from support.fake_runner import StepResult
from support.hostile import POSTGRES_CLIENT
from support.images import MARIADB, POSTGRES, PYTHON

pytestmark = [pytest.mark.docker, pytest.mark.slow]

OBSERVED = {
    "answers": {"http_call", "mcp_call", "db_write"},
    "containers": {"connect", "db_write", "model_request", "file_change", "process"},
    "known-agent": {"known_agent", "model_request"},
    "loop": {"model_request"},
    "loop-openai": {"model_request"},
    "loop-paragon": {"model_request"},
    "project": {"db_write", "process"},
    "service": {"http_call"},
    "talk": {"model_request"},
}
"""What the audit logs of each spec's cells tell; those of all others are empty."""
BROKEN = {
    "db_writes_outside": ["orders: ", "public.spare", "bills: ", "shop.spare"],
    "http_except": ["outside:8000"],
    "secrets_in_logs": ["WORD", "public.spare"],
    "file_writes_outside": ["spare.json"],
    "tools": ["WebSearch"],
    "commands": ["rm -rf /"],
}
"""What is said of each rule that an agent broke."""
RECORDINGS = "agents/agents/recordings"
"""As the runner's tree names the folder in the workspace; its files belong to the runner's user."""
REPLAYED = FOLDER / "replayed.keystone.yaml"
KEY = "sk-every-field-0123456789"
SKIPPED = {"said_in_other_words"}
"""By a check whose package the image has not."""


@pytest.fixture
def checkout(job: ActionJob, image: Callable[[str], str]) -> ActionJob:
    """A job with the specs and their files, the repository that one of them clones, and what they find outside: pages
    and providers of models, as the workflow's own services."""
    for name in (PYTHON, POSTGRES, MARIADB):
        image(name)
    shutil.copytree(FOLDER, job.runner.workspace, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(POSTGRES_CLIENT, job.runner.workspace / "agents")
    commit = "git add . && git -c user.name=x -c user.email=x@example.com commit -qm x"
    script = f"git init -qb stable && echo first >money.txt && {commit} && echo stable >money.txt && {commit}"
    (job.runner.workspace / "origin").mkdir()
    subprocess.run(["sh", "-c", script], cwd=job.runner.workspace / "origin", check=True, capture_output=True)
    for alias in ("outside", "allowed.example.com"):
        job.service(alias, image(PYTHON), ["python3", "-c", (FOLDER / "outside.py").read_text("utf-8")])
    job.inputs["env"] = "EVERY_FIELD_KEY"
    job.env |= {
        "EVERY_FIELD_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": "http://outside:8000",
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": "http://outside:8000/v1",
    }
    return job


def unlike_expected(document: dict[str, Any]) -> list[Any]:
    """What results have of every cell and check that is not as it should be."""
    cells = [cell for spec in document["specs"] for cell in spec["cells"]]
    checks = [check for cell in cells for check in cell["invariants"]]
    return [
        *(cell for cell in cells if cell["verdict"] != "pass"),
        *(one for one in checks if one["status"] != ("skip" if one["name"] in SKIPPED else "pass")),
    ]


def run(job: ActionJob, *specs: Path) -> StepResult:
    """A step with these specs, which must all pass, in a workspace without results of an earlier one. Nothing is left
    but results and recordings."""
    shutil.rmtree(job.runner.workspace / "keystone-results", ignore_errors=True)
    job.inputs["spec"] = "\n".join(str(path.relative_to(FOLDER)) for path in specs)
    step = job.run(timeout=900)
    assert step.exit_code != 2, step.raw_log
    assert unlike_expected(job.document) == []
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (0, "pass", []), step.raw_log
    require_valid_audit(job.runner.workspace / "keystone-results")
    assert [one for one in job.left() if not one.startswith(f"file {RECORDINGS}")] == []
    return step


def observed(job: ActionJob, cells: list[dict[str, Any]]) -> set[str]:
    """The types of the lines in the audit logs of these cells, each of which has the same."""
    folders = [job.runner.workspace / "keystone-results" / "cells" / cell["id"] for cell in cells]
    logs = [(folder / "audit.jsonl").read_text("utf-8").splitlines() for folder in folders]
    first, *others = ({json.loads(line)["type"] for line in lines} for lines in logs)
    assert all(one == first for one in others)
    return first


def test_every_field_runs(checkout: ActionJob) -> None:
    """The replay after all others, when no provider is there and no key is known."""
    run(checkout, *(path for path in SPECS if path != REPLAYED))
    cells = {spec["id"]: spec["cells"] for spec in checkout.document["specs"]}
    assert len(cells) == len(SPECS) - 1
    several = {name: len(found) for name, found in cells.items() if len(found) > 1}
    assert several == {"answers": 4, "scenarios": 2}
    logged = {name: observed(checkout, found) for name, found in cells.items()}
    assert {name: types for name, types in logged.items() if types} == OBSERVED
    # The action's container may make no namespaces: the network of its processes is closed by their ports.
    assert checkout.document["sandbox"]["egress"] == "ports"
    (recorded,) = cells["talk"]

    del checkout.env["ANTHROPIC_API_KEY"]
    checkout.env["ANTHROPIC_BASE_URL"] = "http://nowhere.invalid"
    run(checkout, REPLAYED)
    replayed = checkout.cell
    # A request differed by `ignore`; besides, the job's folder is not a checkout whose base commit could be read.
    assert (recorded["trace"]["replayed"], replayed["trace"]["replayed"]) == (None, "changed")
    assert replayed["trace"]["differs"]
    assert replayed["agent"]["output"] == recorded["agent"]["output"]
    assert replayed["usage"] == {**recorded["usage"], "spent_usd": 0}


def test_an_agent_that_breaks_every_rule_is_found_by_each(checkout: ActionJob) -> None:
    """Where the agent of the same spec broke none."""
    agent = {"command": 'python3 "$KEYSTONE_AGENT_DIR/breaks.py"', "env": {"WORD": "{{ secrets.WORD }}"}}
    secrets = ["EVERY_FIELD_KEY", {"name": "WORD", "from": "generated"}]
    checkout.write({"extends": "containers.keystone.yaml", "id": "broken", "agent": agent, "secrets": secrets})
    checkout.inputs["spec"] = "keystone.yaml"
    step = checkout.run(timeout=900)
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (1, "fail", []), step.raw_log
    found = {rule["rule"]: rule["details"] for rule in checkout.cell["forbidden"] if rule["violated"]}
    assert found.keys() == BROKEN.keys()
    assert [(name, word) for name, words in BROKEN.items() for word in words if word not in found[name]] == []
    assert checkout.cell["composite"] == 0
    assert checkout.left() == []
