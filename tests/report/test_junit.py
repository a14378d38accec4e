"""junit.xml is well formed for any text, and its counts are those of its elements."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import SAMPLES, forbidden, gate_failure, usage_error
from support.sample_parts import cell, check, run, spec

from keystone_action.report.junit import render_junit

REQUIRED = {"name", "tests", "failures", "errors", "skipped", "time"}


def suites(text: str) -> tuple[ElementTree.Element, list[ElementTree.Element]]:
    root = ElementTree.fromstring(text.encode())
    return root, root.findall("testsuite")


@pytest.mark.parametrize("name", SAMPLES)
def test_counts_are_those_of_the_elements(name: str) -> None:
    root, found = suites(render_junit(SAMPLES[name]()))
    assert root.tag == "testsuites"
    for element in [root, *found]:
        assert set(element.attrib) >= REQUIRED
        counted = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
        for attribute, tag in counted.items():
            assert int(element.attrib[attribute]) == len(list(element.iter(tag))), (attribute, element.attrib)
    for case in root.iter("testcase"):
        assert float(case.attrib["time"]) >= 0
        assert case.attrib["classname"]


def test_a_failure_carries_its_message_and_the_line_of_the_spec() -> None:
    root, _ = suites(render_junit(gate_failure()))
    case = root.find(".//testcase[@name='tests_pass']")
    assert case is not None
    assert case.attrib["line"] == "12"
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "exit code 1, expected 0"
    assert "AssertionError: 3 != 4" in (failure.text or "")


def test_a_cell_whose_mean_is_too_low_is_a_failure_although_every_check_passed() -> None:
    low = cell("c", check("judge", score=0.7), verdict="fail", composite=0.7, reason="composite 0.70 is below 0.85")
    root, _ = suites(render_junit(run(spec("s", low, verdict="fail"), verdict="fail")))
    assert root.attrib["failures"] == "1"
    failure = root.find(".//testcase[@name='cell']/failure")
    assert failure is not None
    assert failure.attrib["message"] == "composite 0.70 is below 0.85"


def test_a_run_that_never_came_to_a_cell_is_an_error() -> None:
    root, _ = suites(render_junit(usage_error()))
    assert (root.attrib["tests"], root.attrib["errors"]) == ("1", "1")


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_well_formed(name: str, message: str) -> None:
    bad = cell(name, check(name, "fail", message=message), params={name: message}, verdict="fail", composite=0.0)
    text = render_junit(run(spec(name, bad, verdict="fail", path=message), verdict="fail", error=message))
    root, found = suites(text)
    assert len(found) == 2
    assert len(list(root.iter("failure"))) == 1


def test_what_an_agent_printed_is_bounded() -> None:
    result = gate_failure()
    (only,) = result.specs
    (one,) = only.cells
    assert one.agent is not None
    loud = replace(one, agent=replace(one.agent, output="x" * 1_000_000))
    assert len(render_junit(replace(result, specs=(replace(only, cells=(loud,)),)))) < 20_000


def test_each_judged_rule_is_a_case_and_a_broken_one_fails_at_its_line() -> None:
    root, _ = suites(render_junit(forbidden()))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    broken = cases["forbidden.db_writes_outside"]
    assert broken.get("line") == "31"
    failure = broken.find("failure")
    assert failure is not None
    assert "table audit_2: delete of 2 rows" in failure.get("message", "")
    assert (failure.text or "").count("\n") == 2
    assert cases["forbidden.file_writes_outside"].find("failure") is None
    assert "cell" not in cases
    assert (root.get("tests"), root.get("failures")) == ("5", "2")
