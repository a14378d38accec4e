"""Directories in one another, thousands of them: deeper than any recursion goes, and than any path can name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.attack_runs import Played, Scenario, area, played, played_in
from support.attacks import honest, hostile
from support.hostile import attack
from support.places import in_memory

from keystone_action.files.removal import remove_tree

__all__ = ["area", "played"]

pytestmark = pytest.mark.slow

FAMILY = "files"
PLACES = {"process": in_memory()}
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


IN_CONTAINERS = {name: CHECKS[name] for name in ("observed", "changed", "in_the_copy")}
COPIED = {"type": "command_exit", "command": "find . -name secret.txt | grep -q ."}
HIDE = DEEP.replace("leaf.py", "secret.txt")
FURTHER = HIDE.format(name="d" * 99, levels=44)
"""Puts a file at the bottom of folders whose path has 4,400 bytes."""


def tree(name: str, levels: int, checks: dict[str, dict[str, Any]], *where: str) -> Scenario:
    """An agent that leaves so many directories of this name in one another."""
    return Scenario(DEEP.format(name=name, levels=levels), checks, {"there.py": THERE_SCRIPT}, where)


SCENARIOS = {
    "short, process": tree("d", 5_000, CHECKS, "process"),
    "short, bind": tree("d", 5_000, IN_CONTAINERS, "bind"),
    # An engine takes most of a minute to unpack what is left of it: what it is given is less deep.
    "short, copy": tree("d", 5_000, {name: CHECKS[name] for name in ("observed", "changed")}, "copy"),
    "copied to a check": tree("d", 1_100, {"in_the_copy": CHECKS["in_the_copy"]}, "copy"),
    "long, process": tree("d" * 255, 5_000, CHECKS, "process"),
    "long, docker": tree("d" * 255, 5_000, IN_CONTAINERS, "bind", "copy"),
    "by people, process": tree("folder", 30, CHECKS, "process"),
    "by people, docker": tree("folder", 30, IN_CONTAINERS, "bind", "copy"),
    "255 bytes": tree("d" * 255, 10, CHECKS, "process"),
    "hidden": Scenario(FURTHER, {name: CHECKS[name] for name in ("absent", "changed")}, where=("copy",)),
    "as deep as paths go": Scenario(
        HIDE.format(name="d" * 99, levels=33),
        {
            "there": {"type": "file_exists", "path": "**/secret.txt"},
            "copied": COPIED,
            "again": COPIED,
            "absent": CHECKS["absent"],
            "changed": CHECKS["changed"],
        },
        where=("copy",),
    ),
    "hidden by a check": Scenario(
        f"open('made.txt', 'w').close(); open('hide.py', 'w').write({FURTHER!r})",
        {
            "runs_it": {"type": "command_exit", "command": "python3 hide.py"},
            "same_copy": {"type": "command_exit", "command": "! find . -name secret.txt | grep -q ."},
            "own_copy": {"type": "tests", "cmd": "test -f hide.py"},
        },
        where=("copy",),
    ),
}
AS_PROCESSES, IN_DOCKER, COPYING = played_in("process"), played_in("bind", "copy"), played_in("copy")


@AS_PROCESSES
@hostile(FAMILY, SHORT, held_by=HELD_BY)
def test_a_deep_tree_is_graded_as_any_other(played: Played) -> None:
    assert played.cell("short, process")["verdict"] == "pass", played.cell("short, process")
    assert not played.called.has_traceback
    assert played.left == ()


@AS_PROCESSES
@hostile(FAMILY, LONG, held_by="the characters of all paths of a workspace are limited")
def test_a_tree_that_no_path_can_name_fails_by_itself(played: Played) -> None:
    cell = played.cell("long, process")
    assert cell["verdict"] == "fail", cell
    assert "the workspace can't be graded: the paths in the workspace have more than" in str(cell)
    assert not played.called.has_traceback
    assert played.left == ()


@AS_PROCESSES
@honest(FAMILY, SHORT, OF_THE_AUTHOR)
def test_a_tree_as_deep_as_people_make_them_is_graded(played: Played) -> None:
    assert played.cell("by people, process")["verdict"] == "pass", played.cell("by people, process")


@AS_PROCESSES
@honest(FAMILY, LONG)
def test_names_of_255_bytes_are_names(played: Played) -> None:
    assert played.cell("255 bytes")["verdict"] == "pass", played.cell("255 bytes")


@IN_DOCKER
@hostile(FAMILY, SHORT, held_by=HELD_BY, sandbox="docker")
def test_a_deep_tree_of_a_container_ends_in_a_verdict(played: Played) -> None:
    cell = played.cell(f"short, {played.where}")
    # An engine leaves out of an archive what no path can name.
    assert cell["verdict"] == {"bind": "pass", "copy": "fail"}[played.where], cell
    assert not played.called.has_traceback


@COPYING
@hostile(FAMILY, SHORT, held_by=HELD_BY, sandbox="docker")
def test_a_deep_tree_is_copied_to_a_check(played: Played) -> None:
    assert played.cell("copied to a check")["verdict"] == "pass", played.cell("copied to a check")
    assert not played.called.has_traceback


@IN_DOCKER
@hostile(FAMILY, LONG, held_by="the characters of all paths of a workspace are limited", sandbox="docker")
def test_a_tree_of_a_container_that_no_path_can_name_fails_by_itself(played: Played) -> None:
    assert played.cell("long, docker")["verdict"] == "fail", played.cell("long, docker")
    assert not played.called.has_traceback


@IN_DOCKER
@honest(FAMILY, SHORT, sandbox="docker")
def test_a_tree_of_a_container_as_deep_as_people_make_them_is_graded(played: Played) -> None:
    assert played.cell("by people, docker")["verdict"] == "pass", played.cell("by people, docker")


@COPYING
@hostile(FAMILY, HIDDEN, held_by="what an engine may have left out counts as the agent's failure", sandbox="docker")
def test_a_file_deeper_than_any_path_is_not_taken_for_absent(played: Played) -> None:
    cell = played.cell("hidden")
    assert (cell["verdict"], cell["composite"]) == ("fail", 0), cell
    assert LOST in cell["reason"]


@COPYING
@honest(FAMILY, HIDDEN, HIDDEN_FROM_CHECKS, sandbox="docker")
def test_a_file_as_deep_as_paths_go_is_seen(played: Played) -> None:
    assert played.statuses("as deep as paths go") == {
        "there": "pass", "copied": "pass", "again": "pass", "absent": "fail", "changed": "fail",
    }  # fmt: skip
    assert LOST not in str(played.cell("as deep as paths go"))


@COPYING
@hostile(
    FAMILY,
    HIDDEN_FROM_CHECKS,
    held_by="checks that share a copy fail where it did not come back whole",
    sandbox="docker",
)
def test_what_a_check_hid_fails_those_on_its_copy(played: Played) -> None:
    assert played.statuses("hidden by a check") == {
        "runs_it": "fail", "same_copy": "fail", "own_copy": "pass",
    }  # fmt: skip
    assert LOST in played.checks("hidden by a check")["same_copy"]["message"]


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
