"""What a change brings along where only runs may have left something."""

from __future__ import annotations

import os
from pathlib import Path

from keystone_action.errors import UsageError
from keystone_action.files.git import commands as git

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
        return bool(git.run("ls-files", "-z", "--", str(cache.relative_to(top)), directory=top))
    except git.GitFailed as error:
        why = " ".join(str(error).split())
        raise UsageError(
            f"input cache-dir is {shown!r}, and whether a commit has files there is not known: {why}", help=_HELP
        ) from None
