"""What a snapshot says of one path, and what a difference between two snapshots is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class FileState:
    """One entry of a workspace. kind `other` is a device, socket or FIFO. digest is sha256 of a file's bytes."""

    kind: Literal["file", "directory", "link", "other"]
    mode: int
    size: int = 0
    digest: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between the snapshot and the workspace as left; POSIX path relative to the workspace."""

    path: str
    change: Literal["added", "modified", "removed", "mode"]
    before: FileState | None = None
    after: FileState | None = None
