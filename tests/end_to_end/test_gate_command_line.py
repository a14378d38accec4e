"""`--spec-from base` on a laptop: specs and hidden files of the merge base, workspace and agent of the change."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from support.command_line import Called, keystone
from support.repositories import Change, commit, git, make_change, write

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
    """A clone with the change checked out and `origin/HEAD` as clones have it."""
    made = make_change(tmp_path / "origin", base or BASE, change)
    clone = tmp_path / "clone"
    clone.mkdir()
    made.check_out(clone)
    git(clone, "remote", "set-head", "origin", "main")
    return clone


def run(directory: Path, *words: str) -> Called:
    return keystone("run", "evals", "--output", "out", *words, directory=directory)


def test_a_weakened_gate_has_no_effect_and_is_said_first(tmp_path: Path) -> None:
    clone = laptop(tmp_path, CHEAT)
    as_it_is = keystone("run", "evals", "--output", "lax", directory=clone)
    assert as_it_is.code == 0, as_it_is.err
    called = run(clone, "--spec-from", "base")
    assert called.code == 1, called.err
    checks = called.checks
    assert {name: check["status"] for name, check in checks.items()} == {
        "tests_pass": "fail",
        "a": "fail",
        "b": "pass",
    }
    spec = called.document["specs"][0]
    assert (spec["path"], spec["pass_threshold"]) == ("evals/keystone.yaml", 0.85)
    changes = called.document["spec_changes"]
    assert (changes["spec_from"], changes["base_name"]) == ("base", "the merge base with origin/main")
    assert changes["base"] == git(clone, "rev-parse", "origin/main")
    assert changes["specs"] == [
        {
            "path": "evals/keystone.yaml",
            "change": "changed",
            "differences": [
                "threshold 0.85 → 0.5",
                "gate b removed",
                "weight of a 2 → 1",
                "changed files: evals/hidden/check.py (+2 −4)",
            ],
        }
    ]
    summary = (called.output / "summary.md").read_text("utf-8")
    assert summary.startswith("> [!WARNING]\n> **The specs of the merge base with origin/main")
    assert "`evals/keystone.yaml`: threshold 0.85 → 0.5; gate b removed" in summary
    assert summary.index("threshold 0.85") < summary.index("## ❌ Keystone: ")
    page = (called.output / "report.html").read_text("utf-8")
    assert page.index("threshold 0.85 → 0.5") < page.index("<h1>")
    assert called.err.index("threshold 0.85") < called.err.index("Keystone: ")
    # The workspace and the agent are the change's own.
    assert (called.output / "cells" / "small.r0" / "diff.patch").read_text().count("+an app") == 1


def test_the_agent_finds_neither_version_of_a_hidden_file(tmp_path: Path) -> None:
    look = (
        "find / -xdev \\( -name check.py -o -name keystone.yaml \\) -path '*evals*' -readable 2>/dev/null > seen\n"
        "find . -name '*.py' >> seen\ntouch a b\n"
    )
    base = {**BASE, "evals/keystone.yaml": SPEC.replace("../app", "..")}
    clone = laptop(tmp_path, {"agent/run.sh": look, "evals/hidden/check.py": LAX_CHECK}, base)
    called = run(clone, "--spec-from", "base")
    assert called.code == 0, called.err
    patch = (called.output / "cells" / "small.r0" / "diff.patch").read_text()
    assert str(clone) not in patch
    assert "check.py" not in patch


def test_new_specs_do_not_run_and_deleted_ones_do(tmp_path: Path) -> None:
    small = SPEC.replace("../app", "../../app").replace("../agent", "../../agent").replace("shared", "../shared")
    small = small.replace("hidden/", "../hidden/")
    base = {**BASE, "evals/old/keystone.yaml": small.replace("id: small", "id: old")}
    change = {"evals/old/keystone.yaml": None, "evals/new/keystone.yaml": small.replace("id: small", "id: new")}
    clone = laptop(tmp_path, change, base)
    called = run(clone, "--spec-from", "base")
    assert called.code == 0, called.err
    assert sorted(spec["id"] for spec in called.document["specs"]) == ["old", "small"]
    said = [(one["path"], one["change"]) for one in called.document["spec_changes"]["specs"]]
    assert said == [("evals/old/keystone.yaml", "deleted"), ("evals/new/keystone.yaml", "added")]


def test_a_moved_spec_is_one_spec(tmp_path: Path) -> None:
    change = {"evals/keystone.yaml": None, "evals/other.keystone.yaml": SPEC.replace("0.85", "0.4")}
    called = run(laptop(tmp_path, change), "--spec-from", "base")
    (one,) = called.document["spec_changes"]["specs"]
    assert one == {
        "path": "evals/other.keystone.yaml",
        "change": "changed",
        "differences": ["moved from evals/keystone.yaml", "threshold 0.85 → 0.4"],
    }


def test_no_difference_is_no_block(tmp_path: Path) -> None:
    called = run(laptop(tmp_path, {"agent/run.sh": "touch a b # better\n"}), "--spec-from", "base")
    assert called.code == 0, called.err
    assert called.document["spec_changes"]["specs"] == []
    assert (called.output / "summary.md").read_text().startswith("## ✅")


def test_the_agent_is_looked_at_where_it_runs(tmp_path: Path) -> None:
    """The change adds what the base commit's spec names and the base commit lacks."""
    text = (
        "version: 1\nid: small\ntask: {prompt: p}\nagent: {type: python, entrypoint: 'mine:f', dir: ../agent}\n"
        "invariants: {a: {check: {type: file_exists, path: a}}}\n"
    )
    base = {"evals/keystone.yaml": text, "agent/mine.py": "g = 1\n"}
    change = {"agent/mine.py": "def f(input):\n    open('a', 'w').close()\n    return 'x'\n"}
    called = run(laptop(tmp_path, change, base), "--spec-from", "base")
    assert (called.code, "there is no 'f'" in called.err) == (0, False), called.err


def test_what_the_working_tree_has_uncommitted_is_the_head(tmp_path: Path) -> None:
    clone = laptop(tmp_path, {})
    write(clone, {"evals/keystone.yaml": WEAK})
    called = run(clone, "--spec-from", "base")
    assert "threshold 0.85 → 0.5" in called.document["spec_changes"]["specs"][0]["differences"]
    assert called.document["specs"][0]["pass_threshold"] == 0.85


def test_a_broken_spec_of_the_change_decides_nothing(tmp_path: Path) -> None:
    called = run(laptop(tmp_path, {"evals/keystone.yaml": "version: 1\nid: [\n"}), "--spec-from", "base")
    assert called.code == 0, called.err
    (one,) = called.document["spec_changes"]["specs"]
    assert "can't be read as it is at this commit" in one["differences"][0]


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "nowhere"])
def test_a_spec_of_the_change_that_is_no_file_holds_nobody(tmp_path: Path, kind: str) -> None:
    clone = laptop(tmp_path, {})
    place = clone / "evals" / "keystone.yaml"
    place.unlink()
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero" if kind == "device" else "missing")
    called = run(clone, "--spec-from", "base")
    assert called.code == 0, called.err
    (one,) = called.document["spec_changes"]["specs"]
    said = {"folder": ("deleted", [])}.get(kind, ("changed", ["the spec is no regular file in this commit"]))
    assert (one["change"], one["differences"]) == said


def test_only_a_comment(tmp_path: Path) -> None:
    called = run(laptop(tmp_path, {"evals/keystone.yaml": SPEC + "# why\n"}), "--spec-from", "base")
    assert called.document["spec_changes"]["specs"][0]["differences"] == ["only its text changed, not what it means"]


@pytest.mark.parametrize("trick", ["filter", "textconv", "fsmonitor", "hooks", "alias", "include", "replace"])
def test_nothing_of_the_checkouts_configuration_runs(tmp_path: Path, trick: str) -> None:
    """A fork's earlier step may have written it."""
    clone, proof = laptop(tmp_path, CHEAT), tmp_path / "ran"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {proof}\ncat\n")
    script.chmod(0o755)
    git_directory = clone / ".git"
    if trick == "filter":
        git(clone, "config", "filter.x.smudge", str(script))
        git(clone, "config", "filter.x.clean", str(script))
        (git_directory / "info" / "attributes").write_text("* filter=x\n")
    elif trick == "textconv":
        git(clone, "config", "diff.x.textconv", str(script))
        git(clone, "config", "diff.external", str(script))
        (git_directory / "info" / "attributes").write_text("* diff=x\n")
    elif trick == "fsmonitor":
        git(clone, "config", "core.fsmonitor", str(script))
    elif trick == "hooks":
        for hook in ("post-checkout", "post-index-change", "reference-transaction"):
            (git_directory / "hooks").mkdir(exist_ok=True)
            (git_directory / "hooks" / hook).write_bytes(script.read_bytes())
            (git_directory / "hooks" / hook).chmod(0o755)
    elif trick == "alias":
        for name in ("cat-file", "ls-tree", "rev-parse", "merge-base"):
            git(clone, "config", f"alias.{name}", f"!{script}")
    elif trick == "include":
        (tmp_path / "more").write_text(f"[core]\n\tfsmonitor = {script}\n\tsshCommand = {script}\n")
        git(clone, "config", "include.path", str(tmp_path / "more"))
    else:
        lax = git(clone, "rev-parse", "HEAD:evals/keystone.yaml")
        strict = git(clone, "rev-parse", "origin/main:evals/keystone.yaml")
        git(clone, "replace", "-f", strict, lax)
    called = run(clone, "--spec-from", "base")
    assert called.code == 1, called.err
    assert called.document["specs"][0]["pass_threshold"] == 0.85
    assert not proof.exists()


def test_links_of_the_change_lead_nowhere(tmp_path: Path) -> None:
    clone = laptop(tmp_path, CHEAT)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("k")
    for name in ("README",):
        (clone / "app" / name).unlink()
    (clone / "app").rmdir()
    (clone / "app").symlink_to(tmp_path / "secret")
    called = run(clone, "--spec-from", "base")
    assert called.code == 2
    assert "is no folder of this checkout" in called.err


def test_links_of_the_base_are_followed_inside(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    write(made, {**BASE, "real/check.py": STRICT_CHECK})
    (made / "evals" / "hidden" / "check.py").unlink()
    (made / "evals" / "hidden").rmdir()
    (made / "evals" / "hidden").symlink_to("../real")
    base = commit(made, {})
    git(made, "checkout", "-q", "-b", "topic")
    commit(made, {"real/check.py": LAX_CHECK, "agent/run.sh": "touch b\n"})
    git(made, "remote", "add", "origin", str(made))
    git(made, "update-ref", "refs/remotes/origin/main", base)
    called = run(made, "--spec-from", "base")
    assert called.code == 1, called.err
    assert called.checks["tests_pass"]["status"] == "fail"


def test_a_large_repository_is_read_by_need(tmp_path: Path) -> None:
    """Beyond some thousand files only what the specs name is written; expressions in paths and all."""
    spec = SPEC.replace("hidden/check.py", '"hidden/{{ params.kind }}.py"') + "parallelism: {matrix: {kind: [check]}}\n"
    many = {f"data/{number // 100}/{number}.txt": "x\n" for number in range(3_100)}
    change = {**CHEAT, "evals/keystone.yaml": spec.replace("0.85", "0.2")}
    called = run(laptop(tmp_path, change, {**BASE, **many, "evals/keystone.yaml": spec}), "--spec-from", "base")
    assert called.code == 1, called.err
    assert called.document["spec_changes"]["specs"][0]["differences"] == [
        "threshold 0.85 → 0.2",
        "changed files: evals/hidden/check.py (+2 −4)",
    ]


@pytest.mark.parametrize("others", [0, 3_100])
def test_a_touchstone_case_of_the_base(tmp_path: Path, others: int) -> None:
    """Its harnesses stand in a file above it that it does not name; of a large repository that is read too."""
    case = """
id: add
task: {prompt: "make it"}
matrix: {harnesses: [mine], models: [m]}
graders:
  - {type: command, cmd: "test -f done"}
  - {type: files, expect_dir: expected}
"""
    base = {
        "harnesses.yaml": "mine: {argv: [sh, -c, 'touch done; echo good > out.txt']}\n",
        "evals/add/case.yaml": case,
        "evals/add/expected/out.txt": "good\n",
        **{f"data/{number // 100}/{number}.txt": "x" for number in range(others)},
    }
    change = {
        "harnesses.yaml": "mine: {argv: [sh, -c, 'echo bad > out.txt']}\n",
        "evals/add/case.yaml": case.replace("test -f done", "true"),
        "evals/add/expected/out.txt": "bad\n",
    }
    clone = laptop(tmp_path, change, base)
    assert keystone("run", "evals", "--output", "lax", directory=clone).code == 0
    called = run(clone, "--spec-from", "base")
    assert called.code == 0, called.err  # the base's harness, and what the base expects of it
    (one,) = called.document["spec_changes"]["specs"]
    assert one["differences"][0] == "command: check.command test -f done → true"
    files = "changed files: harnesses.yaml (+1 −1), evals/add/expected/out.txt (+1 −1)"
    assert one["differences"][1] == files


def _no_repository(_: Path) -> None:
    return


def _no_remote(directory: Path) -> None:
    git(directory, "init", "-q", "-b", "main")
    commit(directory, {})


def _unrelated(directory: Path) -> None:
    _no_remote(directory)
    git(directory, "checkout", "-q", "--orphan", "other")
    commit(directory, {"other": "root"})
    git(directory, "update-ref", "refs/remotes/origin/main", "main")


def _nothing_there(directory: Path) -> None:
    git(directory, "init", "-q", "-b", "main")
    git(directory, "commit", "-q", "--allow-empty", "-m", "empty")
    git(directory, "update-ref", "refs/remotes/origin/main", "main")
    commit(directory, {})


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (_no_repository, "is in no git checkout with a commit"),
        (_no_remote, "the default branch of this checkout's remote is not known"),
        (_unrelated, "HEAD and origin/main have no commit in common"),
        (_nothing_there, "there is no spec in evals at the merge base with origin/main"),
    ],
)
def test_no_base_is_exit_2(tmp_path: Path, prepare, said: str) -> None:
    write(tmp_path, BASE)
    prepare(tmp_path)
    called = run(tmp_path, "--spec-from", "base")
    assert (called.code, called.out) == (2, "")
    assert said in called.err
    assert "→" in called.err
    assert not (tmp_path / "out").exists()


def test_without_the_option_a_laptop_compares_nothing(tmp_path: Path) -> None:
    called = run(laptop(tmp_path, CHEAT))
    assert called.code == 0
    assert called.document["spec_changes"] is None


def test_nothing_is_left(tmp_path: Path) -> None:
    clone = laptop(tmp_path, CHEAT)
    temporary = Path(tempfile.mkdtemp())  # below the system's own: users of sandboxes must reach it
    temporary.chmod(0o1777)
    status = git(clone, "status", "--porcelain")
    objects = git(clone, "count-objects", "-v")
    called = keystone(
        "run", "evals", "--output", "../out", "--spec-from", "base", directory=clone, environ={"TMPDIR": str(temporary)}
    )
    assert called.code == 1, called.err
    left = [path.name for path in temporary.iterdir()]
    shutil.rmtree(temporary)
    assert left == []
    assert git(clone, "status", "--porcelain") == status
    assert git(clone, "count-objects", "-v") == objects
    assert json.loads((tmp_path / "out" / "results.json").read_text())["verdict"] == "fail"


def test_the_change_is_a_value(tmp_path: Path) -> None:
    """The helper of these tests makes what it says: two commits, the second on the first."""
    made: Change = make_change(tmp_path, BASE, CHEAT)
    assert git(made.origin, "rev-parse", f"{made.head}^") == made.base
