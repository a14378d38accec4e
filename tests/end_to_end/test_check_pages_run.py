"""Every example of docs/checks through the real command: the agent that passes, and the one that fails."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.command_line import NO_ENGINE, ROOT, keystone
from support.model_server import ModelServer, says
from support.page_examples import PAGES, VARIANTS, Variant, examples, fits, page, sections

from keystone_action.invariants.registry import ALIASES

STAND_IN = ROOT / "tests" / "data" / "embedding_package"
NEEDS_PYTEST = "setup: {packages: [pytest]}"
"""What a page says whose sandbox needs pytest."""
HERE = "setup: {env: {PYTHONPATH: '{{ agent.dir }}/packages'}}"
"""What stands for it: pytest lies beside their agents."""
EXAMPLES = [
    (path.stem, heading, name)
    for path in sorted(PAGES.glob("*.md"))
    for heading, variants in examples(path.read_text("utf-8")).items()
    for name in variants
]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.slow
def test_the_examples(name: str, tmp_path: Path, packages: Path) -> None:
    """One call for all of a kind; each is held to its own verdict, check and message. That pip gets
    what specs name is shown by tests/runner/test_runner_setup.py and tests/end_to_end/test_touchstone_runs.py."""
    chosen = {
        f"{check_type}-{number}": (check_type, examples(page(check_type))[heading][name])
        for number, (check_type, heading, variant) in enumerate(EXAMPLES)
        if variant == name
    }
    environ = {**NO_ENGINE, "PYTHONPATH": os.pathsep.join([str(ROOT), str(STAND_IN)])}
    for folder, (_, variant) in chosen.items():
        variant.write(tmp_path / folder)
        if NEEDS_PYTEST in (text := variant.files["keystone.yaml"]):
            (tmp_path / folder / "keystone.yaml").write_text(text.replace(NEEDS_PYTEST, HERE), "utf-8")
            shutil.copytree(packages, tmp_path / folder / "agent" / "packages")
    with ExitStack() as stack:
        answers = [variant.judge for _, variant in chosen.values() if variant.judge is not None]
        assert len(answers) == 1, "each judge has its own answer: one server for each, where there are more"
        environ |= stack.enter_context(ModelServer([says(answers[0])])).environ()
        called = keystone("run", *chosen, "--output", "out", directory=tmp_path, environ=environ)
    assert called.code == VARIANTS[name], called.out + called.err
    found = {spec["path"].split("/")[0]: spec for spec in called.document["specs"]}
    assert found.keys() == chosen.keys()
    wrong = {
        folder: problem
        for folder, (check_type, variant) in chosen.items()
        if (problem := problem_of(found[folder], check_type, variant, name))
    }
    assert wrong == {}


def problem_of(spec: dict[str, Any], check_type: str, variant: Variant, name: str) -> str:
    """What a run of an example is not, which its page says that it is; empty when there is nothing."""
    (cell,) = spec["cells"]
    (entry,) = (one for one in cell["invariants"] if ALIASES.get(one["type"], one["type"]) == check_type)
    wanted = {"Passes": "pass", "Fails": "fail"}[name]
    if (cell["verdict"], entry["status"]) != (wanted, wanted):
        return f"{cell['verdict']}: {entry}"
    if variant.message is None or not fits(variant.message, entry["message"]):
        return f"the page does not show its message: {entry['message']}"
    unnamed = set(entry["details"]) - documented(page(check_type))
    return f"## Details has to name {', '.join(sorted(unnamed))}" if unnamed else ""


def documented(text: str) -> set[Any]:
    """The keys that a page says `details` can have."""
    return set(re.findall(r"`(\w+)`", dict(sections(text, "## "))["Details"]))


def test_every_page_has_an_example_that_is_run() -> None:
    assert {check_type for check_type, _, _ in EXAMPLES} == {path.stem for path in PAGES.glob("*.md")} - {"README"}


def test_what_is_not_run_as_it_is_shown_is_a_spec(tmp_path: Path) -> None:
    """The invariant that is explained, and examples whose sandbox needs pytest."""
    (fragment,) = re.findall(r"^```yaml\n(.*?)^```", (PAGES / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "test_slug.py").write_text("def test_it(): pass\n")
    (tmp_path / "keystone.yaml").write_text(
        f"version: 1\nid: explained\ntask: {{prompt: do it}}\nagent: {{type: none}}\n{fragment}"
    )
    for number, (check_type, heading, name) in enumerate(EXAMPLES):
        variant = examples(page(check_type))[heading][name]
        if NEEDS_PYTEST in variant.files["keystone.yaml"]:
            variant.write(tmp_path / f"{check_type}-{number}")
    by_pip = [path.name for path in tmp_path.glob("*-*")]
    assert {name.partition("-")[0] for name in by_pip} == {"swebench", "tests"}
    called = keystone("validate", "keystone.yaml", *by_pip, directory=tmp_path, environ=NO_ENGINE)
    assert called.code == 0, called.err
