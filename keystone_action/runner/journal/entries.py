"""The lines of a journal: the run's identity first, then each finished cell.

A cell's line is its document (as in results.json) with the id and sha256 of its spec and what isolated its agent. What
is known only later (an image that had to be pulled, further specs of a resumed run) comes in further lines with an
identity; all of them are read as one. `--resume` and `keystone merge` read lines with the same suspicion.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keystone_action.errors import UsageError
from keystone_action.files.descent import open_plain
from keystone_action.runner.journal.identity import (
    Identity,
    continue_identity,
    explain_differences,
    identity_contradictions,
    identity_from_document,
    identity_to_document,
)
from keystone_action.scoring.document import (
    cell_from_document,
    cell_to_document,
    sandbox_from_document,
    sandbox_to_document,
)
from keystone_action.scoring.results import CellResult, SandboxInfo
from keystone_action.scoring.soundness import problem_of
from keystone_action.spec.loading.diagnostics import show_value

JOURNAL_FILE = "journal.jsonl"
JOURNAL_LIMIT = 512 << 20
"""Bytes of a journal that are read."""
JOURNAL_ADVICE = "name the folder of an earlier run, as it was left"
_START = b'{"identity": '


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A cell's line."""

    spec_id: str
    sha256: str
    """The spec's."""
    cell: CellResult
    sandbox: SandboxInfo = field(default_factory=SandboxInfo)
    """What isolated the cell's agent."""


@dataclass(frozen=True, slots=True)
class JournalContent:
    """What a journal says."""

    identity: Identity | None
    """None where the journal says nothing yet."""
    run_id: str
    """The id of the call that began the journal."""
    entries: tuple[JournalEntry, ...]
    """In the order written. Where a cell comes twice, callers must let the later entry count."""
    length: int
    """Bytes of all whole lines."""
    cut: bool
    """Whether a last line without its end follows them, as a crash leaves it."""


def identity_line(identity: Identity, run_id: str) -> bytes:
    """The first line."""
    return _line({"identity": identity_to_document(identity), "run_id": run_id})


def entry_line(entry: JournalEntry) -> bytes:
    """A cell's line."""
    head = {"spec": entry.spec_id, "sha256": entry.sha256, "sandbox": sandbox_to_document(entry.sandbox)}
    return _line({**head, **cell_to_document(entry.cell)})


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def holds_results(folder: Path) -> bool:
    """Whether a run left its results in a folder. No agent may see them, and they do not belong to what is tested."""
    try:
        with os.fdopen(open_plain(folder / JOURNAL_FILE, sys.maxsize), "rb") as file:
            return file.read(len(_START)) == _START
    except (OSError, UsageError):
        return False


def read_journal(directory: Path) -> JournalContent:
    """What the journal of a folder says. Raises UsageError when it can't be read or is not a journal of ours."""
    path = directory / JOURNAL_FILE
    try:
        with os.fdopen(open_plain(path, JOURNAL_LIMIT, advice=JOURNAL_ADVICE), "rb") as file:
            return read_journal_lines(path, file)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", help="name the folder of an earlier run") from None


def read_journal_lines(path: Path, file: Iterable[bytes]) -> JournalContent:
    """What these lines say. path: for messages. Raises UsageError for what no run of ours writes."""
    identity: Identity | None = None
    run_id, length = "", 0
    entries: list[JournalEntry] = []
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return JournalContent(identity, run_id, tuple(entries), length, cut=True)
        length += len(line)
        if line.startswith(_START):
            found, of_run = _identity_of(path, number, line)
            run_id = run_id or of_run
            identity = found if identity is None else _continue_identity(path, number, identity, found)
        elif identity is None:
            raise UsageError(
                f"{path} does not begin with the run's identity",
                help="another version of Keystone wrote it, or it was changed: run again",
            )
        else:
            entries.append(read_entry(path, number, line))
    return JournalContent(identity, run_id, tuple(entries), length, cut=False)


def _continue_identity(path: Path, number: int, identity: Identity, found: Identity) -> Identity:
    wrong = identity_contradictions(identity, found)
    if wrong:
        said = explain_differences(wrong, "resume")
        raise UsageError(f"{path}:{number} contradicts what the journal begins with: {said}")
    return continue_identity(identity, found)


def _identity_of(path: Path, number: int, line: bytes) -> tuple[Identity, str]:
    try:
        document = _mapping(line)
        return identity_from_document(document["identity"]), str(document.get("run_id", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise _not_a_line(path, number, error) from None


def read_entry(path: Path, number: int, line: bytes) -> JournalEntry:
    """What a cell's line says. Raises UsageError when it is not a line of a journal."""
    try:
        document = _mapping(line)
        spec_id, sha256 = str(document.pop("spec")), str(document.pop("sha256"))
        sandbox = sandbox_from_document(document.pop("sandbox"))
        cell = cell_from_document(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise _not_a_line(path, number, error) from None
    problem = problem_of(spec_id, cell)
    if problem:
        raise UsageError(f"{path}:{number} is damaged: {problem}", help="run again; nothing of it can be believed")
    return JournalEntry(spec_id, sha256, cell, sandbox)


def _mapping(line: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    document = json.loads(line)
    if isinstance(document, dict):
        return document
    raise ValueError(f"expected a mapping, found {show_value(document)}")


def _not_a_line(path: Path, number: int, error: Exception) -> UsageError:
    """Why a line can't be one that a run wrote."""
    if isinstance(error, UnicodeDecodeError):
        why = "it is not UTF-8"
    elif isinstance(error, json.JSONDecodeError):
        why = f"it is not JSON ({error.msg})"
    elif isinstance(error, KeyError):
        why = f"the key {error} is missing"
    elif isinstance(error, RecursionError):
        why = "it is nested too deep"
    elif isinstance(error, TypeError | AttributeError):
        why = "a value in it is of another kind than a run writes there"
    else:
        why = str(error)
    help_text = "another program wrote into it, or it was cut: start a new run"
    return UsageError(f"{path}:{number} is not a line of a journal: {why}", help=help_text)
