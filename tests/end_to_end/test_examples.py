"""Every example, run as a user runs it, in its passing and its failing variant: one call for all that come to the same
exit code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.action_job import EIGHT
from support.called_once import called_once
from support.command_line import ROOT, Called, keystone
from support.images import PYTHON
from support.model_server import ModelServer, answer
from support.recorded_examples import REPLAYED

from tools.github_page.recorded import document

EXAMPLES = ROOT / "examples"
NAMES = ("reconcile", "fix-tests", "mcp", "custom-check")
IN_CONTAINERS = "http-agent"
TOUCHSTONE = EXAMPLES / "touchstone" / "evals" / "slugify" / "case.yaml"
Cells = dict[str, dict[str, Any]]


def run_example(spec: Path, output: Path) -> Called:
    called = keystone("run", spec, "--output", output / "out", directory=output)
    assert (output / "out" / "results.json").exists(), called.err
    return called


WITHOUT_A_KEY = ("reconcile/keystone.yaml", *(f"{name}/broken.keystone.yaml" for name in NAMES))


@pytest.fixture(scope="module")
def without_a_key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Called, Cells]:
    """All broken variants and the example that has a judge, in one call: they share the database's server."""
    words = ["run", *(EXAMPLES / path for path in WITHOUT_A_KEY), "--output", "out"]
    called = called_once(tmp_path_factory, "examples", lambda directory: keystone(*words, directory=directory))
    assert called.code == 1, called.out + called.err
    specs = called.document["specs"]
    cells = {"/".join(Path(spec["path"]).parts[-2:]): cell for spec in specs for cell in spec["cells"]}
    assert cells.keys() == set(WITHOUT_A_KEY)
    return called, cells


@pytest.fixture(scope="module")
def failing(without_a_key: tuple[Called, Cells]) -> Cells:
    """The cells of broken variants by the example's name."""
    return {name: without_a_key[1][f"{name}/broken.keystone.yaml"] for name in NAMES}


def checks_of(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The invariants of a cell, by name."""
    return {entry["name"]: entry for entry in cell["invariants"]}


def test_every_example_has_both_variants():
    found = {path.parent.name for path in EXAMPLES.glob("*/keystone.yaml")}
    assert found == {*NAMES, *REPLAYED, IN_CONTAINERS}
    assert found == {path.parent.name for path in EXAMPLES.glob("*/broken.keystone.yaml")}


def assert_passed(cell: dict[str, Any], *skipped: str) -> None:
    assert cell["verdict"] == "pass"
    statuses = {name: entry["status"] for name, entry in checks_of(cell).items()}
    assert statuses == dict.fromkeys(statuses, "pass") | dict.fromkeys(skipped, "skip")


def test_reconcile_passes_without_a_key(without_a_key: tuple[Called, Cells]):
    called, cells = without_a_key
    for file in ("results.json", "journal.jsonl", "summary.md", "report.html", "junit.xml"):
        assert (called.output / file).stat().st_size > 0
    assert_passed(cells["reconcile/keystone.yaml"], "email_quality")
    assert_pictured("pass", cells["reconcile/keystone.yaml"])


@pytest.mark.docker
def test_an_agent_in_a_container_is_asked_over_http(tmp_path: Path, image):
    image(PYTHON)
    folder = EXAMPLES / IN_CONTAINERS
    specs = (folder / "keystone.yaml", folder / "broken.keystone.yaml")
    called = keystone("run", *specs, "--output", "out", directory=tmp_path)
    assert called.code == 1, called.out + called.err
    passing, failing = called.cells
    assert_passed(passing)
    statuses = {name: one["status"] for name, one in checks_of(failing).items()}
    assert statuses == {"tells_the_state": "fail", "asked_the_shop": "fail", "says_which_tool": "fail"}
    assert (failing["agent"]["exit_code"], failing["composite"]) == (0, 0)


def assert_pictured(name: str, found: dict[str, Any]) -> None:
    """That a recorded run, which the README shows, is what happens today: python -m tools.github_page.recorded"""
    (cell,) = document(name)["specs"][0]["cells"]
    timeless = ("name", "type", "status", "score", "weight", "gate", "message", "description")
    recorded = [{key: check[key] for key in timeless} for check in cell["invariants"]]
    assert recorded == [{key: check[key] for key in timeless} for check in found["invariants"]]
    assert cell["agent"]["output"] == found["agent"]["output"]
    assert (cell["verdict"], cell["composite"]) == (found["verdict"], found["composite"])


def test_without_a_key_the_skipped_judge_is_said_in_the_head(without_a_key: tuple[Called, Cells]):
    head = (without_a_key[0].output / "summary.md").read_text().partition("\n| ")[0]
    assert "email_quality" in head
    assert "ANTHROPIC_API_KEY" in head


def test_all_pass_and_reconcile_is_judged_when_there_is_a_key(tmp_path: Path):
    specs = [EXAMPLES / name / "keystone.yaml" for name in NAMES]
    with ModelServer([answer(0.9, "professional, with numbers")]) as models:
        called = keystone("run", *specs, "--output", "out", directory=tmp_path, environ=models.environ())
    assert called.code == 0, called.out + called.err
    cells = dict(zip(NAMES, called.cells, strict=True))
    for cell in cells.values():
        assert_passed(cell)
    judged = checks_of(cells["reconcile"])["email_quality"]
    assert (judged["status"], judged["score"]) == ("pass", 0.9)
    assert cells["reconcile"]["composite"] == pytest.approx((1.6 + 0.2 * 0.9) / 1.8)
    assert "corrected 2 e-mail addresses" in models.requests[0].prompt
    assert called.document["judge_usage"]["input_tokens"] > 0


def test_reconcile_has_every_check_type_of_the_readme(without_a_key: tuple[Called, Cells]):
    assert {entry["type"] for entry in without_a_key[1]["reconcile/keystone.yaml"]["invariants"]} == EIGHT


def test_reconcile_fails_an_agent_that_only_says_so(tmp_path: Path):
    """Its own script must tell of a report that is not there, and not break over it."""
    shutil.copytree(EXAMPLES / "reconcile", tmp_path / "reconcile")
    spec = tmp_path / "reconcile" / "keystone.yaml"
    command = 'command: [python3, "{{ agent.dir }}/agent.py"]'
    assert command in spec.read_text()
    spec.write_text(spec.read_text().replace(command, "command: [echo, Done]"))
    called = keystone("run", spec, "--output", "out", directory=tmp_path)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["composite"]) == (1, "fail", 0.0)
    assert called.checks["email_matches_report"]["message"].startswith("report.json says None, the e-mail None")
    assert called.document["counts"]["broken_checks"] == 0


def test_reconcile_fails_by_its_gate(failing: Cells):
    cell = failing["reconcile"]
    assert (cell["verdict"], cell["composite"]) == ("fail", 0.0)
    assert "reconciliation_clean" in cell["reason"]
    checks = checks_of(cell)
    assert checks["reconciliation_clean"]["status"] == "fail"
    # The agent's e-mail claims success; only the database tells the truth.
    assert checks["email_sent_once"]["status"] == "pass"
    assert_pictured("fail", cell)


def test_fix_tests_fails_by_its_composite(failing: Cells):
    cell = failing["fix-tests"]
    assert (cell["verdict"], cell["composite"]) == ("fail", pytest.approx(1.2 / 1.7))
    statuses = {name: entry["status"] for name, entry in checks_of(cell).items()}
    assert statuses == {
        "tests_pass": "pass",
        "no_debug_output": "fail",
        "changelog_written": "fail",
        "no_leftovers": "pass",
    }


def test_custom_check_fails_by_its_gate(failing: Cells):
    assert failing["custom-check"]["verdict"] == "fail"
    checks = checks_of(failing["custom-check"])
    assert checks["api_responses_valid"]["status"] == "pass"
    assert checks["summary_correct"]["status"] == "fail"
    assert "99999" in checks["summary_correct"]["message"]


def test_a_guessed_refund_is_seen_in_the_calls(failing: Cells) -> None:
    cell = failing["mcp"]
    assert (cell["verdict"], cell["composite"]) == ("fail", 0)
    checks = checks_of(cell)
    assert "expected 'get_order' (text), found 'refund' (text)" in checks["looked_first"]["message"]
    assert "expected 1 (integer), found 2 (integer)" in checks["refunded_once"]["message"]
    assert checks["nothing_made_up"]["status"] == "pass"


def test_agents_of_examples_import_nothing_of_ours():
    for source in EXAMPLES.rglob("*.py"):
        assert "keystone_action" not in source.read_text(), source


def test_the_schema_for_editors_accepts_every_example():
    import json

    import yaml
    from jsonschema import Draft202012Validator

    schema = json.loads(keystone("schema", directory=ROOT).out)
    validator = Draft202012Validator(schema)
    for path in EXAMPLES.rglob("*keystone.yaml"):
        document = yaml.safe_load(path.read_text())
        if "extends" not in document:
            assert [error.message for error in validator.iter_errors(document)] == [], path


def test_the_touchstone_case_tells_its_models_apart(tmp_path: Path):
    """By every kind of grader that runs offline."""
    both = run_example(TOUCHSTONE, tmp_path)
    assert both.code == 1, both.out + both.err
    cells = {cell["params"]["model"]: cell for cell in both.cells}
    assert {model: cell["verdict"] for model, cell in cells.items()} == {"careful": "pass", "careless": "fail"}
    checks = checks_of(cells["careful"])
    assert {name: (one["status"], one["weight"]) for name, one in checks.items()} == {
        "implemented": ("pass", 0.0),
        "tests": ("pass", 4.0),
        "command": ("pass", 1.0),
        "trace": ("pass", 1.0),
        "efficiency": ("pass", 1.0),
    }


def test_the_agenticassure_suite_passes_with_its_own_agent(tmp_path):
    called = run_example(EXAMPLES / "agenticassure" / "scenarios", tmp_path)
    assert called.code == 0, called.out + called.err
    scorers = {cell["scenario"]: [entry["name"] for entry in cell["invariants"]] for cell in called.cells}
    assert scorers == {
        "refund-info": ["passfail"],
        "database-query-with-args": ["passfail", "brevity"],
        "unknown-order": ["passfail", "regex"],
    }
    brevity = called.cells[1]["invariants"][1]
    assert (brevity["status"], brevity["message"]) == ("pass", "11 words, at most 20")


def test_the_agenticassure_suite_fails_with_an_agent_that_guesses(tmp_path):
    suite = EXAMPLES / "agenticassure" / "scenarios" / "support.yaml"
    words = ("--agent", "support_agent:GuessingAgent", "--output", tmp_path / "out")
    called = keystone("run", suite, *words, directory=tmp_path)
    assert called.code == 1, called.out + called.err
    verdicts = {cell["scenario"]: cell["verdict"] for cell in called.cells}
    assert verdicts == {"refund-info": "pass", "database-query-with-args": "fail", "unknown-order": "fail"}
