"""A run as the outputs of the step: flat texts, empty where there is nothing to say."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from keystone_action import __version__
from keystone_action.scoring.results import RunResult

_FILES = {
    "results-path": "results.json",
    "summary-path": "summary.md",
    "html-path": "report.html",
    "junit-path": "junit.xml",
}
_NAMES = (
    "verdict",
    "composite",
    "passed",
    "failed",
    "errors",
    "total",
    "cost-usd",
    "duration-seconds",
    *_FILES,
    "matrix",
    "comment-id",
    "comment-written",
)


def output_values(run: RunResult, *, directory: Path | None, workspace: Path) -> dict[str, str]:
    """Every output of the action. Counts are of cells; paths are relative to the workspace, which has another name
    on the host, and empty for files that were not written."""
    counts = run.counts
    agents, judges = run.usage.get("spent_usd", 0.0), run.judge_usage.get("cost_usd", 0.0)
    return {
        "verdict": run.verdict,
        "composite": "" if run.composite is None else _number(run.composite),
        "passed": str(counts.get("passed", 0)),
        "failed": str(counts.get("failed", 0)),
        "errors": str(counts.get("errors", 0)),
        "total": str(counts.get("cells", 0)),
        "cost-usd": "" if agents is None or judges is None else _number(agents + judges),
        "duration-seconds": _number(round(run.duration_s, 3)),
        **{name: _path(directory, file, workspace) for name, file in _FILES.items()},
        "matrix": "",
        "comment-id": "",
        "comment-written": "",
    }


def commented_values(posted: Mapping[str, str]) -> dict[str, str]:
    """Every output of a step that posted what another run found. posted: what tells of the comment.

    The other run's verdict and counts are the word of the change's author: in a job that may write, no later step
    is to be led by them.
    """
    return {**dict.fromkeys(_NAMES, ""), **posted}


def planned_values(matrix: str, cells: int) -> dict[str, str]:
    """Every output of a step that planned and ran nothing. matrix: for `fromJSON`. cells: over all its jobs."""
    return {**dict.fromkeys(_NAMES, ""), "total": str(cells), "matrix": matrix}


def _number(value: float) -> str:
    """Without an exponent, and without digits that are only noise of the arithmetic."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _path(directory: Path | None, file: str, workspace: Path) -> str:
    if directory is None or not (directory / file).is_file():
        return ""
    path = directory / file
    return (path.relative_to(workspace) if path.is_relative_to(workspace) else path).as_posix()


def failed_run(message: str, environ: Mapping[str, str], duration_s: float, *, cancelled: bool) -> RunResult:
    """The result of a step that never came to a run: its message, and when it began."""
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=duration_s)
    return RunResult(
        run_id="",
        keystone_version=__version__,
        git_sha=environ.get("GITHUB_SHA") or None,
        verdict="error",
        composite=None,
        started_at=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        duration_s=duration_s,
        specs=(),
        cancelled=cancelled,
        error=message,
    )
