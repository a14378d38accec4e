"""What was observed of a cell, frozen before the first invariant runs. Written only by us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from keystone_action.evidence.agent_run import AgentRun
from keystone_action.evidence.trace import AGENT_RESULT, Trace

if TYPE_CHECKING:
    from keystone_action.errors import KeystoneError
    from keystone_action.evidence.writes import WriteLog
    from keystone_action.files.snapshot import Change, FileState

PACKAGE_NAMES = "names"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is reached; empty or None where a kind has none. `url` holds credentials."""

    host: str = ""
    port: int | None = None
    url: str = ""
    user: str = ""
    password: str = ""
    database: str = ""
    command: str = ""
    """A program in the sandbox that speaks for it on standard input and output."""

    def as_mapping(self) -> dict[str, Any]:
        """The keys that expressions and KeystoneContext have, without the empty ones."""
        keys = ("host", "port", "url", "user", "password", "database", "command")
        values = {name: getattr(self, name) for name in keys}
        return {name: value for name, value in values.items() if value not in ("", None)}


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

    @property
    def headline(self) -> str:
        """What it asked for, on one line."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a tool that an mcp_mock recorded, in the order of the answers.

    `arguments` is what the client sent as JSON; `result` is the text of the answer, or what the error said.
    """

    service: str
    tool: str
    arguments: Any
    result: str
    is_error: bool
    ts: str
    cut: ClassVar[int] = 0
    """All of it is kept."""

    @property
    def headline(self) -> str:
        """What was called, on one line."""
        return self.tool


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query as Python values, and the names of its columns in order."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    boolean_as_number: bool = False
    """Whether the engine has no boolean, so that 0 and 1 stand for it (MySQL, SQLite)."""
    more: bool = False
    """Whether there were more rows than were kept."""


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


class CallLog(Protocol):
    """The calls of tools that a recording mcp_mock saw for one cell."""

    def calls(self) -> Sequence[RecordedCall]:
        """In the order of the answers. Reads the journal on disk."""


class ObservedService(Protocol):
    """A service of a cell as judging sees it, whether it still serves or was sealed."""

    @property
    def for_agent(self) -> Address: ...
    @property
    def for_host(self) -> Address: ...

    @property
    def database(self) -> Database | None:
        """What checks ask by sql, where the service is a database."""

    @property
    def requests(self) -> RequestLog | None:
        """What it recorded of this cell, where it records."""

    @property
    def calls(self) -> CallLog | None:
        """Which of its tools were called for this cell, where it is an mcp_mock that records."""

    @property
    def writes(self) -> WriteLog | None:
        """What was written into it, where it is a database and a rule or the audit log wants to know."""

    def require_whole_record(self) -> None:
        """Raises OutputError where something that clients sent is not on record."""

    def require_unbroken(self) -> None:
        """Raises ServiceError where the server crashed while the cell used it. Blocking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvidence:
    """The workspace before and after the agent."""

    before: Mapping[str, FileState] = field(default_factory=dict)
    after: Mapping[str, FileState] = field(default_factory=dict)

    changes: tuple[Change, ...] = ()
    """How `after` differs from the snapshot that was taken before the agent started."""

    all_changes: tuple[Change, ...] = ()
    """With those in `.git` and of empty directories; empty where neither a rule nor the audit log asks for them."""

    patch: str = ""
    """The changes as a unified diff, as `diff.patch` has it; bytes that are not UTF-8 as os.fsdecode gives them."""

    patch_cut: tuple[str, ...] = ()
    """What the patch does not show whole, in sentences."""

    originals: Path | None = None
    """What the workspace held before the agent, without `.git`; None when it was empty."""

    unreadable: str = ""
    """The sentence that disqualifies a cell whose agent closed files to us; empty where all could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvidence:
    """What we wrote down while the cell ran."""

    log: Path
    """`audit.jsonl`: always there, possibly empty."""

    agent_start: int = 0
    """The byte of the log where the agent started."""

    own_addresses: frozenset[tuple[str, int]] = frozenset()
    """Hosts and ports of ours that the agent has to reach, which count for no rule."""

    is_full: bool = False
    """Whether the egress proxy wrote down only the first attempts to get out."""


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """A call of a tool that a model asked for, as the gateway saw it: when, and with which arguments, whole."""

    ts: str
    arguments: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ProviderFaults:
    """What providers did wrong, in sentences that are empty where there is nothing to say."""

    hopeless: str = ""
    """Why the gateway gave a provider up."""

    failure: str = ""
    """Why the provider is at fault when the agent then failed."""

    is_certain: bool = False
    """Whether the failure is the same in every run."""

    is_rate_limited: bool = False
    """Whether the last request that was not answered was one too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEvidence:
    """How the recording fitted that models were replayed from."""

    recorded_at: str
    """When it was recorded, in UTC as ISO 8601."""

    answered: int = 0
    left_over: int = 0
    """Recorded answers that nobody asked for."""

    stale: tuple[str, ...] = ()
    """Sentences on the first requests that differed from the recorded ones."""

    misses: bool = False
    """Whether a request had no recorded answer, or could not be compared."""

    is_changed: bool = False
    """Whether the change that is tested touched the recording, or may have."""

    uncompared: str = ""
    """Why nobody knows whether it did; empty when that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvidence:
    """What passed the gateway of a cell."""

    answered: bool = False
    """Whether a provider, or a recording, answered."""

    asked: bool = False
    """Whether anything was asked, refused requests included."""

    cost_usd: float | None = None
    """US dollars that were paid now; None where nothing was answered or a price is not known."""

    calls: tuple[ObservedCall, ...] = ()
    tool_calls: int = 0
    """Calls of tools that providers answered with, those of requests that failed later too."""

    faults: ProviderFaults = ProviderFaults()
    replay: ReplayEvidence | None = None
    leaks: tuple[tuple[int, str], ...] = ()
    """Requests, counted from 1, that held a secret, with its name."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    """The real keys of providers, to be looked for; never written to a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that judging may read of a cell."""

    cell_id: str
    task_prompt: str
    params: Mapping[str, Any]
    agent: AgentRun

    workspace: Path
    """As the agent left it; its processes are gone."""

    packages: Path | None = None
    """A copy of the Python packages that the agent installed; None where no check reads them, or there are none. Its
    file PACKAGE_NAMES has their names, one on each line."""

    files: FileEvidence = FileEvidence()
    audit: AuditEvidence

    trace: Path
    """Our own copy of what is observed, `trace.jsonl`: always there, possibly empty."""

    observed: Trace | None = None
    """What the agent did, by the gateway, a transcript or a result with tool calls; None without any of them."""

    declared: Trace | None = None
    """The agent's own word on what it did, from its transcript or its result."""

    models: ModelEvidence | None = None
    """None for a cell without a gateway."""

    services: Mapping[str, ObservedService] = field(default_factory=dict)

    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The values of the spec's secrets, to be masked and looked for; never written to a folder."""

    broken: KeystoneError | None = None
    """What of ours broke while or after the agent ran: then nothing counts but rules that were violated for certain."""

    def database(self, service: str) -> Database | None:
        """What sql asks of a service; None where there is no such service, or it is not a database."""
        found = self.services.get(service)
        return None if found is None else found.database

    def request_log(self, service: str) -> RequestLog | None:
        """What a mock recorded; None where there is no such service, or it does not record."""
        found = self.services.get(service)
        return None if found is None else found.requests

    def call_log(self, service: str) -> CallLog | None:
        """What an mcp_mock recorded; None where there is no such service, or it does not record."""
        found = self.services.get(service)
        return None if found is None else found.calls

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
