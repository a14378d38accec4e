"""Every example, run as a user runs it, in its passing and its failing variant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def keystone(*words: object, directory: Path = ROOT, environ: dict[str, str] | None = None):
    return subprocess.run(
        [sys.executable, "-m", "keystone_action", *map(str, words)],
        cwd=directory,
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": "/nonexistent",
            **(environ or {}),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_example(spec: Path, output: Path):
    done = keystone("run", spec, "--output", output)
    return done, json.loads((output / "results.json").read_text())


def invariants(document):
    (cell,) = document["specs"][0]["cells"]
    return {entry["name"]: entry for entry in cell["invariants"]}


def test_every_example_has_both_variants():
    found = {path.parent.name for path in EXAMPLES.glob("*/keystone.yaml")}
    assert found == {"reconcile", "fix-tests", "custom-check"}
    assert found == {path.parent.name for path in EXAMPLES.glob("*/broken.keystone.yaml")}


@pytest.mark.parametrize("name", ["reconcile", "fix-tests", "custom-check"])
def test_passing_variant(name, tmp_path):
    done, document = run_example(EXAMPLES / name / "keystone.yaml", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert document["verdict"] == "pass"
    for file in ("results.json", "journal.jsonl", "summary.md", "report.html", "junit.xml"):
        assert (tmp_path / "out" / file).stat().st_size > 0
    statuses = {name: entry["status"] for name, entry in invariants(document).items()}
    assert set(statuses.values()) <= {"pass", "skip"}
    assert [name for name, status in statuses.items() if status == "skip"] == (
        ["email_quality"] if name == "reconcile" else []
    )


def test_reconcile_fails_by_its_gate(tmp_path):
    done, document = run_example(EXAMPLES / "reconcile" / "broken.keystone.yaml", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    (cell,) = document["specs"][0]["cells"]
    assert (cell["verdict"], cell["composite"]) == ("fail", 0.0)
    assert "reconciliation_clean" in cell["reason"]
    found = invariants(document)
    assert found["reconciliation_clean"]["status"] == "fail"
    # The agent's e-mail claims success; only the database tells the truth.
    assert found["email_sent_once"]["status"] == "pass"


def test_fix_tests_fails_by_its_composite(tmp_path):
    done, document = run_example(EXAMPLES / "fix-tests" / "broken.keystone.yaml", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    (cell,) = document["specs"][0]["cells"]
    assert cell["composite"] == pytest.approx(1.2 / 1.7)
    found = invariants(document)
    assert found["tests_pass"]["status"] == "pass"
    assert found["no_debug_output"]["status"] == "fail"
    assert found["changelog_written"]["status"] == "fail"


def test_custom_check_fails_by_its_gate(tmp_path):
    done, document = run_example(EXAMPLES / "custom-check" / "broken.keystone.yaml", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    found = invariants(document)
    assert found["api_responses_valid"]["status"] == "pass"
    assert found["summary_correct"]["status"] == "fail"
    assert "99999" in found["summary_correct"]["message"]


def test_reconcile_is_judged_when_there_is_a_key(tmp_path):
    from support.model_server import ModelServer  # noqa: PLC0415

    assert ModelServer is not None
