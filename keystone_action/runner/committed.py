"""What a change brings along where only runs may have left something."""

from __future__ import annotations

from pathlib import Path

from keystone_action.errors import UsageError
from keystone_action.sandbox import git


def refuse_committed_answers(cache: Path, checkout: Path) -> None:
    """Answers of judges are believed by their names, which anybody can work out: so no commit may hold them.

    cache: links followed. A folder outside of the checkout holds none of its files; where there is no commit (no git,
    no repository), nobody has brought anything. Raises UsageError.
    """
    if not cache.is_relative_to(checkout):
        return
    shown = cache.relative_to(checkout)
    try:
        listed = git.run("ls-files", "-z", "--", str(shown), directory=checkout)
    except git.GitFailed:
        return
    if listed:
        raise UsageError(
            f"input cache-dir is {str(shown)!r}, and the commit has files there; judges would take them for answers",
            help="name a folder that nobody commits to, for example ${{ runner.temp }}/keystone-judges",
        )
