"""JUnit XML of real runners, and of those who would like credit without one."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.invariants.tests.junit import BadReport, CaseCounts, read_report, total

REPORTS = Path(__file__).parent.parent / "data" / "junit"


def tallied(counts: CaseCounts) -> tuple[int, int, int, int]:
    return counts.passed, counts.failures, counts.errors, counts.skipped


@pytest.mark.parametrize(
    ("runner", "expected", "failed"),
    [
        ("node", (2, 1, 0, 2), ["test::two"]),
        ("go", (2, 1, 0, 1), ["example.com/calc::TestAdd/large_numbers"]),
        ("cargo", (2, 1, 1, 0), ["calc::tests::overflows", "calc::tests::aborts"]),
        ("surefire", (2, 1, 1, 1), ["com.example.CalcTest::subtracts", "com.example.CalcTest::divides"]),
        ("pytest", (2, 1, 1, 2), ["tests.test_calc::test_add[three four ]", "tests.test_calc::test_fixture"]),
    ],
)
def test_what_runners_write(runner: str, expected: tuple[int, ...], failed: list[str]) -> None:
    counts = read_report((REPORTS / f"{runner}.xml").read_bytes())
    assert tallied(counts) == expected
    assert counts.failed == failed
    assert counts.fraction == expected[0] / sum(expected[:3])


def test_reports_add_up() -> None:
    reports = [path.read_bytes() for path in sorted(REPORTS.glob("*.xml"))]
    assert tallied(total(reports)) == (10, 5, 3, 6)


def test_a_class_that_did_not_load_has_no_cases_and_is_an_error() -> None:
    report = b'<testsuites errors="1"><testsuite errors="1" failures="1"><testcase><failure/></testcase></testsuite>'
    assert tallied(read_report(report + b"<testsuite><testcase/></testsuite></testsuites>")) == (1, 1, 1, 0)


BOMB = '<?xml version="1.0"?><!DOCTYPE t [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<?xml version="1.0"?><!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
OUTSIDE = '<?xml version="1.0"?><!DOCTYPE testsuite SYSTEM "http://127.0.0.1:9/x.dtd">'
PARAMETER = '<?xml version="1.0"?><!DOCTYPE t [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]>'
CASE = '<testsuite><testcase name="a"/>{}</testsuite>'


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (BOMB + CASE.format("<system-out>&b;</system-out>"), "document type"),
        (EXTERNAL + CASE.format("<system-out>&x;</system-out>"), "document type"),
        (OUTSIDE + CASE.format(""), "document type"),
        (PARAMETER + CASE.format(""), "document type"),
        (CASE.format("&undefined;"), "no well-formed XML"),
        (CASE.format("") + "<more/>", "no well-formed XML"),
        ("<testsuite><testcase/>", "no well-formed XML"),
        ("", "no well-formed XML"),
        ("2 passed", "no well-formed XML"),
        ("<html><testcase/></html>", "its root is <html>"),
        ("<testsuite>" * 5000 + "<testcase/>" + "</testsuite>" * 5000, "nested too deep"),
        ('<testsuite failures="-1"><testcase/></testsuite>', "failures='-1'"),
        ('<testsuite errors="NaN"><testcase/></testsuite>', "errors='NaN'"),
        ('<?xml version="1.0" encoding="klingon"?><testsuite/>', "encoding"),
    ],
)
def test_reports_that_are_refused(report: str, why: str) -> None:
    with pytest.raises(BadReport, match=why):
        read_report(report.encode())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_document_type_in_another_encoding_is_refused_too(encoding: str) -> None:
    text = (BOMB + CASE.format("<system-out>&b;</system-out>")).replace("?>", f' encoding="{encoding[:6]}"?>', 1)
    with pytest.raises(BadReport):
        read_report(text.encode(encoding))


def test_a_case_in_a_case_is_none() -> None:
    report = b"<testsuite><testcase><system-out><testcase/><failure/></system-out><failure/></testcase></testsuite>"
    assert tallied(read_report(report)) == (0, 1, 0, 0)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ('status="run" result="completed"', (1, 0, 0, 0)),
        ('status="notrun" result="suppressed"', (0, 0, 0, 1)),
        ('status="disabled"', (0, 0, 0, 1)),
        ('status="fail"', (0, 1, 0, 0)),
        ('status="passed" result="FAILED"', (0, 1, 0, 0)),
    ],
)
def test_cases_that_only_say_how_they_ended(attributes: str, expected: tuple[int, ...]) -> None:
    """As GoogleTest and CTest write tests that are disabled."""
    assert tallied(read_report(f'<testsuite><testcase name="a" {attributes}/></testsuite>'.encode())) == expected


@given(st.lists(st.sampled_from(["passed", "failure", "error", "skipped"]), max_size=40))
def test_counts_are_those_of_the_cases(kinds: list[str]) -> None:
    cases = "".join(f"<testcase name='x'>{'' if kind == 'passed' else f'<{kind}/>'}</testcase>" for kind in kinds)
    counts = read_report(f"<testsuite>{cases}</testsuite>".encode())
    assert tallied(counts) == tuple(kinds.count(kind) for kind in ("passed", "failure", "error", "skipped"))
    assert 0.0 <= counts.fraction <= 1.0


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")))
def test_names_are_data(name: str) -> None:
    report = f"<testsuite><testcase name={quoteattr(name)}><failure/></testcase></testsuite>"
    assert read_report(report.encode()).failures == 1


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_a_report_or_refused(content: bytes) -> None:
    try:
        counts = read_report(content)
    except BadReport:
        return
    assert counts.counted >= 0
