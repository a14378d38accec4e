"""What lies in the folder that a suite's adapter is found in; nothing of it is imported here."""

from __future__ import annotations

import functools
from pathlib import Path

from keystone_action.dialects.known import DIALECTS
from keystone_action.spec.loading.discovery import search
from keystone_action.spec.walking import walk

NOT_CODE = (".git", ".hg", ".keystone", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox", ".mypy_cache")
"""What lies beside modules and is none: the folder is often the whole repository."""
_SOURCE_BYTES = 1 << 20


@functools.cache
def registers_scorers(directory: Path) -> bool:
    """Whether some module in a folder may register scorers: by the word, since none may be imported here."""
    for folder, folders, files in walk(directory):
        folders[:] = [name for name in folders if name not in NOT_CODE]
        for name in files:
            if name.endswith(".py") and _holds_word(Path(folder) / name):
                return True
    return False


def _holds_word(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= _SOURCE_BYTES and b"register_scorer" in path.read_bytes()
    except OSError:
        return False


@functools.cache
def specs_below(directory: Path) -> tuple[Path, ...]:
    """All suites and specs that would be copied with the adapter: what they expect is not for agents."""
    return tuple(sorted(path.resolve() for path in search(directory, DIALECTS)))
