"""`source` and `fixtures` of a Touchstone case: what the workspace begins with, and where hidden tests come from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from yaml.nodes import Node

from keystone_action.dialects.nodes import build_node
from keystone_action.dialects.touchstone.reading import CaseField, CaseReader
from keystone_action.spec.loading.diagnostics import show_value
from keystone_action.spec.loading.spec_source import Clone, CloneFailed

_OWNER_AND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
_SCP_LIKE = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:.+")
_COMMIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")

LEFT_OUT = (".git", "__pycache__", "*.pyc", ".venv", "node_modules")
"""What is not copied from a directory, at any depth."""
DEFAULT_FIXTURES, FIXTURES_VARIABLE = "krimvp/touchstone-eval-fixtures", "TOUCHSTONE_FIXTURES_REPO"
"""The one repository of fixtures that the variable replaces."""
_WHERE = "a URL, a path that begins with ./, ../ or /, or owner/name on GitHub"


@dataclass(slots=True)
class Repositories:
    """Clones that are made while the case is loaded."""

    directory: Path
    clone: Clone | None
    roots: dict[Path, None] = field(default_factory=dict)
    """Where they are."""

    def url(self, reader: CaseReader, repository: CaseField | None) -> str:
        """The URL that a field names; empty, and a problem, when it names none."""
        name = reader.text(repository)
        if repository is None or not name:
            return ""
        found = location(name, self.directory)
        if found is None:
            reader.problem(
                repository.node, f"{repository.name}: no repository", found=show_value(name), expected=_WHERE
            )
        return found or ""

    def commit(self, reader: CaseReader, of: CaseField | None) -> str:
        """A commit, branch or tag; empty, and a problem, for anything else."""
        name = reader.text(of)
        if of is not None and name and not is_commit(name):
            reader.problem(of.node, f"{of.name}: no commit", found=show_value(name), expected="a commit, branch or tag")
            return ""
        return name

    def files(self, reader: CaseReader, at: CaseField, url: str, commit: str) -> Path | None:
        """The files of a repository; None, and a problem, when it can't be had."""
        if not url or not commit:
            return None
        if self.clone is None:
            reader.problem(at.key, f"{at.name}: nothing can be cloned here", help="use `keystone run`")
            return None
        try:
            root = self.clone(url, commit)
        except CloneFailed as failed:
            message = f"{at.name}: the repository can't be had at {show_value(commit)}: {failed}"
            reader.problem(at.key, message, help="it is cloned when the case is read: check the network and the name")
            return None
        self.roots[root] = None
        return root


@dataclass(slots=True)
class Fixtures:
    """The repository of hidden tests, cloned when the first of them is asked for."""

    repositories: Repositories
    declared: CaseField | None
    url: str = ""
    commit: str = ""
    subdirectory: str = ""
    used: bool = False
    named: list[str] = field(default_factory=list)
    """The paths of hidden tests in it."""
    _root: Path | None = None

    def asset(self, reader: CaseReader, item: CaseField, kind: str) -> Node | None:
        """The node for an author's path: into the repository, where the case has one; a rubric or an expected
        directory only when it is not beside the case. None when the repository has no such file."""
        path = str(item.value)
        if self.declared is None or os.path.isabs(path):  # noqa: PTH117 - a text
            return item.node
        if kind != "inject" and (self.repositories.directory / path).exists():
            return item.node
        if not self.used:
            self.used = True
            self._root = self.repositories.files(reader, self.declared, self.url, self.commit)
        if self._root is None:
            return None
        self.named.append(os.path.normpath(f"{self.subdirectory}/{path}"))
        place = (self._root / self.subdirectory / path).resolve()
        if place.is_relative_to(self._root) and place.exists():
            return build_node(str(place), item.node)
        message = f"there is no {show_value(path)} in the directory {show_value(self.subdirectory)} of fixtures"
        reader.problem(item.node, message, help=f"that is {shown_url(self.url)} at {self.commit}")
        return None


def read_fixtures(reader: CaseReader, of: CaseField | None, case: str, repositories: Repositories) -> Fixtures:
    """`fixtures: {repo, commit, subdir}`; without subdir the case's id is the directory."""
    if of is None:
        return Fixtures(repositories, None)
    fields = reader.fields(of, ("commit", "repo", "subdir"), required=("commit", "repo"))
    repository = fields.get("repo")
    replaced = os.environ.get(FIXTURES_VARIABLE)
    if repository is not None and repository.value == DEFAULT_FIXTURES and replaced:
        repository = CaseField(repository.name, repository.key, repository.node, replaced)
    subdirectory = reader.text(fields.get("subdir"), case)
    return Fixtures(
        repositories,
        of,
        url=repositories.url(reader, repository),
        commit=repositories.commit(reader, fields.get("commit")),
        subdirectory=subdirectory,
    )


@dataclass(frozen=True, slots=True)
class Start:
    """What the workspace begins with: keys of the spec, and what is left out when it is copied."""

    keys: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def read_source(
    reader: CaseReader, of: CaseField | None, repositories: Repositories, hidden: list[Path], fixtures: Fixtures
) -> Start:
    """`source`. hidden: files and directories of the author's that the agent may not see."""
    if of is None:
        return Start()
    fields = reader.fields(of, ("commit", "isolation", "path", "repo", "subdir"))
    path, repository = fields.get("path"), fields.get("repo")
    if (path is None) == (repository is None):
        reader.problem(of.key, f"{of.name}: expected exactly one of path and repo")
        return Start()
    words = ("auto", "copy", "clone", "worktree")
    isolation = reader.choice(fields.get("isolation"), words, "auto")
    commit = repositories.commit(reader, fields.get("commit"))
    if repository is not None:
        return _repository(reader, fields, repositories, commit, isolation, fixtures)
    assert path is not None
    name = reader.text(path)
    if "subdir" in fields:
        reader.problem(fields["subdir"].key, f"{fields['subdir'].name} is for a repo", help="make it part of path")
    if not name:
        return Start()
    if isolation in ("auto", "copy"):
        if "commit" in fields:
            reader.problem(fields["commit"].key, "source.commit is for isolation: clone", help="a copy has no commit")
        return Start({"workspace": path.node}, LEFT_OUT)
    return _clone_of_path(reader, path, repositories.directory / name, commit, hidden)


def _clone_of_path(reader: CaseReader, path: CaseField, place: Path, commit: str, hidden: list[Path]) -> Start:
    """A worktree would share its objects with the author's repository, so it is a clone as well."""
    root = place.resolve()
    inside = [one for one in hidden if one.resolve().is_relative_to(root)]
    if inside:
        message = f"a clone of {show_value(str(path.value))} would hold what the agent must not see: {inside[0].name}"
        advice = "use isolation: copy, which leaves it out, or keep source in a repository of its own"
        reader.problem(path.node, message, help=advice)
    if not place.is_dir():
        reader.problem(path.node, f"there is no directory {show_value(str(path.value))}")
    fixture = {"type": "git_repo", "url": root.as_uri(), **({"branch": commit} if commit else {})}
    return Start({"fixtures": build_node([fixture], path.node)})


def _repository(
    reader: CaseReader,
    fields: dict[str, CaseField],
    repositories: Repositories,
    commit: str,
    isolation: str,
    fixtures: Fixtures,
) -> Start:
    repository = fields["repo"]
    if "commit" not in fields:
        reader.problem(repository.key, "source.repo needs source.commit", help="so that every run starts from the same")
    if isolation in ("copy", "worktree"):
        reader.problem(fields["isolation"].node, f"isolation: {isolation} is for a path", help="a repo is cloned")
    url = repositories.url(reader, repository)
    subdirectory = fields.get("subdir")
    _refuse_hidden(reader, repository, url, commit, subdirectory, fixtures)
    if subdirectory is None:
        if not url or not commit:
            return Start()
        return Start({"fixtures": build_node([{"type": "git_repo", "url": url, "branch": commit}], repository.node)})
    name = reader.text(subdirectory)
    root = repositories.files(reader, repository, url, commit) if name else None
    if root is None:
        return Start()
    place = (root / name).resolve()
    if not place.is_dir() or not place.is_relative_to(root):
        reader.problem(subdirectory.node, f"there is no directory {show_value(name)} in {shown_url(url)} at {commit}")
        return Start()
    return Start({"workspace": build_node(str(place), subdirectory.node)}, LEFT_OUT)


def _refuse_hidden(
    reader: CaseReader, repository: CaseField, url: str, commit: str, subdirectory: CaseField | None, fixtures: Fixtures
) -> None:
    """Report a source that would hold the hidden tests: of the same commit a copy leaves them out, a clone, with its
    history, or a copy of another commit does not."""
    if not url or url != fixtures.url or (subdirectory is not None and commit == fixtures.commit):
        return
    top = os.path.normpath(str(subdirectory.value)) if subdirectory is not None else "."
    inside = [one for one in fixtures.named if top == "." or PurePosixPath(one).is_relative_to(top)]
    if inside:
        message = f"the workspace would hold what the agent must not see: {inside[0]}, of fixtures"
        advice = "name the directory of the source by source.subdir, apart from the hidden files"
        reader.problem(repository.node, message, help=advice)


def location(repository: str, directory: Path) -> str | None:
    """The URL of a repository: one as it is, a path that begins with `/`, `./` or `../` (relative to directory), or
    `owner/name` on GitHub. None for anything else."""
    if repository.startswith(("/", "./", "../")):
        return (directory / repository).resolve().as_uri()
    if "://" in repository or _SCP_LIKE.fullmatch(repository):
        return repository if not repository.startswith("-") else None
    return f"https://github.com/{repository}.git" if _OWNER_AND_NAME.fullmatch(repository) else None


def is_commit(text: str) -> bool:
    """Whether git can be asked for it without taking it for something else."""
    return _COMMIT.fullmatch(text) is not None and ".." not in text


def shown_url(url: str) -> str:
    """A URL for messages: without the user and password that it may hold."""
    return re.sub(r"(://)[^/?#\s]*@", r"\1", url)
