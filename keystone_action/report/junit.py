"""`junit.xml`: a test suite for each spec and cell, a test case for each invariant and for each forbidden rule; and one
for a share of scenarios, where that decides a spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from keystone_action.report import words
from keystone_action.report.escape import excerpt, first_line, visible, without_commands
from keystone_action.report.sentences.causes import scenario_share
from keystone_action.scoring.results import CellResult, InvariantResult, RunResult, SpecResult

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_MESSAGE = 500
"""Characters of the `message` attribute; the whole is the element's text."""


def render_junit(run: RunResult) -> str:
    """The document, in the shape that CI servers read. A cell that could not be graded is one test case in error
    beside those of its checks; so is a run that never came to a cell."""
    return "".join(junit_pieces(run))


def junit_pieces(run: RunResult) -> Iterator[str]:
    """The document in pieces of one cell, so that ten thousand of them are never in memory as trees."""
    from xml.etree.ElementTree import Element, indent, tostring

    suites = [suite for spec in run.specs for suite in ((spec, cell) for cell in spec.cells)]
    totals = [0, 0, 0, 0]
    for _, cell in suites:
        totals = [total + part for total, part in zip(totals, _counts(cell), strict=True)]
    shares = [(spec, share) for spec in run.specs if (share := scenario_share(spec))]
    for spec, _ in shares:
        totals = [total + part for total, part in zip(totals, _share_counts(spec), strict=True)]
    ungraded = run.error is not None
    root = Element("testsuites", _attributes("keystone", totals, run.duration_s, extra_error=ungraded))
    opening = tostring(root, encoding="unicode").removesuffix(" />")
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n{opening}>\n'
    for spec, cell in suites:
        element = _suite(spec, cell, run)
        indent(element)
        yield tostring(element, encoding="unicode") + "\n"
    for spec, share in shares:
        element = _share(spec, share)
        indent(element)
        yield tostring(element, encoding="unicode") + "\n"
    if run.error is not None:
        element = _ungraded_run(run, run.error)
        indent(element)
        yield tostring(element, encoding="unicode") + "\n"
    yield "</testsuites>\n"


def _counts(cell: CellResult) -> list[int]:
    """tests, failures, errors, skipped of a cell."""
    statuses = [result.status for result in cell.invariants]
    extra = int(_has_case_of_its_own(cell))
    broken = sum(rule.violated for rule in cell.forbidden)
    failures = statuses.count("fail") + broken + (extra if cell.verdict == "fail" else 0)
    errors = statuses.count("error") + (extra if cell.verdict == "error" else 0)
    return [len(statuses) + len(cell.forbidden) + extra, failures, errors, statuses.count("skip")]


def _has_case_of_its_own(cell: CellResult) -> bool:
    """Whether no check's case would tell that the cell did not pass: a service failed, or a mean was too low."""
    statuses = {str(result.status) for result in cell.invariants} | {"fail" for rule in cell.forbidden if rule.violated}
    return cell.verdict != "pass" and (cell.verdict not in statuses)


def _attributes(name: str, counts: list[int], seconds: float, *, extra_error: bool = False) -> dict[str, str]:
    tests, failures, errors, skipped = counts
    return {
        "name": _text(name),
        "tests": str(tests + extra_error),
        "failures": str(failures),
        "errors": str(errors + extra_error),
        "skipped": str(skipped),
        "time": f"{seconds:.3f}",
    }


def _suite(spec: SpecResult, cell: CellResult, run: RunResult) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    suite = Element("testsuite", _attributes(f"{spec.id}: {cell.id}", _counts(cell), cell.duration_s))
    suite.set("timestamp", _text(run.started_at))
    properties = SubElement(suite, "properties")
    facts = {"verdict": cell.verdict, "composite": words.score(cell.composite), "replica": str(cell.replica)}
    facts |= {} if cell.trace.replayed is None else {"replayed": cell.trace.replayed}
    facts |= {"attempts": str(cell.attempts)} if cell.attempts > 1 else {}
    facts |= {"counted_as_zero": ", ".join(cell.counted_as_zero)} if cell.counted_as_zero else {}
    facts |= {f"params.{name}": str(value) for name, value in cell.params.items()}
    for name, value in facts.items():
        SubElement(properties, "property", name=_text(name), value=_text(first_line(value, MAX_MESSAGE)))
    for rule in cell.forbidden:
        case = _new_case(suite, spec, cell, rule.name, 0.0)
        if rule.violated:
            _add_problem(case, "failure", rule.details or "violated", "forbidden")
    for result in cell.invariants:
        _case(suite, spec, cell, result)
    if _has_case_of_its_own(cell):
        case = _new_case(suite, spec, cell, "cell", 0.0)
        tag = "error" if cell.verdict == "error" else "failure"
        _add_problem(case, tag, cell.error or cell.reason or "not graded", "cell")
    if cell.agent is not None:
        for tag, said in (("system-out", cell.agent.output), ("system-err", cell.agent.stderr)):
            if said:
                SubElement(suite, tag).text = _text(excerpt(said))
    return suite


def _case(suite: Element, spec: SpecResult, cell: CellResult, result: InvariantResult) -> None:
    from xml.etree.ElementTree import SubElement

    case = _new_case(suite, spec, cell, result.name, result.duration_s)
    if result.status == "fail":
        _add_problem(case, "failure", result.message, result.type)
    elif result.status == "error":
        _add_problem(case, "error", result.message, result.type)
    elif result.status == "skip":
        SubElement(case, "skipped", message=_text(first_line(result.message, MAX_MESSAGE)))


def _new_case(suite: Element, spec: SpecResult, cell: CellResult, name: str, seconds: float) -> Element:
    from xml.etree.ElementTree import SubElement

    case = SubElement(suite, "testcase", name=_text(name), classname=_text(f"{spec.id}.{cell.id}"))
    case.set("time", f"{seconds:.3f}")
    case.set("file", _text(spec.path))
    if name in spec.positions:
        case.set("line", str(spec.positions[name]))
    return case


def _add_problem(case: Element, tag: str, message: str, kind: str) -> None:
    from xml.etree.ElementTree import SubElement

    problem = SubElement(case, tag, message=_text(first_line(message, MAX_MESSAGE)), type=_text(kind))
    problem.text = _text(excerpt(message))


def _share_counts(spec: SpecResult) -> list[int]:
    return [1, int(spec.verdict == "fail"), int(spec.verdict == "error"), 0]


def _share(spec: SpecResult, share: str) -> Element:
    """The case of a spec that passes although a cell failed: the cells' own cases stay what they are."""
    from xml.etree.ElementTree import Element, SubElement

    suite = Element("testsuite", _attributes(f"{spec.id}: scenarios", _share_counts(spec), 0.0))
    attributes = {"name": "scenarios", "classname": _text(spec.id), "time": "0.000", "file": _text(spec.path)}
    case = SubElement(suite, "testcase", attributes)
    if spec.verdict in ("fail", "error"):
        _add_problem(case, "error" if spec.verdict == "error" else "failure", share, "scenarios")
    else:
        SubElement(case, "system-out").text = _text(share)
    return suite


def _ungraded_run(run: RunResult, error: str) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    suite = Element("testsuite", _attributes("keystone", [0, 0, 0, 0], run.duration_s, extra_error=True))
    suite.set("timestamp", _text(run.started_at))
    case = SubElement(suite, "testcase", name="run", classname="keystone", time=f"{run.duration_s:.3f}")
    _add_problem(case, "error", error, "run")
    return suite


def _text(text: str) -> str:
    # XML 1.0 has no way to write most control characters, not even as references.
    return without_commands(visible(text))
