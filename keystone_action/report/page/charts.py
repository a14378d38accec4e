"""Score against cost and against time as SVG: a point for each cell, or for many cells at about the same place.

The library writes what it is given and escapes nothing: all texts go through `escape` here, and attributes hold only
numbers and words of ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from typing import TYPE_CHECKING

from keystone_action.report.escape import first_line, html_without_commands, visible
from keystone_action.report.page.rows import Placed
from keystone_action.report.sentences.causes import VERDICT_RANK
from keystone_action.report.sentences.view import parameters
from keystone_action.report.words import count, duration, score
from keystone_action.scoring.results import CellResult, RunResult

if TYPE_CHECKING:
    from svg import Element

MAX_POINTS = 400
"""Above so many cells, those at about the same place are one point."""
MAX_SETS = 12
"""Above so many sets of parameters, their means are not drawn."""
_WIDTH, _HEIGHT = 480, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 14, 14, 36
_ACROSS, _UP = 40, 20
_LOGARITHMIC = 100.0
"""How many times the smallest value the largest one is, where a scale of equal steps would hide most points."""
_SMALLEST_STEP = 1e-300
"""Smaller powers of ten lose their digits, down to 0."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One of them. svg: markup. note: how many cells it shows, and of how many."""

    title: str
    svg: str
    note: str


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """Cells with one set of parameters, and their means. letter: that of their mark in the charts."""

    letter: str
    parameters: str
    cells: int
    score: float
    seconds: float
    cost: float | None

    @property
    def money(self) -> str:
        """Its cost in words."""
        return "–" if self.cost is None else axis_money(self.cost)


@dataclass(frozen=True, slots=True)
class _Point:
    x: float
    y: float
    verdict: str
    label: str


def charts(run: RunResult, cells: Sequence[Placed]) -> tuple[list[Chart], list[ParameterSet]]:
    """What there is to draw: nothing for fewer than two graded cells, no cost where none is known."""
    graded = [cell for _, cell in cells if cell.composite is not None]
    if len(graded) < 2:
        return [], []
    sets = _parameter_sets([cell for spec in run.specs for cell in spec.cells if cell.composite is not None])
    thresholds = {spec.pass_threshold for spec in run.specs}
    needs = thresholds.pop() if len(thresholds) == 1 else None
    of = count(len(cells), "cell")
    timed = _chart("Score against time", graded, lambda cell: cell.duration_s, duration, of, needs)
    marks = [(one.letter, one.seconds, one.score, one.cells) for one in sets]
    found = [timed(marks)]
    priced = [cell for cell in graded if _cost(cell)]
    if len(priced) > 1:
        marks = [(one.letter, one.cost, one.score, one.cells) for one in sets if one.cost is not None]
        found.insert(
            0, _chart("Score against cost", priced, lambda cell: _cost(cell) or 0.0, axis_money, of, needs)(marks)
        )
    return found, sets


def _cost(cell: CellResult) -> float | None:
    return cell.usage.get("cost_usd") or None


def axis_money(dollars: float) -> str:
    """Dollars with two digits that say something."""
    return f"${dollars:.2g}" if dollars < 0.01 else f"${dollars:,.2f}"


def _parameter_sets(cells: Iterable[CellResult]) -> list[ParameterSet]:
    """Empty for one, and for too many to tell apart."""
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        found.setdefault(first_line(parameters(cell.params), 120), []).append(cell)
    if not 1 < len(found) <= MAX_SETS:
        return []
    return [
        ParameterSet(
            letter=chr(ord("A") + number),
            parameters=text or "no parameters",
            cells=len(own),
            score=_mean([cell.composite or 0.0 for cell in own]),
            seconds=_mean([cell.duration_s for cell in own]),
            cost=_mean(costs) if len(costs := [cost for cell in own if (cost := _cost(cell))]) == len(own) else None,
        )
        for number, (text, own) in enumerate(found.items())
    ]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


Mark = tuple[str, float, float, int]


def _chart(
    title: str,
    cells: Sequence[CellResult],
    value: Callable[[CellResult], float],
    shown: Callable[[float], str],
    of: str,
    needs: float | None,
) -> Callable[[Sequence[Mark]], Chart]:
    points = [_Point(value(cell), cell.composite or 0.0, cell.verdict, cell.id) for cell in cells]

    def draw(marks: Sequence[Mark]) -> Chart:
        note = f"n = {len(points):,} of {of}"
        if len(points) > MAX_POINTS:
            note += "; a larger dot is more cells"
        if needs is not None:
            note += f"; dashed: what a cell needs, {score(needs)}"
        return Chart(title, _draw(title, points, shown, marks, needs), note)

    return draw


class _Scale:
    """From values to pixels."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        self._logarithmic = low > 0 and high / low >= _LOGARITHMIC
        self._low = math.log10(low) if self._logarithmic else 0.0
        self._high = math.log10(high) if self._logarithmic else (high or 1.0)

    def x(self, value: float) -> float:
        at = math.log10(value) if self._logarithmic else value
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at - self._low) / (self._high - self._low)

    def ticks(self) -> list[float]:
        if self._logarithmic:
            exponents = range(math.ceil(self._low), math.floor(self._high) + 1)
            return [10.0**exponent for exponent in exponents][:: max(1, len(exponents) // 5)]
        if self._high < _SMALLEST_STEP:
            return [0.0, self._high]
        step = 10 ** math.floor(math.log10(self._high))
        step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if self._high / (step * part) <= 6)
        return [step * number for number in range(int(self._high / step * (1 + 1e-9)) + 1)]


def _y(value: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1.0 - value)


def _draw(
    title: str,
    points: Sequence[_Point],
    shown: Callable[[float], str],
    marks: Sequence[Mark],
    needs: float | None,
) -> str:
    import svg

    scale = _Scale([point.x for point in points])
    elements: list[Element] = []
    for tick in (0.0, 0.5, 1.0):
        elements.append(svg.Line(x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_px(_y(tick)), y2=_px(_y(tick)), class_=["grid"]))
        elements.append(svg.Text(x=_LEFT - 8, y=_px(_y(tick) + 4), class_=["end"], text=f"{tick:g}"))
    for tick in scale.ticks():
        at = _px(scale.x(tick))
        elements.append(svg.Line(x1=at, x2=at, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_=["grid"]))
        elements.append(svg.Text(x=at, y=_HEIGHT - _BOTTOM + 18, class_=["middle"], text=_safe(shown(tick))))
    if needs is not None:
        at = _px(_y(needs))
        elements.append(svg.Line(x1=_LEFT, x2=_WIDTH - _RIGHT, y1=at, y2=at, class_=["needs"]))
    for x, y, radius, verdict, label in _dots(points, scale):
        told: list[Element] = [svg.Title(text=_safe(label))]
        elements.append(svg.Circle(cx=_px(x), cy=_px(y), r=_px(radius), class_=["dot", verdict], elements=told))
    for letter, value, mean, cells in marks:
        told = [svg.Title(text=_safe(f"{letter}: mean score {score(mean)}, {shown(value)} (n = {cells:,})"))]
        at_x, at_y = _px(scale.x(value)), _px(_y(mean))
        elements.append(svg.Circle(cx=at_x, cy=at_y, r=9, class_=["mean"], elements=told))
        elements.append(svg.Text(x=at_x, y=at_y + 4, class_=["middle", "letter"], text=letter))
    picture = svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, _WIDTH, _HEIGHT),
        class_=["chart"],
        elements=elements,
        extra={"role": "img", "aria-label": _safe(f"{title}, {count(len(points), 'cell')}")},
    )
    picture.xmlns = None
    return picture.as_str()


def _dots(points: Sequence[_Point], scale: _Scale) -> Iterator[tuple[float, float, float, str, str]]:
    """`(x, y, radius, verdict, label)`: worst last, so that they lie on top."""
    if len(points) <= MAX_POINTS:
        for point in sorted(points, key=lambda point: -VERDICT_RANK[point.verdict]):
            label = f"{first_line(point.label)}: {point.verdict}, score {score(point.y)}"
            yield scale.x(point.x), _y(point.y), 4.5, point.verdict, label
        return
    bins: dict[tuple[int, int, str], int] = Counter(
        (round((scale.x(point.x) - _LEFT) / _bin_width()), round(point.y * _UP), point.verdict) for point in points
    )
    largest = max(bins.values())
    for (across, up, verdict), cells in sorted(bins.items(), key=lambda one: -VERDICT_RANK[one[0][2]]):
        radius = 1.8 + 6.0 * math.sqrt(cells / largest)
        yield _LEFT + across * _bin_width(), _y(up / _UP), radius, verdict, f"{count(cells, 'cell')}: {verdict}"


def _bin_width() -> float:
    return (_WIDTH - _LEFT - _RIGHT) / _ACROSS


def _px(pixels: float) -> float:
    return round(pixels, 1)


def _safe(text: str) -> str:
    return html_without_commands(escape_html(visible(text)))
