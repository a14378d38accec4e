"""Directories in one another, thousands of them: deeper than any recursion goes, and than any path can name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.hostile import area, attack
from support.hostile_containers import attack_in_container

from keystone_action.files.removal import remove_tree

__all__ = ["area"]

pytestmark = pytest.mark.slow

FAMILY = "files"
SHORT = "leaves 5,000 directories in one another"
LONG = "leaves 5,000 directories in one another with names of 255 bytes"
OF_THE_AUTHOR = "is given a workspace and code with folders 1,100 deep"
HIDDEN = "hides a file in folders deeper than a path can be, which no archive of an engine has"
HIDDEN_FROM_CHECKS = "hides a file so in the copy that checks share"
LOST = "paths of more than 3,584 bytes"
HELD_BY = "trees are walked, copied and removed by descriptors, without recursion"
DEEP = """
import os
here = os.open('.', os.O_RDONLY)
for _ in range({levels}):
    os.mkdir({name!r}, dir_fd=here)
    deeper = os.open({name!r}, os.O_RDONLY, dir_fd=here)
    os.close(here)
    here = deeper
os.close(os.open('leaf.py', os.O_CREAT | os.O_WRONLY, dir_fd=here))
open('made.txt', 'w').write('made')
"""
THERE = {"type": "file_exists", "path": "made.txt"}
CHECKS = {
    "observed": THERE,
    "absent": {"type": "file_absent", "path": "**/secret.txt"},
    "changed": {"type": "diff", "never": ["**/secret.txt"]},
    "in_the_copy": {"type": "command_exit", "command": "test -f made.txt"},
    "tested": {"type": "tests", "cmd": "test -f made.txt"},
    "on_the_host": {"type": "custom", "script": "there.py"},
}
THERE_SCRIPT = (
    "import json, os, sys\nwhere = json.load(sys.stdin)['workspace_path']\n"
    "print(json.dumps({'passed': os.path.exists(where + '/made.txt')}))\n"
)


@hostile(FAMILY, SHORT, held_by=HELD_BY)
def test_a_deep_tree_is_graded_as_any_other(area: Path, tmp_path: Path) -> None:
    (area / "there.py").write_text(THERE_SCRIPT)
    temporary = area / "temporary"
    temporary.mkdir()
    script = DEEP.format(name="d", levels=5_000)
    called = attack(area, script, CHECKS, environ={"TMPDIR": str(temporary)})
    assert called.code == 0, called.out + called.err + str(called.checks)
    assert not called.has_traceback
    assert list(temporary.iterdir()) == []


@hostile(FAMILY, LONG, held_by="the characters of all paths of a workspace are limited")
def test_a_tree_that_no_path_can_name_fails_by_itself(area: Path) -> None:
    (area / "there.py").write_text(THERE_SCRIPT)
    temporary = area / "temporary"
    temporary.mkdir()
    script = DEEP.format(name="d" * 255, levels=5_000)
    called = attack(area, script, CHECKS, environ={"TMPDIR": str(temporary)})
    assert called.code == 1, called.out + called.err
    assert "the workspace can't be graded: the paths in the workspace have more than" in str(called.cells)
    assert not called.has_traceback
    assert list(temporary.iterdir()) == []


@honest(FAMILY, SHORT, OF_THE_AUTHOR)
def test_a_tree_as_deep_as_people_make_them_is_graded(area: Path) -> None:
    (area / "there.py").write_text(THERE_SCRIPT)
    called = attack(area, DEEP.format(name="folder", levels=30), CHECKS)
    assert called.code == 0, called.out + called.err + str(called.checks)


@honest(FAMILY, LONG)
def test_names_of_255_bytes_are_names(area: Path) -> None:
    (area / "there.py").write_text(THERE_SCRIPT)
    called = attack(area, DEEP.format(name="d" * 255, levels=10), CHECKS)
    assert called.code == 0, called.out + called.err + str(called.checks)


@pytest.mark.docker
@pytest.mark.parametrize("mode", ["bind", "copy"])
@hostile(FAMILY, SHORT, held_by=HELD_BY, sandbox="docker")
def test_a_deep_tree_of_a_container_ends_in_a_verdict(tmp_path: Path, image, mode) -> None:
    image("python:3.12-slim")
    checks = {name: CHECKS[name] for name in ("observed", "changed", "in_the_copy")}
    called = attack_in_container(tmp_path, DEEP.format(name="d", levels=5_000), checks, mode=mode)
    # An engine leaves out of an archive what no path can name.
    assert called.code == {"bind": 0, "copy": 1}[mode], called.out + called.err
    assert not called.has_traceback


@pytest.mark.docker
@pytest.mark.parametrize("mode", ["bind", "copy"])
@hostile(FAMILY, LONG, held_by="the characters of all paths of a workspace are limited", sandbox="docker")
def test_a_tree_of_a_container_that_no_path_can_name_fails_by_itself(tmp_path: Path, image, mode) -> None:
    image("python:3.12-slim")
    checks = {name: CHECKS[name] for name in ("observed", "changed", "in_the_copy")}
    called = attack_in_container(tmp_path, DEEP.format(name="d" * 255, levels=5_000), checks, mode=mode)
    assert called.code == 1, called.out + called.err
    assert not called.has_traceback


@pytest.mark.docker
@pytest.mark.parametrize("mode", ["bind", "copy"])
@honest(FAMILY, SHORT, sandbox="docker")
def test_a_tree_of_a_container_as_deep_as_people_make_them_is_graded(tmp_path: Path, image, mode) -> None:
    image("python:3.12-slim")
    checks = {name: CHECKS[name] for name in ("observed", "changed", "in_the_copy")}
    called = attack_in_container(tmp_path, DEEP.format(name="folder", levels=30), checks, mode=mode)
    assert called.code == 0, called.out + called.err + str(called.checks)


def hiding(path_bytes: int) -> str:
    """A script that puts a file at the bottom of folders whose path in the workspace has about so many bytes."""
    return DEEP.format(name="d" * 99, levels=path_bytes // 100).replace("leaf.py", "secret.txt")


@pytest.mark.docker
@pytest.mark.parametrize("name", ["absent", "changed"])
@hostile(FAMILY, HIDDEN, held_by="what an engine may have left out counts as the agent's failure", sandbox="docker")
def test_a_file_deeper_than_any_path_is_not_taken_for_absent(tmp_path: Path, image, name: str) -> None:
    image("python:3.12-slim")
    called = attack_in_container(tmp_path, hiding(4_400), {name: CHECKS[name]}, mode="copy")
    assert called.code == 1, called.out + called.err
    assert called.cells[0]["composite"] == 0
    assert LOST in called.cells[0]["reason"]


@pytest.mark.docker
@pytest.mark.parametrize("name", ["absent", "changed"])
@honest(FAMILY, HIDDEN, HIDDEN_FROM_CHECKS, sandbox="docker")
def test_a_file_as_deep_as_paths_go_is_seen(tmp_path: Path, image, name: str) -> None:
    image("python:3.12-slim")
    there = {"type": "file_exists", "path": "**/secret.txt"}
    copied = {"type": "command_exit", "command": "find . -name secret.txt | grep -q ."}
    checks = {"there": there, "copied": copied, "again": copied, name: CHECKS[name]}
    called = attack_in_container(tmp_path, hiding(3_300), checks, mode="copy")
    (cell,) = called.cells
    assert {one["name"]: one["status"] for one in cell["invariants"]} == {
        "there": "pass", "copied": "pass", "again": "pass", name: "fail",
    }  # fmt: skip
    assert LOST not in str(cell)


@pytest.mark.docker
@hostile(
    FAMILY,
    HIDDEN_FROM_CHECKS,
    held_by="checks that share a copy fail where it did not come back whole",
    sandbox="docker",
)
def test_what_a_check_hid_fails_those_on_its_copy(tmp_path: Path, image) -> None:
    image("python:3.12-slim")
    script = f"open('made.txt', 'w').close(); open('hide.py', 'w').write({hiding(4_400)!r})"
    checks = {
        "runs_it": {"type": "command_exit", "command": "python3 hide.py"},
        "same_copy": {"type": "command_exit", "command": "! find . -name secret.txt | grep -q ."},
        "own_copy": {"type": "tests", "cmd": "test -f hide.py"},
    }
    called = attack_in_container(tmp_path, script, checks, mode="copy")
    found = {one["name"]: one for one in called.cells[0]["invariants"]}
    assert {name: one["status"] for name, one in found.items()} == {
        "runs_it": "fail", "same_copy": "fail", "own_copy": "pass",
    }  # fmt: skip
    assert LOST in found["same_copy"]["message"]


@pytest.mark.parametrize("levels", [1_100])
@hostile(FAMILY, OF_THE_AUTHOR, held_by=HELD_BY)
def test_deep_folders_of_an_author_are_copied(area: Path, levels: int) -> None:
    (area / "agent").mkdir()
    (area / "start").mkdir()
    here = Path.cwd()
    try:
        for folder in ("agent", "start"):
            os.chdir(area / folder)
            exec(DEEP.format(name="d", levels=levels), {})
    finally:
        os.chdir(here)
    try:
        done = "import os\nassert os.path.isdir('d/d/d')\nopen('made.txt', 'w').close()\n"
        called = attack(area, done, {"observed": THERE, "in_the_copy": CHECKS["in_the_copy"]}, workspace="start")
        assert called.code == 0, called.out + called.err
        assert not called.has_traceback
    finally:
        for folder in ("agent", "start"):
            remove_tree(area / folder)
