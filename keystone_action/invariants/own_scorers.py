"""Asking scorer classes of an author's in a sandbox, by `scorer_program.py`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import anyio

from keystone_action.files.paths import PathProblem, read_inside
from keystone_action.files.removal import remove_tree
from keystone_action.invariants.command_output import describe_ending, full_log, seconds, tails
from keystone_action.invariants.json_values import parse_strict
from keystone_action.sandbox.programs import sentence_on_missing
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.system.command import Command, Completed

PYTHON = "python3"
ANSWER_LIMIT = 4 << 20
_PROGRAM, _LIBRARY = "scorer_program.py", "keystone-libraries.zip"


class NotAnswered(Exception):  # noqa: N818 - an outcome: the check is in error
    """Why the scorer gave no answer, a sentence without its full stop; `log` is what it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True, slots=True)
class Scorers:
    """Where scorers come from."""

    modules: Sequence[str]
    """Imported in this order."""
    library: bytes
    """Modules that they find after all others, as a zip archive."""
    directory: str | None = None
    """What is put first on the search path, as code in the sandbox names it; None = `files` are laid out for it."""
    files: Mapping[str, bytes] | None = None
    """Bytes by relative path."""


async def ask_scorer(
    sandbox: Sandbox,
    scorers: Scorers,
    order: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    timeout: float,
) -> tuple[dict[str, Any], str]:
    """The answer of the program, and what was printed meanwhile.

    order: what it is asked, see `scorer_program.py`. timeout: seconds. Raises NotAnswered.
    """
    if sandbox.which(PYTHON) is None:
        raise NotAnswered(sentence_on_missing(PYTHON))
    # A name that nothing of the agent's can have taken, made after all of its processes are gone.
    token = secrets.token_hex(8)
    private, answer = f".keystone-check-{token}", f".keystone-answer-{secrets.token_hex(16)}"
    place, inside = sandbox.workspace / private, PurePosixPath(sandbox.workspace_inside) / private
    try:
        await anyio.to_thread.run_sync(_lay_out, place, scorers)
        document = {
            "directory": scorers.directory or str(inside / "modules"),
            "modules": list(scorers.modules),
            "library": str(inside / _LIBRARY),
            "answer": answer,
            **order,
        }
        completed = await sandbox.run(
            Command(
                (PYTHON, str(inside / _PROGRAM)),
                env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8", **environment},
                timeout=timeout,
                stdin=json.dumps(document).encode(),
            )
        )
        return await anyio.to_thread.run_sync(_read_answer, sandbox, answer, completed, timeout), full_log(completed)
    finally:
        await anyio.to_thread.run_sync(remove_tree, place)


def _lay_out(place: Path, scorers: Scorers) -> None:
    content = {_PROGRAM: Path(__file__).with_name(_PROGRAM).read_bytes(), _LIBRARY: scorers.library}
    content |= {f"modules/{name}": data for name, data in (scorers.files or {}).items()}
    place.mkdir()
    folders = {place}
    for name, data in content.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folders |= {one for one in path.parents if one.is_relative_to(place)}
        path.write_bytes(data)
        path.chmod(0o644)
    for folder in folders:
        folder.chmod(0o755)


def _read_answer(sandbox: Sandbox, name: str, completed: Completed, limit: float) -> dict[str, Any]:
    log = full_log(completed)
    if completed.timed_out:
        raise NotAnswered(f"it was stopped at its time limit of {seconds(limit)}.\n{tails(completed)}", log)
    if completed.limit is not None:
        raise NotAnswered(f"it was stopped at a limit: {completed.limit}.\n{tails(completed)}", log)
    try:
        answer = parse_strict(read_inside(sandbox.workspace, name, limit=ANSWER_LIMIT).decode("utf-8"))
    except (PathProblem, ValueError):
        raise NotAnswered(f"it {describe_ending(completed)} without an answer.\n{tails(completed)}", log) from None
    if not isinstance(answer, dict):
        raise NotAnswered("its answer is malformed", log)
    if isinstance(answer.get("broken"), str):
        raise NotAnswered(answer["broken"], log)
    return answer
