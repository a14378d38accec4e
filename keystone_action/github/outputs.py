"""What a step hands on: outputs for later steps, state for its own post step, and errors in the words of a workflow.

A value is written between two lines with a delimiter that nobody can guess, so that no text of an agent can end it
early and add outputs of its own. The runner fails the step when a delimiter is missing or a line has no end.

State is saved before anything is started, since nobody can save anything after a SIGKILL. The runner hands `name=value`
in GITHUB_STATE back as the variable `STATE_name`. An error of the engine names inputs in place of the command line's
options, and paths of the checkout, which has another name on the runner than in our container.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keystone_action import __version__
from keystone_action.errors import KeystoneError, OutputError, UsageError
from keystone_action.scoring.results import RunResult

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def write_outputs(path: Path, outputs: Mapping[str, str]) -> None:
    """Appends the outputs, all in one write. Raises OutputError when the file can't be written, or when a name or
    value can't be expressed."""
    text = "".join(entry(name, value) for name, value in outputs.items())
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            if not _ends_with_newline(file.fileno()):
                text = "\n" + text
            file.seek(0, os.SEEK_END)
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise OutputError(f"the outputs could not be written to {path}: {error.strerror}") from error


def entry(name: str, value: str, *, delimiter: str | None = None) -> str:
    """One output as the runner reads it. Raises OutputError for a bad name or a value with the delimiter in it."""
    delimiter = delimiter or f"ghadelimiter_{uuid.uuid4()}"
    if not _NAME.fullmatch(name):
        raise OutputError(f"{name!r} is not a name of an output; expected letters, digits, - and _")
    if delimiter in value or delimiter in name:
        raise OutputError(f"output {name} holds the delimiter that should end it")
    return f"{name}<<{delimiter}\n{value}\n{delimiter}\n"


def _ends_with_newline(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


_RUN_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class StepState:
    """run_id: marks all that the run makes. left: files and folders that the workspace's owner is to have."""

    run_id: str
    left: tuple[Path, ...] = ()

    def save(self, environ: Mapping[str, str]) -> None:
        """Raises OutputError when the runner's file can't be written; nothing where there is none."""
        if path := environ.get("GITHUB_STATE"):
            left = json.dumps([str(path) for path in self.left])
            write_outputs(Path(path), {"run": self.run_id, "left": left})

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> StepState | None:
        """What the step saved; None when it ended before that, or when this is not a state of ours."""
        run_id = environ.get("STATE_run", "")
        if not _RUN_ID.fullmatch(run_id):
            return None
        try:
            left = json.loads(environ.get("STATE_left", "[]"))
        except (ValueError, RecursionError):
            left = []
        paths = left if isinstance(left, list) else []
        return cls(run_id, tuple(Path(path) for path in paths if isinstance(path, str) and "\0" not in path))


def run_id_of_step(environ: Mapping[str, str]) -> str:
    """An id that tells its workflow run and attempt, and is this step's alone."""
    numbers = (environ.get("GITHUB_RUN_ID", ""), environ.get("GITHUB_RUN_ATTEMPT", ""))
    parts = [number if re.fullmatch("[0-9]{1,20}", number) else "0" for number in numbers]
    return "-".join((*parts, secrets.token_hex(4)))


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


_INPUTS = {"output": "output-dir", "param": "params", "sandbox": "sandbox", "tag": "tags"}
_OPTION = re.compile(rf"(?<![\w-])--({'|'.join(_INPUTS)})(?![\w-])")


def in_workflow(error: KeystoneError, workspace: Path) -> str:
    """Message and help, on lines of their own. Errors that may quote the output of a program keep its options."""
    text = "\n".join(filter(None, (error.message, error.help)))
    if isinstance(error, UsageError | OutputError):
        text = _OPTION.sub(lambda match: f"`{_INPUTS[match[1]]}`", text)
    return text.replace(f"{workspace}/", "")
