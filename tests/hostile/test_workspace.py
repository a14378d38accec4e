"""An agent whose work is a trap: for who reads it, copies it, or runs a program where it lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.attacks import hostile
from support.command_line import Called
from support.hostile import AS_ROOT, area, attack, everything_written

__all__ = ["area"]

CANARY = "CANARY-in-the-checkout"
THERE = {"type": "file_exists", "path": "made.txt"}
COPIES = {
    "observed": THERE,
    "in_the_copy": {"type": "command_exit", "command": "test -f made.txt"},
    "on_the_host": {"type": "custom", "script": "there.py"},
}


def hidden_check(area: Path) -> None:
    (area / "there.py").write_text(
        "import json, os, sys\nwhere = json.load(sys.stdin)['workspace_path']\n"
        "found = str(sorted(os.listdir(where)))[:300]\n"
        "print(json.dumps({'passed': os.path.exists(where + '/made.txt'), 'reason': found}))\n"
    )


PATHS = {
    "fifo": "os.mkfifo('answer.txt')",
    "socket": "import socket; socket.socket(socket.AF_UNIX).bind('answer.txt')",
    "sparse": "open('answer.txt', 'wb').truncate(10 << 30)",
    "directory": "os.mkdir('answer.txt')",
    "passwd": "os.symlink('/etc/passwd', 'answer.txt')",
    "environ": "os.symlink('/proc/self/environ', 'answer.txt')",
    "checkout": "os.symlink({checkout!r}, 'answer.txt')",
    "magic": "os.symlink('/proc/self/cwd/keystone.yaml', 'answer.txt')",
    "loop": "os.symlink('answer.txt', 'answer.txt')",
    "bytes": "open('answer.txt', 'wb').write(bytes([0xff, 0xfe]) + b'root:')",
    "folder": "os.symlink('/etc', 'etc'); os.symlink('etc/passwd', 'answer.txt')",
    "hard": "os.link({checkout!r}, 'answer.txt')",
}


def attack_by_kind(area: Path, script: str, kinds: Mapping[str, str], checks: Mapping[str, Any], **more: Any) -> Called:
    """One run with a cell for each kind of attack. script: goes before each."""
    script = f"{script}\nexec({dict(kinds)!r}[os.environ['KIND']])"
    agent = {"env": {"KIND": "{{ params.kind }}"}, **more}
    return attack(area, script, checks, agent=agent, parallelism={"matrix": {"kind": list(kinds)}})


def by_kind(called: Called) -> dict[str, dict[str, Any]]:
    """The cells by their kinds."""
    return {cell["params"]["kind"]: cell for cell in called.cells}


def verdicts(called: Called) -> dict[str, str]:
    """Of the checks of each kind: one word where they are all alike."""
    found = {kind: {check["status"] for check in cell["invariants"]} for kind, cell in by_kind(called).items()}
    return {kind: "/".join(sorted(each)) for kind, each in found.items()}


@hostile(
    "workspace",
    "puts a link, FIFO, socket or huge file at the path of a check",
    held_by="opened below the workspace, plain files alone",
)
def test_whatever_lies_at_the_path_the_check_fails_and_shows_nothing(area: Path) -> None:
    (area / "keystone.txt").write_text(CANARY)
    kinds = {kind: text.format(checkout=str(area / "keystone.txt")) for kind, text in PATHS.items()}
    read = {"type": "file_content", "path": "answer.txt", "pattern": "root:|CANARY|PATH=|version"}
    glob = {"type": "file_content", "path": "*.txt", "pattern": "root:|CANARY|PATH=|version"}
    absent = {"type": "file_content", "path": "answer.txt", "not_contains": "anything"}
    checks = {"read": read, "glob": glob, "absent": absent}
    called = attack_by_kind(area, "import os", kinds, checks, output={"file": "answer.txt"})
    assert called.code == 1, called.out + called.err
    found = {
        kind: {check["name"]: check["status"] for check in cell["invariants"]} for kind, cell in by_kind(called).items()
    }
    # Nothing of a file of 10 GiB is wanted, and it is read as far as it says that.
    may_pass = {"read": "fail", "glob": "fail", "absent": "pass"}
    assert found["sparse"] in (dict.fromkeys(checks, "fail"), may_pass)
    assert {**found, "sparse": {}} == {**{kind: dict.fromkeys(checks, "fail") for kind in PATHS}, "sparse": {}}
    written = everything_written(called)
    assert not [name for name, data in written.items() if CANARY.encode() in data or b"root:x:0" in data]


MESSES = {
    "closed": "os.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0); os.chmod('made.txt', 0o400); os.chmod('.', 0o500)",
    "many": "[open(f'f{number}', 'w').close() for number in range(3000)]",
    "names": (
        "[open(name, 'w').write('x') for name in (b'new\\nline', b'\\xff\\xfe', b'x' * 255, b'-rf', b'~', b'$(id)',"
        " b'`id`', b'a;b', b' ', b'::error::x', '\\u202e.txt'.encode(), b'\\x1b[31m', b'*', b'<script>', b'|', b'\"')]"
    ),
    "deep": "[(os.mkdir('d'), os.chdir('d')) for _ in range(2300)]",
    "special": (
        "os.mkfifo('fifo'); import socket; socket.socket(socket.AF_UNIX).bind('socket'); os.symlink('/', 'root');"
        " os.symlink('..', 'up'); os.symlink('loop', 'loop'); os.symlink('x' * 4000, 'long')"
    ),
    "ours": (
        "[os.symlink('/etc', name) for name in ('checks', 'results.json', 'audit.jsonl', '.keystone', 'cells')];"
        " os.makedirs('.git/objects'); os.mkfifo('.git/config'); os.mkfifo('.gitattributes')"
    ),
    "sparse": "open('huge', 'wb').truncate(1 << 42)",
    "hard": "[os.link('made.txt', f'again{number}') for number in range(500)]",
    "modes": "[os.chmod(open(f'm{mode}', 'w').name, mode) for mode in (0o7777, 0o6755, 0o1000, 0)]",
}


@hostile(
    "workspace", "leaves names, modes and links that break copies", held_by="one walker for trees that others wrote"
)
@pytest.mark.slow
def test_every_mess_is_copied_and_graded(area: Path) -> None:
    hidden_check(area)
    called = attack_by_kind(area, "import os, resource\nopen('made.txt', 'w').close()", MESSES, COPIES)
    # A user of its own can't close a directory to root; it can to a plain user, who then can't read what was left.
    expected = {kind: "fail" if kind == "closed" and not AS_ROOT else "pass" for kind in MESSES}
    cells = by_kind(called)
    assert {kind: cell["verdict"] for kind, cell in cells.items()} == expected, called.out + called.err
    assert called.code == ("fail" in expected.values())
    printed = [(called.output / "cells" / cell["id"] / "agent.stderr").read_text() for cell in cells.values()]
    assert {cell["agent"]["exit_code"] for cell in cells.values()} == {0}, printed
    _identity, *lines = (called.output / "journal.jsonl").read_text("utf-8").splitlines()
    assert sorted(json.loads(line)["verdict"] for line in lines) == sorted(expected.values())


ENDS = {
    "emptied": ("shutil.rmtree('.', ignore_errors=True)", "fail"),
    "removed": ("shutil.rmtree(os.getcwd(), ignore_errors=True)", "fail"),
    "linked": ("here = os.getcwd(); shutil.rmtree(here, ignore_errors=True); os.symlink('/etc', here)", "fail"),
    "renamed": ("here = os.getcwd(); os.rename(here, here + '2'); os.symlink('/', here)", "pass"),
    "closed": ("os.unlink('made.txt'); os.chmod('.', 0)", "fail"),
}


@hostile("workspace", "removes or closes its workspace", held_by="what can't be read counts as its failure")
def test_a_workspace_that_is_gone_or_closed_is_the_agents_failure(area: Path) -> None:
    hidden_check(area)
    kinds = {kind: body for kind, (body, _) in ENDS.items()}
    called = attack_by_kind(area, "import os, shutil\nopen('made.txt', 'w').close()", kinds, COPIES)
    assert called.code == 1, called.out + called.err
    assert verdicts(called) == {kind: status for kind, (_, status) in ENDS.items()}, called.out
    assert [cell["error"] for cell in called.cells] == [None] * len(ENDS)


@hostile(
    "workspace",
    "plants programs and modules where ours could find them",
    held_by="nothing of the workspace is on our paths",
)
def test_nothing_planted_runs_outside_of_the_sandbox(area: Path) -> None:
    mark = area / "planted-code-ran"
    script = f"""
import os
python = "open({str(mark)!r}, 'w').write('python')\\n"
shell = "#!/bin/sh\\n: > {mark}\\n"
for name in ("sitecustomize", "usercustomize", "json", "os", "subprocess", "io", "encodings", "re", "keystone_action",
             "__main__", "conftest", "there", "python"):
    open(name + ".py", "w").write(python)
open("evil.pth", "w").write("import os; " + python)
open("pyvenv.cfg", "w").write("home = " + os.getcwd())
os.makedirs("keystone_action", exist_ok=True)
open("keystone_action/__init__.py", "w").write(python)
for name in ("sh", "bash", "python3", "python", "git", "test", "env", "cat", "true", ".bashrc", ".profile", ".bash_env",
             ".envrc", ".shrc", "node"):
    open(name, "w").write(shell)
    os.chmod(name, 0o755)
for home in {{os.environ["HOME"], os.environ["TMPDIR"]}}:
    for name in (".bashrc", ".profile", ".gitconfig", ".pythonrc.py"):
        open(os.path.join(home, name), "w").write(shell)
    os.makedirs(home + "/.local/lib/python3.11/site-packages", exist_ok=True)
    open(home + "/.local/lib/python3.11/site-packages/usercustomize.py", "w").write(python)
open("made.txt", "w").write("x")
"""
    hidden_check(area)
    (area / "shell.sh").write_text(
        "cat made.txt >/dev/null && test -f made.txt && git status >/dev/null 2>&1\npython3 --version >/dev/null\n"
        "echo '{\"passed\": true}'\n"
    )
    (area / "calls.py").write_text(
        "import json, re, subprocess, sys\n"
        "assert 'workspace' not in json.__file__ + re.__file__\n"
        "subprocess.run(['git', 'status'], capture_output=True)\n"
        "subprocess.run('cat made.txt', shell=True, capture_output=True)\n"
        "print(json.dumps({'passed': True, 'reason': sys.executable}))\n"
    )
    checks = {
        "there": {"type": "custom", "script": "there.py"},
        "calls": {"type": "custom", "script": "calls.py"},
        "shell": {"type": "custom", "script": "shell.sh"},
        "inside": {"type": "custom", "script": "there.py", "runs_in": "sandbox"},
        "command": {"type": "command_exit", "command": "cat made.txt && test -f made.txt"},
    }
    dotted = {"PATH": ":.:/usr/local/bin:/usr/bin:/bin"}
    for number, environ in enumerate(({}, dotted)):
        directory = area / str(number)
        directory.mkdir()
        for name in ("there.py", "shell.sh", "calls.py"):
            (directory / name).write_bytes((area / name).read_bytes())
        called = attack(directory, script, checks, environ=environ)
        assert not mark.exists()
        assert called.code == 0, called.out + called.err


@hostile(
    "workspace",
    "has code under test change evidence and outlive its check",
    held_by="evidence is out of reach; every check's processes end",
)
def test_code_under_test_changes_no_evidence_and_outlives_no_check(area: Path) -> None:
    script = """
import os
open("where.txt", "w").write(os.getcwd())
open("answer.txt", "w").write("as left\\n")
open("run.sh", "w").write('''
original=$(cat where.txt)
rm -rf "$original"; echo evil > "$original/answer.txt"; chmod 777 "$original"; mv "$original" "$original-2"
(setsid sh -c 'while :; do echo evil > answer.txt; sleep 0.01; done' &)
echo changed > answer.txt
''')
"""
    (area / "judge.sh").write_text(
        "cp answer.txt one; sleep 0.4; if cmp -s one answer.txt; then echo '{\"passed\": true}'; fi\n"
    )
    checks = {
        "run": {"type": "command_exit", "command": "sh run.sh; true"},
        "still": {"type": "custom", "script": "judge.sh", "runs_in": "sandbox"},
        "left": {"type": "file_content", "path": "answer.txt", "contains": "as left"},
        "host": {"type": "custom", "script": "left.py"},
    }
    (area / "left.py").write_text(
        "import json, pathlib\nprint(json.dumps({'passed': pathlib.Path('answer.txt').read_text() == 'as left\\n'}))\n"
    )
    called = attack(area, script, checks)
    assert called.code == 0, called.out + called.err + str(called.checks)
    patch = (called.output / "cells" / "hostile.r0" / "diff.patch").read_text()
    assert "+as left" in patch
    assert "+evil" not in patch
