"""What a snapshot says of one path, and what a difference between two snapshots is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class FileState:
    """One entry of a workspace. kind `other` is a device, socket or FIFO. digest is sha256 of a file's bytes.

    attributes: names and digests of its extended attributes, access lists included. staged: `meaning_of_index` of an
    index of git. Both only where the snapshot was asked for them; `compare_entries` takes no notice of them.
    """

    kind: Literal["file", "directory", "link", "other"]
    mode: int
    size: int = 0
    digest: str = ""
    target: str = ""
    attributes: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    staged: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between the snapshot and the workspace as left; POSIX path relative to the workspace, `.`
    for itself."""

    path: str
    change: Literal["added", "modified", "removed", "mode"]
    before: FileState | None = None
    after: FileState | None = None


def compare_entries(before: Mapping[str, FileState], after: Mapping[str, FileState]) -> tuple[Change, ...]:
    """Every path that differs, sorted.

    `modified` is other content, another link target or another kind; `mode` is the same content with other
    permissions. As in git a directory is no entry of its own: made or removed it shows in what it holds, and only its
    permissions are reported. A file that became a directory is `removed`, the reverse `added`.
    """
    found = []
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        what = _change(old, new)
        if what is not None:
            found.append(Change(path, what, old, new))
    return tuple(sorted(found, key=lambda change: change.path))


def _change(old: FileState | None, new: FileState | None) -> Literal["added", "modified", "removed", "mode"] | None:
    if old == new:
        return None
    old_entry = old is not None and old.kind != "directory"
    new_entry = new is not None and new.kind != "directory"
    if old is None or new is None or old_entry != new_entry:
        if old_entry:
            return "removed"
        return "added" if new_entry else None
    if (old.kind, old.size, old.digest, old.target) != (new.kind, new.size, new.digest, new.target):
        return "modified"
    # A link's own permissions mean nothing.
    return None if old.kind == "link" else "mode"


def compare_whole(before: Mapping[str, FileState], after: Mapping[str, FileState]) -> tuple[Change, ...]:
    """As `compare_entries`, and what it passes over: directories that were made or removed with nothing in them, which
    no other path shows, and extended attributes, which are a change of `mode`."""
    found = compare_entries(before, after)
    told = {change.path for change in found}
    both = ((path, before[path], after[path]) for path in before.keys() & after.keys() - told)
    marked = [Change(path, "mode", old, new) for path, old, new in both if old.attributes != new.attributes]
    made = [Change(path, "added", None, after[path]) for path in _empty(after) if path not in before]
    gone = [Change(path, "removed", before[path], None) for path in _empty(before) if path not in after]
    return tuple(sorted([*found, *marked, *made, *gone], key=lambda change: change.path))


def _empty(entries: Mapping[str, FileState]) -> list[str]:
    filled = {path.rpartition("/")[0] for path in entries}
    return [path for path, state in entries.items() if state.kind == "directory" and path not in filled]
