"""Asking a SQLite file that an agent left: on a copy, with everything switched off that a file can bring, in a process
that may do nothing else and can be killed.

The process is confined as the author's scripts on the host are: every byte of the file may be the agent's, so a defect
of SQLite would run what the agent wrote. It has a user of its own where we are root, no capabilities, Landlock,
seccomp, nothing of our environment, and of all our files only the copies in `directory`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import filecmp
import json
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.errors import SandboxError
from keystone_action.evidence.model import QueryFailed, QueryResult
from keystone_action.files.paths import PathMissing, PathProblem, open_inside
from keystone_action.files.removal import remove_tree
from keystone_action.services.database_queries import ROWS_LIMIT
from keystone_action.services.redefinitions import NO_CHANGES, CatalogueChanges, CatalogueEntry, CatalogueName, Column
from keystone_action.system.command import TRANSCRIPT_LIMIT, Command, CommandLimits, KeptWhole

if TYPE_CHECKING:
    from keystone_action.sandbox.own_programs import OwnPython
    from keystone_action.sandbox.protocol import Sandbox
    from keystone_action.services.server_process import ScriptHost
    from keystone_action.system.command import Completed

_PROGRAM = Path(__file__).with_name("sqlite_program.py")
_LIMITS = CommandLimits(memory=3 << 30, disk=16 << 30, pids=16)
"""Above what the program allows itself, and what the copies and their journals can come to."""


@dataclass
class SqliteProcess:
    """Where one cell's file is asked. Made in the event loop that `host` lives in; `ask` is for other threads.

    private: a directory of ours that no sandbox can read, for answers that are too long for memory.
    """

    host: ScriptHost
    private: Path
    directory: Path = field(init=False)
    """For the copies. Ours alone until the first question, and then the process's, too."""
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _sandbox: Sandbox | None = None
    _closed: bool = False

    def __post_init__(self) -> None:
        self.directory = self.host.root / f"sqlite-{secrets.token_hex(8)}"
        self._loop = asyncio.get_running_loop()

    def make_directory(self) -> None:
        """Once; again does no harm. Raises OSError."""
        with contextlib.suppress(FileExistsError):
            self.directory.mkdir(mode=0o700)

    def ask(self, order: Mapping[str, Any], timeout: float, program: Path = _PROGRAM) -> tuple[bytes, bool]:
        """What a program of ours printed, and whether it ended by itself, before the time limit. Blocking. Raises
        QueryFailed, SandboxError."""
        document = json.dumps(order).encode("ascii")
        return asyncio.run_coroutine_threadsafe(self._ask(document, timeout, program), self._loop).result()

    async def _ask(self, document: bytes, timeout: float, program: Path) -> tuple[bytes, bool]:
        # One at a time: at the end of a command everything that its user runs is killed.
        async with self._turn:
            if self._closed:
                raise SandboxError("the cell that the database belongs to has ended")
            if self._sandbox is None:
                self._sandbox = await self.host.open_host(self.directory, limits=_LIMITS)
            python, whole = await self.host.host_python(), KeptWhole(self.private / "answer", limit=TRANSCRIPT_LIMIT)
            try:
                completed = await self._sandbox.run(_command(python, program, document, timeout, whole))
                return _output(completed, whole), not completed.timed_out
            finally:
                whole.path.unlink(missing_ok=True)

    async def close(self) -> None:
        """End what still runs, and remove the copies. Twice does no harm."""
        import anyio.to_thread

        self._closed = True
        if self._sandbox is not None:
            await self._sandbox.close()
        await anyio.to_thread.run_sync(remove_tree, self.directory)


def _command(python: OwnPython, program: Path, document: bytes, timeout: float, whole: KeptWhole) -> Command:
    """The program as text: what an earlier question may have changed in the directory is never run."""
    libraries = {} if python.libraries is None else {"LD_LIBRARY_PATH": str(python.libraries)}
    return Command(
        (python.program, "-I", "-S", "-c", program.read_text(encoding="utf-8")),
        env={"LC_ALL": "C.UTF-8", **libraries},
        timeout=timeout,
        stdin=document,
        stdout_to=whole,
    )


def _output(completed: Completed, whole: KeptWhole) -> bytes:
    """All that was printed. Raises QueryFailed, SandboxError."""
    if completed.not_found:
        raise SandboxError(f"the process that reads SQLite files: {completed.stderr.text().strip()}")
    if completed.stdout.total > whole.limit:
        raise QueryFailed(f"the answer is longer than {whole.limit >> 20} MiB")
    return whole.path.read_bytes() if completed.stdout.cut else completed.stdout.head + completed.stdout.tail


DATABASE_SIZE_LIMIT = 1 << 30
"""Bytes of a database file that are copied."""
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
_SCHEMA = "main"


@dataclass(frozen=True)
class Copy:
    """A copy of a database file, with its journals beside it."""

    file: Path
    size: int
    """In bytes, of the file as it was copied."""


@dataclass
class SqliteReader:
    """A `Database` on a file of the workspace."""

    workspace: Path
    path: str
    """Below the workspace."""
    process: SqliteProcess
    """Asks it, on a copy that is made once, at the first query: nothing of the agent's runs any more then."""
    copy_before: Copy | None = None
    """Of the file as it stood before the agent; None where there was none, or one that can't be copied."""
    problem_before: str = ""
    """Why it could not be copied, where there was one."""
    _copy: Copy | None = field(default=None)
    _indexes_are_ours: bool = field(default=False)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def seal(self) -> None:
        """Keep the file as it stands before the agent, if it is there. Raises OSError."""
        self.copy_before, self.problem_before = None, ""
        try:
            self.copy_before = self._open_copy()
        except PathMissing:
            pass
        except PathProblem as problem:
            self.problem_before = str(problem)

    def query(self, sql: str, *, timeout: float, redefined: bool = False) -> QueryResult:
        """Blocking. Raises SandboxError, and QueryFailed; `by_agent` for a missing table, column or file, for a file
        that is not a database, and for what the agent made or redefined: of the first it takes too long."""
        with self._turn:
            lines, ended = self._ask(self._current(), sql, timeout)
            self._indexes_are_ours |= bool(lines) and "reads" in lines[0]
        try:
            changes, read = self._inspect(lines, sql)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise QueryFailed(f"{self.path}: what SQLite said of its tables can't be read") from None
        if not redefined and (sentence := changes.redefinition(read)):
            raise QueryFailed(sentence, by_agent=True)
        theirs = changes.is_by_agent(read)
        if not ended:
            raise QueryFailed(f"the query hit its time limit of {timeout:g} s", by_agent=theirs)
        try:
            return self._result(lines[-1] if lines else {}, theirs=theirs)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise QueryFailed(f"{self.path}: what SQLite answered can't be read", by_agent=theirs) from None

    def copy_now(self) -> Copy:
        """Of the file as the agent left it, made at the first call. Raises PathProblem, OSError."""
        if self._copy is None:
            self._copy = self._open_copy()
            self._indexes_are_ours = self.copy_before is not None and _same(self.copy_before.file, self._copy.file)
        return self._copy

    def _current(self) -> Copy:
        try:
            return self.copy_now()
        except PathProblem as problem:
            raise QueryFailed(str(problem), by_agent=True) from None
        except OSError as error:
            raise QueryFailed(f"{self.path} can't be opened: {error}") from None

    def _ask(self, copy: Copy, sql: str, timeout: float) -> tuple[list[Mapping[str, Any]], bool]:
        """The lines of our program, and whether it ended by itself."""
        before = str(self.copy_before.file) if self.copy_before else None
        order = {"file": str(copy.file), "before": before, "sql": sql, "rows": ROWS_LIMIT}
        output, ended = self.process.ask({**order, "reindex": not self._indexes_are_ours}, timeout)
        try:
            return _lines(output), ended
        except (ValueError, RecursionError):
            raise QueryFailed(f"{self.path}: what SQLite answered can't be read") from None

    def _inspect(self, lines: Sequence[Mapping[str, Any]], sql: str) -> tuple[CatalogueChanges, Set[CatalogueName]]:
        """What the agent made and redefined, and what the query reads."""
        if not lines or "reads" not in lines[0]:
            return NO_CHANGES, frozenset()
        sizes = (copy.size if copy else 0 for copy in (self.copy_before, self._copy))
        before, now = (_entries(lines[0][key] or {}, size) for key, size in zip(("before", "now"), sizes, strict=True))
        changes, reads = CatalogueChanges(before, now, (_SCHEMA,)), lines[0]["reads"]
        return changes, changes.names_in(sql) if reads is None else {(_SCHEMA, name.lower()) for name in reads}

    def _result(self, answer: Mapping[str, Any], *, theirs: bool) -> QueryResult:
        if "rows" in answer:
            rows = tuple(tuple(_value(value) for value in row) for row in answer["rows"])
            return QueryResult(tuple(answer["columns"]), rows, boolean_as_number=True, more=answer["more"])
        if "no_rows" in answer:
            raise QueryFailed("the statement gives no rows; a query was expected")
        if "unreadable" in answer:
            raise QueryFailed(f"a value can't be read: {answer['unreadable']}")
        if "failed" not in answer:
            raise QueryFailed(f"{self.path}: SQLite crashed, or ran out of memory, over this query", by_agent=theirs)
        text = str(answer["failed"])
        theirs = theirs and text in ("out of memory", "string or blob too big")
        theirs |= text.startswith(("no such table", "no such column")) or "not a database" in text
        raise QueryFailed(f"{self.path}: {text}", by_agent=theirs or "malformed" in text)

    def _open_copy(self) -> Copy:
        self.process.make_directory()
        target = self.process.directory / f"{secrets.token_hex(8)}.sqlite"
        copy_in(self.workspace, self.path, target)
        for suffix in ("-wal", "-journal"):
            try:
                copy_in(self.workspace, self.path + suffix, Path(f"{target}{suffix}"))
            except PathMissing:
                continue
        _refuse_super_journal(Path(f"{target}-journal"), self.path)
        return Copy(target, target.stat().st_size)


def _lines(output: bytes) -> list[Mapping[str, Any]]:
    """Raises ValueError, RecursionError for what our program does not print: then it is not ours any more."""
    lines = [json.loads(line) for line in output.split(b"\n")[:-1]]  # without the last line, which was not finished
    if not all(isinstance(line, dict) for line in lines):
        raise ValueError("not an object")
    return lines


def _entries(catalogue: Mapping[str, Mapping[str, Any]], size: int) -> dict[CatalogueName, CatalogueEntry]:
    """size: of the file, since what one table has of it is not known."""
    return {
        (_SCHEMA, name.lower()): CatalogueEntry(
            kind=one["kind"],
            text=one["text"],
            traits=frozenset(
                [f"the generated column {column}" for column in one["generated"]]
                + ["a definition that can't be compared with the one before"] * bool(one["unclear"])
            ),
            bytes=size if one["kind"] == "table" else 0,
            columns={column.lower(): Column(*how) for column, how in one["columns"].items()},
        )
        for name, one in catalogue.items()
    }


def _value(sent: Any) -> Any:
    return base64.b64decode(sent["bytes"]) if isinstance(sent, dict) else sent


def _same(one: Path, other: Path) -> bool:
    """Whether two copies of a database, with what was not folded into them yet, are the same."""
    pairs = [(Path(f"{one}{suffix}"), Path(f"{other}{suffix}")) for suffix in ("", "-wal", "-journal")]
    return all(
        filecmp.cmp(a, b, shallow=False) if a.exists() and b.exists() else a.exists() == b.exists() for a, b in pairs
    )


def copy_in(workspace: Path, path: str, target: Path) -> None:
    """Copy a regular file of the workspace to a place of ours. Raises PathProblem, OSError."""
    descriptor = open_inside(workspace, path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PathProblem(f"{path} is not a regular file")
        if status.st_size > DATABASE_SIZE_LIMIT:
            raise PathProblem(f"{path} has {status.st_size:,} bytes; at most {DATABASE_SIZE_LIMIT:,} are read")
        with os.fdopen(os.dup(descriptor), "rb") as source, target.open("xb") as copy:
            shutil.copyfileobj(source, copy)
    finally:
        os.close(descriptor)


def _refuse_super_journal(journal: Path, path: str) -> None:
    """A journal can name a file (the super-journal of a transaction over several databases) that SQLite reads, and
    may delete, when it recovers. The name is the agent's and the rights would be ours."""
    if not journal.exists():
        return
    with journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - len(_SUPER_JOURNAL)))
        if file.read() == _SUPER_JOURNAL:
            journal.unlink()
            raise PathProblem(f"{path}-journal belongs to an unfinished transaction over several databases")
