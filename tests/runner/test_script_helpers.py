"""What of a checkout counts beside the files that a spec names, because its host scripts can read it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from keystone_action.files.tree_digest import TreeDigester
from keystone_action.invariants.registry import CheckTypes
from keystone_action.runner.journal.identification import MOST_NAMED, TOGETHER, helper_facts, script_folders
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load

SPEC = """\
version: 1
id: suite
task: {prompt: x}
agent: {type: none}
invariants: {holds: {check: CHECK}}
"""
SCRIPT = "{type: custom, script: checks/holds.py}"
FILES = {
    "evals/keystone.yaml": SPEC.replace("CHECK", SCRIPT),
    "evals/checks/holds.py": "import tables\n",
    "evals/checks/tables.py": "ONE = 1\n",
    "lib/shared.py": "TWO = 2\n",
    ".gitignore": "*.log\n",
}
"""By paths below the checkout."""


def write(top: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


@pytest.fixture
def checkout(folder: Path) -> Path:
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        identity = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)
    return folder


def loaded(top: Path) -> LoadedSpec:
    return load(top / "evals" / "keystone.yaml", CheckTypes())


def facts(top: Path) -> dict[str, str]:
    spec = loaded(top)
    counted = {spec.path, *spec.withheld, *spec.author_files}
    return helper_facts(spec, TreeDigester(), counted=counted, results=[top / "evals" / "out"])


def test_a_clean_checkout_is_told_by_its_commit(checkout: Path) -> None:
    assert facts(checkout) == {}


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a helper": (lambda top: (top / "evals/checks/tables.py").write_text("ONE = 2\n"), "checks/tables.py"),
    "a helper elsewhere": (lambda top: (top / "lib/shared.py").write_text("TWO = 1\n"), "../lib/shared.py"),
    "a helper that is removed": (lambda top: (top / "evals/checks/tables.py").unlink(), "checks/tables.py"),
    "one that is made a program": (lambda top: (top / "lib/shared.py").chmod(0o755), "../lib/shared.py"),
    "a new module": (lambda top: (top / "evals/checks/json.py").write_text(""), "checks/json.py"),
    "a link": (lambda top: (top / "evals/checks/link.py").symlink_to("/etc/passwd"), "checks/link.py"),
    "a name that is not text": (
        lambda top: Path(os.fsdecode(os.fsencode(top) + b"/evals/checks/\xff.py")).touch(),
        "checks/\\xff.py",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_differs_from_the_commit_counts_by_name(checkout: Path, what: str) -> None:
    change, name = CHANGES[what]
    change(checkout)
    assert list(facts(checkout)) == [name]


def test_content_counts(checkout: Path) -> None:
    seen = set()
    for content in ("ONE = 2\n", "ONE = 3\n"):
        (checkout / "evals/checks/tables.py").write_text(content)
        seen.add(tuple(facts(checkout).items()))
    assert len(seen) == 2


def test_what_no_script_depends_on_does_not_count(checkout: Path) -> None:
    write(
        checkout,
        {
            "evals/checks/trace.log": "ignored",
            "build/report.txt": "not in the folder of a script",
            "evals/checks/__pycache__/tables.pyc": "",
            "evals/out/checks/holds.log": "results",
            "evals/checks/older/journal.jsonl": '{"identity": 1}\n',
            "evals/checks/older/summary.md": "results of another run",
            "evals/checks/holds.py": "counted by its name",
        },
    )
    assert facts(checkout) == {}


def test_without_git_the_folder_of_the_script_counts(folder: Path) -> None:
    assert list(facts(folder)) == ["checks/tables.py"]
    write(folder, {"evals/checks/deep/more.py": "", "evals/checks/__pycache__/tables.pyc": ""})
    assert sorted(facts(folder)) == ["checks/deep/more.py", "checks/tables.py"]


def test_many_are_one_fact(checkout: Path) -> None:
    write(checkout, {f"evals/checks/{number}.py": "" for number in range(MOST_NAMED + 1)})
    first = facts(checkout)
    assert list(first) == [TOGETHER]
    write(checkout, {"evals/checks/7.py": "changed"})
    assert facts(checkout) != first


@pytest.mark.parametrize(
    ("check", "folders"),
    [
        (SCRIPT, ["checks"]),
        ("{type: custom, script: checks/holds.py, runs_in: sandbox}", []),
        ("{type: command_exit, command: 'true', runs_in: host}", ["."]),
        ("{type: command_exit, command: 'true'}", []),
    ],
)
def test_only_scripts_on_the_host_read_a_checkout(checkout: Path, check: str, folders: list[str]) -> None:
    write(checkout, {"evals/keystone.yaml": SPEC.replace("CHECK", check), "lib/shared.py": "changed"})
    assert script_folders(loaded(checkout)) == [(checkout / "evals" / name).resolve() for name in folders]
    assert list(facts(checkout)) == (["../lib/shared.py"] if folders else [])
