"""What host scripts can read of a checkout beside themselves, where the commit does not say it: files that differ from
the commit, and files that git does not know in the folders of the scripts. Outside a repository all files of these
folders. What `.gitignore` names does not count: nobody keeps there what a check needs, and builds change it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.errors import HarnessError
from keystone_action.files.git import commands as git
from keystone_action.files.git.commits import CheckoutCopy, copy_checkout
from keystone_action.files.tree_digest import TreeDigester
from keystone_action.invariants.check import Check
from keystone_action.runner.journal.entries import holds_results
from keystone_action.sandbox.processes import policy
from keystone_action.spec.expressions import leaves
from keystone_action.spec.loading.loaded_spec import LoadedSpec, enclosing_root
from keystone_action.spec.models.fields import AuthorPath
from keystone_action.spec.walking import walk

MOST_NAMED = 500
"""Files that have a fact each; more of them are one fact together."""
TOGETHER = "and others beside them"
_STATUS = ("--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=none")
_NEVER_READ = frozenset({".git", "__pycache__"})


def script_folders(loaded: LoadedSpec) -> list[Path]:
    """The folders of what a spec's checks run on the host; of a command, the spec's own."""
    checks = [one.check for one in loaded.spec.invariants.values()]
    checks += [one.check for scenario in loaded.scenarios for one in scenario.invariants.values()]
    found: dict[Path, None] = {}
    for check in checks:
        if isinstance(check, Check) and check.on_host:
            named = [leaf.value for leaf in leaves(check) if leaf.marker(AuthorPath) is not None]
            found |= dict.fromkeys((loaded.directory / path).resolve().parent for path in named)
            if not named:
                found[loaded.directory.resolve()] = None
    return list(found)


def helper_facts(
    loaded: LoadedSpec, digester: TreeDigester, *, counted: Iterable[Path], results: Iterable[Path]
) -> dict[str, str]:
    """Digests by paths relative to the spec. counted: files and folders that the identity has already. results: folders
    that hold some, of this run or others."""
    folders = script_folders(loaded)
    if not folders:
        return {}
    left_out = _LeftOut([*counted, *results])
    found: dict[str, str] = {}
    for path in _candidates(enclosing_root(loaded.directory.resolve()), folders):
        if not left_out(path):
            name = os.fsencode(os.path.relpath(path, loaded.directory)).decode("utf-8", "backslashreplace")
            found[name] = _digest(path, digester)
    return found if len(found) <= MOST_NAMED else {TOGETHER: _together(found)}


def _candidates(root: Path, folders: Iterable[Path]) -> Iterator[Path]:
    try:
        changes = git.run_git("status", *_STATUS, directory=root)
        top = Path(os.fsdecode(git.run_git("rev-parse", "--show-toplevel", directory=root).rstrip(b"\n")))
    except git.GitFailed:
        yield from dict.fromkeys(path for folder in folders for path in _files_below(folder))
        return
    for entry in filter(None, changes.split(b"\0")):
        path = top / os.fsdecode(entry[3:])
        if not entry.startswith(b"??") or any(path.is_relative_to(folder) for folder in folders):
            yield path


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in walk(folder):
        folders[:] = [name for name in folders if name not in _NEVER_READ and not holds_results(Path(place, name))]
        yield from (Path(place, name) for name in files)


class _LeftOut:
    """Whether a path is counted elsewhere, or never read."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._places = {place.resolve() for place in places}
        self._known: dict[Path, bool] = {}

    def __call__(self, path: Path) -> bool:
        return path in self._places or path.name in _NEVER_READ or self._folder(path.parent)

    def _folder(self, folder: Path) -> bool:
        if folder not in self._known:
            here = folder in self._places or folder.name in _NEVER_READ or holds_results(folder)
            self._known[folder] = here or (folder != folder.parent and self._folder(folder.parent))
        return self._known[folder]


def _digest(path: Path, digester: TreeDigester) -> str:
    try:
        status = path.lstat()
    except OSError:
        return "not there"
    if stat.S_ISDIR(status.st_mode):  # a repository in this one
        return digester.folder(path, lambda _, __: False).content
    target = f"link to {os.fspath(path.readlink())!a}: " if stat.S_ISLNK(status.st_mode) else ""
    return f"{target}{'program ' if status.st_mode & stat.S_IXUSR else ''}{digester.file(path)}"


def _together(found: Mapping[str, str]) -> str:
    lines = "".join(f"{name!r} {value!r}\n" for name, value in sorted(found.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass
class Host:
    """area: a directory of ours that scripts' users may pass, and nobody but us list."""

    area: Path
    _copies: dict[Path, CheckoutCopy | HarnessError] = field(default_factory=dict)

    def add_all(self, directories: Iterable[Path], left_out: Collection[Path]) -> None:
        """Copy the checkouts that these directories of specs are in. Blocks. Never raises: the checks tell what went
        wrong."""
        for root in {_checkout_of(directory) for directory in directories}:
            place = self.area / f"checkout-{secrets.token_hex(8)}"
            try:
                # All of a home directory is more than a script needs to see: then it has what it was given.
                self._copies[root] = copy_checkout(root, place, [root] if _holds_home(root) else left_out)
            except HarnessError as error:
                self._copies[root] = error

    def checkout(self, directory: Path) -> CheckoutCopy:
        """The copy of the checkout that a spec's directory is in. Raises HarnessError."""
        found = self._copies[_checkout_of(directory)]
        if isinstance(found, HarnessError):
            raise found
        return found

    def readable(self, directory: Path) -> list[Path]:
        """What of the checkout itself scripts may read, as far as modes let their user. Raises HarnessError."""
        copy = self.checkout(directory)
        return policy.around(copy.source, copy.secret)

    def new_directory(self) -> Path:
        """For one check."""
        place = self.area / f"host-{secrets.token_hex(8)}"
        place.mkdir()
        place.chmod(0o711)
        return place


def _checkout_of(directory: Path) -> Path:
    """The workspace of the job, else the repository or working directory around a spec; never one that holds our home
    directory, which is full of what no script is to see."""
    directory, workspace = directory.resolve(), os.environ.get("GITHUB_WORKSPACE")
    if workspace and directory.is_relative_to(Path(workspace).resolve()):
        found = Path(workspace).resolve()
    else:
        found = enclosing_root(directory)
    return directory if _holds_home(found) else found


def _holds_home(directory: Path) -> bool:
    return Path("~").expanduser().resolve().is_relative_to(directory)
