"""Where untrusted code runs, as the rest of the house sees it: nobody asks which kind it is.

A `SandboxProvider` is one a run. A `Sandbox` is one world of one cell: a user, a HOME, a TMPDIR and a workspace. When
`Sandbox.run` returns, every process that it started is gone, whatever became of it.
"""

from __future__ import annotations

from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from keystone_action.sandbox.own_python import OwnPython

CAPTURE_HEAD = 1 << 20
CAPTURE_TAIL = 1 << 20
"""Bytes kept of each stream: the first and the last; what lies between is counted and said."""
WHOLE_LIMIT = 64 << 20
TRANSCRIPT_LIMIT = 512 << 20
"""Bytes of a stream that a file of ours gets, where all of it is wanted (spec 5.2 "Output")."""


DEFAULT_PIDS = 4096
"""Processes and threads that a sandbox may have where its spec says nothing: more than any honest build needs, few
enough for a machine."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One stream of a finished command: the bytes kept, and how many there were.

    Where `total > len(head) + len(tail)` the middle was cut; `tail` is empty when everything fit into `head`.
    """

    head: bytes = b""
    tail: bytes = b""
    total: int = 0

    @property
    def cut(self) -> int:
        """How many bytes were not kept."""
        return self.total - len(self.head) - len(self.tail)

    def text(self) -> str:
        """All that was kept, decoded with replacement, the cut said in a line of its own."""
        if not self.cut:
            return (self.head + self.tail).decode("utf-8", "replace")
        notice = f"\n[… {self.cut:,} bytes cut …]\n"
        return self.head.decode("utf-8", "replace") + notice + self.tail.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command may use; None = not limited, of processes DEFAULT_PIDS. Bytes, processes, seconds."""

    memory: int | None = None
    disk: int | None = None
    pids: int | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class KeptWhole:
    """Where all of a stream is wanted: a file of ours, which is made once there are more than `above` bytes, and gets
    up to `limit` of them."""

    path: Path
    above: int = CAPTURE_HEAD + CAPTURE_TAIL
    limit: int = WHOLE_LIMIT


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run: `argv` exactly, no shell unless argv says so (`("sh", "-c", text)`).

    env is complete: nothing is inherited. The sandbox adds HOME, TMPDIR, PATH and LANG where env lacks them.
    cwd is relative to the workspace ("." = the workspace itself). as_root: as the root user of a container, for the
    author's setup; a sandbox without containers ignores it. stdout_to, stderr_to: files of ours that get all of these
    streams as it comes; without one, what is between head and tail is lost.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "."
    timeout: float | None = None
    stdin: bytes = b""
    as_root: bool = False
    stdout_to: KeptWhole | None = None
    stderr_to: KeptWhole | None = None

    @property
    def kept_whole(self) -> tuple[KeptWhole | None, KeptWhole | None]:
        """What is wanted whole of stdout and of stderr."""
        return self.stdout_to, self.stderr_to


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended. Exactly one of exit_code and signal is set, unless it could not be started.

    exit_code 127 with `not_found` = the program does not exist (so not an exit code of the program's own).
    limit: the sentence for the limit it was stopped at ("memory: 2.1 GiB used, 2.0 GiB allowed"), else None.
    leftovers: how many of its processes were still there when it ended and were killed.
    advice: what of the sandbox may explain that it failed, in a sentence.
    """

    exit_code: int | None
    signal: int | None
    timed_out: bool
    limit: str | None
    not_found: bool
    duration_s: float
    stdout: Capture
    stderr: Capture
    leftovers: int = 0
    advice: str = ""

    @property
    def shell_code(self) -> int:
        """The exit code as a shell shows it: 128 + n for signal n."""
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or 0)


@dataclass(frozen=True, slots=True)
class Home:
    """The HOME of a sandbox that was closed, for another one of the same provider. place: where
    the provider finds it. remove: for one that no sandbox was opened with; blocks, never raises."""

    place: Path
    remove: Callable[[], None]


Connection = tuple[StreamReader, StreamWriter]


class Serving(Protocol):
    """A command that is talked to while it runs."""

    @property
    def ended(self) -> bool:
        """Whether it has ended, by itself or at a limit."""

    async def addresses(self, port: int) -> tuple[str, ...]:
        """Where a process of the command's is reached on this TCP port, the likeliest address first; none while nothing
        listens there. Raises SandboxError."""

    async def connect(self, address: str, port: int) -> Connection:
        """A connection to one of `addresses`. What is refused may show as one that is closed before its first byte.
        Raises OSError, SandboxError."""

    async def stop(self) -> Completed:
        """End it with every descendant: how it ended and what it printed. Twice does no harm. Raises SandboxError."""


class Sandbox(Protocol):
    """One world of one cell."""

    @property
    def workspace(self) -> Path:
        """The workspace, where *we* read it."""

    @property
    def workspace_inside(self) -> str:
        """The workspace, as code inside sees it."""

    async def run(self, command: Command) -> Completed:
        """Run to its end, its time limit or a resource limit. Every descendant is gone when this returns, also
        when it is cancelled. Raises SandboxError when the sandbox itself broke, ShortageError when the command failed
        while the machine ran out of something."""

    def serve(self, command: Command) -> AbstractAsyncContextManager[Serving]:
        """Start a command and go on while it runs. When the context ends, the command has been stopped."""

    def which(self, program: str, search_path: str | None = None) -> str | None:
        """Where PATH has this program inside the sandbox for its user, or None. search_path: the PATH of the command
        that would start it, where that has one of its own."""

    def hidden(self, program: str) -> Path | None:
        """Where this machine has a program that the sandbox has not because it hides that place, or None."""

    async def close(self) -> None:
        """End whatever is left and remove HOME and TMPDIR; the workspace stays."""

    async def close_but_home(self) -> Home:
        """`close`, but HOME is kept: whoever asked for it hands it to another sandbox, or removes it."""


class SandboxProvider(Protocol):
    """Makes the sandboxes of a run.

    kind: `process` or `docker`. isolation: what really isolates here, e.g. ("user", "landlock"). limits: `enforced`
    or `watched`. not_enforced: sentences for the report's head, for what this machine can't do.
    """

    @property
    def kind(self) -> str: ...
    @property
    def isolation(self) -> tuple[str, ...]: ...
    @property
    def limits(self) -> str: ...
    @property
    def not_enforced(self) -> tuple[str, ...]: ...

    async def open(
        self,
        workspace: Path,
        *,
        limits: Limits,
        readable: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        home: Home | None = None,
    ) -> Sandbox:
        """A new world on this workspace directory (given to the sandbox's user). `readable` are further directories
        that code inside may read (an agent's own code). `environment` is added under every command's env. home: of a
        sandbox of this provider, to go on in; otherwise HOME is new. Raises SandboxError."""

    async def open_host(
        self,
        directory: Path,
        *,
        limits: Limits,
        own: Sequence[Path] = (),
        shared: Sequence[Path] = (),
        readable: Sequence[Path] = (),
    ) -> Sandbox:
        """A world for the author's own scripts: isolated as an agent's processes are, with our network, our PATH, our
        interpreter, and switches that keep interpreters from loading what lies in the working directory. `directory`,
        and `own` to read, are given to its user; `shared` are directories of ours that are opened to all such users and
        to nobody else; `readable` is what it may read besides, as far as modes let its user. Raises SandboxError."""

    def host_not_enforced(self) -> tuple[str, ...]:
        """Sentences for what this machine can't keep a script in such a world from."""

    async def host_python(self) -> OwnPython:
        """Our interpreter, as code in such a world finds it. Raises SandboxError."""

    async def close(self) -> None:
        """End everything that is still running."""
