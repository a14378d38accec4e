"""tests whose cmd starts pytest itself and has its report read: what the agent says to pytest doesn't count."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.graded_tests import World

from keystone_action.invariants.check import Outcome

ADD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
HIDDEN = """
from solution import add
def test_small(): assert add(1, 2) == 3
def test_zero(): assert add(0, 0) == 0
"""
FORGES_PASSES = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    (yield).get_result().outcome = "passed"
"""
FORGED = {
    "setup.cfg": "[tool:pytest]\naddopts = -p forged\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p forged'\n",
    "sub/pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p forged'\n",
}
CMD = "python3 -m pytest -q --junitxml=r.xml test_hidden.py"


@pytest.fixture
def world(tmp_path: Path, packages: Path) -> World:
    made = World(tmp_path, packages)
    made.hidden(test_hidden=HIDDEN)
    return made


def graded(world: World, cmd: str = CMD, dest: str = "test_hidden.py") -> Outcome:
    inject = [{"src": "test_hidden.py", "dest": dest}]
    return world.grade({"type": "tests", "cmd": cmd, "junit_xml": "**/r.xml", "inject": inject})


@pytest.mark.parametrize("name", FORGED)
def test_configuration_of_the_agents_earns_nothing(world: World, name: str) -> None:
    below = "sub/" if name.startswith("sub/") else ""
    world.given({f"{below}readme": "", **({name: "[metadata]\nname = x\n"} if name == "setup.cfg" else {})})
    world.left({f"{below}solution.py": WRONG, f"{below}forged.py": FORGES_PASSES, name: FORGED[name]})
    cmd = f"cd ./{below} && {CMD}"
    outcome = graded(world, cmd, f"{below}test_hidden.py")
    assert (outcome.status, outcome.score) == ("fail", 0.5), outcome
    world.left({f"{below}solution.py": ADD})
    outcome = graded(world, cmd, f"{below}test_hidden.py")
    assert (outcome.status, outcome.score) == ("pass", 1.0), outcome


def test_what_the_author_says_to_pytest_stays(world: World) -> None:
    """Changed for another reason the file is the agent's own; changed for pytest, the author's part counts."""
    authors = "[tool.pytest.ini_options]\npython_functions = ['check_*']\n"
    world.given({"pyproject.toml": authors})
    world.hidden(
        test_hidden="def check_it(): assert 'agent' in open('pyproject.toml').read()\ndef test_no(): assert 0\n"
    )
    for more in ("", "addopts = '-k nothing'\n"):
        world.left({"pyproject.toml": f"{authors}{more}[project]\nname = 'agent'\n"})
        outcome = graded(world)
        assert (outcome.status, outcome.details["passed"]) == ("pass", 1), outcome


def test_a_configuration_that_the_command_names_counts(world: World) -> None:
    world.given({"ci/own.ini": "[pytest]\npython_functions = test_zero\n"})
    world.left({"solution.py": WRONG, "forged.py": FORGES_PASSES, "setup.cfg": FORGED["setup.cfg"]})
    outcome = graded(world, f"{CMD} -c ci/own.ini --rootdir=.")
    assert (outcome.status, outcome.details["passed"]) == ("pass", 1), outcome
