"""What was written into a SQLite file: what stands in the copy from before the agent and in the one that it left is
compared, in the process that reads such files."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keystone_action.errors import HarnessError, ServiceError
from keystone_action.evidence.model import QueryFailed
from keystone_action.evidence.writes import TableWrite
from keystone_action.files.paths import PathMissing, PathProblem
from keystone_action.services import compared_rows as rows
from keystone_action.services.database_comparison import NET_CHANGES
from keystone_action.services.sqlite.process import SqliteProcess
from keystone_action.services.sqlite.reader import SqliteReader

_PROGRAM = Path(__file__).with_name("comparing_program.py")
_ROWS = Path(rows.__file__)
_SECONDS = 900.0
_TEXTS_AT_ONCE = 32 << 20
_OTHER_FILES = "files that it attached are other databases, and are not looked at"
EVERYTHING = "*"
"""The table of the one write that is told of a file that the agent made unreadable."""


@dataclass
class SqliteWrites:
    """A `WriteLog`. reader: has the copies."""

    service: str
    reader: SqliteReader
    process: SqliteProcess
    not_seen: Sequence[str] = (NET_CHANGES, _OTHER_FILES)
    _key: bytes = field(default_factory=rows.new_key)
    _writes: tuple[TableWrite, ...] | None = None
    _added: Sequence[Mapping[str, Any]] = ()

    def seal(self) -> None:
        """The reader has kept what stands there: it must be a database, or nothing. Blocking. Raises ServiceError."""
        self._writes = None
        if self.reader.problem_before:
            raise ServiceError(f"service {self.service}: what is written can't be told: {self.reader.problem_before}")
        answer = self._ask({**self._order(), "after": None})
        if not answer or "writes" not in answer[-1]:
            path = self.reader.path
            raise ServiceError(f"service {self.service}: what is written into {path} can't be told: it is no database")

    def settle(self) -> None:
        """What stands there now is what the agent left. Blocking. Raises ServiceError."""
        try:
            after = str(self.reader.copy_now().file)
        except PathMissing:
            after = None
        except PathProblem:
            return self._tell_everything()
        except OSError as error:
            raise ServiceError(f"service {self.service}: {self.reader.path} can't be kept: {error}") from None
        answer = self._ask({**self._order(), "after": after})
        if not answer:
            raise ServiceError(f"service {self.service}: what stood in {self.reader.path} can't be read any more")
        if "writes" not in answer[-1]:
            # What stood there could be read by this very process: what ended it is in the agent's file.
            return self._tell_everything()
        self._added = answer[-1]["added"]
        found: dict[tuple[str, str, str], TableWrite] = {}
        for what, name, operation, count in answer[-1]["writes"]:
            key = what, name, operation
            # What a virtual table keeps in several tables of its own is told as one, and how much says nothing then.
            rows_told = None if key in found else count
            found[key] = TableWrite(self.service, _clean(name), operation, rows_told, "comparison", what=what)
        self._writes = tuple(found.values())
        return None

    def writes(self) -> Sequence[TableWrite]:
        """See WriteLog. Of a file that the agent made unreadable, one that stands for everything in it."""
        if self._writes is None:
            raise ServiceError(f"service {self.service}: what the agent left there was not looked at yet")
        return self._writes

    def texts(self) -> Iterator[tuple[str, str]]:
        """See WriteLog."""
        self.writes()
        for one in self._added:
            passed = 0
            while passed < one["count"]:
                order = {**self._order(), "after": str(self.reader.copy_now().file), "added": one}
                answer = self._ask({**order, "skip": passed, "bytes": _TEXTS_AT_ONCE})
                found = answer[-1].get("texts") if answer else None
                if not found:
                    raise ServiceError(f"service {self.service}: what was written into {one['name']} can't be read")
                for text in found:
                    yield _clean(one["name"]), _shown(text)
                passed += len(found)

    def _tell_everything(self) -> None:
        self._added = ()
        self._writes = (TableWrite(self.service, EVERYTHING, "change", None, "comparison", what="database"),)

    def _order(self) -> dict[str, Any]:
        before, directory = self.reader.copy_before, self.process.directory
        return {
            "rows": _ROWS.read_text(encoding="utf-8"),
            "key": self._key.hex(),
            "before": str(before.file) if before else None,
            "directory": str(directory),
        }

    def _ask(self, order: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """What the program said; a last line that it did not finish is left out. Raises ServiceError."""
        try:
            self.process.make_directory()
            output, ended = self.process.ask(order, _SECONDS, _PROGRAM)
            if not ended:
                raise ServiceError(
                    f"service {self.service}: {self.reader.path} could not be compared within {_SECONDS:g} s"
                )
            lines = [json.loads(line) for line in output.split(b"\n")[:-1]]
        except (OSError, ValueError, RecursionError, QueryFailed, HarnessError) as error:
            if isinstance(error, ServiceError):
                raise
            raise ServiceError(f"service {self.service}: {self.reader.path} can't be compared: {error}") from None
        return [line for line in lines if isinstance(line, dict)]


def _clean(name: str) -> str:
    """Without what is no character: a file may name tables in any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _shown(row: str) -> str:
    """The values of a row, which came as Python writes them."""
    values = [value for value in ast.literal_eval(row) if value is not None]
    return "\n".join(
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else _clean(str(value))
        for value in values
    )
