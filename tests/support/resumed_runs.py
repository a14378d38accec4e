"""A run in a checkout, to be resumed: by its own means, or by others'."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.command_line import Called, keystone

SPEC = """\
version: 1
id: suite
task: {prompt: {file: prompt.md}}
workspace: start
agent: {type: command, command: "cp {{ agent.dir }}/answer.txt out.txt", dir: code}
parallelism: {replicas: 3, max_concurrency: 1}
invariants:
  answered: {check: {type: file_exists, path: out.txt}}
  holds: {check: {type: custom, script: checks/holds.sh, runs_in: sandbox}}
scoring: {pass_threshold: 0.8}
"""
OTHER = """\
version: 1
id: other
task: {prompt: x}
agent: {type: none}
invariants: {a: {check: {type: file_absent, path: a}}}
"""


def git(directory: Path, *words: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    subprocess.run(["git", *identity, *words], cwd=directory, check=True, capture_output=True)


def make_checkout(files: Mapping[str, str], *, in_repository: bool = True) -> Path:
    """A directory with these files, and a commit of them; it is there until this process ends."""
    top = Path(tempfile.mkdtemp(prefix="keystone-project-"))
    atexit.register(shutil.rmtree, top)
    for name, content in files.items():
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(content)
    if in_repository:
        git(top, "init", "-q")
        git(top, "add", ".")
        git(top, "commit", "-q", "-m", "first")
    return top


@functools.cache
def _finished() -> Path:
    """A checkout with a finished run, made once a process: a run doesn't depend on where its checkout is."""
    files = {
        "keystone.yaml": SPEC,
        "prompt.md": "Do it.\n",
        "start/a.txt": "one",
        "code/answer.txt": "two",
        "checks/holds.sh": "#!/bin/sh\necho '{\"passed\": true}'\n",
        ".gitignore": "out/\n",
    }
    top = make_checkout(files)
    assert run(top, "--output", "out").code == 0
    return top


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with a run of three cells, of which the last is missing in the journal."""
    shutil.copytree(_finished(), tmp_path, symlinks=True, dirs_exist_ok=True)
    path = tmp_path / "out" / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    return tmp_path


def run(directory: Path, *words: str, spec: str = "keystone.yaml", **environ: str) -> Called:
    return keystone("run", spec, *words, directory=directory, environ=environ)


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "out" / "journal.jsonl").read_text().splitlines()]


def change_cell(directory: Path, **more: object) -> None:
    path = directory / "out" / "journal.jsonl"
    first, cell, *rest = path.read_bytes().splitlines(keepends=True)
    changed = json.dumps({**json.loads(cell), **more}).encode() + b"\n"
    path.write_bytes(b"".join([first, changed, *rest]))
