"""Trees whose names keep a glob busy that tries every way to divide a path among its wildcards."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.hostile import area, attack, statuses
from support.hostile_containers import attack_in_container

__all__ = ["area"]

FAMILY = "files"
WHAT = "leaves a deep tree of names that a glob with several ** tries in every way"
HELD_BY = "one matcher that never goes back over a wildcard"
ONCE_AFTER_THE_OTHER = """
import os
for _ in range(220):
    os.mkdir('a')
    os.chdir('a')
for number in range(3000):
    open(f'{number}.txt', 'w').close()
"""
IN_GOOD_FAITH = "import os\nos.makedirs('a/x/a/y/a/a')\nopen('a/x/a/y/a/a/b.py', 'w').close()\n"
SEVERAL = "**/a/**/a/**/a/**/a/**/b.py"
THERE = {"type": "file_exists", "path": SEVERAL}
CHECKS = {
    "never": {"type": "diff", "never": [SEVERAL]},
    "only": {"type": "diff", "only": ["**/*.txt", "**/*.py"]},
    "absent": {"type": "file_absent", "path": SEVERAL},
    "protected": {"type": "tests", "cmd": "true", "protect": [SEVERAL]},
}


@hostile(FAMILY, WHAT, held_by=HELD_BY)
def test_no_tree_keeps_a_glob_busy(area: Path) -> None:
    called = attack(area, ONCE_AFTER_THE_OTHER, CHECKS)
    assert statuses(called) == dict.fromkeys(CHECKS, "pass"), called.out + called.err + str(called.checks)


@honest(FAMILY, WHAT)
def test_a_tree_that_the_glob_means_is_found(area: Path) -> None:
    called = attack(area, IN_GOOD_FAITH, {"there": THERE, "only": CHECKS["only"]})
    assert called.code == 0, called.out + called.err + str(called.checks)


@pytest.mark.docker
@hostile(FAMILY, WHAT, held_by=HELD_BY, sandbox="docker")
def test_no_tree_of_a_container_keeps_a_glob_busy(tmp_path: Path, image) -> None:
    image("python:3.12-slim")
    called = attack_in_container(tmp_path, ONCE_AFTER_THE_OTHER, CHECKS)
    assert statuses(called) == dict.fromkeys(CHECKS, "pass"), called.out + called.err + str(called.checks)


@pytest.mark.docker
@honest(FAMILY, WHAT, sandbox="docker")
def test_a_tree_of_a_container_that_the_glob_means_is_found(tmp_path: Path, image) -> None:
    image("python:3.12-slim")
    called = attack_in_container(tmp_path, IN_GOOD_FAITH, {"there": THERE, "only": CHECKS["only"]})
    assert called.code == 0, called.out + called.err + str(called.checks)
