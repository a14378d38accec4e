"""A checkout on a laptop whose change is judged by the specs of its merge base."""

from __future__ import annotations

from pathlib import Path

from support.command_line import Called, keystone
from support.repositories import commit, git

SPEC = """
version: 1
id: small
extends: shared.yaml
task: {prompt: "do it"}
workspace: ../app
agent: {type: command, command: "sh $KEYSTONE_AGENT_DIR/run.sh", dir: ../agent}
invariants:
  tests_pass: {gate: true, check: {type: custom, script: hidden/check.py}}
  a: {weight: 2, check: {type: file_exists, path: a}}
  b: {gate: true, check: {type: file_exists, path: b}}
scoring: {pass_threshold: 0.85}
"""
WEAK = SPEC.replace("0.85", "0.5").replace("weight: 2, ", "").replace("b: {gate: true, ", "b: {")
STRICT_CHECK = """
import json, pathlib
found = pathlib.Path("a").is_file()
print(json.dumps({"passed": found, "message": "strict"}))
"""
LAX_CHECK = "import json\nprint(json.dumps({'passed': True, 'message': 'lax'}))\n"
BASE = {
    "evals/keystone.yaml": SPEC,
    "evals/shared.yaml": "resources: {timeout: 60}\n",
    "evals/hidden/check.py": STRICT_CHECK,
    "app/README": "an app\n",
    "agent/run.sh": "touch a b\n",
}
CHEAT = {"evals/keystone.yaml": WEAK, "evals/hidden/check.py": LAX_CHECK, "agent/run.sh": "cp README seen; touch b\n"}


def laptop(tmp_path: Path, change: dict[str, str | None], base: dict[str, str] | None = None) -> Path:
    """A repository with the change checked out and `origin/HEAD` as clones have it."""
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "-q", "-b", "topic")
    commit(clone, base or BASE)
    as_of_origin(clone)
    commit(clone, change)
    return clone


def as_of_origin(directory: Path) -> None:
    """What is checked out is the origin's default branch."""
    git(directory, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(directory, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")


def run(directory: Path, *words: str) -> Called:
    return keystone("run", "evals", "--output", "out", *words, directory=directory)
