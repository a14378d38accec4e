"""The lines of a journal: the run's identity first, then a finished cell each. How they are written, and how they are
read by `--resume` and `keystone merge`, with the same suspicion.

What is known later only (an image that had to be pulled, further specs of a resumed run) comes in lines of the same
kind; all of them are read as one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from keystone_action.errors import UsageError
from keystone_action.files.descent import open_plain
from keystone_action.runner.parts import identity as identities
from keystone_action.runner.parts.identity import Identity
from keystone_action.runner.parts.left_in_journal import JournalText, Line, without_long_texts
from keystone_action.scoring.document import (
    cell_from_document,
    cell_to_document,
    sandbox_from_document,
    sandbox_to_document,
)
from keystone_action.scoring.results import CellResult, SandboxInfo
from keystone_action.scoring.soundness import problem_of
from keystone_action.spec.loading.diagnostics import show

FILE_NAME = "journal.jsonl"
READ_LIMIT = 512 << 20
"""Bytes of a journal that are read."""
LEFT = "name the folder of an earlier run, as it was left"
_START = b'{"identity": '


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A cell's line. sandbox: what isolated its agent."""

    spec_id: str
    sha256: str
    cell: CellResult
    sandbox: SandboxInfo = field(default_factory=SandboxInfo)


@dataclass(frozen=True, slots=True)
class JournalContent:
    """What a journal says. identity: None where it says nothing yet. run_id: of the call that began it. entries: in the
    order written; of a cell that comes twice the later counts (the caller's part). length: bytes of all whole lines.
    cut: whether a last line without its end follows them, as a crash leaves it."""

    identity: Identity | None
    run_id: str
    entries: tuple[JournalEntry, ...]
    length: int
    cut: bool


def identity_line(identity: Identity, run_id: str) -> bytes:
    """The first line."""
    return _line({"identity": identities.to_document(identity), "run_id": run_id})


def entry_line(entry: JournalEntry) -> bytes:
    """A cell's line."""
    head = {"spec": entry.spec_id, "sha256": entry.sha256, "sandbox": sandbox_to_document(entry.sandbox)}
    return _line({**head, **cell_to_document(entry.cell)})


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def holds_results(folder: Path) -> bool:
    """Whether a run left its results in a folder: no agent may see them, and they say nothing of what was tested."""
    try:
        with os.fdopen(open_plain(folder / FILE_NAME, sys.maxsize), "rb") as file:
            return file.read(len(_START)) == _START
    except (OSError, UsageError):
        return False


def read(directory: Path) -> JournalContent:
    """What the journal of a folder says. Raises UsageError when it can't be read or is not a journal of ours."""
    path = directory / FILE_NAME
    try:
        with os.fdopen(open_plain(path, READ_LIMIT, advice=LEFT), "rb") as file:
            return read_lines(path, file, JournalText(path, file.fileno()))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", help="name the folder of an earlier run") from None


def read_lines(path: Path, file: IO[bytes] | Iterable[bytes], text: JournalText | None = None) -> JournalContent:
    """What these lines say. path: for messages. text: all of the journal; long texts are then left there.
    Raises UsageError for what no run of ours writes."""
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
            entry = entry_of(path, number, line)
            if text is not None:
                place = Line(text, length - len(line), len(line))
                entry = replace(entry, cell=without_long_texts(entry.cell, place))
            entries.append(entry)
    return JournalContent(identity, run_id, tuple(entries), length, cut=False)


def _continue_identity(path: Path, number: int, identity: Identity, found: Identity) -> Identity:
    wrong = identities.contradictions(identity, found)
    if wrong:
        said = identities.explain_all(wrong, "resume")
        raise UsageError(f"{path}:{number} contradicts what the journal begins with: {said}")
    return identities.continue_identity(identity, found)


def _identity_of(path: Path, number: int, line: bytes) -> tuple[Identity, str]:
    try:
        document = _mapping(line)
        return identities.from_document(document["identity"]), str(document.get("run_id", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise _not_a_line(path, number, error) from None


def entry_of(path: Path, number: int, line: bytes) -> JournalEntry:
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
    raise ValueError(f"expected a mapping, found {show(document)}")


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
