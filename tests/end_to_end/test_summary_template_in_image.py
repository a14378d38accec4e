"""Templates of a workflow's own in the built image: rendered by a process of its own, which its limits end."""

from __future__ import annotations

import pytest
from support.action_job import ActionJob
from support.container_step import ContainerStep

pytestmark = pytest.mark.docker

SPEC = {
    "version": 1,
    "id": "suite",
    "task": {"prompt": "do it"},
    "agent": {"type": "command", "command": "touch done.txt"},
    "invariants": {"done": {"check": {"type": "file_exists", "path": "done.txt"}}},
}
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATES = {
    "good": ("{{ super() }}\nowner: payments, {{ run.verdict }}", ""),
    "breaks": ("{{ specs[7].name }}", "breaks.j2:1: "),
    "floods": ("{% for a in range(999) %}" + "flood " * 40_000 + "{% endfor %}", "it prints more than 64 MiB"),
    "grows": ("{{ 'x' * 9_999_999_999 }}", "it takes more memory than the 2 GiB"),
    "loops": (LOOP, "it took more than 10 s, and was stopped"),
}


def start(job: ActionJob, name: str) -> ContainerStep:
    job.inputs = {"summary-template": f"{name}.j2", "output-dir": f"keystone-results-{name}"}
    return job.start()


def test_templates_that_render_and_that_break(job: ActionJob) -> None:
    job.runner.happened("schedule")
    head = '{% extends "summary.md.j2" %}{% block head %}'
    job.write(SPEC, {f"{name}.j2": f"{head}{text}{{% endblock %}}" for name, (text, _) in TEMPLATES.items()})
    looping = start(job, "loops")  # beside the others, since it takes its ten seconds
    for name, (_, why) in TEMPLATES.items():
        step = (looping if name == "loops" else start(job, name)).wait()
        assert (step.exit_code, step.outputs["verdict"], step.rejected) == (0, "pass", []), step.raw_log
        warnings = [one.message for one in step.issues if one.level == "warning"]
        for text in (step.summary, (job.runner.workspace / step.outputs["summary-path"]).read_text("utf-8")):
            assert text.startswith("## ✅ Keystone: ")
            assert "1 of 1 check passed" in text
            assert ("owner: payments, pass" in text) == (name == "good")
        if why:
            (warning,) = warnings
            assert "the summary is Keystone's own, since the summary-template failed: " in warning
            assert why in warning
        else:
            assert warnings == []
    assert job.left() == []
