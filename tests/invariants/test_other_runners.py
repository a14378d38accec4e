"""tests with runners that are not pytest: by their exit code, or by the JUnit report they write."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from support.context import make_check
from support.graded_tests import World

pytestmark = pytest.mark.sandbox

REPORT = '<testsuite><testcase name="a"/><testcase name="b"/></testsuite>'


@pytest.fixture
def bare(tmp_path: Path) -> World:
    return World(tmp_path)


def test_without_a_report_the_exit_code_alone_decides_and_the_message_says_so(bare: World) -> None:
    outcome = bare.grade({"type": "tests", "cmd": "echo '5 passed, 0 failed'; exit 1"})
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    outcome = bare.grade({"type": "tests", "cmd": "true"})
    assert (outcome.status, outcome.score) == ("pass", 1.0)
    assert "by its exit code alone" in outcome.message


def test_a_planted_report_is_removed_first(bare: World) -> None:
    bare.left({"out/report.xml": REPORT})
    outcome = bare.grade({"type": "tests", "cmd": "true", "junit_xml": "out/*.xml"})
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    assert "no report matches out/*.xml" in outcome.message


@pytest.mark.parametrize(
    ("command", "status", "score"),
    [
        (f"echo '{REPORT}' > r.xml", "pass", 1.0),
        (f"echo '{REPORT}' > r.xml; exit 3", "fail", 0.0),
        (f"echo '{REPORT.replace('/></', '><error/></testcase></')}' > r.xml; exit 1", "fail", 0.5),
        (f"echo '{REPORT.replace('/></', '><failure/></testcase></')}' > r.xml", "fail", 0.5),
        ("echo '<testsuite/>' > r.xml", "fail", 0.0),
        ("echo '<testsuite><testcase>' > r.xml", "fail", 0.0),
        ("ln -s /etc/hostname r.xml", "fail", 0.0),
        ("mkfifo r.xml", "fail", 0.0),
        (f"echo '{REPORT}' > real; truncate -s 1T r.xml", "fail", 0.0),
    ],
)
def test_exit_code_and_report_together(bare: World, command: str, status: str, score: float) -> None:
    outcome = bare.grade({"type": "tests", "cmd": command, "junit_xml": "r.xml"})
    assert (outcome.status, outcome.score) == (status, score), outcome


@pytest.mark.parametrize("code", ["\x1b", "&#27;", "&#x1b;"])
def test_a_colour_code_in_a_report_costs_no_test_its_credit(bare: World, code: str) -> None:
    """bats copies `&#27;` into the output of tests that passed, jest the character itself into a failure."""
    printed = f"<system-out>{code}[0;32mready{code}[0m</system-out>"
    document = {"type": "tests", "junit_xml": "r.xml"}
    bare.left({"passed.xml": REPORT.replace("</t", f"{printed}</t")})
    outcome = bare.grade({**document, "cmd": "cp passed.xml r.xml"})
    assert (outcome.status, outcome.score) == ("pass", 1.0), outcome
    bare.left({"failed.xml": REPORT.replace("/></t", f"><failure message='{code}[31mno'/></testcase></t")})
    outcome = bare.grade({**document, "cmd": "cp failed.xml r.xml; exit 1"})
    assert (outcome.status, outcome.score) == ("fail", 0.5), outcome
    assert (outcome.details["passed"], outcome.details["failing"]) == (1, ["b"])


def test_a_missing_runner_is_an_error(bare: World) -> None:
    outcome = bare.grade({"type": "tests", "cmd": "cargo test"}, missing_programs=frozenset({"cargo"}))
    assert outcome.status == "error"
    assert "set base: rust:1" in outcome.message


@pytest.mark.parametrize(
    "document",
    [
        {"type": "tests"},
        {"type": "pytest", "junit_xml": "x.xml"},
        {"type": "pytest", "cmd": "make test"},
        {"type": "pytest", "cmd": "python3 -m pytest | tee log"},
        {"type": "tests", "cmd": "x", "inject": ["a/x.py", "b/x.py"]},
        {"type": "tests", "cmd": "x", "pass_threshold": 1.5},
    ],
)
def test_what_cannot_be_graded_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_check(document)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", "fail"),
        ("import unittest\nclass TestIt(unittest.TestCase):\n    def test(self): pass\n", "pass"),
    ],
)
def test_a_run_of_unittest_without_a_test_is_none(bare: World, text: str, status: str) -> None:
    bare.hidden(test_it=text)
    outcome = bare.grade({"type": "tests", "cmd": "python3 -m unittest test_it", "inject": ["test_it.py"]})
    assert outcome.status == status
    assert ("no test was run" in outcome.message or outcome.details["exit_code"] == 5) is (status == "fail")
