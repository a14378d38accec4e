"""All specs of a run in one table: those that did not pass first, each with where it is and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from keystone_action.report import words
from keystone_action.report.sentences.ranking import VERDICT_RANK
from keystone_action.report.sentences.why import why_of_spec
from keystone_action.scoring.results import RunResult, SpecResult


@dataclass(frozen=True, slots=True)
class SpecRow:
    """One spec. url: of its file; empty where that is not known. composite: with the baseline's where that was another.
    why: of the check that decided; empty for a pass. check: its name, check_url its line, gate what kind of one it
    is."""

    verdict: str
    id: str
    path: str
    url: str
    passed: int
    total: int
    composite: str
    why: str = ""
    check: str = ""
    check_url: str = ""
    gate: str = ""
    more: int = 0


def spec_rows(run: RunResult, links: Mapping[str, str]) -> list[SpecRow]:
    """Worst first, else as they ran. links: addresses of the specs' files, by id."""
    ranked = sorted(run.specs, key=lambda spec: VERDICT_RANK[spec.verdict])
    before = {one.spec: one.score_before for one in run.baseline.specs} if run.baseline is not None else {}
    return [_row(spec, links.get(spec.id, ""), before.get(spec.id)) for spec in ranked]


def _row(spec: SpecResult, url: str, before: float | None) -> SpecRow:
    composite = words.score(spec.composite, beside=spec.pass_threshold)
    changed = before is not None and words.score(before) != words.score(spec.composite)
    row = SpecRow(
        verdict=spec.verdict,
        id=spec.id,
        path=spec.path,
        url=url,
        passed=sum(cell.verdict == "pass" for cell in spec.cells),
        total=len(spec.cells),
        composite=f"{words.score(before)} → {composite}" if changed else composite,
    )
    return row if spec.verdict == "pass" else _with_reason(row, spec)


def _with_reason(row: SpecRow, spec: SpecResult) -> SpecRow:
    why = why_of_spec(spec)
    if why.check is None:
        return replace(row, why=why.text)
    line = spec.positions.get(why.check.name)
    return replace(
        row,
        why=why.text,
        check=why.check.name,
        check_url=row.url + f"#L{line}" if row.url and line else "",
        gate=words.gate(why.check),
        more=why.more,
    )
