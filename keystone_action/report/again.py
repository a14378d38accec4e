"""The command that repeats a run on the reader's own machine, narrowed to what did not pass.

It names no cell that passed where the options can tell them apart: a filter for one cell or one scenario, and the value
of a parameter that all cells have which did not pass.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from keystone_action.scoring.results import ENDS_ALIKE, CellResult, RunResult, SpecResult

MAX_PATHS = 3
"""Specs that are named one by one; of more, all that the run had are run again."""


MAX_COMMAND = 500


def command_again(run: RunResult) -> str:
    """One line for a shell; empty where no spec was read."""
    if not run.specs:
        return ""
    bad = [spec for spec in run.specs if spec.verdict != "pass"] or list(run.specs)
    lost = [cell for spec in bad for cell in spec.cells if cell.verdict != "pass"]
    if lost and all((cell.error or "").endswith(ENDS_ALIKE) for cell in lost):
        return ""
    # A path that begins with a dash would be an option.
    shown = [f"./{spec.path}" if spec.path.startswith("-") else spec.path for spec in bad]
    paths = dict.fromkeys(shown if len(bad) <= MAX_PATHS else [])
    words = ["keystone", "run", *paths]
    chosen = () if run.plan is None else run.plan.chosen
    tags, params, filters = (_values(chosen, kind) for kind in ("tag", "param", "filter"))
    words += [part for tag in tags for part in ("--tag", tag)]
    words += [part for param in (*params, *_narrowing(bad)) for part in ("--param", param)]
    thresholds = {spec.pass_threshold for spec in bad if spec.threshold_source == "input"}
    words += ["--threshold", f"{thresholds.pop():g}"] if len(thresholds) == 1 else []
    replayed = any(cell.trace.replayed is not None for spec in bad for cell in spec.cells)
    words += ["--gateway", "replay"] if replayed else []
    narrowed = _filter(bad) or (filters[0] if filters else "")
    words += ["--filter", narrowed] if narrowed else []
    command = shlex.join(words)
    # What nobody would type is nothing to be copied: it may look like something else, or be a name of hostile results.
    return command if command.isprintable() and len(command) <= MAX_COMMAND else ""


def _values(chosen: tuple[str, ...], kind: str) -> list[str]:
    """As `Selection.chosen` writes them."""
    return [text.removeprefix(f"{kind} ") for text in chosen if text.startswith(f"{kind} ")]


def _narrowing(specs: list[SpecResult]) -> list[str]:
    """Values of the matrix that all cells have which did not pass, and some others do not."""
    cells = [cell for spec in specs for cell in spec.cells]
    bad = [cell for cell in cells if cell.verdict != "pass"]
    if len(bad) < 2 or len(bad) == len(cells):
        return []
    names = set.intersection(*(set(cell.params) for cell in cells))
    values = {name: {_text(cell.params[name]) for cell in bad} for name in sorted(names) if _is_of_matrix(name, specs)}
    return [f"{name}={found.pop()}" for name, found in values.items() if len(found) == 1]


def _is_of_matrix(name: str, specs: list[SpecResult]) -> bool:
    """Whether a parameter has several values in one scenario of each spec: one that a scenario sets itself has one, and
    an option would give that to all of them."""
    return all(
        any(
            len({_text(cell.params[name]) for cell in spec.cells if cell.scenario == scenario}) > 1
            for scenario in {cell.scenario for cell in spec.cells}
        )
        for spec in specs
    )


def _text(value: Any) -> str:
    """As `--param` has it (plan.py)."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _filter(specs: list[SpecResult]) -> str:
    """The one cell, or the scenario of all cells, that did not pass; empty where that leaves nothing out."""
    cells = [cell for spec in specs for cell in spec.cells]
    bad: list[CellResult] = [cell for cell in cells if cell.verdict != "pass"]
    if not bad or len(bad) == len(cells):
        return ""
    if len(bad) == 1:
        return _literal(bad[0].id)
    scenarios = {cell.scenario for cell in bad}
    others = {cell.scenario for cell in cells} - scenarios
    return _literal(scenarios.pop()) if len(scenarios) == 1 and others else ""


def _literal(name: str) -> str:
    """As a glob that means nothing but the name."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
