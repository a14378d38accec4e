"""Answers kept on disk by what decided them, so that an unchanged question costs nothing.

Only answers at temperature 0 are kept: a caller with another temperature wants the model's variation, and a cache would
freeze the first draw. No key is part of a name or an entry. An entry that can't be read is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from keystone_action.judge.answer import BadAnswer, parse_answer

_VERSION = 1
_ENTRY_LIMIT = 64 * 1024


def cache_key(**parts: str | int | float | None) -> str:
    """sha256 over everything that decides an answer, as hex. Values by name, so that no two can run together."""
    text = json.dumps({"version": _VERSION, **parts}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class AnswerCache:
    """A directory of answers. Safe for several processes: entries appear whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str) -> tuple[float, str] | None:
        """(score, reason), or None."""
        try:
            with self._path(key).open("rb") as file:
                entry = file.read(_ENTRY_LIMIT + 1)
            # The same strict reading as for a model: a damaged entry must not become a score.
            return parse_answer(entry.decode()) if len(entry) <= _ENTRY_LIMIT else None
        except (OSError, UnicodeDecodeError, BadAnswer):
            return None

    def put(self, key: str, score: float, reason: str) -> None:
        """Raises OSError when the directory can't be written."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"score": score, "reason": reason}, file)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"
