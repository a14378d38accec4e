"""The command that repeats a run on the reader's own machine, narrowed to what did not pass."""

from __future__ import annotations

import shlex

from keystone_action.scoring.results import CellResult, RunResult, SpecResult

MAX_PATHS = 3
"""Specs that are named one by one; of more, all that the run had are run again."""


MAX_COMMAND = 500


def command_again(run: RunResult) -> str:
    """One line for a shell; empty where no spec was read."""
    if not run.specs:
        return ""
    bad = [spec for spec in run.specs if spec.verdict != "pass"] or list(run.specs)
    # A path that begins with a dash would be an option.
    shown = [f"./{spec.path}" if spec.path.startswith("-") else spec.path for spec in bad]
    paths = dict.fromkeys(shown if len(bad) <= MAX_PATHS else [])
    words = ["keystone", "run", *paths]
    chosen = () if run.plan is None else run.plan.chosen
    tags, params, filters = (_values(chosen, kind) for kind in ("tag", "param", "filter"))
    words += [part for tag in tags for part in ("--tag", tag)]
    words += [part for param in params for part in ("--param", param)]
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
