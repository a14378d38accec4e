"""Repositories that a dialect needs to translate a file, cloned while it does."""

from __future__ import annotations

import re
from pathlib import Path

from keystone_action.files.git import commands as git
from keystone_action.files.removal import remove_tree
from keystone_action.files.temporary import process_directory
from keystone_action.spec.loading.spec_source import CloneFailed

SECONDS = 300.0
_SAID = 600
"""Characters of what git said that a message repeats."""


class Clones:
    """Clones in a directory that only we can enter, each repository and commit once; removed when our process ends."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._made: dict[tuple[str, str], Path] = {}

    def __call__(self, url: str, commit: str) -> Path:
        """The files of a repository at a commit, branch or tag, without its history. Raises CloneFailed."""
        key = (url, commit)
        if key not in self._made:
            self._made[key] = self._clone(url, commit)
        return self._made[key]

    def _clone(self, url: str, commit: str) -> Path:
        if self._root is None:
            self._root = process_directory()
        target = self._root / str(len(self._made))
        try:
            target.mkdir()
            git.run_git("init", "-q", "--template=", str(target), directory=self._root)
            git.run_git("remote", "add", "origin", url, directory=target)
            self._fetch(target, commit)
        except (git.GitFailed, OSError) as failed:
            remove_tree(target)
            said = re.sub(r"(://)[^/?#\s]*@", r"\1", " ".join(str(failed).split()))
            raise CloneFailed(said if len(said) <= _SAID else f"…{said[-_SAID:]}") from None
        remove_tree(target / ".git")
        return target

    def _fetch(self, target: Path, commit: str) -> None:
        """One commit where the server gives it by its name; else everything, since a shortened name, or one that the
        server does not give, can only be told from the whole history."""
        try:
            git.run_git("fetch", "-q", "--depth=1", "--", "origin", commit, directory=target, timeout=SECONDS)
            git.run_git("checkout", "-q", "--detach", "FETCH_HEAD", directory=target, timeout=SECONDS)
        except git.GitFailed as failed:
            if not re.fullmatch(r"[0-9a-f]{4,64}", commit):
                raise
            everything = "+refs/heads/*:refs/remotes/origin/*"
            try:
                git.run_git("fetch", "-q", "--tags", "--", "origin", everything, directory=target, timeout=SECONDS)
            except git.GitFailed:
                raise failed from None
            git.run_git("checkout", "-q", "--detach", commit, directory=target, timeout=SECONDS)


CLONES = Clones()
"""Those of this process."""
