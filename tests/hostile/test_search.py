"""An agent that reads everything it can reach, knowing where to look: it finds nothing that is not its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.attacks import hostile
from support.barrier import MEET, Barrier
from support.command_line import keystone
from support.hostile import AS_ROOT, area, attack
from support.searching import EVERYWHERE, MARK, SEARCH

__all__ = ["area"]


@pytest.fixture
def barrier() -> Iterator[Barrier]:
    made = Barrier(2)
    yield made
    made.close()


def report(cell: dict) -> dict:
    return json.loads(cell["agent"]["output"])


@hostile(
    "reading",
    "searches the machine for the checkout, for us and another cell",
    held_by="Landlock and a user of its own",
)
def test_finds_neither_the_checkout_nor_us_nor_another_cell(area: Path, barrier: Barrier) -> None:
    (area / "checks").mkdir()
    (area / "checks" / "hidden.py").write_text(f"# {MARK}script\nprint('{{\"passed\": true}}')\n")
    (area / "rubric.md").write_text(f"{MARK}rubric")
    (area / "old" / "cells").mkdir(parents=True)
    (area / "old" / "results.json").write_text(f'{{"x": "{MARK}results"}}')
    (area / "out").mkdir()
    (area / "out" / "mine.txt").write_text(f"{MARK}output")
    script = f"""{SEARCH}{MEET}
descriptors = sorted(os.listdir("/proc/self/fd"))
own = "CAN" + "ARY-cell" + os.environ["REPLICA"]
for place in (".", os.environ["HOME"], os.environ["TMPDIR"], "/dev/shm"):
    try:
        with open(os.path.join(place, "own.txt"), "w") as file:
            file.write(own)
    except OSError:
        pass
meet()
search({[*EVERYWHERE, str(area), str(area / "checks"), str(area / "out"), str(area / "old")]!r})
meet()
print(json.dumps({{"found": [one for one in sorted(found) if one[1] != own], "listed": listed, "uid": os.getuid(),
                  "fds": descriptors, "own": own in [one for _, one in found]}}))
"""
    checks = {
        "hidden": {"type": "custom", "script": "checks/hidden.py"},
        "judged": {"type": "llm_as_judge", "criteria": {"file": "rubric.md"}, "model": "anthropic:none"},
    }
    called = attack(
        area,
        script,
        checks,
        environ={
            "OPENAI_API_KEY": f"{MARK}judge-key",
            "INPUT_SECRET": f"{MARK}input",
            "GITHUB_TOKEN": f"{MARK}github",
            "ACTIONS_RUNTIME_TOKEN": f"{MARK}actions",
            "ANY": f"{MARK}environment",
        },
        agent={"env": {"BARRIER": str(barrier.port), "REPLICA": "{{ cell.replica }}"}},
        description=f"{MARK}spec",
        parallelism={"replicas": 2, "max_concurrency": 2},
    )
    assert called.code == 0, called.out + called.err
    assert barrier.met == 2
    for cell in called.cells:
        seen = report(cell)
        assert seen["found"] == []
        assert seen["own"], "the search finds what is there"
        assert seen["fds"] == ["0", "1", "2", "3"]  # the streams, and the directory that was being listed
        for place in seen["listed"]:
            assert not place.startswith((str(area), "/root", "/home"))
            assert place not in {"/tmp", "/var/tmp", "/"}
        assert not AS_ROOT or seen["uid"] >= 60_000
    assert not AS_ROOT or len({report(cell)["uid"] for cell in called.cells}) == 2


@hostile("reading", "searches for a secret of another spec", held_by="a user and an environment of its own")
def test_finds_no_secret_of_another_spec_that_runs_beside_it(area: Path, barrier: Barrier) -> None:
    for name, body in {
        "searching": f"{SEARCH}{MEET}\nmeet()\nsearch({EVERYWHERE!r})\nmeet()\n"
        'print(json.dumps({"found": sorted(found)}))',
        "trusted": f"import os{MEET}\nmeet()\nmeet()\nprint(len(os.environ['TOKEN']))",
    }.items():
        (area / name).mkdir()
        (area / name / "agent.py").write_text(body)
        env = {"BARRIER": str(barrier.port)}
        document = {
            "version": 1,
            "id": name,
            "task": {"prompt": "x"},
            "agent": {
                "type": "command",
                "command": ["python3", "{{ agent.dir }}/agent.py"],
                "dir": name,
                "env": env | ({"TOKEN": "{{ secrets.TOKEN }}"} if name == "trusted" else {}),
            },
            "secrets": ["TOKEN"] if name == "trusted" else [],
            "parallelism": {"max_concurrency": 2},
            "invariants": {"any": {"check": {"type": "file_absent", "path": "x"}}},
        }
        (area / f"{name}.keystone.yaml").write_text(json.dumps(document))
    called = keystone("run", ".", "--output", "out", directory=area, environ={"TOKEN": f"{MARK}token-of-another-spec"})
    assert called.code == 0, called.out + called.err
    assert barrier.met == 2
    cells = {cell["id"]: cell["agent"]["output"] for cell in called.cells}
    assert cells["trusted.r0"] == "28\n"
    assert json.loads(cells["searching.r0"])["found"] == []


def git(*words: str, at: Path) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *identity, *words], cwd=at, check=True, capture_output=True)


def history_with_secrets(area: Path) -> None:
    """Checks in the history: on another branch, packed, stashed; a token in the configuration; earlier results."""
    git("init", "-q", ".", at=area)
    (area / "checks").mkdir()
    (area / "checks" / "hidden.py").write_text(f"# {MARK}first\n")
    (area / "code.py").write_text("answer = 41\n")
    (area / "keystone.yaml").write_text(f"# {MARK}old-spec\n")
    git("add", ".", at=area)
    git("commit", "-qm", f"add {MARK}message", at=area)
    git("checkout", "-qb", "other", at=area)
    (area / "checks" / "hidden.py").write_text(f"# {MARK}other-branch\n")
    git("commit", "-qam", "other", at=area)
    git("gc", "-q", at=area)
    git("checkout", "-q", "main", at=area)
    (area / "checks" / "hidden.py").write_text(f"# {MARK}stashed\n")
    git("stash", "-q", at=area)
    git("config", "http.https://github.com/.extraheader", f"AUTHORIZATION: basic {MARK}token", at=area)
    (area / "checks" / "hidden.py").write_text(f"# {MARK}now\nprint('{{\"passed\": true}}')\n")
    for place in (".keystone/runs/earlier", ".keystone/cache"):
        (area / place).mkdir(parents=True)
        (area / place / "results.json").write_text(f'"{MARK}earlier-results"')


@hostile(
    "reading",
    "looks for hidden files in a copy of the checkout and its history",
    held_by="withheld files are left out, the history is replaced",
)
def test_finds_nothing_withheld_in_a_workspace_that_is_the_checkout(area: Path) -> None:
    history_with_secrets(area)
    script = f"""{SEARCH}
walk(".")
for words in (["log", "--all", "--reflog", "-p"], ["stash", "list", "-p"], ["config", "--list"], ["show", "HEAD"],
              ["cat-file", "--batch-all-objects", "--batch"], ["fsck", "--lost-found", "--unreachable"]):
    done = subprocess.run(["git", *words], capture_output=True)
    look("git " + " ".join(words), done.stdout + done.stderr)
for folder, _, files in os.walk(".git"):
    for name in files:
        data = open(os.path.join(folder, name), "rb").read()
        for start in [at for at in range(len(data)) if data[at:at + 1] == b"x"]:
            try:
                look("object " + name, zlib.decompressobj().decompress(data[start:]))
            except zlib.error:
                pass
log = subprocess.run(["git", "log", "--format=%s"], capture_output=True, text=True).stdout
print(json.dumps({{"found": sorted(found), "code": open("code.py").read(), "log": log,
                  "there": sorted(os.listdir(".")), "checks": os.path.exists("checks/hidden.py")}}))
"""
    called = attack(
        area,
        script,
        {"hidden": {"type": "custom", "script": "checks/hidden.py"}},
        description=f"{MARK}spec",
        workspace=".",
    )
    assert called.code == 0, called.out + called.err
    seen = report(called.cells[0])
    assert seen["found"] == []
    assert seen["code"] == "answer = 41\n"
    assert seen["log"] == "The workspace as it was given\n"
    assert not seen["checks"]
    assert not {"out", "keystone.yaml", ".keystone"} & set(seen["there"])
    assert "the history of .git was replaced by one commit" in (called.output / "summary.md").read_text()


@hostile("reading", "reads its environment", held_by="nothing of ours is in it")
def test_the_environment_is_what_the_contract_says_and_no_more(area: Path) -> None:
    script = "import json, os\nprint(json.dumps(dict(os.environ)))"
    called = attack(
        area,
        script,
        {"env": {"type": "command_exit", "command": "env | sort > env.txt; ! grep -i canary env.txt"}},
        environ={"ANTHROPIC_API_KEY": f"{MARK}a", "GITHUB_X": f"{MARK}b", "KEYSTONE_JUDGE_FAST": f"{MARK}c"},
    )
    assert called.code == 0, called.out + called.err
    environment = report(called.cells[0])
    expected = {"PATH", "HOME", "LANG", "TMPDIR", "KEYSTONE_PROMPT", "KEYSTONE_PROMPT_FILE", "KEYSTONE_WORKSPACE"}
    assert set(environment) - {"LC_CTYPE", "PWD"} == expected | {"KEYSTONE_AGENT_DIR"}
    assert MARK not in json.dumps(environment)
    assert sys.executable not in json.dumps(environment)
