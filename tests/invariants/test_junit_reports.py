"""JUnit XML of real runners, and of those who would like credit without one."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.invariants.test_runs.case_counts import BadReport, CaseCounts
from keystone_action.invariants.test_runs.junit import read_report, total

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
        ("bats", (2, 1, 0, 0), ["cluster.bats::answers"]),  # colour codes as references
        ("jest", (2, 1, 0, 0), ["totals rounds::totals rounds"]),  # colour codes as they are
    ],
)
def test_what_runners_write(runner: str, expected: tuple[int, ...], failed: list[str]) -> None:
    counts = read_report((REPORTS / f"{runner}.xml").read_bytes())
    assert tallied(counts) == expected
    assert counts.failed == failed
    assert counts.fraction == expected[0] / sum(expected[:3])


def test_reports_add_up() -> None:
    reports = [path.read_bytes() for path in sorted(REPORTS.glob("*.xml"))]
    assert tallied(total(reports)) == (14, 7, 3, 6)


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
        (CASE.format("&undefined;"), "not well-formed XML"),
        (CASE.format("") + "<more/>", "not well-formed XML"),
        ("<testsuite><testcase/>", "not well-formed XML"),
        ("", "not well-formed XML"),
        ("2 passed", "not well-formed XML"),
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


ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "us-ascii", "cp1252", "koi8-r"]
NUMBERS = [*range(9), 11, 12, *range(14, 32), 0xD800, 0xDBFF, 0xDFFF, 0xFFFE, 0xFFFF, 0x110000, 10**20]
"""Numbers of characters that XML does not allow, the last two of none at all."""
PLACES = [
    "{}",
    "before {} after",
    "<![CDATA[{}]]>",
    "<system-out>{}</system-out>",
    "<system-out><![CDATA[a]]{}]]></system-out>",
    '<properties><property value="{}"/></properties>',
    "<failure message='{0}'>{0}</failure>",
    "<!-- {} -->",
]


def encoded(text: str, encoding: str) -> bytes:
    """A report in an encoding, with a declaration, as a runner writes it; lone surrogates as they are."""
    declared = {"utf-8-sig": "utf-8", "utf-16-le": "utf-16", "utf-16-be": "utf-16"}.get(encoding, encoding)
    errors = "surrogatepass" if encoding.startswith("utf") else "strict"
    return f'<?xml version="1.0" encoding="{declared}"?>{text}'.encode(encoding, errors)


def references(number: int) -> st.SearchStrategy[str]:
    return st.sampled_from(
        [f"&#{number};", f"&#x{number:x};", f"&#x{number:X};", f"&#{number:025};", f"&#x{number:025x};"]
    )


@st.composite
def forbidden_texts(draw: st.DrawFn, encoding: str) -> str:
    """Characters that XML does not allow, raw where the encoding has them, else as references."""
    highest = 0xFFFF if encoding.startswith("utf") else 31
    raw = st.sampled_from([chr(number) for number in NUMBERS if number <= highest])
    return "".join(draw(st.lists(st.one_of(raw, st.sampled_from(NUMBERS).flatmap(references)), min_size=1, max_size=6)))


@given(st.data(), st.sampled_from(ENCODINGS), st.sampled_from(PLACES))
def test_characters_that_xml_does_not_allow_cost_no_test_its_credit(
    data: st.DataObject, encoding: str, place: str
) -> None:
    report = '<testsuite><testcase name="{0}"/><testcase name="b">{1}</testcase><testcase name="c"/></testsuite>'
    bad = data.draw(forbidden_texts(encoding))
    counts = read_report(encoded(report.format(bad, place.format(bad)), encoding))
    twin = read_report(encoded(report.format("x", place.format("x")), encoding))
    assert tallied(counts) == tallied(twin)
    assert counts.failed == twin.failed
    assert counts.passed_names[0].strip("\ufffd") == ""


@given(st.data(), st.sampled_from(ENCODINGS))
def test_characters_that_xml_allows_are_kept(data: st.DataObject, encoding: str) -> None:
    character = data.draw(st.characters(exclude_categories=["Cs", "Cc", "Zs"], exclude_characters="\ufffe\uffff"))
    report = f'<testsuite><testcase name="a{data.draw(references(ord(character)))}z"/></testsuite>'
    assert read_report(encoded(report, encoding)).passed_names == [f"a{character}z"]


def test_bytes_that_cannot_be_decoded_cost_no_test_its_credit() -> None:
    report = (
        '<testsuite><testcase name="a">{}</testcase><testcase name="b"><failure>{}</failure></testcase></testsuite>'
    )
    latin = report.format("é", "ü").encode("latin-1")  # and says nothing of it
    assert tallied(read_report(latin)) == (1, 1, 0, 0)
    assert tallied(read_report(b'<?xml version="1.0" encoding="us-ascii"?>' + latin)) == (1, 1, 0, 0)
    assert tallied(read_report(b'<?xml version="1.0" encoding="cp1252"?>' + latin + b"<!-- \x81 -->")) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ('<testsuite><testcase name="a"><\x1bfailure/></testcase></testsuite>', "not well-formed XML"),
        ('<testsuite><testcase name="a"><fail\x00ure/></testcase></testsuite>', "not well-formed XML"),
        ('<testsuite><testcase name="a">&\x1b;</testcase></testsuite>', "not well-formed XML"),
        ('<testsuite><testcase name="a">&#27</testcase></testsuite>', "not well-formed XML"),
        ('<testsuite><testcase name="a">&#x;</testcase></testsuite>', "not well-formed XML"),
        ("<testsuite>\x1b[31m<testcase>", "not well-formed XML"),
        ("\x1b[31m<testsuite/>", "not well-formed XML"),
        ("<!DOCTYPE\x00 t><testsuite/>", "not well-formed XML"),
        ('<!DOCTYPE t [<!ENTITY a "&#27;">]><testsuite>&a;</testsuite>', "document type"),
        ("<!DOCTYPE t SYSTEM '\x1b'><testsuite/>", "document type"),
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_malformed_besides_stays_malformed(report: str, why: str, encoding: str) -> None:
    """A character that XML does not allow never becomes part of a tag, nor hides one."""
    with pytest.raises(BadReport, match=why):
        read_report(encoded(report, encoding))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_a_reference_across_two_parts_of_a_long_report(encoding: str) -> None:
    part, size = 1 << 20, 2 if encoding == "utf-16" else 1
    before, after = "<testsuite><testcase name='a'/><!--", "--><testcase name='é&#x1b;&#00027;&#233;'/></testsuite>"
    for cut in range(30):
        padding = part // size - len(encoded(before, encoding)) // size - cut
        counts = read_report(encoded(before + "x" * padding + after, encoding))
        assert counts.passed_names == ["a", "é\ufffd\ufffdé"], cut


@pytest.mark.parametrize("encoding", ["shift_jis", "gbk", "utf-7", "zlib", "klingon", "idna", "utf-16"])
def test_encodings_that_are_not_read(encoding: str) -> None:
    report = f'<?xml version="1.0" encoding="{encoding}"?>' + CASE.format("")
    with pytest.raises(BadReport, match="can't be decoded"):
        read_report(report.encode())


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
