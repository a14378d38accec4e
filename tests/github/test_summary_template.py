"""The input summary-template through the fake runner: what is a bad call, and what only costs the author's summary."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.fake_runner import FakeRunner, StepResult
from support.shard_runs import cell, spec, whole

from keystone_action.github import summary as summary_template
from keystone_action.github.summary import SummaryTemplate, TemplateError

pytestmark = [pytest.mark.command, pytest.mark.usefixtures("kept_runs")]

SPEC = """\
version: 1
id: greet
task: { prompt: Write hello. }
workspace: .
agent: { type: command, command: "ls -R > seen.txt; echo hello > hello.txt" }
invariants:
  written: { gate: true, check: { type: file_exists, path: hello.txt } }
  unseen: { check: { type: file_content, path: seen.txt, not_contains: look.md.j2 } }
"""
EXTENDS = '{% extends "summary.md.j2" %}\n'
ENDLESS = "{% for a in range(9999) %}{% for b in range(9999) %}" + "spam" * 999 + "{% endfor %}{% endfor %}"
OURS = "## ✅ Keystone: greet passed: "


def head(body: str) -> str:
    return f"{EXTENDS}{{% block head %}}{body}{{% endblock %}}"


def step(tmp_path: Path, template: str | bytes | None, **inputs: str) -> tuple[FakeRunner, StepResult]:
    runner = FakeRunner(tmp_path)
    (runner.workspace / "keystone.yaml").write_text(SPEC)
    if template is not None:
        path = runner.workspace / "ci" / "look.md.j2"
        path.parent.mkdir()
        path.write_bytes(template.encode() if isinstance(template, str) else template)
    return runner, runner.step({"summary-template": "ci/look.md.j2", **inputs})


def test_the_template_makes_summary_and_file_and_no_agent_sees_it(tmp_path: Path) -> None:
    text = EXTENDS + "{% block head %}# {{ run.verdict }} of {{ run.specs[0].id | code }}\n\n{% endblock %}"
    runner, done = step(tmp_path, text)
    assert (done.exit_code, done.outputs["composite"], done.issues) == (0, "1", [])
    assert "# pass of `greet`\n" in done.summary
    assert (runner.workspace / done.outputs["summary-path"]).read_text().strip() == done.summary.strip()
    assert runner.foreign() == []


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "ci/look.md.j2 can't be read: No such file or directory"),
        ("{% block head %}", "ci/look.md.j2:1: Unexpected end of template"),
        (EXTENDS + "{% block head %}\n{{ nobody }}{% endblock %}", "ci/look.md.j2:3: there is no name nobody"),
        (b"\xff\xfe", "ci/look.md.j2 is not UTF-8 text"),
        (b"x" * 262_145, "ci/look.md.j2 is longer than 262,144 bytes"),
    ],
)
def test_a_template_that_can_not_be_used_is_exit_2_before_anything_runs(
    tmp_path: Path, template: str | bytes | None, says: str
) -> None:
    runner, done = step(tmp_path, template)
    assert (done.exit_code, done.outputs["verdict"]) == (2, "error")
    assert f"input summary-template: {says}" in done.issues[0].message
    assert "summary-template" in done.summary
    assert not (runner.workspace / "keystone-results").exists()


def test_a_folder_or_a_path_elsewhere_is_no_template(tmp_path: Path) -> None:
    assert "ci is not a file" in step(tmp_path / "a", EXTENDS, **{"summary-template": "ci"})[1].issues[0].message
    assert (
        "a path inside of" in step(tmp_path / "b", EXTENDS, **{"summary-template": "/etc/passwd"})[1].issues[0].message
    )


def test_a_template_that_fails_costs_nothing_but_itself(tmp_path: Path) -> None:
    runner, done = step(tmp_path, head("{{ run.nothing }}"))
    assert (done.exit_code, done.outputs["verdict"], done.outputs["composite"]) == (0, "pass", "1")
    (warning,) = done.issues
    assert warning.level == "warning"
    assert "the summary is Keystone's own" in warning.message
    assert "ci/look.md.j2:2: 'dict object' has no attribute 'nothing'" in warning.message
    assert OURS in done.summary
    assert (runner.workspace / done.outputs["summary-path"]).read_text().strip() == done.summary.strip()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "it took more than 1 s"),
        ("{{ 'x' * 2147483648 }}", "it takes more memory than the 2 GiB"),
        (ENDLESS, "it prints more than 64 MiB"),
    ],
)
def test_a_template_has_its_limits(monkeypatch: pytest.MonkeyPatch, body: str, says: str) -> None:
    """Each is a template that fails."""
    assert summary_template.SECONDS == 10
    if "more than 1 s" in says:
        monkeypatch.setattr(summary_template, "SECONDS", 1.0)
    run = whole([spec("alpha", [cell("alpha", "alpha", 0, "pass")])])
    with pytest.raises(TemplateError, match=f"ci/look.md.j2: {says}"):
        SummaryTemplate(head(body), "ci/look.md.j2").render(run, 1 << 20)


def test_a_bad_spec_is_shown_by_the_template_too(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    (runner.workspace / "keystone.yaml").write_text("version: 1\n")
    (runner.workspace / "look").write_text(EXTENDS + "{% block head %}# Ours: {{ headline }}\n\n{% endblock %}")
    done = runner.step({"summary-template": "look"})
    assert done.exit_code == 2
    assert "# Ours: Keystone: error: " in done.summary


def test_a_template_sees_no_environment(tmp_path: Path) -> None:
    text = "{% block head %}{{ environ is defined }}{{ cycler.__init__ is defined }}{% endblock %}"
    _, done = step(tmp_path, EXTENDS + text)
    assert done.exit_code == 2
    assert "there is no name environ" in done.issues[0].message


def test_the_job_that_joins_shards_has_a_template_too(tmp_path: Path) -> None:
    text = EXTENDS + "{% block head %}# joined: {{ run.counts.cells }}\n\n{% endblock %}"
    (tmp_path / "shard").mkdir()
    (tmp_path / "join").mkdir()
    runner, ran = step(tmp_path / "shard", None, **{"summary-template": "", "shard": "1/1"})
    assert ran.exit_code == 0
    joiner = FakeRunner(tmp_path / "join")
    (joiner.workspace / "look").write_text(text)
    shutil.copytree(runner.workspace / "keystone-results", joiner.workspace / "shards")
    done = joiner.step({"mode": "merge", "results": "shards", "summary-template": "look"})
    assert (done.exit_code, done.outputs["verdict"]) == (0, "pass")
    assert "# joined: 1" in done.summary
    assert "# joined: 1" in (joiner.workspace / done.outputs["summary-path"]).read_text()
