"""The commit that a change is compared with, and its specs with the files that they name, in a directory of ours.

A checkout tells where its commit comes from: the parent that it was merged onto, or a merge base. A baseline that
lies in the repository is part of the gate, since a change can bring along one that no run is worse than; so is a cache
of judges' answers, where only runs may have left something.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from keystone_action.errors import UsageError
from keystone_action.files.git import commands as git
from keystone_action.files.git.commits import NoCheckout, Remote, Tree, checkout_of, open_commit, submodules_of
from keystone_action.files.temporary import process_directory
from keystone_action.gate.named_files import COUNT_LIMIT, count_lines, paths_in_source, steering_paths
from keystone_action.scoring.differences import SpecChange
from keystone_action.scoring.document import RESULTS_FILE
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loaded_spec import enclosing_root
from keystone_action.spec.loading.yaml_loader import parse_yaml

if TYPE_CHECKING:
    from keystone_action.spec.loading.spec_source import Dialects

WHOLE_FILES, WHOLE_BYTES = 3_000, 64 << 20
"""A tree within these is written as a whole; of a larger one, what its specs name."""
MOST_FILES, MOST_BYTES = 50_000, 1 << 30
_YAML = (".yaml", ".yml")
_ONLY_FOLDERS = frozenset({"workspace", "dir"})
"""Keys of folders that a spec names, and whose files are taken from the checkout."""
_DEFAULTS = tuple(
    f"refs/remotes/{remote}/{branch}" for branch in ("HEAD", "main", "master") for remote in ("upstream", "origin")
)
_LINE_ENDS = frozenset({"true", "false", "input", "lf", "crlf", "native"})
_LONGEST = 1_000
"""Characters of a text that can be a path."""


@dataclass(frozen=True, slots=True)
class BaseCommit:
    """sha: in full. name: what it is, in words. remote: where it can be fetched from when the checkout lacks it.
    incomplete: what a comparison with it leaves out, and why, in words; empty when nothing. workspace: where the
    repository is checked out, or a folder around it; None = the nearest repository is meant. directory: the call's, as
    it was named: a link in its place is the change's doing."""

    sha: str
    name: str
    remote: Remote | None = None
    incomplete: str = ""
    workspace: Path | None = None
    directory: Path | None = None


def merge_base(directory: Path) -> BaseCommit:
    """On a laptop: the newest commit that the checkout has in common with the default branch that it was cloned from
    (of the remote `upstream`, else of `origin`), as GitHub would compare it. Raises UsageError when there is none."""
    help_text = "clone with a remote `origin`, and `git remote set-head origin --auto` names its default branch"
    try:
        git.run_git("rev-parse", "--verify", "-q", "HEAD^{commit}", directory=directory)
    except git.GitFailed:
        raise UsageError(f"{directory} is in no git checkout with a commit", help=help_text) from None
    for reference in _DEFAULTS:
        try:
            git.run_git("rev-parse", "--verify", "-q", f"{reference}^{{commit}}", directory=directory)
            shown = git.run_git("rev-parse", "--abbrev-ref", reference, directory=directory).decode("utf-8", "replace")
        except git.GitFailed:
            continue
        name = shown.strip() or reference.removeprefix("refs/remotes/")
        try:
            found = git.run_git("merge-base", "HEAD", reference, directory=directory).decode("ascii", "replace").strip()
        except git.GitFailed:
            raise UsageError(
                f"HEAD and {name} have no commit in common here",
                help="a shallow clone may lack it: `git fetch --unshallow`",
            ) from None
        return BaseCommit(found, f"the merge base with {name}")
    raise UsageError("the default branch of this checkout's remote is not known", help=help_text)


@dataclass
class BaseFiles:
    """The specs of a commit, found by the patterns of the call. root: the checkout's top; top: its counterpart, ours.
    directory: the counterpart of the call's. Raises git.GitFailed and OSError when it is made."""

    tree: Tree
    root: Path
    top: Path
    directory: Path
    patterns: tuple[str, ...] = field(default=(), init=False)

    def find(self, patterns: Sequence[str], here: str) -> None:
        """Write what `discover` looks at. here: the call's directory, relative to the root."""
        found, kept = set(), []
        for pattern in patterns:
            relative = os.path.relpath(pattern, self.root / here) if os.path.isabs(pattern) else pattern  # noqa: PTH117
            place = _join_path(here, relative)
            if place is None:
                continue
            literal = not any(character in pattern for character in "*?[{")
            resolved = self.tree.resolve(place) if literal else None
            if literal and resolved is None:
                continue
            kept.append(os.path.relpath(self.root / place, self.root / here))
            if resolved in self.tree.entries:
                found |= {place, resolved}
            else:
                folder = place if literal else _literal_part(place)
                found |= {path for path in self.tree.below(folder) if path.endswith(_YAML)}
        self._write(found)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.patterns = tuple(kept)

    def complete(self, specs: Iterable[Path], dialects: Dialects | None) -> None:
        """Write everything that these specs may name. specs: paths below `top`. A submodule is an empty folder, as in a
        checkout without it."""
        for path in self.tree.submodules:
            (self.top / path).mkdir(parents=True, exist_ok=True)
        sizes = [entry.size for entry in self.tree.entries.values()]
        if len(sizes) <= WHOLE_FILES and sum(sizes) <= WHOLE_BYTES:
            self._write(self.tree.entries)
            return
        wanted: dict[str, None] = {}
        for spec in specs:
            relative = spec.relative_to(self.top).as_posix()
            if dialects is not None and dialects.recognises(spec):
                wanted.update(dict.fromkeys(self._around(relative)))
            else:
                wanted.update(dict.fromkeys(self._named_paths(relative)))
            # Where recordings are unless the spec names another folder.
            wanted.update(dict.fromkeys(self.tree.below(posixpath.join(posixpath.dirname(relative), "recordings"))))
        self._write(wanted)

    def _around(self, spec: str) -> Iterator[str]:
        """Of another tool's file: all beside and below it, and the files in the folders above, where those tools look
        for what belongs to it."""
        folder = posixpath.dirname(spec)
        yield from self.tree.below(folder)
        while folder:
            folder = posixpath.dirname(folder)
            yield from (path for path in self.tree.entries if posixpath.dirname(path) == folder)

    def _named_paths(self, spec: str) -> Iterator[str]:
        """Everything that a text of the spec, or of what it extends, is a path of: some are not paths, which does not
        matter."""
        waiting, seen, folder = [spec], {spec}, posixpath.dirname(spec)
        while waiting:
            file = waiting.pop()
            found = ((key, part) for key, text in self._texts(file) for part in (text, *paths_in_source(text)))
            for key, text in found:
                for start in dict.fromkeys((folder, posixpath.dirname(file))):
                    for path in self._of(start, key, text):
                        yield path
                        if path.endswith(_YAML) and path not in seen:
                            seen.add(path)
                            waiting.append(path)

    def _of(self, start: str, key: str, text: str) -> Iterator[str]:
        # Of a path with expressions the folders before the first one are known.
        place = _join_path(start, text.partition("{{")[0].rpartition("/")[0] if "{{" in text else text)
        resolved = None if place is None or not text else self.tree.resolve(place)
        if place is None or resolved is None:
            return
        if key in _ONLY_FOLDERS and resolved not in self.tree.entries:
            (self.top / resolved).mkdir(parents=True, exist_ok=True)
            if key == "workspace":
                yield from steering_paths(self.tree.below(resolved), resolved)
        elif resolved in self.tree.entries:
            yield from {place, resolved} & self.tree.entries.keys()
        elif "{{" not in text or place not in ("", start):
            yield from self.tree.below(resolved)

    def _texts(self, path: str) -> Iterator[tuple[str, str]]:
        """Every text of a YAML file with its key; nothing for a file that is not YAML: the loader reports it."""
        resolved = self.tree.resolve(path)
        if resolved is None or resolved not in self.tree.entries:
            return
        try:
            document = parse_yaml(self.tree.read([resolved])[resolved].decode("utf-8", "replace"), path)
        except SpecError:
            return
        if document is not None:
            yield from _scalars(document.node)

    def _write(self, paths: Iterable[str]) -> None:
        wanted = list(dict.fromkeys((*paths, *self.tree.followed)))
        size = sum(self.tree.entries[path].size for path in wanted)
        if len(wanted) > MOST_FILES or size > MOST_BYTES:
            raise git.GitFailed(f"its specs name {len(wanted):,} files of {size:,} bytes, which is too much to read")
        self.tree.write(wanted, self.top, settings=self._line_ends())

    def _line_ends(self) -> dict[str, str]:
        """What this machine's checkout says of line ends. Attributes are those of the base: one that a change brings
        along is its own doing."""
        found = {}
        for name in ("core.autocrlf", "core.eol"):
            said = (
                git.run_git("config", "--get", name, directory=self.root, accept=1).decode("ascii", "replace").strip()
            )
            if said.lower() in _LINE_ENDS:
                found[name] = said.lower()
        return found


def open_base(base: BaseCommit, directory: Path) -> BaseFiles:
    """A directory of ours for the specs of a commit; it goes when our process ends. directory: the call's.

    Raises UsageError with what is missing and how to mend it.
    """
    root, directory = _place(base, directory)
    try:
        private = process_directory()
        top, repository = private / "files", private / "objects"
        for folder in (repository, top, top / ".git"):  # the last one makes it a root that no path of a spec may leave
            folder.mkdir()
        tree = open_commit(root, base.sha, repository, base.remote)
        return BaseFiles(tree, root, top, top / directory.relative_to(root))
    except (git.GitFailed, OSError) as error:
        raise unreadable_base(base, error) from None


def _place(base: BaseCommit, directory: Path) -> tuple[Path, Path]:
    """The top of the checkout, and the call's directory in it. A change can put a link or a submodule in the place of
    that directory; what it was at the base is there, too."""
    named, workspace = base.directory, base.workspace
    if named is not None and workspace is not None and named.is_relative_to(workspace):
        for place in (*reversed(named.parents), named):
            if place.is_relative_to(workspace) and (place / ".git").exists() and place.resolve() == place:
                return place, named
    directory = directory.resolve()
    return enclosing_root(directory), directory


def unreadable_base(base: BaseCommit, error: Exception) -> UsageError:
    """What to say when a commit can't be read."""
    why = re.sub(r"\s+", " ", str(error)).strip().rstrip(".")
    help_text = f"check out with `fetch-depth: 0`, or fetch it before: `git fetch --depth=1 origin {base.sha[:40]}`"
    if isinstance(error, NoCheckout):
        help_text = "use actions/checkout; where that has a `path`, name it in the input working-directory"
    return UsageError(f"{base.name}, commit {base.sha[:12]}, can't be read: {why}", help=help_text)


def _join_path(start: str, text: str) -> str | None:
    """A path of the tree (`""` is the top); None for a text that is not a path, or leads out."""
    if "\0" in text or "\n" in text or len(text) > _LONGEST or text.startswith("/"):
        return None
    place = posixpath.normpath(posixpath.join(start, text))
    if place == ".." or place.startswith("../"):
        return None
    return "" if place == "." else place


def _literal_part(pattern: str) -> str:
    """The folders of a glob before its first special character."""
    parts = []
    for part in pattern.split("/"):
        if any(character in part for character in "*?[{"):
            break
        parts.append(part)
    return "/".join(parts)


def _scalars(node: Node, key: str = "") -> Iterator[tuple[str, str]]:
    waiting, seen = [(key, node)], set()
    while waiting:
        name, one = waiting.pop()
        if isinstance(one, ScalarNode):
            yield name, one.value
        elif id(one) not in seen and isinstance(one, MappingNode):
            seen.add(id(one))
            waiting += [(getattr(left, "value", ""), right) for left, right in one.value]
            waiting += [("", left) for left, _ in one.value]
        elif id(one) not in seen and isinstance(one, SequenceNode):
            seen.add(id(one))
            waiting += [(name, item) for item in one.value]


_SHA = r"[0-9a-f]{40}|[0-9a-f]{64}"
_PARENT = re.compile(rf"parent ({_SHA})")


def merged_onto(directory: Path, merge: str, head: str) -> str | None:
    """The first parent of the commit that is checked out, when that is `merge`, a merge of `head`: GitHub makes it of a
    pull request on what its base branch has then. None for anything else, such as a checkout of the head itself.

    A shallow checkout has the names of the parents too, though not the parents.
    """
    try:
        found = git.run_git("rev-parse", "--verify", "-q", "HEAD^{commit}", directory=directory).decode("ascii").strip()
        if not merge or found != merge:
            return None
        # As it was written: neither the graft of a shallow checkout nor a replacement has a say.
        written = git.run_git("cat-file", "commit", found, directory=directory).decode("utf-8", "replace")
    except (git.GitFailed, UnicodeDecodeError):
        return None
    lines = written.partition("\n\n")[0].splitlines()
    parents = [match[1] for line in lines if (match := _PARENT.fullmatch(line))]
    return parents[0] if len(parents) == 2 and parents[1] == head else None


def known_merge_base(directory: Path, branch: str, head: str) -> str | None:
    """The newest commit that a branch of `origin` and a commit have in common; None when this checkout can't tell, as a
    shallow one can't."""
    try:
        if git.run_git("rev-parse", "--is-shallow-repository", directory=directory).strip() != b"false":
            return None
        words = ("merge-base", head, f"refs/remotes/origin/{branch}")
        found = git.run_git(*words, directory=directory).decode("ascii", "replace").strip()
    except git.GitFailed:
        return None
    return found if re.fullmatch(_SHA, found) else None


def changed_baseline(base: BaseCommit, directory: Path, path: Path) -> SpecChange | None:
    """What a change did to its baseline; None when nothing. path: as it was named, a file or a folder."""
    shown = os.path.relpath(path, directory)
    try:
        files = open_base(base, checkout_of(directory, path))
        sentence = _difference(files, path)
    except (UsageError, git.GitFailed, OSError) as error:
        why = error.sentences if isinstance(error, UsageError) else " ".join(str(error).split())
        sentence = f"whether this baseline is of the change itself is not known: {why}"
    return SpecChange(shown, "changed", (sentence,)) if sentence else None


def _difference(files: BaseFiles, path: Path) -> str:
    place = path / RESULTS_FILE if path.is_dir() else path
    if not place.is_relative_to(files.root):
        return ""
    name = place.relative_to(files.root).as_posix()
    relative = files.tree.resolve(name)
    entry = None if relative is None else files.tree.entries.get(relative)
    if entry is None or relative is None:
        inside = files.tree.in_submodule(name)
        return "baseline added" if inside is None else _difference_inside(files, *inside, place)
    size = place.stat().st_size if place.is_file() else 0
    if max(entry.size, size) > COUNT_LIMIT:
        return "" if entry.id == _blob(files, place) else f"baseline changed ({entry.size:,} → {size:,} bytes)"
    before, after = files.tree.read([relative])[relative], place.read_bytes()
    return "" if before == after else f"baseline changed ({count_lines(before, after)})"


def _difference_inside(files: BaseFiles, before: str, submodule: str, place: Path) -> str:
    """Of a baseline that was in a submodule at the base: what is in it is in no commit of the repository, so that the
    commit which is named stands for it."""
    commit = files.tree.submodules[submodule]
    now = submodules_of(git.run_git("ls-tree", "-z", "HEAD", "--", submodule, directory=files.root)).get(submodule)
    if now != commit:
        return f"baseline changed (submodule {submodule} {commit[:12]} → {now[:12] if now else 'none'})"
    return "" if place.resolve() == files.root / before else f"baseline changed (it was {before})"


def _blob(files: BaseFiles, path: Path) -> str:
    words = ("hash-object", "--no-filters", "--", str(path))
    return git.run_git(*words, directory=files.top.parent / "objects").decode("ascii").strip()


_HELP = "name a folder that nobody commits to, for example ${{ runner.temp }}/keystone-judges"


def refuse_committed_answers(cache: Path, workspace: Path) -> None:
    """Answers of judges are believed by their names, which anybody can work out: so no commit may hold them.

    cache: links followed. A folder outside of the workspace holds nothing of a checkout. In it every repository around
    the cache is asked, since a checkout can have a path, and hold submodules; where there is none, nobody has brought
    anything. Raises UsageError, also where a repository does not tell.
    """
    if not cache.is_relative_to(workspace):
        return
    shown = str(cache.relative_to(workspace))
    for top in (cache, *cache.parents):
        if os.path.lexists(top / ".git") and _holds(top, cache, shown):
            raise UsageError(
                f"input cache-dir is {shown!r}, and the commit has files there; judges would take them for answers",
                help=_HELP,
            )
        if top == workspace:
            return


def _holds(top: Path, cache: Path, shown: str) -> bool:
    try:
        return bool(git.run_git("ls-files", "-z", "--", str(cache.relative_to(top)), directory=top))
    except git.GitFailed as error:
        why = " ".join(str(error).split())
        raise UsageError(
            f"input cache-dir is {shown!r}, and whether a commit has files there is not known: {why}", help=_HELP
        ) from None
