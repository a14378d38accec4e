"""A command: what is run, what it may use, how it ended and what it printed. Plain values, which the engine, the
sandboxes, agents and checks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPTURE_HEAD = 1 << 20
CAPTURE_TAIL = 1 << 20
"""Bytes kept of each stream: the first and the last; what lies between is counted and said."""
WHOLE_LIMIT = 64 << 20
TRANSCRIPT_LIMIT = 512 << 20
"""Bytes of a stream that a file of ours gets, where all of it is wanted (spec 5.2 "Output")."""
DEFAULT_PIDS = 4096
"""Processes and threads that a sandbox may have where its spec says nothing: more than any honest build needs, few
enough for a machine."""
FAILURE_CHARACTERS = 2000
"""Of each stream of a command that failed."""


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
class CommandLimits:
    """What one command may use; None = not limited, but for processes, where it means DEFAULT_PIDS."""

    memory: int | None = None
    """Bytes."""
    disk: int | None = None
    """Bytes."""
    pids: int | None = None
    cpu: float | None = None
    """Cores."""


@dataclass(frozen=True, slots=True)
class KeptWhole:
    """A file of ours for all of a stream. It is made once there are more than `above` bytes, and gets up to `limit`."""

    path: Path
    above: int = CAPTURE_HEAD + CAPTURE_TAIL
    limit: int = WHOLE_LIMIT


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run."""

    argv: tuple[str, ...]
    """Exactly this: there is a shell only where it says so (`("sh", "-c", text)`)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Complete: nothing is inherited. The sandbox adds HOME, TMPDIR, PATH and LANG where it lacks them."""
    cwd: str = "."
    """Relative to the workspace; "." = the workspace itself."""
    timeout: float | None = None
    """Seconds."""
    stdin: bytes = b""
    as_root: bool = False
    """As the root user of a container, for the author's setup. A sandbox without containers ignores it."""
    stdout_to: KeptWhole | None = None
    """A file of ours that gets all of this stream as it comes. Without it, what is between head and tail is lost."""
    stderr_to: KeptWhole | None = None
    """As `stdout_to`."""
    lists_processes: bool = False
    """Whether it is wanted which processes it had."""

    @property
    def kept_whole(self) -> tuple[KeptWhole | None, KeptWhole | None]:
        """What is wanted whole of stdout and of stderr."""
        return self.stdout_to, self.stderr_to


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended. Exactly one of exit_code and signal is set, unless it could not be started."""

    exit_code: int | None
    """127 with `not_found` = the program does not exist, which is not an exit code of the program's own."""
    signal: int | None
    timed_out: bool
    limit: str | None
    """The sentence for the limit that stopped it ("memory: 2.1 GiB used, 2.0 GiB allowed")."""
    not_found: bool
    duration_s: float
    stdout: Capture
    stderr: Capture
    leftovers: int = 0
    """How many of its processes were still there when it ended, and were killed."""
    advice: str = ""
    """A sentence about what in the sandbox may explain that it failed."""
    processes: tuple[Mapping[str, Any], ...] = ()
    """Those that were seen (`SeenProcess`), where the command asks for them."""
    processes_left_out: int = 0
    """How many more there were."""

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.exit_code == 0 and not self.timed_out and self.limit is None and not self.not_found

    @property
    def shell_code(self) -> int:
        """The exit code as a shell shows it: 128 + n for signal n."""
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or 0)

    def failure(self, stdout: str | None = None, stderr: str | None = None) -> str:
        """How it ended, and the end of what it printed. stdout, stderr: the parts that count; by default all of it."""
        if self.timed_out:
            how = f"it took longer than its time limit ({self.duration_s:.0f} s)"
        elif self.limit is not None:
            how = f"it was stopped at a limit ({self.limit})"
        elif self.not_found:
            how = "the program does not exist"
        else:
            how = f"exit code {self.exit_code}" if self.exit_code is not None else f"ended by signal {self.signal}"
        for name, part, whole in (("stdout", stdout, self.stdout), ("stderr", stderr, self.stderr)):
            text = (whole.text() if part is None else part).strip()
            how += f"\n{name}: {text[-FAILURE_CHARACTERS:]}" if text else ""
        return how


def shown_command(command: str) -> str:
    """A command as a sentence names it: its first line, cut."""
    lines = command.strip().splitlines() or [""]
    return lines[0][:100] + (" …" if len(lines) > 1 or len(lines[0]) > 100 else "")
