"""The outputs of the step, in the file that GITHUB_OUTPUT names.

A value is written between two lines with a delimiter that nobody can guess, so that no text of an agent can end it
early and add outputs of its own. The runner fails the step when a delimiter is missing or a line has no end.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from keystone_action.errors import OutputError

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
        raise OutputError(f"{name!r} is no name of an output; expected letters, digits, - and _")
    if delimiter in value or delimiter in name:
        raise OutputError(f"output {name} holds the delimiter that should end it")
    return f"{name}<<{delimiter}\n{value}\n{delimiter}\n"


def _ends_with_newline(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
