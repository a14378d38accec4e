"""`diff.patch`, the agent's changes as text that `git apply` and people can read, and how many lines each change has.

Added and removed files are written here. For modified ones git compares copies under names of ours: its line matching
stays quick on hostile text, and no `.gitattributes` of the agent has a say in it. Lines that git passes over say what
is not shown, so that the rest can be applied.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.errors import raise_unless_agent
from keystone_action.files.git import commands as git
from keystone_action.files.paths import PathProblem, open_inside, read_inside
from keystone_action.files.snapshot import Change, FileState

PATCH_LIMIT = 8 << 20
"""Bytes of a patch, about; what comes after is counted and said."""
FILE_LIMIT = 1 << 20
"""Bytes of a file that is shown line by line."""
_STAGED_LIMIT = 64 << 20
UNSHOWN = "# "
"""Before the first line of a change that the patch does not show: git would make an empty file of it."""
_GIT_NAMES = {".git", "git~1"}
"""With a path that has one of these git refuses the whole patch."""
_QUOTED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


@dataclass(frozen=True, slots=True)
class Patch:
    """The changes as text."""

    text: str
    cut: tuple[str, ...] = ()
    """For each change whose text is not all there, a sentence without its full stop. Files that are not text are not
    meant."""


def write_patch(
    originals: Path | None, workspace: Path, changes: Sequence[Change], *, limit: int = PATCH_LIMIT
) -> Patch:
    """The patch, with bytes that are not UTF-8 as os.fsdecode gives them; empty without changes.

    originals: the tree as it was (`keep_originals`), None when it was empty. Never raises for what the agent left.
    """
    pieces: list[str] = []
    modified: dict[int, _Pair] = {}
    cut: list[str] = []
    size = staged = 0
    single = [part for change in changes for part in one_kind(change)]
    for index, change in enumerate(single):
        if size > limit or staged > _STAGED_LIMIT:
            break
        pair = _load(change, originals, workspace)
        cut += [pair.note] if pair.note and not pair.is_no_text else []
        if pair.is_two_sided:
            modified[index] = pair
            staged += len(pair.old or b"") + len(pair.new or b"")
        pieces.append("" if pair.is_two_sided else pair.whole())
        size += len(pieces[-1]) if len(pieces[-1]) <= limit else 0  # it will be left out
    for index, piece in _compare(modified):
        pieces[index] = piece
        cut += [modified[index].note] if modified[index].note else []
    shown = list(_bound(pieces, len(single), limit))
    if shown != pieces or len(pieces) < len(single):
        cut.append(f"the changes are more than the {limit:,} bytes that are kept of a patch")
    return Patch("".join(shown), tuple(cut))


def one_kind(change: Change) -> tuple[Change, ...]:
    """As git has it: a file that became a link, or the reverse, is a removal and an addition, and directories are
    nothing."""
    old = None if change.before is None or change.before.kind == "directory" else change.before
    new = None if change.after is None or change.after.kind == "directory" else change.after
    if old is None and new is None:
        return ()
    if old is None or new is None or old.kind == new.kind:
        return (Change(change.path, change.change, old, new),)
    return Change(change.path, "removed", old, None), Change(change.path, "added", None, new)


def _bound(pieces: list[str], total: int, limit: int) -> Iterator[str]:
    size = shown = 0
    for piece in pieces:
        fitting = piece if len(piece) <= limit else _left_out(piece, limit)
        size += len(fitting)
        if size > limit and shown:
            break
        yield fitting
        shown += 1
    if shown < total:
        yield f"[… {total - shown:,} more changed paths are not shown: the patch is limited to {limit:,} bytes …]\n"


def _left_out(piece: str, limit: int) -> str:
    head = piece.partition("\n")[0].removeprefix(UNSHOWN)
    return f"{UNSHOWN}{head}\n[… more than {limit:,} bytes, not shown …]\n"


@dataclass
class _Pair:
    """Both sides of a change."""

    change: Change
    old: bytes | None = None
    """Bytes to show; None where there is no file."""
    new: bytes | None = None
    """As `old`."""
    note: str = ""
    """Why bytes can't be shown."""
    is_no_text: bool = False
    header: list[str] = field(default_factory=list)

    @property
    def is_two_sided(self) -> bool:
        return not self.note and self.old is not None and self.new is not None and self.old != self.new

    def whole(self) -> str:
        """The patch of a path that is there on one side only, or whose bytes are not shown."""
        if self.note:
            return f"{UNSHOWN}{self.header[0]}\n{self.note}\n"
        lines = list(self.header)
        if self.old != self.new:
            lines += self._names()
            lines.append(_one_sided("-" if self.new is None else "+", self.new if self.old is None else self.old))
        return "".join(f"{line.rstrip(chr(10))}\n" for line in lines if line)

    def around(self, hunks: str) -> str:
        """The patch around the hunks that git found."""
        index = f"index {_blob_id(self.old)}..{_blob_id(self.new)}"
        if len(self.header) == 1:  # git takes the kind (file, link) from here where the mode stayed the same
            index += f" {_git_mode(self.change.after)}"
        return "".join(f"{line}\n" for line in [*self.header, index, *self._names()]) + hunks

    def _names(self) -> list[str]:
        if not (self.old or self.new):
            return []
        old = "/dev/null" if self.old is None else _name("a", self.change.path)
        new = "/dev/null" if self.new is None else _name("b", self.change.path)
        return [f"--- {old}", f"+++ {new}"]


def _load(change: Change, originals: Path | None, workspace: Path) -> _Pair:
    pair, shown = _Pair(change, header=_header(change)), _name("", change.path)
    if not _GIT_NAMES.isdisjoint(change.path.lower().split("/")):
        pair.note = f"{shown}: git takes no file of that name"
        return pair
    if change.change == "mode":
        return pair
    try:
        pair.old = _side(originals, change.path, change.before)
        pair.new = _side(workspace, change.path, change.after)
    except _Unshown as unshown:
        what = f"{change.change}, " if change.change in ("added", "removed") else ""
        pair.note, pair.is_no_text = f"{shown}: {what}{unshown}", unshown.is_no_text
    return pair


class _Unshown(Exception):  # noqa: N818 - an outcome
    """Why the bytes of a side are not shown."""

    def __init__(self, why: str, *, is_no_text: bool = False) -> None:
        super().__init__(why)
        self.is_no_text = is_no_text


def _side(root: Path | None, path: str, state: FileState | None) -> bytes | None:
    if state is None:
        return None
    if state.kind == "link":
        return os.fsencode(state.target)
    if state.kind == "other":
        raise _Unshown("a FIFO, socket or device", is_no_text=True)
    if state.size > FILE_LIMIT:
        raise _Unshown(f"{state.size:,} bytes, too large to be shown")
    if root is None:
        raise _Unshown("the original was not kept")
    try:
        data = read_inside(root, path, limit=FILE_LIMIT)
    except PathProblem as problem:
        raise _Unshown(str(problem)) from None
    if b"\0" in data:
        raise _Unshown(f"binary, {len(data):,} bytes", is_no_text=True)
    return data


def git_header_line(change: Change) -> str:
    """The first line of a change in a patch."""
    return f"diff --git {_name('a', change.path)} {_name('b', change.path)}"


def _header(change: Change) -> list[str]:
    old, new = _git_mode(change.before), _git_mode(change.after)
    lines = [git_header_line(change)]
    if not old:
        return [*lines, f"new file mode {new}"]
    if not new:
        return [*lines, f"deleted file mode {old}"]
    return [*lines, f"old mode {old}", f"new mode {new}"] if old != new else lines


def _git_mode(state: FileState | None) -> str:
    if state is None:
        return ""
    if state.kind == "link":
        return "120000"
    return "100755" if state.mode & 0o100 else "100644"


def _blob_id(data: bytes | None) -> str:
    data = data or b""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()[:7]


def _name(side: str, path: str) -> str:
    """A path as git writes it: in quotes, with escapes, when it holds anything special."""
    text = f"{side}/{path}" if side else path
    raw = os.fsencode(text)
    if raw.isascii() and text.isprintable() and not set(text) & set(_QUOTED):
        return text
    quoted = (_QUOTED.get(chr(byte)) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in raw)
    return f'"{"".join(quoted)}"'


def _one_sided(sign: str, data: bytes | None) -> str:
    if not data:
        return ""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    unfinished = bool(lines[-1])
    if not unfinished:
        lines.pop()
    count = "1" if len(lines) == 1 else f"1,{len(lines)}"
    ranges = f"-{count} +0,0" if sign == "-" else f"-0,0 +{count}"
    body = "\n".join(f"{sign}{line}" for line in lines)
    return f"@@ {ranges} @@\n{body}\n" + ("\\ No newline at end of file\n" if unfinished else "")


def _compare(pairs: Mapping[int, _Pair]) -> Iterator[tuple[int, str]]:
    """The patch of each pair, by its number."""
    if not pairs:
        return
    try:
        hunks = _hunks(pairs)
    except (git.GitFailed, OSError) as error:
        for index, pair in pairs.items():
            pair.note = f"{_name('', pair.change.path)}: changed, but can't be shown line by line: {error}"
            yield index, pair.whole()
        return
    for index, pair in pairs.items():
        yield index, pair.around(hunks.get(index, ""))


def _hunks(pairs: Mapping[int, _Pair]) -> dict[int, str]:
    with tempfile.TemporaryDirectory(prefix="keystone-patch-") as folder:
        root = Path(folder)
        for side in ("a", "b"):
            (root / side).mkdir()
        for index, pair in pairs.items():
            (root / "a" / str(index)).write_bytes(pair.old or b"")
            (root / "b" / str(index)).write_bytes(pair.new or b"")
        return _split(git.compare(root).decode("utf-8", "surrogateescape"))


def _split(output: str) -> dict[int, str]:
    """Hunks by the number that a pair was staged under. Only headers start in `d`: lines of a hunk have a sign."""
    found: dict[int, list[str]] = {}
    current: list[str] = []
    in_hunk = False
    for line in output.split("\n"):
        if line.startswith("diff --git "):
            current = found.setdefault(int(line.rpartition("/")[2]), [])
            in_hunk = False
        in_hunk = in_hunk or line.startswith("@@ ")
        if in_hunk:
            current.append(line)
    return {index: "\n".join(lines).rstrip("\n") + "\n" for index, lines in found.items()}


COUNT_LIMIT = 256 << 20
"""Bytes of one file whose lines are counted."""
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class LineCount:
    """Lines of one path that a change added and removed."""

    path: str
    added: int | None
    """None where they can't be counted."""
    removed: int | None
    """As `added`."""
    in_patch: bool
    """Whether these are the lines of the patch. Otherwise every line of both sides counts (of a binary file, or one
    that is too large to be shown)."""


def line_counts(patch: str, changes: Sequence[Change], originals: Path | None, workspace: Path) -> Iterator[LineCount]:
    """The counts of every change that changed content, in order. originals: see `keep_originals`.

    What the agent wrote can't make a change count for less: a section begins only at the header of the change that is
    due, a hunk ends where its own header says, and a change without a whole hunk is counted from the files.
    """
    single = [part for change in changes if change.change != "mode" for part in one_kind(change)]
    shown = _count_shown_lines(patch, single)
    for index, change in enumerate(single):
        if index in shown:
            added, removed = shown[index]
            yield LineCount(change.path, added, removed, in_patch=True)
        else:
            yield LineCount(
                change.path,
                _lines(workspace, change.path, change.after),
                _lines(originals, change.path, change.before),
                in_patch=False,
            )


def _count_shown_lines(patch: str, single: Sequence[Change]) -> dict[int, tuple[int, int]]:
    """Added and removed lines of each change whose hunks are all there, by its number."""
    headers = [git_header_line(change) for change in single]
    counts: dict[int, tuple[int, int]] = {}
    cut: set[int] = set()
    current = -1
    lines = iter(patch.split("\n"))
    for line in lines:
        due = current + 1
        if due < len(headers) and line.removeprefix(UNSHOWN) == headers[due]:
            current = due
        elif current >= 0 and (hunk := _HUNK.match(line)):
            old, new = (1 if text is None else int(text) for text in hunk.groups())
            if old + new == 0:  # no hunk: a note on a file that is named like one
                continue
            added, removed, whole = _hunk(lines, old, new)
            before = counts.get(current, (0, 0))
            counts[current] = before[0] + added, before[1] + removed
            if not whole:
                cut.add(current)
    return {index: count for index, count in counts.items() if index not in cut}


def _hunk(lines: Iterator[str], old: int, new: int) -> tuple[int, int, bool]:
    """Added and removed lines of a hunk of so many lines on either side, and whether all of it was there."""
    added = removed = 0
    while old > 0 or new > 0:
        sign = next(lines, "?")[:1]
        if sign == "+":
            added, new = added + 1, new - 1
        elif sign == "-":
            removed, old = removed + 1, old - 1
        elif sign == " ":
            old, new = old - 1, new - 1
        elif sign != "\\":
            return added, removed, False
    return added, removed, True


def _lines(root: Path | None, path: str, state: FileState | None) -> int | None:
    """The lines of a file, its last one counted without a line break, too; None when it can't be read."""
    if state is None or state.kind == "other" or (state.kind == "file" and state.size == 0):
        return 0
    if state.kind == "link":
        return 1
    if root is None or state.size > COUNT_LIMIT:
        return None
    try:
        fd = open_inside(root, path)
    except PathProblem:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        count, last, left = 0, b"\n", COUNT_LIMIT
        while chunk := os.read(fd, _CHUNK):
            count, last, left = count + chunk.count(b"\n"), chunk[-1:], left - len(chunk)
            if left < 0:
                return None
    except OSError as error:
        raise_unless_agent(error, "counting changed lines")
        return None
    finally:
        os.close(fd)
    return count + (last != b"\n")
