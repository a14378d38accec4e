"""The files that two versions of a spec name, side by side: which changed, and by how many lines.

Files of the agent's workspace that steer its program: instructions, hooks, settings. What the workspace holds is the
agent's, and is not compared; what steers it decides how it works, so a change of that is said.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from keystone_action.agents.presets.preset import load_preset, preset_names
from keystone_action.files.git import commands as git
from keystone_action.gate.findings import GateFinding, Level
from keystone_action.spec.globs import Globs, PathMatcher
from keystone_action.spec.loading.author_files import files_below
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.models.agents import PresetAgent
from keystone_action.spec.walking import walk

MAX_SHOWN = 20
MAX_CHARACTERS = 600
_MOST_CUT = 5
"""Of the files that are shown, those that are there for the lines that they lost."""
_LONGEST = 100
"""Characters of a path that are shown."""
_ONLY_USED = 2
"""The rank from which on a file does not decide about the agent."""
_AMONG = 2
"""Where files stand among findings of one level."""
COUNT_LIMIT = 8 << 20
"""Bytes of a file whose lines are counted."""
_POINTER = re.compile(rb"version https://git-lfs[^\n]*\n(?:ext-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize \d+\n")
_WORD = re.compile(r"""[^\s"'`;|&<>(){}$=]+""")
_MOST_WORDS = 200
_LONGEST_PATH = 1_000
_NUMBERS = re.compile(rb"(\d+)\t(\d+)\t")


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files that a spec names, by their paths relative to a root; of directories those below them. ranks: lower for
    files on which more depends."""

    root: Path
    files: dict[str, Path]
    ranks: Mapping[str, int] = field(default_factory=dict)


def named_files(loaded: LoadedSpec, root: Path) -> NamedFiles:
    """All but the spec itself and what is the agent's: `workspace`, `agent.dir`. Files outside of the root (clones that
    a spec names by address and commit) are none of these. What is withheld from the agent decides about it (scripts,
    hidden tests; what a secret is read from or made by), a file that is named more than one of many in a directory."""
    own = {loaded.path.resolve()}
    for text in (loaded.spec.workspace, loaded.spec.agent.dir):
        if text is not None:
            own.add((loaded.directory / text).resolve())
    files: dict[str, Path] = {}
    ranks: dict[str, int] = {}
    recordings = loaded.directory / loaded.recordings
    withheld = {*loaded.withheld, *([recordings] if recordings.is_dir() else []), *_of_secrets(loaded)}
    for path in sorted({*loaded.author_files, *withheld} - own):
        for file in _files(path):
            if file.is_relative_to(root) and file not in own:
                name = file.relative_to(root).as_posix()
                files[name] = file
                rank = 2 * (path not in withheld) + (file != path)
                ranks[name] = min(rank, ranks.get(name, rank))
    return NamedFiles(root, files, ranks)


def _of_secrets(loaded: LoadedSpec) -> Iterator[Path]:
    for secret in loaded.spec.secrets:
        for text in paths_in_source(secret.source or ""):
            path = loaded.directory / text
            with contextlib.suppress(OSError):  # a word that no path can be, or a closed folder
                if path.is_file():
                    yield path.resolve()


def paths_in_source(source: str) -> list[str]:
    """What may be a path in the `source` of a secret: the file that it is read from, each word of its command."""
    kind, _, rest = source.partition(":")
    if kind == "file":
        return [rest] if rest and len(rest) <= _LONGEST_PATH else []
    words = _WORD.findall(rest)[:_MOST_WORDS] if kind == "command" else []
    return [word for word in words if len(word) <= _LONGEST_PATH]


def shown_files(before: LoadedSpec, roots: tuple[Path, Path]) -> tuple[NamedFiles, NamedFiles]:
    """The files of the base commit in folders that `resources.readable` shows, where agent and checks find programs.
    What else is installed there is in no commit."""
    old: dict[str, Path] = {}
    for text in before.spec.resources.readable:
        folder = (before.directory / text).resolve()
        if folder.is_relative_to(roots[0]) and folder.is_dir():
            old |= {file.relative_to(roots[0]).as_posix(): file for file in _files(folder)}
    new = {name: roots[1] / name for name in old if (roots[1] / name).is_file()}
    return NamedFiles(roots[0], old), NamedFiles(roots[1], new)


def changed_recordings(before: LoadedSpec | None, after: LoadedSpec) -> frozenset[str]:
    """Names of the recordings of a spec that differ, came or went. before: None for a spec that the base commit does
    not have, or that can't be read there: then it had none of these."""
    old, new = ({} if one is None else _by_name(one.directory / one.recordings) for one in (before, after))
    return frozenset(name for name in {*old, *new} if not _is_same(old.get(name), new.get(name)))


def _by_name(folder: Path) -> dict[str, Path]:
    return {file.relative_to(folder).as_posix(): file for file in _files(folder)} if folder.is_dir() else {}


def _is_same(old: Path | None, new: Path | None) -> bool:
    try:
        return old is not None and new is not None and same_content(old, new)
    except OSError:
        return False


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    try:
        yield from (path / name for name in files_below(path))
    except ValueError:
        # More than is read, or a special file in it; a check that needs it has refused it already.
        found = (Path(folder) / name for folder, _, names in walk(path) for name in names)
        yield from sorted(one for one in found if one.is_file() and not one.is_symlink())


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs. old, new: where it is, None on a side that does not name it. what: what became of one that
    is named on one side only. cut: the share of its lines that are gone, from 0 to 1."""

    name: str
    old: Path | None
    new: Path | None
    rank: int
    what: str = ""
    cut: float = 0.0

    @property
    def level(self) -> Level:
        """What went, or holds nothing any more, before what changed, and that before what came."""
        if self.new is None or self.is_emptied:
            return Level.TAKEN
        if self.old is None:
            return Level.ASKED if self.rank < _ONLY_USED else Level.SLIGHT
        return Level.LOWERED if self.rank < _ONLY_USED else Level.AROUND

    @property
    def is_emptied(self) -> bool:
        """Whether it had something in it, and has nothing any more."""
        return self.old is not None and self.new is not None and _is_blank(self.new) and not _is_blank(self.old)

    @property
    def text(self) -> str:
        """`hidden/test_x.py (+3 −10)`"""
        counted = self.what or counted_lines(*filter(None, (self.old, self.new)))
        name = self.name if len(self.name) <= _LONGEST else f"…{self.name[1 - _LONGEST :]}"
        return f"{name} ({counted}{', now empty' if self.is_emptied else ''})"


def changed_files(before: NamedFiles, after: NamedFiles) -> list[FileChange]:
    """Each file that differs, the gravest first: what went, what changed, what came; among these what decides about the
    agent; then what lost most of its lines."""
    found: list[FileChange] = []
    for name in {*before.files, *after.files}:
        old, new = before.files.get(name), after.files.get(name)
        rank = before.ranks.get(name, after.ranks.get(name, 0))
        if old is None:
            what = "newly named" if (before.root / name).is_file() else "added"
        elif new is None:
            what = "no longer named" if (after.root / name).is_file() else "deleted"
        elif same_content(old, new):
            continue
        else:
            found.append(FileChange(name, old, new, rank, cut=_lost(old, new)))
            continue
        found.append(FileChange(name, old, new, rank, what))
    return sorted(found, key=lambda one: (one.level, one.rank, -one.cut, one.name))


def file_finding(title: str, changes: Sequence[FileChange]) -> Iterator[GateFinding]:
    """`changed files: hidden/test_x.py (+3 −10), a.sh (deleted)`, with a count of those for which there is no room. A
    crowd of files that decide leaves room for those that were cut most."""
    if not changes:
        return
    first, rest = changes[: MAX_SHOWN - _MOST_CUT], changes[MAX_SHOWN - _MOST_CUT :]
    rest = sorted(rest, key=lambda one: -one.cut)
    texts, room = [], MAX_CHARACTERS
    for one in (*first, *rest[:_MOST_CUT]):
        texts.append(one.text)
        room -= len(texts[-1]) + 2
        if room < 0:
            break
    more = len(changes) - len(texts)
    listed = ", ".join([*texts, f"and {more:,} more"] if more else texts)
    yield GateFinding(min(one.level for one in changes), f"{title}: {listed}", order=_AMONG, longest=2 * MAX_CHARACTERS)


def _lost(old: Path, new: Path) -> float:
    """The share of the lines of a file that it has no more."""
    if max(old.stat().st_size, new.stat().st_size) > COUNT_LIMIT:
        return 0.0
    lines, now = (Counter(path.read_bytes().splitlines()) for path in (old, new))
    return (lines - now).total() / max(lines.total(), 1)


def _is_blank(path: Path) -> bool:
    return path.stat().st_size <= COUNT_LIMIT and not path.read_bytes().strip()


def same_content(old: Path, new: Path) -> bool:
    """Whether a file of a commit, as a checkout of that commit has it, and one of the checkout are the same. A pointer
    of Git LFS is the file that it points to. Line ends count: of a script that begins with `set -e` and has got CRLF
    nothing fails any more."""
    if old.stat().st_size <= COUNT_LIMIT:
        pointer = _POINTER.fullmatch(old.read_bytes())
        if pointer is not None and pointer[1].decode() == _digest(new):
            return True
    return old.stat().st_size == new.stat().st_size and _digest(old) == _digest(new)


def counted_lines(old: Path, new: Path) -> str:
    """`+3 −10`; for files without lines, or too large ones, that they changed."""
    sizes = [path.stat().st_size for path in (old, new)]
    if max(sizes) > COUNT_LIMIT or any(b"\0" in path.read_bytes()[:8_000] for path in (old, new)):
        return f"{sizes[0]:,} → {sizes[1]:,} bytes"
    return count_lines(old.read_bytes(), new.read_bytes())


def count_lines(old: bytes, new: bytes) -> str:
    """`+3 −10` of two contents."""
    with tempfile.TemporaryDirectory(prefix="keystone-lines-") as folder:
        for name, content in (("a", old), ("b", new)):
            (Path(folder) / name).write_bytes(content)
        options = ("--no-index", "--numstat", "--no-ext-diff", "--no-textconv", "--no-renames", "--text")
        try:
            answer = git.run_git("diff", *options, "a", "b", directory=Path(folder), accept=1)
        except git.GitFailed:
            return "changed"
    numbers = _NUMBERS.match(answer)
    return f"+{int(numbers[1])} −{int(numbers[2])}" if numbers else "changed"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_SHOWN = 10
"""Files that are named, and keys of each."""
_WITH_KEYS = (".json", ".jsonc", ".yaml", ".yml")


def steering_findings(before: LoadedSpec, after: LoadedSpec) -> Iterator[GateFinding]:
    """`changes what steers the agent: .claude/settings.json (hooks, env)`; nothing where nothing differs. Raises
    OSError."""
    old, new = _steering_files(before), _steering_files(after)
    changed = [
        f"{name} ({_steering_difference(old.get(name), new.get(name))})"
        for name in sorted({*old, *new})
        if name not in old or name not in new or not same_content(old[name], new[name])
    ]
    if changed:
        more = f" and {len(changed) - _SHOWN:,} more" if len(changed) > _SHOWN else ""
        yield GateFinding(Level.AROUND, f"changes what steers the agent: {', '.join(changed[:_SHOWN])}{more}")


@cache
def _of_any_agent() -> Globs:
    return Globs((one for name in preset_names() for one in load_preset(name).steered_by), dot=True)


def steering_paths(paths: Iterable[str], folder: str) -> Iterator[str]:
    """Those that steer any known agent whose workspace is this folder, all as paths of a repository."""
    matches, prefix = PathMatcher(_of_any_agent()), f"{folder}/" if folder not in ("", ".") else ""
    return (path for path in paths if path.startswith(prefix) and matches(path.removeprefix(prefix)))


def _steering_files(loaded: LoadedSpec) -> dict[str, Path]:
    """By their paths in the workspace."""
    agent, workspace = loaded.spec.agent, loaded.spec.workspace
    if not isinstance(agent, PresetAgent) or workspace is None or "{{" in workspace:
        return {}
    top, found = loaded.directory / workspace, {}
    matches = PathMatcher(Globs(load_preset(agent.type).steered_by, dot=True))
    for folder, folders, files in walk(top):
        if ".git" in folders:
            folders.remove(".git")
        for name in sorted(files):
            path = Path(folder, name)
            relative = os.path.relpath(path, top)
            if matches(relative) and path.is_file():
                found[relative] = path
    return found


def _steering_difference(old: Path | None, new: Path | None) -> str:
    """The keys that differ, else the lines."""
    known = [path for path in (old, new) if path is not None]
    tables = [_keys_of_settings(path) for path in known]
    if all(table is not None for table in tables):
        was, now = (tables[0], tables[-1]) if len(tables) == 2 else ({}, tables[0])
        assert was is not None
        assert now is not None
        names = [name for name in {**was, **now} if was.get(name, ...) != now.get(name, ...)]
        if names:
            return ", ".join([*names[:_SHOWN], *(["…"] if len(names) > _SHOWN else [])])
    if old is None or new is None:
        return "added" if old is None else "deleted"
    return counted_lines(old, new)


def _keys_of_settings(path: Path) -> Mapping[str, Any] | None:
    """What a file of settings holds, by its first keys; None where it is not a mapping, or can't be read as one."""
    import yaml

    if not path.name.endswith(_WITH_KEYS) or path.stat().st_size > COUNT_LIMIT:
        return None
    try:
        found = yaml.load(path.read_text("utf-8"), Loader=yaml.CSafeLoader)  # JSON is YAML
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else None
