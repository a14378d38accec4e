"""All that the page has of one cell: its checks with what they found, and its evidence, within a budget.

Cells that did not pass come first and are there whole; of those that passed, a few. What is left out is said, with the
file that has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keystone_action.report import words
from keystone_action.report.escape import excerpt, first_line
from keystone_action.report.page.evidence import CellFolder, audit_of, diff_of, trace_of
from keystone_action.report.page.inert import inert_json, shown
from keystone_action.report.page.rows import Placed
from keystone_action.report.sentences import view
from keystone_action.report.sentences.cost import cell_cost
from keystone_action.scoring.fields import json_value
from keystone_action.scoring.results import AgentResult, CellResult, InvariantResult, SpecResult

MAX_PASSED = 100
"""Cells that passed whose evidence is in the page."""
BUDGET = 6_000_000
"""Bytes of all cells together. One more is never begun once they are used up."""
MAX_CELL = 200_000
"""Characters of one cell's texts, about: each kind has its part."""
_DIFF, _PRINTED, _MESSAGE, _DETAILS = MAX_CELL // 3, MAX_CELL // 8, MAX_CELL // 40, MAX_CELL // 20
_VALUE = 4000
MAX_CHECKS = 300
MAX_SHOWN_ROWS = 20


def details(specs: Sequence[SpecResult], cells: Sequence[Placed], folder: Path | None) -> Iterator[str]:
    """One line of JSON a cell, in the order of the rows, until the budget is used up. folder: of the run."""
    left, passed = BUDGET, 0
    for number, cell in cells:
        passed += cell.verdict == "pass"
        if passed > MAX_PASSED or left <= 0:
            return
        line = inert_json(shown(_details(specs[number], cell, folder)))
        left -= len(line)
        yield line


def _details(spec: SpecResult, cell: CellResult, folder: Path | None) -> dict[str, Any]:
    left_out: list[str] = []
    files = CellFolder(None if folder is None else folder / "cells", cell.id)
    try:
        found = {
            "trace": trace_of(files, left_out),
            "diff": diff_of(files, _DIFF, left_out),
            "audit": audit_of(files, left_out),
            "files": files.files(),
        }
    finally:
        files.close()
    if len(cell.invariants) > MAX_CHECKS:
        left_out.append(f"This cell has {len(cell.invariants):,} checks, and this page {MAX_CHECKS} of them.")
    worst = sorted(cell.invariants, key=lambda check: check.status == "pass")[:MAX_CHECKS]
    return {
        "path": spec.path,
        "error": excerpt(cell.error or "", characters=_MESSAGE),
        "attempts": cell.attempts,
        **({"mark": mark} if (mark := view.counted_as_zero([cell])) else {}),
        "usage": cell_cost(cell),
        "source": cell.trace.source,
        "replayed": cell.trace.replayed,
        "notices": [excerpt(notice, characters=_MESSAGE) for notice in cell.notices[:50]],
        "forbidden": [
            {"rule": rule.rule, "text": excerpt(rule.details, characters=_MESSAGE)}
            for rule in cell.forbidden
            if rule.violated
        ],
        "checks": list(_checks(worst, spec)),
        "agent": None if cell.agent is None else _agent(cell.agent),
        **found,
        "left_out": left_out,
    }


def _agent(agent: AgentResult) -> dict[str, Any]:
    return {
        "ended": words.agent(agent),
        "printed": [(title, excerpt(text, lines=400, characters=_PRINTED)) for title, text in view.last_words(agent)],
    }


def _checks(checks: Sequence[InvariantResult], spec: SpecResult) -> Iterator[dict[str, Any]]:
    """The first ones whole, as far as there is room; of the others a line."""
    room = MAX_CELL
    for check in checks:
        found = _check(check, spec, whole=room > 0)
        room -= len(found["message"]) + sum(len(str(value)) for value in found["found"])
        yield found


def _check(check: InvariantResult, spec: SpecResult, *, whole: bool) -> dict[str, Any]:
    return {
        "name": check.name,
        "type": check.type,
        "status": check.status,
        "score": words.score(check.score),
        "weight": words.weight(check.weight),
        "gate": words.gate(check),
        "message": excerpt(check.message, characters=_MESSAGE) if whole else first_line(check.message),
        "about": "" if check.description == check.name else check.description,
        "line": spec.positions.get(check.name),
        "seconds": round(check.duration_s, 3),
        "found": _found(check.details) if whole else [],
    }


def _found(details: dict[str, Any]) -> list[dict[str, Any]]:
    """What a check found, a value each: `{name, text}`, and rows of a query as `{name, columns, rows}`."""
    found: list[dict[str, Any]] = []
    left = _DETAILS
    values = json_value(details)
    for name, value in values.items():
        if left <= 0:
            found.append({"name": "…", "text": "more is in results.json"})
            break
        if name == "columns" and _is_table(values):
            continue
        if name == "found" and _is_table(values):
            rows = [[_cell_text(item) for item in row] for row in value[:MAX_SHOWN_ROWS]]
            found.append({"name": name, "columns": [_cell_text(item) for item in values["columns"]], "rows": rows})
            left -= sum(len(item) for row in rows for item in row)
            continue
        text = value if isinstance(value, str) else _json(value)
        found.append({"name": name, "text": excerpt(text, characters=_VALUE)})
        left -= min(len(text), _VALUE)
    return found


def _is_table(values: dict[str, Any]) -> bool:
    columns, rows = values.get("columns"), values.get("found")
    return isinstance(columns, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def _cell_text(value: Any) -> str:
    return first_line(value if isinstance(value, str) else _json(value), 200)


def _json(value: Any) -> str:
    short = json.dumps(value, ensure_ascii=False)
    return short if len(short) <= 100 else json.dumps(value, ensure_ascii=False, indent=2)
