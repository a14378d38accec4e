"""Our hook for pre-commit, in a repository that is not ours, by pre-commit itself, from a clone of our package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from support.command_line import ENVIRONMENT, ROOT

from keystone_action import __version__
from keystone_action.spec.loading.discovery import discover

OURS = (".pre-commit-hooks.yaml", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "keystone_action")
GOOD = """\
version: 1
id: small
task: {prompt: do it}
agent: {type: command, command: 'true'}
invariants:
  none: {check: {type: file_absent, path: x}}
"""
NAMES = ("keystone.yaml", "evals/keystone.yml", "evals/a.b/triage.keystone.yaml", "x.keystone.yml")
OTHERS = ("mykeystone.yaml", "keystone.yaml.j2", "evals/cases.yaml", "keystone.json", ".keystone/keystone.yaml.txt")


def git(folder: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.test", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)


def repository(folder: Path) -> Path:
    """Of all that is in the folder."""
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=all")
    return folder


def hook() -> dict[str, str]:
    (found,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    return dict(found)


def test_it_is_asked_about_the_files_that_a_folder_is_searched_for(tmp_path: Path) -> None:
    for name in (*NAMES, *OTHERS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GOOD, "utf-8")
    meant = {name for name in (*NAMES, *OTHERS) if re.search(hook()["files"], name)}
    assert meant == {str(path.relative_to(tmp_path)) for path in discover(["."], tmp_path)} == set(NAMES)


@pytest.mark.slow
def test_a_commit_with_a_bad_spec_is_refused_at_its_line(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for name in OURS:
        made = ours / name
        made.parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, made)
    shutil.rmtree(ours / "keystone_action" / "__pycache__", ignore_errors=True)
    (theirs / "evals").mkdir(parents=True)
    (theirs / "keystone.yaml").write_text(GOOD, "utf-8")
    (theirs / "README.md").write_text("not a spec", "utf-8")
    repository(ours)
    revision = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ours, text=True).strip()
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    (shown,) = re.findall(r"^```yaml\n(# \.pre-commit-config\.yaml\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    used = shown.replace("https://github.com/keystone-action/keystone-action", str(ours))
    used = used.replace(f"v{__version__}", revision)
    assert used.count(str(ours)) == used.count(revision) == 1
    (theirs / ".pre-commit-config.yaml").write_text(used, "utf-8")
    repository(theirs)
    # What building and running our package needs is that of these tests: to install it anew would take minutes.
    local = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": sysconfig.get_path("purelib")}
    environ = {**ENVIRONMENT, **local, "HOME": str(tmp_path), "PRE_COMMIT_HOME": str(tmp_path / "cache")}

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=theirs, env=environ, capture_output=True, text=True, timeout=500, check=False)

    pre_commit = Path(sys.executable).with_name("pre-commit")
    assert run(pre_commit, "install").returncode == 0
    passed = run(pre_commit, "run", "--all-files")
    assert (passed.returncode, "Passed" in passed.stdout) == (0, True), passed.stdout + passed.stderr
    assert list(tmp_path.glob("cache/*/*/bin/keystone"))
    bad = GOOD.replace("prompt:", "promt:").replace("small", "bad")
    (theirs / "evals" / "bad.keystone.yaml").write_text(bad, "utf-8")
    git(theirs, "add", ".")
    refused = run("git", "-c", "user.name=a", "-c", "user.email=a@b.test", "commit", "--message=bad")
    assert refused.returncode == 1
    assert "evals/bad.keystone.yaml:3:8: unknown key 'promt'" in refused.stderr, refused.stdout + refused.stderr
