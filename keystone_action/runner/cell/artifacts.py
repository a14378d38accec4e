"""What a cell leaves in the results directory, masked: `cells/<id>/{agent.stdout, agent.stderr, audit.jsonl, …}`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.files.kept_output import write_all
from keystone_action.files.removal import remove_tree
from keystone_action.runner.parts.journal import output_error

if TYPE_CHECKING:
    from keystone_action.evidence.masking import Masker
    from keystone_action.evidence.model import AgentRun, Evidence
    from keystone_action.runner.cell.under_way import GradedCheck

OUTPUT_LIMIT = 64 * 1024
"""Characters of an agent's output that results.json holds; the whole is in agent.stdout."""
STDERR_LIMIT = 16 * 1024
"""Characters of its stderr that results.json holds; the whole is in agent.stderr."""


class CellFiles:
    """The folder of one cell. Every method raises OutputError when the disk won't take it."""

    def __init__(self, directory: Path, masker: Masker) -> None:
        self.directory = directory
        self._mask = masker

    def start(self) -> None:
        """Make the folder; what an earlier attempt at this cell left is removed."""
        try:
            remove_tree(self.directory)
            self.directory.mkdir(parents=True)
        except OSError as error:
            raise output_error(self.directory, error) from error

    def agent(self, run: AgentRun) -> None:
        """What the agent printed, as far as it was kept."""
        self._write("agent.stdout", run.stdout)
        self._write("agent.stderr", run.stderr)

    def write_graded(self, evidence: Evidence, graded: Sequence[GradedCheck]) -> None:
        """All that a graded cell leaves: what its agent printed, audit log, trace and diff, and the log of each check
        that has one."""
        self.agent(evidence.agent)
        self._write("audit.jsonl", _text(evidence.audit_log))
        self._write("trace.jsonl", _text(evidence.trace))
        self._write("diff.patch", evidence.patch, errors="surrogateescape")
        for entry in graded:
            if entry.log:
                self._write(f"checks/{entry.result.name}.log", entry.log)

    def failure(self, text: str) -> None:
        """The traceback of an internal error."""
        self._write("internal-error.log", text)

    def _write(self, name: str, text: str, *, errors: str = "replace") -> None:
        # Mostly empty, and several in each cell: a file object would take longer than what is written.
        path = f"{self.directory}/{name}"
        data = self._mask.text(text).encode("utf-8", errors) if text else b""
        try:
            if "/" in name:
                Path(path).parent.mkdir(exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write_all(file, data)
            finally:
                os.close(file)
        except OSError as error:
            raise output_error(Path(path), error) from error


def _text(log: Path) -> str:
    return log.read_text("utf-8", "replace") if os.stat(log).st_size else ""  # noqa: PTH116


def bound(text: str, limit: int = OUTPUT_LIMIT) -> str:
    """The start and the end of a text that is too long, with the cut said."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters cut …]\n{text[-half:]}"
