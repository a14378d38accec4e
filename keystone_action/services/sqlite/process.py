"""The process that asks SQLite files, confined as the author's scripts on the host are: every byte of the file may be
the agent's, so a defect of SQLite would run what the agent wrote.

It has a user of its own where we are root, no capabilities, Landlock, seccomp, nothing of our environment, and of all
our files only the copies in `directory`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.errors import SandboxError
from keystone_action.evidence.model import QueryFailed
from keystone_action.files.removal import remove_tree
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
