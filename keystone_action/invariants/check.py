"""What a check type is: a pydantic model of its fields, and one async function that turns evidence into an outcome.

A new check type is one file in the folder `types`, named like it (or one in another package, by the entry point
`keystone_action.invariants`):

    class FileExists(Check):
        type_name = "file_exists"
        path: Annotated[str, WorkspacePath(glob=True)]

        async def evaluate(self, context: CheckContext) -> Outcome: ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from keystone_action.spec.models.fields import CheckModel

if TYPE_CHECKING:
    from keystone_action.evidence.model import Evidence
    from keystone_action.files.git.commits import CheckoutCopy
    from keystone_action.judge.judgement import Judge
    from keystone_action.sandbox.own_programs import OwnPython
    from keystone_action.sandbox.protocol import Sandbox

OutcomeStatus = Literal["pass", "fail", "skip", "error"]
Phase = Literal["observe", "shared_copy", "fresh_copy"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found. Made by the functions below, never by hand."""

    status: OutcomeStatus
    score: float | None
    """In [0, 1]; None for skip and error."""
    message: str
    """One or more sentences for people, as short as they allow: what was expected, what was found."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for results.json."""
    log: str = ""
    """What goes to checks/<name>.log."""
    judge_usage: Mapping[str, float | None] = field(default_factory=dict)
    """Tokens and cost that a judge spent, counted apart from the agent's; None = unknown."""
    unpriced: tuple[str, ...] = ()
    """Judges without a price."""
    disqualifies: bool = False
    """Whether the cell's composite is 0 with any score, as when a gate fails: something that has to hold besides the
    score did not."""
    notices: tuple[str, ...] = ()
    """What the author should know, whatever the outcome is: sentences without a full stop, shown among the cell's
    notices after the invariant's name."""


def passed(message: str, *, score: float = 1.0, log: str = "", **details: Any) -> Outcome:
    """The check holds."""
    return _graded_outcome("pass", score, message, log, details)


def failed(message: str, *, score: float = 0.0, log: str = "", disqualifies: bool = False, **details: Any) -> Outcome:
    """The check does not hold; the agent's fault."""
    outcome = _graded_outcome("fail", score, message, log, details)
    return replace(outcome, disqualifies=disqualifies and outcome.status == "fail")


def skipped(message: str, **details: Any) -> Outcome:
    """The check could not apply: it leaves both sums."""
    return Outcome("skip", None, message, details)


def broken(message: str, *, log: str = "", **details: Any) -> Outcome:
    """The check itself broke: the cell never passes, and is `error` unless it fails for certain."""
    return Outcome("error", None, message, details, log)


def with_notices(outcome: Outcome, notices: Iterable[str]) -> Outcome:
    """The outcome with these notices behind its own, each once."""
    return replace(outcome, notices=tuple(dict.fromkeys((*outcome.notices, *notices))))


def _graded_outcome(status: OutcomeStatus, score: float, message: str, log: str, details: dict[str, Any]) -> Outcome:
    # Never clamped (spec 5.1): a score out of range is a defect of the check, and says so.
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:  # NaN is not, either
        return Outcome(
            "error", None, f"the check gave the score {score!r}; expected a number from 0 to 1", details, log
        )
    return Outcome(status, float(score), message, details, log)


@dataclass(frozen=True, slots=True)
class HostWorld:
    """Where a script of the author's runs on the host."""

    sandbox: Sandbox
    given: Path
    """The directory of the files that it was given."""
    checkout: CheckoutCopy
    """The part of the checkout that it can read."""
    python: OwnPython
    """Our interpreter."""


class CheckContext(Protocol):
    """What a check is given; one per invariant and cell.

    name: the invariant's. timeout: seconds, already defaulted by the check's type. directory: the spec's directory
    *as it was before the agent ran* (author's files are read from here only).
    """

    @property
    def name(self) -> str: ...
    @property
    def timeout(self) -> float: ...
    @property
    def directory(self) -> Path: ...
    @property
    def evidence(self) -> Evidence: ...

    async def sandbox(self, *, without_programs_of_git: bool = False) -> Sandbox:
        """For checks that execute agent-written code: a fresh sandbox, with a user, HOME and TMPDIR of its own, on a
        copy of the workspace, by the check's `phase`. Its processes are gone before the next check.
        without_programs_of_git: hooks, and configuration that names programs, are taken out of every git directory of
        a shared copy first: for scripts of the author's, which may call git there."""

    def give(self, files: Mapping[str, bytes], tree: Path | None = None) -> Path:
        """Lay out files of ours, by relative path, and a copy of a tree as `tree`, for the sandbox that this check
        opens next: in a new directory outside of the workspace, of the same name inside, which code in it may read and
        not change. It is gone when the check has ended."""

    async def host(self, files: Mapping[str, bytes]) -> HostWorld:
        """For the author's own scripts, with the files of ours that it is to read, by relative path. cwd is a
        throw-away copy of the workspace, without the links that lead outside; `host_removed_links` lists
        them."""

    @property
    def host_removed_links(self) -> tuple[str, ...]: ...

    @property
    def missing_programs(self) -> Mapping[str, Path | None]:
        """First words of string commands that the sandbox did not have before the agent started, with the place where
        this machine has them and the sandbox hides it."""

    @property
    def check_environment(self) -> Mapping[str, str]:
        """What a command in the sandbox gets besides its own `env`: setup.env, KEYSTONE_* and addresses of services
        that are valid there."""

    @property
    def judge(self) -> Judge:
        """The run's judge: clients, cache and keys from our own environment."""

    @property
    def agent_directory(self) -> Path | None:
        """The agent's own code, where code in a check's sandbox finds it; None for an agent without `dir`."""

    @property
    def library(self) -> bytes:
        """Modules that Python code in a check's sandbox finds after all others, as a zip archive."""

    def author_file(self, path: str) -> bytes:
        """The bytes of an author's file (a script, a rubric) as they were before the agent ran."""

    def author_directory(self, path: str) -> Mapping[str, bytes]:
        """The files of an author's directory that is withheld (`expect_dir`), as they were before the agent ran: the
        bytes by POSIX path relative to it, never empty."""


class Check(CheckModel):
    """Base of all check types. What `passed` means for a score is up to `evaluate`."""

    phase: ClassVar[Phase] = "observe"
    """`observe` (reads evidence only; runs first), `shared_copy` (executes; shares one copy with the others of its
    kind) or `fresh_copy` (executes on a copy of its own)."""
    default_timeout: ClassVar[float] = 60.0
    """Seconds, where the invariant gives none."""
    origin: ClassVar[str] = ""
    """The system that the check type comes from, where docs/checks lists it; empty: from nowhere else."""

    skips_without_secrets: ClassVar[bool] = False
    """Whether the check is skipped, not an error, when a secret that it alone names can't be resolved: judges."""

    late_fails: ClassVar[bool] = False
    """Whether a check that is stopped at its time limit fails: where only a pattern over the agent's text takes long,
    or tests do (spec.md 5.1). A pattern's own limit counts processor time, which on a busy machine comes later."""

    @property
    def run_phase(self) -> Phase:
        """The phase of this very check; a check whose `runs_in` decides overrides it."""
        return self.phase

    @property
    def on_host(self) -> bool:
        """Whether it runs a script or command of the author's on the host (`CheckContext.host`)."""
        return False

    def depends_on(self, service: str) -> bool:  # noqa: ARG002 - a check that asks one by name overrides it
        """Whether what becomes of this service of the cell can change the outcome: what executes can reach them all."""
        return self.run_phase != "observe" or self.on_host

    @property
    def judges_changes(self) -> bool:
        """Whether the outcome depends on which files changed: then all of them are read again after the agent, and no
        time stamp is believed. So it is wherever changes to protected files are taken back."""
        return self.run_phase == "fresh_copy" or getattr(self, "input_from", None) in ("workspace", "diff")

    @property
    def in_kept_home(self) -> bool | None:
        """Whether it goes on in the HOME of the check before it; None for a check that neither does so nor leaves its
        HOME to one that does."""
        return None

    @property
    def reads_agent_packages(self) -> bool:
        """Whether it reads the Python packages that the agent installed (`Evidence.packages`)."""
        return False

    @property
    def own_timeout(self) -> float | None:
        """Seconds, where a field of the check itself sets its time limit (`timeout_s` of Touchstone's `command`)."""
        return None

    @property
    def judges(self) -> tuple[str, ...]:
        """The names of the models that the check asks, as the spec has them."""
        return ()

    async def evaluate(self, context: CheckContext) -> Outcome:  # noqa: ARG002
        """Grade. Any exception that leaves here is the check's own fault, and makes it an error."""
        raise TypeError(f"{type(self).__name__} has no evaluate")
