"""Failures of a run as annotations at the spec's lines, worst first and few: GitHub keeps ten of a kind for a step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from keystone_action.github.log.commands import Annotation, Level
from keystone_action.report.sentences.view import cell_reason
from keystone_action.scoring.results import CellResult, InvariantResult, RunResult, SpecResult
from keystone_action.spec.loading.diagnostics import SpecError

MAX_OF_LEVEL = 10
"""Annotations of one level that the runner keeps of a step."""
_JUDGES = frozenset({"llm_as_judge", "model_judge"})
_BROKEN, _GATE, _FAILED, _BROKEN_BESIDE, _PARTIAL, _SKIPPED = range(6)


@dataclass(frozen=True, slots=True)
class _Finding:
    """One thing to say of one cell. key: findings of several cells with one key become one annotation."""

    severity: int
    weight: float
    key: tuple[str, str, int]
    level: Level
    title: str
    message: str
    file: str
    line: int | None


def annotations_of(
    run: RunResult, *, directory: Path, workspace: Path, limit: int, issued: Mapping[Level, int] | None = None
) -> list[Annotation]:
    """At most `limit` annotations of a run, worst first: checks and cells in error, gates, failures in failed cells,
    what broke beside these, failures in cells that passed, skipped judges. What several cells share is said once. When
    some don't fit, the last one is a notice that counts them.

    directory: what the specs' paths are relative to. workspace: what paths of annotations are relative to. issued:
    how many of each level this step has made already, since they count against what the runner keeps.
    """
    groups: dict[tuple[str, str, int], list[_Finding]] = {}
    for spec in run.specs:
        file = repository_path(spec.path, directory, workspace)
        for cell in spec.cells:
            for finding in _findings(spec, cell, file):
                groups.setdefault(finding.key, []).append(finding)
    ranked = sorted(groups.values(), key=lambda found: (found[0].severity, -found[0].weight, -len(found)))
    cells = {spec.id: len(spec.cells) for spec in run.specs}
    return _fit([_merge(found, cells[found[0].key[0]]) for found in ranked], limit, issued or {})


def annotations_of_spec_error(
    error: SpecError, *, workspace: Path, limit: int, issued: Mapping[Level, int] | None = None
) -> list[Annotation]:
    """At most `limit` annotations of what is wrong with spec files, each at its line."""
    found = [
        Annotation("error", one.sentence, "Bad spec", repository_path(one.path, workspace, workspace), one.line)
        for one in error.diagnostics
    ]
    return _fit(found, limit, issued or {})


def repository_path(path: str, directory: Path, workspace: Path) -> str:
    """A path of a spec as GitHub names files: from the top of the checkout, with slashes."""
    absolute = Path(os.path.normpath(directory / path))
    return (absolute.relative_to(workspace) if absolute.is_relative_to(workspace) else Path(path)).as_posix()


def _findings(spec: SpecResult, cell: CellResult, file: str) -> Iterator[_Finding]:
    explained = False
    for result in cell.invariants:
        severity = _severity(cell, result)
        if severity is None:
            continue
        explained = explained or severity <= _FAILED
        yield _Finding(
            severity=severity,
            weight=result.weight,
            key=(spec.id, result.name, severity),
            level="warning" if severity in {_PARTIAL, _SKIPPED} else "error",
            title=f"{spec.id}: {_title(severity, result)}",
            message=result.message or result.description or result.status,
            file=file,
            line=spec.positions.get(result.name),
        )
    for rule in cell.forbidden:
        if rule.violated:
            explained = True
            title = f"{spec.id}: forbidden rule {rule.rule} was violated"
            line = spec.positions.get(rule.name)
            yield _Finding(_GATE, 1.0, (spec.id, rule.rule, _GATE), "error", title, rule.details or title, file, line)
    if cell.verdict != "pass" and not explained:
        severity = _BROKEN if cell.verdict == "error" else _FAILED
        reason = cell.error or cell_reason(cell)
        title = f"{spec.id}: {'could not be graded' if cell.verdict == 'error' else 'failed'}"
        yield _Finding(severity, 0.0, (spec.id, reason, severity), "error", title, reason, file, None)


def _severity(cell: CellResult, result: InvariantResult) -> int | None:
    if result.status == "error":
        return _BROKEN if cell.verdict == "error" else _BROKEN_BESIDE
    if result.disqualified:
        return _GATE
    if result.status == "fail":
        return _PARTIAL if cell.verdict == "pass" else _FAILED
    if result.status == "skip" and result.type in _JUDGES:
        return _SKIPPED
    return None


def _title(severity: int, result: InvariantResult) -> str:
    if severity in {_BROKEN, _BROKEN_BESIDE}:
        return f"check {result.name} broke"
    if severity == _GATE:
        return f"gate {result.name} failed"
    if severity == _SKIPPED:
        return f"judge {result.name} was skipped"
    return f"check {result.name} failed"


def _merge(found: list[_Finding], cells: int) -> Annotation:
    first = found[0]
    message = first.message
    if cells > 1:
        message += f"\n(in {len(found)} of {cells} cells)"
    return Annotation(first.level, message, first.title, first.file, first.line)


def _fit(annotations: list[Annotation], limit: int, issued: Mapping[Level, int]) -> list[Annotation]:
    if limit <= 0:
        return []
    kept = _within_levels(annotations, issued)
    if len(kept) == len(annotations) <= limit:
        return kept
    kept = kept[: limit - 1]
    more = len(annotations) - len(kept)
    return [*kept, Annotation("notice", f"{more} more in the summary", "Keystone")]


def _within_levels(annotations: list[Annotation], issued: Mapping[Level, int]) -> list[Annotation]:
    """Those that the runner keeps, one place of each level left for what is still to be said about reporting."""
    seen = Counter(issued)
    kept = []
    for annotation in annotations:
        seen[annotation.level] += 1
        if seen[annotation.level] < MAX_OF_LEVEL:
            kept.append(annotation)
    return kept
