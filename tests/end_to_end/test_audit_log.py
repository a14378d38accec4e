"""What `audit` and rules write into the audit log of a cell, and who reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.audit import audit_lines
from support.forbidden_rules import TOKEN, spec_of, with_workspace
from support.images import PYTHON
from support.model_agents import CLIENT, behind, run, says

SEED_SCRIPT = Path(__file__).parent.parent / "data" / "seed_checks" / "validate_api_responses.py.txt"


@pytest.mark.parametrize("audit", [{}, {"http_calls": True, "file_changes": True}])
def test_the_source_s_script_reads_an_audit_log_with_all_else_in_it(tmp_path: Path, audit: dict[str, bool]) -> None:
    """`validate_api_responses.py` as it is, with the gateway on, and with rules."""
    script = f"{CLIENT}\nask([user('hello')])\nopen('made', 'w')\nurllib.request.urlopen(MOCK + '/x')\nprint('done')"
    script = script.replace("MOCK", "os.environ['KEYSTONE_SERVICE_API_URL']")
    answer = {"name": "api", "type": "http_mock", "routes": [{"path": "/x", "json": {"id": 1, "status": "ok"}}]}
    (tmp_path / "validate_api_responses.py").write_text(SEED_SCRIPT.read_text())
    valid = {"check": {"type": "custom", "script": "validate_api_responses.py"}}
    rules = {"secrets_in_logs": "deny", "file_writes_outside": ["made"], "tools": ["execute"]}
    spec = spec_of(script, rules, audit=audit, services=[answer], gateway={}, invariants={"valid": valid})
    with behind(says("hello")) as (_, environ):
        called = run(tmp_path, spec, environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["invariants"][0]["message"]) == (0, "pass", "1/1 responses valid")
    assert [one["rule"] for one in cell["forbidden"]] == ["secrets_in_logs", "file_writes_outside", "tools"]
    assert {line["type"] for line in audit_lines(called.output)} == {"http_call", "model_request", "file_change"}


def test_audit_alone_switches_collection_on(tmp_path: Path) -> None:
    script = "import os; os.remove('docs/b.md'); open('new', 'w').write('abc'); os.chmod('tool.sh', 0o700)"
    called = run(tmp_path, spec_of(script, {}, audit={"file_changes": True}, **with_workspace(tmp_path)), {})
    assert called.code == 0
    assert audit_lines(called.output, "file_change") == [
        {"path": "docs/b.md", "kind": "removed", "entry": "file", "size_before": 2, "size_after": None},
        {"path": "new", "kind": "added", "entry": "file", "size_before": None, "size_after": 3},
        {"path": "tool.sh", "kind": "mode", "entry": "file", "size_before": 5, "size_after": 5},
    ]


PROCESSES = """
import os, subprocess, sys, time
subprocess.run([sys.executable, "-c", "import time; time.sleep(0.5)", "first", os.environ["TOKEN"]])
child = subprocess.Popen(["sleep", "30"])
time.sleep(0.3)
subprocess.Popen(["sh", "-c", "sleep 0.4; exit 7"], start_new_session=True)
os.execv(sys.executable, [sys.executable, "-c", "import sys, time; time.sleep(0.8); sys.exit(3)", "another"])
"""


def test_processes_are_written_down_as_they_were_seen(tmp_path: Path) -> None:
    spec = spec_of(PROCESSES, {}, audit={"processes": True}, secrets=["TOKEN"])
    spec["agent"]["env"] = {"TOKEN": "{{ secrets.TOKEN }}"}
    called = run(tmp_path, spec, {"TOKEN": TOKEN})
    assert called.code == 0, called.err
    found = audit_lines(called.output, "process")
    (own,) = [one for one in found if one["how_known"] == "started"]
    assert (own["argv"], own["exit"]) == (["python3", "-c", PROCESSES], 3)
    assert own["start"] < own["end"]
    by_word = {one["argv"][-1] if one["argv"][-1] != "***" else one["argv"][-2]: one for one in found}
    assert by_word["first"]["argv"][-1] == "***"
    assert by_word["first"]["start"] < by_word["first"]["end"]
    assert by_word["another"]["exit"] == 3
    assert (by_word["30"]["argv"], by_word["30"]["exit"]) == (["sleep", "30"], -9)
    assert by_word["sleep 0.4; exit 7"]["argv"][:2] == ["sh", "-c"]


@pytest.mark.docker
def test_processes_in_a_container_are_written_down_as_they_were_seen(
    tmp_path: Path, image: Callable[[str], str]
) -> None:
    script = PROCESSES.replace("0.3", "4").replace("0.4", "4").replace("0.5", "4").replace("0.8", "6")  # looks are few
    spec = spec_of(script, {}, audit={"processes": True}, secrets=["TOKEN"], base=image(PYTHON))
    spec["agent"]["env"] = {"TOKEN": "{{ secrets.TOKEN }}"}
    called = run(tmp_path, spec, {"TOKEN": TOKEN})
    assert called.code == 0, called.err
    found = audit_lines(called.output, "process")
    (own,) = [one for one in found if one["how_known"] == "started"]
    assert (own["argv"], own["exit"]) == (["python3", "-c", script], 3)
    assert own["start"] < own["end"]
    seen = [one["argv"] for one in found if one["how_known"] == "seen"]
    assert ["sleep", "30"] in seen
    assert any(argv[-2:] == ["first", "***"] for argv in seen), seen
    assert any(argv[-1] == "another" for argv in seen), seen
    assert not any("docker-init" in argv[0] or "tini" in argv[0] for argv in seen), seen


@pytest.mark.docker
def test_an_agent_in_a_container_that_no_look_saw_is_written_down(tmp_path: Path, image: Callable[[str], str]) -> None:
    spec = spec_of("", {}, audit={"processes": True}, base=image(PYTHON))
    spec["agent"] = {"type": "command", "command": ["true"]}
    called = run(tmp_path, spec, {})
    assert called.code == 0, called.err
    (own,) = audit_lines(called.output, "process")
    assert (own["argv"], own["exit"], own["how_known"]) == (["true"], 0, "started")


def test_without_audit_processes_there_are_none(tmp_path: Path) -> None:
    called = run(tmp_path, spec_of("import time; time.sleep(0.1)", {}), {})
    assert audit_lines(called.output, "process") == []
