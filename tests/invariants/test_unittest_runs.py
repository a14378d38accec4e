"""Runs of unittest that a command of `tests` starts: which commands have to show one, and what honest ones earn."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.graded_tests import World

from keystone_action.invariants.test_runs.recorded_runs import starts_unittest
from keystone_action.invariants.test_runs.stand_ins import guarded_command

pytestmark = pytest.mark.sandbox

CASES = """
import unittest

class TestIt(unittest.TestCase):
    def test_one(self):
        with self.subTest("part"):
            self.assertTrue(True)

    def test_two(self):
        self.assertEqual({two}, 2)

    @unittest.skip("not here")
    def test_three(self):
        raise AssertionError

    @unittest.expectedFailure
    def test_four(self):
        raise AssertionError

if __name__ == "__main__":
    unittest.main()
"""
WITH_REPORT = """
def tearDownModule():
    cases = {cases!r}
    with open("r.xml", "w") as file:
        file.write("<testsuite>" + cases + "</testsuite>")
"""
PASSED, FAILED = '<testcase name="a"/>', '<testcase name="b"><failure/></testcase>'
COMMANDS = [
    "python3 -m unittest test_it",
    "python3 -B -W ignore -m unittest -v -b test_it",
    "python3 -m unittest discover -s . -p 'test_*.py'",
    "PYTHONPATH=. python3 -m unittest test_it",
    'PYTHONPATH="$PWD" python3 -m unittest test_it',
    "PYTHONPATH= python3 -m unittest test_it",
    "cd . && python3 -m unittest test_it",
    "sh -c 'python3 -m unittest test_it'",
    "python3 -m unittest test_it && python3 -m unittest test_it",
    "python3 test_it.py",
    ["python3", "-m", "unittest", "test_it"],
    ["env", "PYTHONPATH=.", "python3", "-m", "unittest", "test_it"],
]


@pytest.fixture
def bare(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("two", [2, 3])
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_run_is_graded_by_its_exit_code(bare: World, command: str | list[str], two: int) -> None:
    bare.hidden(test_it=CASES.format(two=two))
    outcome = bare.grade({"type": "tests", "cmd": command, "inject": ["test_it.py"]})
    assert (outcome.status, outcome.score) == (("pass", 1.0) if two == 2 else ("fail", 0.0)), outcome
    assert "It was graded by its exit code alone: no junit_xml is set." in outcome.message


@pytest.mark.parametrize(("two", "cases", "score"), [(2, PASSED * 2, 1.0), (3, PASSED + FAILED, 0.5)])
def test_a_report_that_was_asked_for_earns_its_share(bare: World, two: int, cases: str, score: float) -> None:
    bare.hidden(test_it=CASES.format(two=two) + WITH_REPORT.format(cases=cases))
    check = {"type": "tests", "cmd": COMMANDS[0], "junit_xml": "r.xml", "inject": ["test_it.py"]}
    outcome = bare.grade(check)
    assert (outcome.status, outcome.score) == ("pass" if score == 1 else "fail", score), outcome


def test_without_the_report_that_was_asked_for_there_is_no_credit(bare: World) -> None:
    bare.hidden(test_it=CASES.format(two=2))
    check = {"type": "tests", "cmd": COMMANDS[0], "junit_xml": "r.xml", "inject": ["test_it.py"]}
    outcome = bare.grade(check)
    assert (outcome.status, outcome.score) == ("fail", 0.0), outcome


def test_what_a_failing_run_ends_with_does_not_hide_it(bare: World) -> None:
    bare.hidden(test_it=CASES.format(two=3))
    outcome = bare.grade({"type": "tests", "cmd": f"{COMMANDS[0]} | cat", "inject": ["test_it.py"]})
    assert outcome.status == "fail"
    assert "exit code 0, but 1 of 2 tests passed (1 failed, 2 skipped, not counted)" in outcome.message


@pytest.mark.parametrize("how", ["-m unittest sample", "-c 'import os; os._exit(0)'", "sample.py"])
def test_runs_that_tests_start_are_none_of_the_commands(bare: World, how: str) -> None:
    sample = "import unittest, os\nclass T(unittest.TestCase):\n    def test(self): os._exit(0)\nunittest.main()\n"
    text = f"""
import subprocess, unittest
class TestIt(unittest.TestCase):
    def test(self):
        subprocess.run("python3 {how}", shell=True)
        case = type("Case", (unittest.TestCase,), dict(test=lambda self: self.fail()))
        result = unittest.main(argv=["x"], exit=False, testLoader=Loader(case)).result
        self.assertFalse(result.wasSuccessful())
class Loader(unittest.TestLoader):
    def __init__(self, case): self.case = case
    def loadTestsFromModule(self, module, *rest, **more): return unittest.TestSuite([self.case("test")])
"""
    bare.hidden(test_it=text, sample=sample)
    for command in ("python3 -m unittest test_it", "python3 -m unittest -q test_it; exit $?"):
        outcome = bare.grade({"type": "tests", "cmd": command, "inject": ["test_it.py", "sample.py"]})
        assert outcome.status == "pass", outcome.message


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        *((command, str(command).find("-m") < str(command).find("unittest")) for command in COMMANDS[:6]),
        ("X=1 Y='2 3' /usr/bin/python3.12 -Wd -X dev -m unittest", True),
        ("python -bb -m unittest | tee log", True),
        (["python3", "-m", "unittest"], True),
        ("python3 -I -m unittest", False),
        ("python3 -sE -m unittest", False),
        ("python3 -m nose2", False),
        ("python3 -c 'import x' -m unittest", False),
        ("python3 run.py -m unittest", False),
        ("make test", False),
        ("python3 -m 'unittest", False),
        ("env python3 -m unittest", False),
        (["make"], False),
    ],
)
def test_which_commands_have_to_show_a_run(command: str | list[str], begins: bool) -> None:
    assert starts_unittest(command) is begins


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ('PYTHONPATH="$PWD/src" x', 'PYTHONPATH=/g:"$PWD/src" x'),
        ("PYTHONPATH= x; PYTHONPATH='' y", "PYTHONPATH=/g x; PYTHONPATH=/g y"),
        ("export PYTHONPATH=a:b; x", "export PYTHONPATH=/g:a:b; x"),
        ("MY_PYTHONPATH=a x", "MY_PYTHONPATH=a x"),
        (["env", "PYTHONPATH=a", "PYTHONPATH="], ["env", "PYTHONPATH=/g:a", "PYTHONPATH=/g"]),
    ],
)
def test_the_guard_is_in_each_search_path(command: str | list[str], expected: object) -> None:
    assert guarded_command(command, Path("/g")) == expected
