"""How the agent's run ended and what it answered, its long texts kept as files of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keystone_action.evidence.trace import Trace


class TooMuchPrinted(Exception):  # noqa: N818 - an outcome: the checks that read it fail
    """The agent gave more than is kept, so nobody may judge what there is of it; a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class LongText:
    """A text of an agent's that is longer than the part of it that is shown."""

    size: int
    """Its bytes."""
    file: Path | None
    """A file of ours with the whole text, or with more than its first `limit` bytes; None when none was kept."""
    limit: int

    def read(self, what: str) -> bytes:
        """All of it. Raises TooMuchPrinted, OSError."""
        if self.file is None or self.size > self.limit:
            raise TooMuchPrinted(f"{what} has {self.size:,} bytes; at most {self.limit:,} can be judged")
        return self.file.read_bytes()

    def start(self, size: int) -> bytes:
        """The first bytes of it. Raises OSError."""
        if self.file is None:
            return b""
        with self.file.open("rb") as file:
            return file.read(size)


@dataclass(frozen=True, slots=True)
class AgentRun:
    """How the agent ended.

    stdout and stderr are what was kept, decoded with replacement; a cut is said in a line of its own. Checks that judge
    one of the texts ask for `whole_output()`, `whole_stdout()` or `whole_stderr()`, never for what is shown.
    """

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    stopped: str | None = None
    """The sentence of the limit of its budget that ended it (`stopped at $0.52 of $0.50`); None when none did."""
    failure: str = ""
    """Why it failed, by the word of its own transcript; empty where that does not say so."""
    unanswered: bool = False
    """Whether no model ever answered it, so that nothing is known of it; `problem` says why."""
    unheard: str = ""
    """That a conversation ended before all was said (`the conversation ended with turn 1 of 2`); empty otherwise."""
    limit: str | None = None
    duration_s: float = 0.0
    output: str = ""
    """What judges and output scorers read, by `agent.output`."""
    problem: str = ""
    """Why an output that was asked for (a file, a JSON document) could not be had; empty otherwise."""
    calls_problem: str = ""
    """Why tool calls that were asked for could not be had, where the output could; empty otherwise."""
    advice: str = ""
    """For people alone: why its program may not have run, and what to do."""
    shortage: str = ""
    """What the machine ran out of meanwhile, when the agent failed: then nothing is known about it."""
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    """All that was printed, also what was not kept."""
    stderr_bytes: int = 0
    long_output: LongText | None = None
    """The whole of a text that is cut; the same holds for the next two."""
    long_stdout: LongText | None = None
    long_stderr: LongText | None = None
    transcript: Path | None = None
    """All of stdout as a file, where it is the declared trace."""
    leftovers: int = 0
    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    token_usage: Mapping[str, Any] | None = None
    reported: Mapping[str, Any] = field(default_factory=dict)
    """What else its AgentResult document says (`latency_ms`, `reasoning_trace`, `raw_response`), unchecked."""
    processes: tuple[Mapping[str, Any], ...] = ()
    """Those that were seen, where that is wanted."""
    processes_left_out: int = 0
    """How many more there were."""
    turns: tuple[AgentTurn, ...] = ()
    """Of a conversation; empty where the task has no turns."""
    session: object | None = field(default=None, repr=False, compare=False)
    """What the next turn of a conversation goes on with, as the kind of agent keeps it. Never written to a file."""

    def whole_output(self) -> str:
        """All of the answer. Raises TooMuchPrinted, OSError."""
        return self.output if self.long_output is None else _text(self.long_output, "the output")

    def whole_stdout(self) -> str:
        """All of stdout. Raises TooMuchPrinted, OSError."""
        return self.stdout if self.long_stdout is None else _text(self.long_stdout, "stdout")

    def whole_stderr(self) -> str:
        """All of stderr. Raises TooMuchPrinted, OSError."""
        return self.stderr if self.long_stderr is None else _text(self.long_stderr, "stderr")


def _text(long: LongText, what: str) -> str:
    return long.read(what).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """One turn of a conversation."""

    prompt: str
    """What was said to the agent."""
    output: str = ""
    """What it answered, as it is shown."""
    long_output: LongText | None = None
    """The whole of an answer that is cut."""
    problem: str = ""
    """Why an answer that was asked for could not be had; empty otherwise."""
    duration_s: float = 0.0
    trace: Trace | None = field(default=None, repr=False, compare=False)
    """What its transcript or result tells; part of `Evidence.declared`, and written to no file of its own."""

    def whole_output(self) -> str:
        """All of the answer. Raises TooMuchPrinted, OSError."""
        return self.output if self.long_output is None else _text(self.long_output, "the answer of a turn")
