"""What the page knows of every cell: a short row of each, worst first, and the groups of replicas.

Texts that repeat are held once and named by their number, so that ten thousand cells take about a megabyte. Data stands
in the page as JSON inside a `<script type="application/json">`, which browsers neither run nor read as markup.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from keystone_action.report.escape import first_line, json_without_commands, visible
from keystone_action.report.sentences.causes import VERDICT_RANK, rank_of
from keystone_action.report.sentences.view import cell_reason
from keystone_action.report.words import score
from keystone_action.scoring.aggregate import wilson
from keystone_action.scoring.results import CellResult, InvariantResult, RunResult, SpecResult
from keystone_action.scoring.sequential import rate_interval

_ENTITIES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def inert_json(value: Any) -> str:
    """value as one line of JSON in ASCII without `<`, `>` and `&`: nothing in it ends the element or begins another.
    Nor is there a workflow command in it."""
    return json_without_commands(_encode(value).translate(_ENTITIES))


def shown(value: Any) -> Any:
    """value with every text as `visible` makes it, keys of mappings too."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(key)): shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value


MAX_CELLS = 20_000
MAX_CHECKS = 60_000
"""Checks that are listed whatever became of them; of the cells after that, only those that did not pass."""
MAX_TEXT = 4_000_000
"""Characters of all messages and reasons together."""
_ALWAYS_LISTED = 10
"""Failing checks of a cell that are listed even then."""
_MESSAGE, _PASSED_MESSAGE, _VALUE = 200, 100, 80
STATUSES = ("error", "fail", "flaky", "skip", "pass")

Placed = tuple[int, CellResult]
"""The number of a cell's spec, and the cell."""


def worst_first(run: RunResult) -> list[Placed]:
    """At most MAX_CELLS cells of all specs, those that did not pass first, else in their order."""
    cells = [(number, cell) for number, spec in enumerate(run.specs) for cell in spec.cells]
    return sorted(cells, key=lambda placed: VERDICT_RANK[placed[1].verdict])[:MAX_CELLS]


class _Texts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {"": 0}
        self._room = MAX_TEXT
        self._scenarios: dict[str, int] = {}
        self._taken: set[int] = set()

    def number(self, text: str, limit: int) -> int:
        """Of the first line of text; 0, the empty text, when there is no room any more."""
        text = visible(first_line(text, limit))
        if text not in self.found and len(text) > self._room:
            return 0
        return self._add(text)

    def name(self, text: str, limit: int) -> int:
        """Of the first line of a name, which always has room: messages of an agent must not push it out."""
        return self._add(visible(first_line(text, limit)))

    def scenario(self, name: str) -> int:
        """Of a scenario, by which its cells are counted together: no other one has the number, though both look alike
        once they are cut."""
        if name not in self._scenarios:
            found, number = self.name(name, _MESSAGE), len(self._scenarios) + 1
            while found in self._taken:
                found = self.name(f"{first_line(name, _MESSAGE - 20)} ({number})", _MESSAGE)
                number += 1
            self._taken.add(found)
            self._scenarios[name] = found
        return self._scenarios[name]

    def _add(self, text: str) -> int:
        if text not in self.found:
            self._room -= len(text)
            self.found[text] = len(self.found)
        return self.found[text]


class Index:
    """The rows of a page. `pieces` writes them as JSON that is on many lines, one cell or group each."""

    def __init__(self, run: RunResult, cells: Sequence[Placed]) -> None:
        self._run = run
        self._cells = cells
        self._texts = _Texts()
        self._params: dict[str, int] = {}
        self._sets: list[list[tuple[int, int]]] = []
        self._checks_left = MAX_CHECKS

    def pieces(self) -> Iterator[str]:
        """The document. What other parts name by number comes last."""
        total = sum(len(spec.cells) for spec in self._run.specs)
        head = {"total": total, "statuses": STATUSES, "specs": [self._spec(spec) for spec in self._run.specs]}
        yield inert_json(head)[:-1] + ',"cells":[\n'
        for number, (spec, cell) in enumerate(self._cells):
            yield (",\n" if number else "") + inert_json(self._row(spec, cell))
        yield '],\n"groups":[\n'
        number = 0
        for number, group in enumerate(self._groups()):
            yield (",\n" if number else "") + inert_json(group)
        yield '],\n"parameters":' + inert_json(self._sets) + ',\n"texts":' + inert_json(list(self._texts.found)) + "}"

    def _spec(self, spec: SpecResult) -> dict[str, Any]:
        return {"id": visible(spec.id), "verdict": spec.verdict, "threshold": spec.pass_threshold}

    def _row(self, spec: int, cell: CellResult) -> list[Any]:
        cost = cell.usage.get("cost_usd")
        return [
            visible(cell.id),
            spec,
            self._texts.scenario(cell.scenario),
            self._set(cell),
            cell.replica,
            STATUSES.index(cell.verdict),
            score(cell.composite, beside=self._run.specs[spec].pass_threshold),
            round(cell.duration_s, 4),
            None if cost is None else round(cost, 6),
            0 if cell.verdict == "pass" else self._texts.number(cell_reason(cell), _MESSAGE),
            [self._check(check) for check in self._listed(cell)],
            len(cell.invariants),
        ]

    def _listed(self, cell: CellResult) -> list[InvariantResult]:
        """The checks of a row, worst first."""
        checks = sorted(cell.invariants, key=partial(rank_of, decides=cell.verdict == "error"))
        if len(checks) > self._checks_left:
            failing = [check for check in checks if check.status in ("fail", "error")]
            checks = failing[: max(self._checks_left, _ALWAYS_LISTED)]
        self._checks_left = max(0, self._checks_left - len(checks))
        return checks

    def _check(self, check: InvariantResult) -> list[Any]:
        limit = _PASSED_MESSAGE if check.status == "pass" else _MESSAGE
        return [
            self._texts.number(check.name, _MESSAGE),
            STATUSES.index(check.status),
            score(check.score),
            self._texts.number(check.message, limit),
        ]

    def _set(self, cell: CellResult) -> int:
        """The number of a cell's parameters."""
        key = repr(sorted(cell.params.items()))
        if key not in self._params:
            self._params[key] = len(self._sets)
            pairs = [(str(name), str(value)) for name, value in cell.params.items()]
            self._sets.append([(self._texts.name(n, _VALUE), self._texts.name(v, _VALUE)) for n, v in pairs])
        return self._params[key]

    def _groups(self) -> Iterator[list[Any]]:
        """`[spec, scenario, parameters, passed, graded, low, high, cells…]`: replicas of one scenario with one set of
        parameters, in the order of the run, with the numbers of their rows."""
        found: dict[tuple[int, int, int], list[int]] = {}
        counts: dict[tuple[int, int, int], Counter[str]] = {}  # of all cells, also of those that have no row
        order = {id(cell): number for number, (_, cell) in enumerate(self._cells)}
        for spec, one in enumerate(self._run.specs):
            for cell in one.cells:
                key = (spec, self._texts.scenario(cell.scenario), self._set(cell))
                counts.setdefault(key, Counter())[cell.verdict] += 1
                if (row := order.get(id(cell))) is not None:
                    found.setdefault(key, []).append(row)
        for key, numbers in found.items():
            counted = counts[key]
            graded = counted.total() - counted["error"]
            interval = self._interval(key[0], counted["pass"], graded)
            yield [*key, counted["pass"], graded, *interval, numbers]

    def _interval(self, spec: int, passed: int, graded: int) -> tuple[float | None, float | None]:
        """Of the pass rate of a group."""
        if not graded:
            return None, None
        if self._run.specs[spec].stopping is not None:
            low, high = rate_interval(passed, graded)
        else:
            rate = wilson(passed, graded)
            low, high = rate.low, rate.high
        return round(low, 3), round(high, 3)
