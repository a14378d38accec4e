"""What was observed of a cell, frozen before the first invariant runs. Written only by us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from keystone_action.evidence.trace import AGENT_RESULT

if TYPE_CHECKING:
    from keystone_action.evidence.trace import Trace
    from keystone_action.files.snapshot import Change, FileState


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is reached; empty or None where a kind has none. `url` holds credentials."""

    host: str = ""
    port: int | None = None
    url: str = ""
    user: str = ""
    password: str = ""
    database: str = ""

    def as_mapping(self) -> dict[str, Any]:
        """The keys that expressions and KeystoneContext have, without the empty ones."""
        values = {name: getattr(self, name) for name in ("host", "port", "url", "user", "password", "database")}
        return {name: value for name, value in values.items() if value not in ("", None)}


class TooMuchPrinted(Exception):  # noqa: N818 - an outcome: the checks that read it fail
    """The agent gave more than is kept, so nobody may judge what there is of it; a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class LongText:
    """A text of an agent's that is longer than what is shown of it. size: its bytes. file: ours, with all of it, or
    with the first `limit` bytes and more; None when none was kept."""

    size: int
    file: Path | None
    limit: int

    def read(self, what: str) -> bytes:
        """All of it. Raises TooMuchPrinted, OSError."""
        if self.file is None or self.size > self.limit:
            raise TooMuchPrinted(f"{what} has {self.size:,} bytes, of which at most {self.limit:,} can be judged")
        return self.file.read_bytes()

    def start(self, size: int) -> bytes:
        """The first bytes of it. Raises OSError."""
        if self.file is None:
            return b""
        with self.file.open("rb") as file:
            return file.read(size)


@dataclass(frozen=True, slots=True)
class AgentRun:
    """How the agent ended. `output` is what judges and output scorers read (by `agent.output`); `problem` says why an
    output that was asked for (a file, a JSON document) could not be had, and is empty otherwise; `advice` is for people
    alone: why its program may not have run, and what to do; `shortage` says what the machine ran out of meanwhile, when
    it failed: then nothing is known about it. stdout and stderr are what was kept, decoded with replacement, a cut said
    in a line of its own; *_bytes count what came. What is cut, `long_output` and the like have whole: checks that judge
    one of the texts ask for `whole_output()`, `whole_stdout()` or `whole_stderr()`, never for what is shown.
    transcript: all of stdout as a file, where it is the declared trace. reported: what else its AgentResult document
    says (`latency_ms`, `reasoning_trace`, `raw_response`), unchecked. stopped: the sentence of the limit of its budget
    that ended it (`stopped at $0.52 of $0.50`); None when none did. failure: why it failed, by the word of its own
    transcript; empty where that does not say so. processes: those that were seen, where that is
    wanted, and how many more there were."""

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    stopped: str | None = None
    failure: str = ""
    limit: str | None = None
    duration_s: float = 0.0
    output: str = ""
    problem: str = ""
    advice: str = ""
    shortage: str = ""
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    long_output: LongText | None = None
    long_stdout: LongText | None = None
    long_stderr: LongText | None = None
    transcript: Path | None = None
    leftovers: int = 0
    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    token_usage: Mapping[str, Any] | None = None
    reported: Mapping[str, Any] = field(default_factory=dict)
    processes: tuple[Mapping[str, Any], ...] = ()
    processes_left_out: int = 0

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
class RecordedRequest:
    """One request that a mock recorded, in the order it came in.

    `query` and `headers` map a name to a text, or to a list of texts when it was repeated; header names are as sent.
    `body` is the decoded text (content and transfer coding removed, charset honoured, undecodable bytes replaced);
    `body_bytes` counts what came in; `cut` says how many bytes of it were not kept.
    """

    service: str
    method: str
    path: str
    url: str
    query: Mapping[str, str | list[str]]
    headers: Mapping[str, str | list[str]]
    body: str
    body_bytes: int
    cut: int
    status: int
    response_body: str
    ts: str


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query as Python values, and the names of its columns in order.

    boolean_as_number: the engine has no boolean, 0 and 1 stand for it (MySQL, SQLite). more: there were more rows
    than were kept.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    boolean_as_number: bool = False
    more: bool = False


class QueryFailed(Exception):  # noqa: N818 - an outcome, not a defect of ours
    """A query did not give rows that can be judged. by_agent: that is the agent's doing (`fail`), such as a table or
    column that does not exist; anything else makes the check `error`."""

    def __init__(self, message: str, *, by_agent: bool = False) -> None:
        super().__init__(message)
        self.by_agent = by_agent


class Database(Protocol):
    """A service that can be asked by sql, read-only and with a time limit."""

    def query(self, sql: str, *, timeout: float, redefined: bool = False) -> QueryResult:
        """Blocking; always ended at the time limit. redefined: whether it may read what stood before the agent and is
        something else by now. Raises QueryFailed."""


class RequestLog(Protocol):
    """What a recording mock saw for one cell."""

    def requests(self) -> Sequence[RecordedRequest]:
        """In the order they came in. Reads the journal on disk."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that invariants may read.

    workspace: the workspace as the agent left it (its processes are gone). changes: against the snapshot that was
    taken before the agent started. audit_log and trace: our own copies, always there, possibly empty. patch: the same
    changes as a unified diff, as `diff.patch` has it, bytes that are no UTF-8 as os.fsdecode gives them; patch_cut:
    what it does not have whole, in sentences. observed:
    what the agent did, as far as the gateway, a trace or a result with tool calls tells; None where there is none of
    them. declared: the agent's own word on it, from its transcript or its result.
    """

    cell_id: str
    workspace: Path
    task_prompt: str
    params: Mapping[str, Any]
    agent: AgentRun
    changes: tuple[Change, ...]
    before: Mapping[str, FileState]
    after: Mapping[str, FileState]
    services: Mapping[str, Address]
    databases: Mapping[str, Database]
    request_logs: Mapping[str, RequestLog]
    audit_log: Path
    trace: Path
    secrets: tuple[str, ...] = ()
    patch: str = ""
    patch_cut: tuple[str, ...] = ()
    observed: Trace | None = None
    declared: Trace | None = None

    @property
    def answer_trace(self) -> Trace | None:
        """What `passfail` and `tool_correctness` read: of an AgentResult that document, as AgenticAssure has it, else
        what all checks read."""
        told = self.declared
        return told if told is not None and told.source == AGENT_RESULT else self.observed

    @property
    def answer_trace_note(self) -> str:
        """Whose word that is, where the gateway saw it too; empty otherwise."""
        told, seen = self.answer_trace, self.observed
        if told is None or seen is None or told is seen or seen.source == told.source:
            return ""
        return f"Read from the agent's own result; models asked for {len(seen.tool_calls or ()):,} calls of tools."
