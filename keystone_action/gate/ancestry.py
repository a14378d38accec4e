"""What a checkout tells about where its commit comes from: the parent that it was merged onto, a merge base."""

from __future__ import annotations

import re
from pathlib import Path

from keystone_action.files.git import commands as git

_SHA = r"[0-9a-f]{40}|[0-9a-f]{64}"
_PARENT = re.compile(rf"parent ({_SHA})")


def merged_onto(directory: Path, merge: str, head: str) -> str | None:
    """The first parent of the commit that is checked out, when that is `merge`, a merge of `head`: GitHub makes it of a
    pull request on what its base branch has then. None for anything else, such as a checkout of the head itself.

    A shallow checkout has the names of the parents too, though not the parents.
    """
    try:
        found = git.run("rev-parse", "--verify", "-q", "HEAD^{commit}", directory=directory).decode("ascii").strip()
        if not merge or found != merge:
            return None
        # As it was written: neither the graft of a shallow checkout nor a replacement has a say.
        written = git.run("cat-file", "commit", found, directory=directory).decode("utf-8", "replace")
    except (git.GitFailed, UnicodeDecodeError):
        return None
    lines = written.partition("\n\n")[0].splitlines()
    parents = [match[1] for line in lines if (match := _PARENT.fullmatch(line))]
    return parents[0] if len(parents) == 2 and parents[1] == head else None


def known_merge_base(directory: Path, branch: str, head: str) -> str | None:
    """The newest commit that a branch of `origin` and a commit have in common; None when this checkout can't tell, as a
    shallow one can't."""
    try:
        if git.run("rev-parse", "--is-shallow-repository", directory=directory).strip() != b"false":
            return None
        words = ("merge-base", head, f"refs/remotes/origin/{branch}")
        found = git.run(*words, directory=directory).decode("ascii", "replace").strip()
    except git.GitFailed:
        return None
    return found if re.fullmatch(_SHA, found) else None
