"""The service kind `sqlite`: a database file of the workspace.

What an agent wrote into it is told by comparison of a copy from before the agent with the file that it left, in the
process that reads such files.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.errors import HarnessError, ServiceError
from keystone_action.evidence.model import Address, QueryFailed
from keystone_action.evidence.writes import TableWrite
from keystone_action.files.paths import PathMissing, PathProblem, write_inside
from keystone_action.services import compared_rows as rows
from keystone_action.services.database_comparison import NET_CHANGES
from keystone_action.services.service import CellScope, Place, ServiceKind, Surroundings
from keystone_action.services.sql_script import ScriptError, SqlScript
from keystone_action.services.sqlite.reader import SqliteProcess, SqliteReader, copy_in
from keystone_action.services.sqlite.script import NOT_ENDED, ends_open, execute
from keystone_action.spec.models.services import SqliteService
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    from keystone_action.services.server_process import ScriptHost

_PROGRAM = Path(__file__).with_name("comparing_program.py")
_ROWS = Path(rows.__file__)
_SECONDS = 900.0
_TEXTS_AT_ONCE = 32 << 20
_VALUES = re.compile(r'".*"|(?<=no such column: ).*', re.DOTALL)
"""In what SQLite says of a script: a text in double quotes may be meant for a column."""
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
            raise ServiceError(
                f"service {self.service}: what is written into {path} can't be told: it is not a database"
            )

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
    """Without what is not a character: a file may name tables in any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _shown(row: str) -> str:
    """The values of a row, which came as Python writes them."""
    values = [value for value in ast.literal_eval(row) if value is not None]
    return "\n".join(
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else _clean(str(value))
        for value in values
    )


@dataclass(frozen=True)
class SqliteFile(ServiceKind[SqliteService]):
    """A `RunningService` without a process of its own. host: confines what reads the file.

    Its address is relative to the workspace, which is the working directory of the agent and of every check: so it
    is valid for the agent, and leads each check to its own copy.
    """

    definition: SqliteService
    host: ScriptHost

    @classmethod
    def build(cls, definition: SqliteService, surroundings: Surroundings) -> SqliteFile:
        """See ServiceKind."""
        return cls(definition, surroundings.provider)

    @property
    def name(self) -> str:
        """The service's name."""
        return self.definition.name

    async def start(self) -> None:
        """Nothing to start."""

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService. The file need not exist: the agent, or a fixture, makes it. After the cell the copies go,
        and the process that reads them ends."""
        process = SqliteProcess(self.host, scope.private)
        async with undoing(process.close):
            yield SqlitePlace(self.name, scope, self.definition.path, process)

    async def stop(self) -> None:
        """Nothing to stop."""


class SqlitePlace(Place):
    """The file of one cell's workspace."""

    def __init__(self, name: str, scope: CellScope, path: str, process: SqliteProcess) -> None:
        self._scope, self._path = scope, path
        self._reader = SqliteReader(scope.workspace, path, process)
        address = Address(url=f"sqlite:///{path}", database=path)
        self._watched = SqliteWrites(name, self._reader, process) if scope.watches_writes else None
        super().__init__(name, address, address, database=self._reader, writes=self._watched)

    async def run_sql(self, script: SqlScript) -> tuple[str, ...]:
        """See Place. Run before the agent starts, on a copy that then takes the file's place: what was copied into the
        workspace may hold links."""
        import anyio.to_thread

        try:
            text = await anyio.to_thread.run_sync(script.read_text)
            await anyio.to_thread.run_sync(lambda: self._run_script(text, script.name))
        except (sqlite3.Error, sqlite3.Warning) as error:
            said = _VALUES.sub("…", str(error))
            advice = NOT_ENDED if ends_open(text) else ""
            if "authorized" in said:
                advice = "A script opens no further file: not by ATTACH, and not by VACUUM INTO."
            raise ServiceError(f"service {self.name} refused a fixture: {script.name}: {said}", help=advice) from None
        except (PathProblem, OSError, ScriptError) as error:
            advice = error.advice if isinstance(error, ScriptError) else ""
            raise ServiceError(f"service {self.name} refused a fixture: {error}", help=advice) from None
        return ()

    def _run_script(self, script: str, name: str) -> None:
        private, workspace = self._scope.private, self._scope.workspace
        copy = private / f"{secrets.token_hex(8)}.sqlite"
        try:
            with contextlib.suppress(PathMissing):
                copy_in(workspace, self._path, copy)
            execute(copy, script, name)
            write_inside(workspace, self._path, copy.read_bytes())
        finally:
            for path in private.glob(f"{copy.name}*"):
                path.unlink()

    async def seal(self) -> None:
        """See Place. The file as it stands is kept."""
        import anyio.to_thread

        try:
            await anyio.to_thread.run_sync(self._reader.seal)
        except OSError as error:
            raise ServiceError(f"service {self.name}: {self._path} can't be kept: {error}") from None
        if self._watched is not None:
            await anyio.to_thread.run_sync(self._watched.seal)

    def settle(self) -> None:
        """See Place. The file as the agent left it is kept, and compared, where its writes are wanted."""
        if self._watched is not None:
            self._watched.settle()
