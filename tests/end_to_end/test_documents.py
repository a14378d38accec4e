"""What the README says is true: its commands run, its spec loads and passes, its workflow is linted elsewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, ROOT, run_spec

README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]


def test_the_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    wanted = [words[1] for words in commands() if words[0] == "make"]
    assert wanted == ["demo", "test"]
    for target in wanted:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_keystone_command_runs_as_shown(tmp_path):
    shown = [words for words in commands() if words[0] == "keystone"]
    assert {words[1] for words in shown} == {"init", "validate", "run", "report", "plan", "schema", "doctor"}
    for words in shown:
        done = subprocess.run(
            [sys.executable, "-m", "keystone_action", *words[1:]],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert done.stdout


def test_every_command_is_either_run_or_known():
    assert {words[0] for words in commands()} == {"make", "keystone"}


def test_the_spec_explained_runs(tmp_path):
    (text,) = [block for block in blocks("yaml") if block.startswith("version: 1")]
    called = run_spec(tmp_path, text)
    assert called.code == 0, called.out + called.err
    assert len(called.cells) == 4


def test_exit_codes_of_the_table_are_those_of_the_code():
    from keystone_action import errors

    table = dict(re.findall(r"^\| (\w+|—) \|.*\| (\d+) \|$", README, re.MULTILINE))
    assert (table["pass"], table["flaky"], table["fail"], table["error"]) == (
        str(errors.EXIT_PASS),
        str(errors.EXIT_PASS),
        str(errors.EXIT_FAIL),
        str(errors.EXIT_ERROR),
    )


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", README))))
def test_links_lead_to_files(link):
    assert (ROOT / link).exists()


def test_action_inputs_of_the_workflow_exist():
    import yaml

    (text,) = [block for block in blocks("yaml") if "jobs:" in block]
    steps = yaml.safe_load(text)["jobs"]["evaluate"]["steps"]
    used = next(step["with"] for step in steps if "keystone-action@" in step.get("uses", ""))
    known = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["inputs"]
    assert set(used) <= set(known)


def test_nothing_in_the_repository_names_this_machine():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        path = ROOT / name
        if path.is_file():
            assert f"{ROOT}/" not in path.read_text("utf-8", "replace"), name


def test_files_stay_readable():
    for path in Path(ROOT / "keystone_action").rglob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) <= 400, path
