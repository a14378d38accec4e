"""`keystone init`: a first spec that passes, with an agent small enough to read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from keystone_action.errors import UsageError

_SPEC = """\
version: 1
id: first-spec
description: "A first spec: what the agent is asked, and what must hold when it is done"

task:
  prompt: "Write a friendly greeting to greeting.txt"

agent:
  type: command
  command: 'sh "$KEYSTONE_AGENT_DIR/agent.sh"'   # replace it by your own agent
  dir: agent
  timeout: 5m

invariants:
  greeting_written:
    description: "The greeting is there"
    gate: true                    # a gate: when it fails, the composite is 0
    check: {type: file_content, path: greeting.txt, contains: "Hello"}
  nothing_left_behind:
    description: "No temporary files"
    weight: 0.3
    check: {type: file_absent, path: "**/*.tmp"}

scoring:
  pass_threshold: 0.85
"""

_AGENT = """\
#!/bin/sh
# Stands in for your agent: it gets the task in $KEYSTONE_PROMPT and works in the current directory.
set -eu
echo "Hello from the agent, who was asked: $KEYSTONE_PROMPT" > greeting.txt
"""


def write_first_spec(directory: Path) -> list[Path]:
    """Write keystone.yaml and agent/agent.sh; returns the paths. Raises UsageError when one of them is there, or the
    directory can't be written."""
    return write_new_files(directory, {"keystone.yaml": _SPEC, "agent/agent.sh": _AGENT})


def write_new_files(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files, by their paths below a directory, which may be new; returns their paths. Raises UsageError when one
    of them is there, or the directory can't be written: then nothing is left of them."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file", help="name a directory, which may be new: keystone init first")
    files = {directory / name: text for name, text in texts.items()}
    made: list[Path] = []
    try:
        for path in files:
            if path.exists() or path.is_symlink():
                raise UsageError(f"{path} is already there", help="keystone init DIR writes into another directory")
        for path, text in files.items():
            for folder in reversed([one for one in path.parents if not one.exists()]):
                folder.mkdir()
                made.append(folder)
            made.append(path)
            path.write_text(text, "utf-8")
    except OSError as error:
        _undo(made)
        where = error.filename or directory
        raise UsageError(f"{where} can't be written: {error.strerror}", help="choose another directory") from None
    return list(files)


def _undo(made: list[Path]) -> None:
    for path in reversed(made):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
