"""What pytest's driver wrote: read only when it carries the signature of this very run, then counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keystone_action.invariants.tests.junit import SHOWN, BadReport, CaseCounts
from keystone_action.invariants.tests.signed_report import OtherCode, read_signed

_WORST_FIRST = ("error", "failed", "passed", "xfailed", "skipped")


@dataclass(frozen=True, slots=True)
class PytestResults:
    """outcomes: test id → error, failed, passed, xfailed, skipped or "not run", each exactly as pytest spells the id.
    collection_errors: files and classes that could not be collected. missing: why there is no pytest, else empty."""

    outcomes: Mapping[str, str]
    collection_errors: tuple[str, ...] = ()
    missing: str = ""

    def counts(self) -> CaseCounts:
        """Expected failures and skips are not counted (Touchstone); what was collected and never ran is an error."""
        counts = CaseCounts(errors=len(self.collection_errors), failed=list(self.collection_errors[:SHOWN]))
        for name, outcome in self.outcomes.items():
            if outcome == "passed":
                counts.passed += 1
            elif outcome in ("xfailed", "skipped"):
                counts.skipped += 1
            else:
                counts.failures += outcome == "failed"
                counts.errors += outcome != "failed"
                if len(counts.failed) < SHOWN:
                    counts.failed.append(name)
        return counts


def read_results(workspace: Path, path: str, key: bytes, untrusted: Collection[str]) -> PytestResults:
    """The results of one run. untrusted: files that the agent added or changed; a skip that was raised in one of them
    is the code under test that got out of its test, so an error.

    Raises BadReport: there is none, or not one of this run; OtherCode.
    """
    document = read_signed(workspace, path, key, "pytest")
    try:
        return _results(document, frozenset(untrusted))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadReport("is not as the driver of pytest writes it") from None


def _results(document: Mapping[str, Any], untrusted: frozenset[str]) -> PytestResults:
    if "missing" in document:
        return PytestResults({}, missing=str(document["missing"]))
    OtherCode.refuse(document)
    left = {name for name, files in document["skipped_by"].items() if not untrusted.isdisjoint(files)}
    outcomes = dict.fromkeys(document["collected"], "not run")
    for name, phases in document["outcomes"].items():
        worst = next((outcome for outcome in _WORST_FIRST if outcome in phases), "not run")
        outcomes[name] = "error" if name in left and worst in ("xfailed", "skipped") else worst
    errors = [*document["collection_errors"], *sorted(left - outcomes.keys())]
    return PytestResults(outcomes, tuple(errors))
