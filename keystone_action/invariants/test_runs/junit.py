"""JUnit XML as test runners write it, read as what it is: a hostile document of any size.

No tree is built, and a document type or an entity ends the reading: so neither entity bombs nor external entities
exist here, in any encoding. Characters that XML does not allow are replaced before the reading: runners copy what a
test printed into their report as it is, and one colour code must not cost all the other tests their credit.

What is counted are `testcase` elements, by their children:

    failure, error → not passed      skipped (an expected failure, a to-do) → not counted      neither → passed

GoogleTest and CTest write of a test that was disabled only a `status` or `result` of the case: it is not counted.
Surefire's `flakyFailure` (it passed when it was run again) is not a failure; its `rerunFailure` stands beside one. What
a suite without suites in it claims beyond its cases (`errors="1"` for a class that did not load) counts as errors.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from xml.parsers import expat

from keystone_action.invariants.test_runs.case_counts import SHOWN, BadReport, CaseCounts

_DEPTH = 100
_NOT_RUN = {"disabled", "notrun", "suppressed", "skipped"}
_NOT_PASSED = {"fail", "failed", "failure", "error"}
"""What `status` and `result` of a case say of it without an element that does."""
_PART = 1 << 20
"""How many bytes are decoded at a time, so that a report is in memory once."""
_DECLARATION = re.compile(
    rb"""<\?xml[ \t\r\n][^>]{0,200}?\bencoding[ \t\r\n]*=[ \t\r\n]*["']([A-Za-z][A-Za-z0-9._-]{0,40})["']"""
)
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
"""Encodings by the first two bytes; the last two are without a byte order mark."""
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 does not allow: most control characters, surrogates, U+FFFE and U+FFFF."""
_REFERENCE = re.compile(r"&#(?:x([0-9A-Fa-f]{1,32})|([0-9]{1,32}));")
_REFERENCE_LENGTH = len("&#x;") + 32
_REPLACEMENT = "\ufffd"
"""It can't be part of a tag, so markup that has such a character in it is still malformed."""


def total(reports: Iterable[bytes]) -> CaseCounts:
    """The sum over reports. Raises BadReport."""
    counts = CaseCounts()
    for report in reports:
        counts += read_report(report)
    return counts


def read_report(content: bytes) -> CaseCounts:
    """Count one report. Raises BadReport: no well-formed XML, a document type, another root than testsuite(s)."""
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")  # whatever the declaration says: what it gets is decoded
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.EntityDeclHandler = _refuse_doctype
    parser.ExternalEntityRefHandler = _refuse_doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    try:
        for part in _legal_text(content):
            parser.Parse(part, False)
        parser.Parse("", True)
    except expat.ExpatError as error:
        raise BadReport(f"is not well-formed XML ({error})") from None
    except (ValueError, LookupError) as error:  # an encoding that nobody knows
        raise BadReport(f"can't be decoded ({error})") from None
    return reader.counts


def _legal_text(content: bytes) -> Iterator[str]:
    """The text of a report, in parts, with each character and each numeric reference that XML does not allow replaced,
    and so each byte that can't be decoded.

    Raises LookupError and ValueError: the declared encoding is not known, or takes more than a byte for a character.
    """
    decode, rest = _decoder(content), ""
    for start in range(0, len(content), _PART):
        text = rest + decode(content[start : start + _PART], start + _PART >= len(content))
        end = text.rfind("&", max(0, len(text) - _REFERENCE_LENGTH))  # a reference that goes on in the next part
        end = len(text) if end < 0 else end
        yield _replace_forbidden(text[:end])
        rest = text[end:]
    yield _replace_forbidden(rest)


def _replace_forbidden(text: str) -> str:
    return _REFERENCE.sub(_legal_reference, _FORBIDDEN.sub(_REPLACEMENT, text))


def _legal_reference(reference: re.Match[str]) -> str:
    number = int(reference[1], 16) if reference[1] else int(reference[2])
    legal = number <= 0x10FFFF and not _FORBIDDEN.match(chr(number))
    return reference[0] if legal else _REPLACEMENT


def _decoder(content: bytes) -> Callable[[bytes, bool], str]:
    """What decodes a part of a report; its second argument says whether the part is the last one. The encodings are
    those that expat knows, and those in which each byte is a character."""
    name = _UTF_16.get(content[:2])
    if name is None:
        marked = content.startswith(codecs.BOM_UTF8)
        declaration = None if marked else _DECLARATION.match(content)
        name = codecs.lookup(declaration[1].decode()).name if declaration else "utf-8"
    if name in {"utf-8", "utf-16", "utf-16-le", "utf-16-be"}:
        return codecs.getincrementaldecoder(name)("replace").decode
    table = bytes(range(256)).decode(name, "replace")
    if len(table) != 256:
        raise ValueError(f"{name} is neither UTF-8 nor UTF-16, nor an encoding with one byte for each character")
    return lambda part, _last: codecs.charmap_decode(part, "replace", table)[0]


def _refuse_doctype(*_: object) -> int:
    raise BadReport("has a document type or entities, which no JUnit report needs")


@dataclass(slots=True)
class _Suite:
    """A suite that is being read: what it claims, and what its own cases came to."""

    claimed: int
    found: int = 0
    nested: bool = False


class _Reader:
    def __init__(self) -> None:
        self.counts = CaseCounts()
        self.depth = 0
        self.suites: list[_Suite] = []
        self.case: str | None = None
        self.case_depth = 0
        self.outcomes: set[str] = set()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(":")[2]
        self.depth += 1
        if self.depth > _DEPTH:
            raise BadReport("is nested too deep for a JUnit report")
        if self.depth == 1 and tag not in {"testsuites", "testsuite"}:
            raise BadReport(f"is not a JUnit report: its root is <{tag[:40]}>, expected <testsuites> or <testsuite>")
        if self.case is not None:
            if self.depth == self.case_depth + 1:
                self.outcomes.add(tag)
        elif tag == "testsuite":
            if self.suites:
                self.suites[-1].nested = True
            self.suites.append(_Suite(_number(attributes, "failures") + _number(attributes, "errors")))
        elif tag == "testcase":
            self.case, self.case_depth, self.outcomes = _name(attributes), self.depth, _attribute_outcomes(attributes)

    def end(self, name: str) -> None:
        tag = name.rpartition(":")[2]
        if self.case is not None and self.depth == self.case_depth:
            self._count(self.case)
            self.case = None
        elif self.case is None and tag == "testsuite" and self.suites:
            suite = self.suites.pop()
            if not suite.nested and suite.claimed > suite.found:
                self.counts.errors += suite.claimed - suite.found
        self.depth -= 1

    def _count(self, name: str) -> None:
        counts = self.counts
        if "skipped" in self.outcomes:
            counts.skipped += 1
            # Node writes a to-do that fails as both, and claims the failure for its suite.
            bad = bool(self.outcomes & {"failure", "error"})
        elif bad := bool(self.outcomes & {"failure", "error"}):
            counts.errors += "error" in self.outcomes
            counts.failures += "error" not in self.outcomes
            if len(counts.failed) < SHOWN:
                counts.failed.append(name)
        else:
            counts.passed += 1
            counts.passed_names.append(name)
        if bad and self.suites:
            self.suites[-1].found += 1


def _number(attributes: dict[str, str], name: str) -> int:
    text = attributes.get(name, "0").strip() or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadReport(f"has {name}={text[:40]!r}, expected a number")
    return int(text)


def _attribute_outcomes(attributes: dict[str, str]) -> set[str]:
    """The outcomes that a case's attributes tell."""
    words = {attributes.get(name, "").lower() for name in ("status", "result")}
    return {outcome for outcome, known in (("skipped", _NOT_RUN), ("failure", _NOT_PASSED)) if words & known}


def _name(attributes: dict[str, str]) -> str:
    parts = (attributes.get("classname", ""), attributes.get("name", ""))
    return "::".join(part for part in parts if part)[:500] or "a case without a name"
