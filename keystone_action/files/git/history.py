"""A `.git` that was copied into a workspace, or that an agent left there, made safe for those who find it.

A checkout's history may hold what the agent must not see (spec 5.2, "Withheld"), its configuration the job's token
(actions/checkout keeps one in `http.<url>.extraheader`), its hooks and includes places of ours. So hooks go, the
configuration is written anew from a short list of harmless keys, and where a withheld path is in the history or index,
or the history lies outside of what was copied, one commit of the tree as given takes its place.

An agent's repository may name programs (`core.fsmonitor`, filters, hooks, `diff.external`), which `git status` would
run as our own user, outside of every sandbox. So what git would read there is rewritten, wherever it could find it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keystone_action.files.descent import walk_down
from keystone_action.files.git import commands as git
from keystone_action.files.paths import display_path
from keystone_action.files.removal import remove_tree
from keystone_action.spec.walking import walk

_KEPT = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|symlinks|precomposeunicode|worktree)"
    r"|extensions\.(objectformat|refstorage|partialclone)"
    r"|remote\..+\.(url|fetch|promisor|partialclonefilter|tagopt)"
    r"|branch\..+\.(remote|merge|rebase)|submodule\..+\.(url|active)|user\.(name|email)",
    re.DOTALL,
)
_HISTORY = re.compile(
    r"HEAD|ORIG_HEAD|MERGE_[A-Z]+|CHERRY_PICK_HEAD|REVERT_HEAD|config|packed-refs|refs|reftable|objects|modules|lfs"
    r"|index|sharedindex\..+|shallow|info|description"
)
"""What a git directory needs for its history and its work tree."""
_IDENTITY = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in {"NAME": "Keystone", "EMAIL": "keystone@localhost", "DATE": "2000-01-01T00:00:00Z"}.items()
}
_FILES_HASHED = 10_000


@dataclass(frozen=True, slots=True)
class Withheld:
    """What a copy left out: `relative` paths below the source, and the `absolute` files and directories."""

    relative: tuple[str, ...]
    absolute: tuple[Path, ...]


def settle(
    source: Path, destination: Path, marks: Sequence[str], withheld: Withheld, *, replaced: str = ""
) -> list[str]:
    """Make each copied `.git` safe to hand out. marks: relative paths of entries named `.git`. replaced: why all
    history is replaced by one commit on a branch `main`, whatever it holds; empty when it need not be.

    Returns a sentence for each whose history was replaced or left out. Raises git.GitFailed when a replacement
    could not be made.
    """
    sentences = []
    within: list[_Repository] = []
    # The innermost first: an outer repository is then rebuilt over inner ones that are final.
    for mark in sorted(marks, key=lambda path: (-path.count("/"), path)):
        entry = destination / mark
        if entry.is_symlink() or mark.count("/.git/"):
            continue
        repository = _Repository(source, destination, mark)
        if not git.has_git():
            repository.remove()
            sentences.append(f"{repository.shown} was left out: git is not installed, so it could not be made safe")
            continue
        reason = repository.unsafe(withheld, marks) or replaced
        if reason:
            for inner in within:
                inner.stand_alone(repository)
            repository.replace("main" if replaced else None)
            sentences.append(f"the history of {repository.shown} was replaced by one commit: {reason}")
        else:
            within.append(repository)
    return sentences


class _Repository:
    def __init__(self, source: Path, destination: Path, mark: str) -> None:
        self.source = source
        self.destination = destination
        self.mark = mark
        self.top = os.path.dirname(mark)  # noqa: PTH120 - a relative text
        self.worktree = destination / self.top
        self.entry = destination / mark
        self.shown = display_path(mark)
        self.directory = self._find()

    def _find(self) -> Path | None:
        """The copied git directory, or None when it lies outside of what was copied."""
        if self.entry.is_dir():
            return self.entry if (self.entry / "HEAD").is_file() else None
        with self.entry.open("rb") as file:
            pointer = os.fsdecode(file.read(8192)).strip()
        if not pointer.startswith("gitdir:"):
            return None
        target = os.path.normpath(os.path.join(self.source, self.top, pointer[len("gitdir:") :].strip()))  # noqa: PTH118
        try:
            inside = Path(target).relative_to(self.source)
        except ValueError:
            return None
        found = self.destination / inside
        # A linked worktree keeps its refs and objects elsewhere; only a submodule's directory is whole.
        if not (found / "HEAD").is_file() or (found / "commondir").exists():
            return None
        self.entry.write_bytes(b"gitdir: " + os.fsencode(os.path.relpath(found, self.worktree)) + b"\n")
        return found

    def unsafe(self, withheld: Withheld, marks: Sequence[str]) -> str:
        """Clean what can be kept, and say why the history can't be; empty when it can."""
        if self.directory is None:
            return "it lies outside of what was copied"
        for directory in _with_modules(self.directory):
            if (directory / "objects/info/alternates").exists():
                return "its objects lie in another repository"
            try:
                _strip(directory)
                clean_configuration(directory)
            except (git.GitFailed, OSError, ValueError):
                return "its configuration could not be read"
        if not withheld.absolute:
            return ""
        try:
            return self._holds(withheld, marks)
        except git.GitFailed:
            return "it could not be searched for withheld files"

    def _holds(self, withheld: Withheld, marks: Sequence[str]) -> str:
        paths = list(self._own_paths(withheld.relative, marks))
        if paths:
            arguments = ("--", *paths)
            if self._git("ls-files", "-z", *arguments) or self._git(
                "log", "--all", "--reflog", "--full-history", "--format=%H", "-1", *arguments
            ):
                return "it holds withheld files"
        ids = sorted(set(self._blob_ids(withheld.absolute)))
        known = self._git("cat-file", "--batch-check", stdin="\n".join([*ids, ""]).encode()) if ids else b""
        if any(not line.endswith(b" missing") for line in known.splitlines()):
            return "it holds the content of withheld files"
        return ""

    def _own_paths(self, relative: Sequence[str], marks: Sequence[str]) -> Iterator[str]:
        """Withheld paths of this work tree, without those of a repository further in (git refuses to look there)."""
        prefix = f"{self.top}/" if self.top else ""
        inner = [f"{os.path.dirname(mark)}/" for mark in marks if mark.startswith(prefix) and mark != self.mark]  # noqa: PTH120
        for path in relative:
            if path.startswith(prefix) and not any(path.startswith(one) for one in inner if one != prefix):
                yield path[len(prefix) :]

    def _blob_ids(self, absolute: Sequence[Path]) -> Iterator[str]:
        wide = b"sha256" in self._git("rev-parse", "--show-object-format")
        for path in _files_of(absolute):
            try:
                data = path.read_bytes()
            except OSError:
                continue
            if data:  # the empty file is in every repository
                header = f"blob {len(data)}\0".encode()
                algorithm = "sha256" if wide else "sha1"
                yield hashlib.new(algorithm, header + data, usedforsecurity=False).hexdigest()

    def replace(self, branch: str | None = None) -> None:
        """One commit of what is tracked (of everything, where that can't be told) instead of the history. branch: that
        it is on; None = the one that was checked out."""
        branch, tracked = branch or self._branch(), self._tracked_files()
        self.remove()
        git.run_git("init", "-q", "--template=", f"--initial-branch={branch}", directory=self.worktree)
        if tracked is None:
            git.run_git("add", "-A", directory=self.worktree)
        elif tracked:
            from_stdin = ("--pathspec-from-file=-", "--pathspec-file-nul")
            git.run_git("add", "-f", "--ignore-errors", *from_stdin, directory=self.worktree, stdin=b"\0".join(tracked))
        commit = ("commit", "-q", "--no-verify", "--allow-empty", "-m", "The workspace as it was given")
        git.run_git(*commit, directory=self.worktree, extra=_IDENTITY)

    def stand_alone(self, outer: _Repository) -> None:
        """Move the directory of a submodule out of that of the repository around it, which is about to go. Raises
        GitFailed."""
        directory = self.directory
        if directory is None or outer.directory is None or not directory.is_relative_to(outer.directory):
            return
        configured = ("config", "--file", str(directory / "config"), "--unset-all", "core.worktree")
        git.run_git(*configured, directory=directory, accept=5)  # 5: it is not there
        try:
            self.entry.unlink()
            directory.rename(self.entry)
        except OSError as error:
            raise git.GitFailed(f"{self.shown} can't be moved: {error.strerror}") from error
        self.directory = self.entry

    def remove(self) -> None:
        """Remove the repository, wherever its directory is."""
        for path in {self.entry, self.directory} - {None}:
            if path is not None and path.is_dir():
                remove_tree(path)
            elif path is not None:
                path.unlink(missing_ok=True)

    def _branch(self) -> str:
        try:
            return self._git("symbolic-ref", "--short", "HEAD").decode().strip() or "main"
        except (git.GitFailed, UnicodeDecodeError):
            return "main"

    def _tracked_files(self) -> list[bytes] | None:
        try:
            lines = self._git("ls-files", "-z", "--stage").split(b"\0")
        except git.GitFailed:
            return None
        entries = [line.split(b"\t", 1) for line in lines if line]
        root = os.fsencode(self.worktree)
        submodules = {name for facts, name in entries if facts.startswith(b"160000")}
        names = {name for _, name in entries}
        names -= {name for name in submodules if not os.path.lexists(os.path.join(root, name, b".git"))}  # noqa: PTH118 - bytes
        return sorted(name for name in names if os.path.lexists(os.path.join(root, name)))  # noqa: PTH118 - bytes

    def _git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        if self.directory is None:
            raise git.GitFailed("no repository")
        where = (f"--git-dir={self.directory}", f"--work-tree={self.worktree}", "-c", "protocol.allow=never")
        return git.run_git(*where, *arguments, directory=self.worktree, stdin=stdin)


def _with_modules(directory: Path) -> Iterator[Path]:
    yield directory
    for folder, names, files in walk(directory / "modules"):
        if "HEAD" in files and "config" in files:
            yield Path(folder)
            names[:] = [name for name in names if name == "modules"]


def _strip(directory: Path) -> None:
    """Leave a git directory its history and index: what else programs keep there (logs of what was fetched from where,
    remotes of old, stores of credentials) may hold a token. Raises OSError."""
    for entry in list(directory.iterdir()):
        if _HISTORY.fullmatch(entry.name):
            continue
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink()


def clean_configuration(directory: Path, within: Path | None = None) -> None:
    """Take hooks, other work trees and all configuration that could hold a credential, or run a program, out of a git
    directory. within: a work tree that is configured to lie outside of this is taken out too.

    Raises GitFailed, OSError, ValueError when its configuration can't be read.
    """
    for name in ("hooks", "worktrees"):
        remove_tree(directory / name)
    for name in ("config.worktree", "FETCH_HEAD"):
        (directory / name).unlink(missing_ok=True)
    config = directory / "config"
    if config.is_symlink() or not config.is_file():
        raise ValueError("no configuration")
    listed = git.run_git("config", "--file", str(config), "--no-includes", "-z", "--list", directory=directory)
    config.write_bytes(_harmless(listed, lambda value: _is_own(directory, value, within)))


def _is_own(directory: Path, worktree: str, within: Path | None) -> bool:
    if worktree.startswith("/"):
        return False
    return within is None or Path(os.path.realpath(directory / worktree)).is_relative_to(os.path.realpath(within))


def _harmless(listed: bytes, is_own: Callable[[str], bool]) -> bytes:
    """A configuration file of the kept keys. listed: `key\\nvalue` pairs as `git config -z --list` prints them.
    is_own: whether a work tree may stay."""
    lines = []
    for pair in os.fsdecode(listed).split("\0"):
        key, _, value = pair.partition("\n")
        if not _KEPT.fullmatch(key) or (key == "core.worktree" and not is_own(value)):
            continue
        section, _, rest = key.partition(".")
        subsection, _, name = rest.rpartition(".")
        quoted = subsection.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'[{section} "{quoted}"]' if subsection else f"[{section}]")
        value = git.without_credentials(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'\t{name} = "{value}"')
    return os.fsencode("\n".join([*lines, ""]))


def _files_of(paths: Sequence[Path]) -> Iterator[Path]:
    count = 0
    for path in paths:
        if path.is_file():
            yield path
            continue
        for folder, _, files in walk(path):
            for name in files:
                count += 1
                if count > _FILES_HASHED:
                    raise git.GitFailed("too many withheld files to search for")
                yield Path(folder, name)


_NAMES = frozenset({".git", "HEAD", "commondir", "objects", "refs"})
_POINTER_BYTES = 8192


class GitDirectories:
    """Collects, during a copy, what git could take for a repository."""

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {}

    def see(self, path: str) -> None:
        """Call it with every path of the copy."""
        directory, _, name = path.rpartition("/")
        if name in _NAMES:
            self._found.setdefault(directory, set()).add(name)

    def disarm(self, copy: Path) -> None:
        """Leave of each nothing that could run a program, or lead out of the copy."""
        for directory, names in self._found.items():
            place = copy / directory
            for name, prefix in ((".git", b"gitdir:"), ("commondir", b"")):
                if name in names and _leads_out(place / name, prefix, copy):
                    _remove(place / name)
            if _git_reads(names):
                _disarm(place, copy)


def disarm_tree(tree: Path) -> None:
    """The same in a tree that stays where it is, and in which nothing runs now. Raises OSError."""
    repositories = GitDirectories()
    for directory, _, entries in walk_down(tree, _unless_closed):
        for entry in entries:
            repositories.see(f"{directory}/{entry.name}" if directory else entry.name)
    repositories.disarm(tree)


def _unless_closed(error: OSError) -> None:
    """A directory that we may not read git can't read for us either. Raises OSError for anything else."""
    if not isinstance(error, PermissionError):
        raise error


def _git_reads(names: set[str]) -> bool:
    """Whether git accepts a directory with these names: as a repository, as the half of one that a work tree has to
    itself, or as the half that all its work trees share."""
    return {"objects", "refs"} <= names or {"HEAD", "commondir"} <= names


def _leads_out(pointer: Path, prefix: bytes, copy: Path) -> bool:
    """Whether this file is one that names another directory, one outside of the copy."""
    try:
        if not pointer.is_file():
            return False
        with pointer.open("rb") as file:
            text = file.read(_POINTER_BYTES)
        if not text.startswith(prefix):
            return False
        target = pointer.parent / os.fsdecode(text[len(prefix) :]).strip()
        return not Path(os.path.realpath(target)).is_relative_to(os.path.realpath(copy))
    except (OSError, ValueError):
        return True


def _disarm(directory: Path, copy: Path) -> None:
    from keystone_action.files.git import commands as git

    for name in ("hooks", "worktrees", "config.worktree"):
        _remove(directory / name)
    try:
        clean_configuration(directory, within=copy)
    except (git.GitFailed, OSError, ValueError):
        _remove(directory / "config")  # git then takes its defaults


def _remove(path: Path) -> None:
    """Also a link, which is not followed."""
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return
    if is_directory:
        remove_tree(path)
    else:
        path.unlink()
