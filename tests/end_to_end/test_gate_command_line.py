"""`--spec-from base` on a laptop: specs and hidden files of the merge base, workspace and agent of the change."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import keystone
from support.hostile import area
from support.laptops import BASE, CHEAT, LAX_CHECK, SPEC, STRICT_CHECK, laptop, run
from support.repositories import Change, commit, git, make_change, write

__all__ = ["area"]


def test_a_weakened_gate_has_no_effect_and_is_said_first(tmp_path: Path) -> None:
    made = make_change(tmp_path / "origin", BASE, CHEAT)
    (tmp_path / "clone").mkdir()
    clone = made.check_out(tmp_path / "clone")
    git(clone, "remote", "set-head", "origin", "main")
    as_it_is = keystone("run", "evals", "--output", "lax", directory=clone)
    assert as_it_is.code == 0, as_it_is.err
    assert json.loads((clone / "lax" / "results.json").read_text())["spec_changes"] is None
    called = run(clone, "--spec-from", "base")
    assert called.code == 1, called.err
    statuses = {name: check["status"] for name, check in called.checks.items()}
    assert statuses == {"tests_pass": "fail", "a": "fail", "b": "pass"}
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
        "find / -xdev -path /usr -prune -o \\( -name check.py -o -name keystone.yaml \\) -path '*evals*' -readable "
        "-print 2>/dev/null > seen\n"
        "find . -name '*.py' >> seen\ntouch a b\n"
    )
    base = {**BASE, "evals/keystone.yaml": SPEC.replace("../app", "..")}
    clone = laptop(tmp_path, {"agent/run.sh": look, "evals/hidden/check.py": LAX_CHECK}, base)
    called = run(clone, "--spec-from", "base")
    assert called.code == 0, called.err
    patch = (called.output / "cells" / "small.r0" / "diff.patch").read_text()
    assert str(clone) not in patch
    assert "check.py" not in patch


def one_of(name: str) -> str:
    """The spec in a folder of its own."""
    text = SPEC.replace("id: small", f"id: {name}").replace("../", "../../")
    return text.replace("shared.yaml", "../shared.yaml").replace("hidden/", "../hidden/")


def no_file(place: Path) -> None:
    place.unlink()
    {
        "fifo": os.mkfifo,
        "folder": Path.mkdir,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "nowhere": lambda path: path.symlink_to("missing"),
    }[place.parent.name](place)


PYTHON = (
    "version: 1\nid: python\ntask: {prompt: p}\nagent: {type: python, entrypoint: 'mine:f', dir: ../../agent}\n"
    "invariants: {a: {check: {type: file_exists, path: a}}}\nscoring: {pass_threshold: 0.85}\n"
)


def test_what_became_of_each_spec(tmp_path: Path) -> None:
    """Those of the base run, whatever the change makes of them; new ones don't. What the agent of a spec of the base
    lacks there is looked for where it runs."""
    no_files = ("fifo", "folder", "device", "nowhere")
    there = ("old", "moved", "broken", "comment", "uncommitted", *no_files)
    base = {**BASE, "evals/python/keystone.yaml": PYTHON, "agent/mine.py": "g = 1\n"}
    base |= {f"evals/{name}/keystone.yaml": one_of(name) for name in there}
    change = {
        "agent/mine.py": "def f(input):\n    open('a', 'w').close()\n    return 'x'\n",
        "evals/old/keystone.yaml": None,
        "evals/new/keystone.yaml": one_of("new"),
        "evals/moved/keystone.yaml": None,
        "evals/moved/other.keystone.yaml": one_of("moved").replace("0.85", "0.4"),
        "evals/broken/keystone.yaml": "version: 1\nid: [\n",
        "evals/comment/keystone.yaml": one_of("comment") + "# why\n",
    }
    clone = laptop(tmp_path, change, base)
    write(clone, {"evals/uncommitted/keystone.yaml": one_of("uncommitted").replace("0.85", "0.5")})
    for name in no_files:
        no_file(clone / "evals" / name / "keystone.yaml")
    called = run(clone, "--spec-from", "base")
    assert called.code == 0, called.err
    specs = {spec["id"]: (spec["verdict"], spec["pass_threshold"]) for spec in called.document["specs"]}
    assert specs == dict.fromkeys(("small", "python", *there), ("pass", 0.85))
    found = {one["path"].removeprefix("evals/"): one for one in called.document["spec_changes"]["specs"]}
    (broken,) = found["broken/keystone.yaml"].pop("differences")
    assert "can't be read as it is at this commit" in broken
    said = {name: (one["change"], one.get("differences")) for name, one in found.items()}
    assert said == {
        "old/keystone.yaml": ("deleted", []),
        "new/keystone.yaml": ("added", []),
        "moved/other.keystone.yaml": ("changed", ["moved from evals/moved/keystone.yaml", "threshold 0.85 → 0.4"]),
        "broken/keystone.yaml": ("changed", None),
        "comment/keystone.yaml": ("changed", ["only its text changed, not what it means"]),
        "uncommitted/keystone.yaml": ("changed", ["threshold 0.85 → 0.5"]),
        "folder/keystone.yaml": ("deleted", []),
        **{
            f"{name}/keystone.yaml": ("changed", ["the spec is not a regular file in this commit"])
            for name in ("fifo", "device", "nowhere")
        },
    }


def test_no_difference_is_no_block(tmp_path: Path) -> None:
    called = run(laptop(tmp_path, {"agent/run.sh": "touch a b # better\n"}), "--spec-from", "base")
    assert called.code == 0, called.err
    assert called.document["spec_changes"]["specs"] == []
    assert (called.output / "summary.md").read_text().startswith("## ✅")


def _filter(clone: Path, script: Path) -> None:
    git(clone, "config", "filter.x.smudge", str(script))
    git(clone, "config", "filter.x.clean", str(script))
    (clone / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")


def _textconv(clone: Path, script: Path) -> None:
    git(clone, "config", "diff.x.textconv", str(script))
    git(clone, "config", "diff.external", str(script))


def _fsmonitor(clone: Path, script: Path) -> None:
    git(clone, "config", "core.fsmonitor", str(script))


def _hooks(clone: Path, script: Path) -> None:
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (clone / ".git" / "hooks").mkdir(exist_ok=True)
        shutil.copy(script, clone / ".git" / "hooks" / hook)


def _alias(clone: Path, script: Path) -> None:
    for name in ("cat-file", "ls-tree", "rev-parse", "merge-base"):
        git(clone, "config", f"alias.{name}", f"!{script}")


def _include(clone: Path, script: Path) -> None:
    more = script.with_suffix(".more")
    more.write_text(f"[core]\n\tfsmonitor = {script}\n\tsshCommand = {script}\n")
    git(clone, "config", "include.path", str(more))


def _replace(clone: Path, script: Path) -> None:
    lax = git(clone, "rev-parse", "HEAD:evals/keystone.yaml")
    strict = git(clone, "rev-parse", "origin/main:evals/keystone.yaml")
    git(clone, "replace", "-f", strict, lax)


@pytest.mark.parametrize(
    "tricks", [(_replace, _filter, _textconv, _fsmonitor, _alias, _hooks), (_include,)], ids=["all", "include"]
)
def test_nothing_of_the_checkouts_configuration_runs(
    tmp_path: Path, tricks: tuple[Callable[[Path, Path], None], ...]
) -> None:
    """A fork's earlier step may have written it. An included file would set what one of the other tricks sets."""
    clone = laptop(tmp_path, CHEAT)
    for trick in tricks:
        script = tmp_path / f"evil{trick.__name__}"
        script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran{trick.__name__}\ncat\n")
        script.chmod(0o755)
        trick(clone, script)
    called = run(clone, "--spec-from", "base")
    assert called.code == 1, called.err
    assert called.document["specs"][0]["pass_threshold"] == 0.85
    assert [place.name for place in tmp_path.glob("ran*")] == []


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
    assert "is not a folder of this checkout" in called.err


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


CASE = """
id: add
task: {prompt: "make it"}
matrix: {harnesses: [mine], models: [m]}
graders:
  - {type: command, cmd: "test -f done"}
  - {type: files, expect_dir: expected}
"""
CASE_OF_BASE = {
    "harnesses.yaml": "mine: {argv: [sh, -c, 'touch done; echo good > out.txt']}\n",
    "evals/add/case.yaml": CASE,
    "evals/add/expected/out.txt": "good\n",
}
CASE_OF_CHANGE = {
    "harnesses.yaml": "mine: {argv: [sh, -c, 'echo bad > out.txt']}\n",
    "evals/add/case.yaml": CASE.replace("test -f done", "true"),
    "evals/add/expected/out.txt": "bad\n",
}
OF_THE_CASE = [
    "command: check.command test -f done → true",
    "changed files: harnesses.yaml (+1 −1), evals/add/expected/out.txt (+1 −1)",
]


def test_a_large_repository_is_read_by_need(tmp_path: Path) -> None:
    """Beyond some thousand files only what the specs name is written, expressions in paths and all; and of a case, a
    file above it that it does not name."""
    spec = SPEC.replace("hidden/check.py", '"hidden/{{ params.kind }}.py"') + "parallelism: {matrix: {kind: [check]}}\n"
    many = {f"data/{number // 100}/{number}.txt": "x\n" for number in range(3_100)}
    change = {**CHEAT, **CASE_OF_CHANGE, "evals/keystone.yaml": spec.replace("0.85", "0.2")}
    called = run(
        laptop(tmp_path, change, {**BASE, **CASE_OF_BASE, **many, "evals/keystone.yaml": spec}), "--spec-from", "base"
    )
    assert called.code == 1, called.err
    assert {one["id"]: one["verdict"] for one in called.document["specs"]} == {"add": "pass", "small": "fail"}
    differences = {one["path"]: one["differences"] for one in called.document["spec_changes"]["specs"]}
    assert differences.pop("evals/add/case.yaml")[:2] == OF_THE_CASE
    assert differences == {
        "evals/keystone.yaml": ["threshold 0.85 → 0.2", "changed files: evals/hidden/check.py (+2 −4)"],
    }


def test_a_touchstone_case_of_the_base(tmp_path: Path) -> None:
    """Its harnesses stand in a file above it that it does not name."""
    clone = laptop(tmp_path, dict(CASE_OF_CHANGE), CASE_OF_BASE)
    assert keystone("run", "evals", "--output", "lax", directory=clone).code == 0
    called = run(clone, "--spec-from", "base")
    assert called.code == 0, called.err  # the base's harness, and what the base expects of it
    (one,) = called.document["spec_changes"]["specs"]
    assert one["differences"][:2] == OF_THE_CASE


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


def test_folders_that_the_spec_of_the_base_shows_are_the_checkouts(area: Path) -> None:
    """Where the agent's program is installed, as workspace and agent.dir are."""
    program = "#!/bin/sh\necho head > out.txt\n"
    clone = laptop(area, {"evals/tools/mytool": program}, {"evals/keystone.yaml": SHOWN, "evals/tools/mytool": "x"})
    (clone / "evals" / "tools" / "mytool").chmod(0o755)
    called = run(clone, "--spec-from", "base")
    assert called.code == 0, called.err
    assert "changed files in resources.readable, always the checkout's own: evals/tools/mytool" in called.err


SHOWN = """
version: 1
id: small
task: {prompt: x}
agent: {type: command, command: mytool}
resources: {readable: [tools]}
invariants:
  said: {check: {type: file_content, path: out.txt, contains: head}}
"""
