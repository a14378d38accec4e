"""`command_exit` (alias `command`): a command in the workspace ends with the expected exit code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from keystone_action.invariants.check import Check, CheckContext, Outcome, Phase, broken, failed, passed
from keystone_action.invariants.command_output import describe_ending, full_log, seconds, tails
from keystone_action.sandbox.programs import sentence_on_missing, started_program
from keystone_action.spec.models.fields import Duration, ShellCommand, Text, TextOrList
from keystone_action.system.command import Command, Completed

_NOT_FOUND = 127
_ALIASED = {"cmd": "command", "expect_exit": "exit_code"}


class CommandExit(Check):
    """Runs a command in the workspace and passes when it ends with the expected exit code.

    The message shows the end of what the command printed, the check's log more of it. A command that hits its time
    limit fails. When its program was missing before the agent started, the check is an error that names the program:
    the sandbox lacks it, which is not the agent's doing.
    """

    type_name: ClassVar[str] = "command_exit"
    aliases: ClassVar[tuple[str, ...]] = ("command",)
    origin: ClassVar[str] = "Keystone"
    phase: ClassVar[Phase] = "shared_copy"
    default_timeout: ClassVar[float] = 300.0
    late_fails: ClassVar[bool] = True

    command: Annotated[
        TextOrList[Annotated[str, Field(min_length=1)], Annotated[list[str], Field(min_length=1)]], ShellCommand()
    ]
    """What to run: a text goes through `sh -c`, a list is started as it is.

    Example: `python3 -m compileall -q src`
    Example: `[make, test]`
    """
    exit_code: int = Field(default=0, ge=0, le=255)
    """The exit code that passes. A program ended by signal n counts as 128 + n, as in a shell.

    Example: `1`
    """
    runs_in: Literal["sandbox", "host"] = "sandbox"
    """`sandbox`: confined as the agent is. `host`: so as well, with our network and PATH, in a throw-away copy of the
    workspace, before the checks that execute; for the author's own tools.

    Example: `host`
    """
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables of the command, besides those of `setup.env` and `KEYSTONE_*`.

    Example: `{CI: "1"}`
    """
    share_home: bool = False
    """Whether it goes on in the HOME that the `command_exit` before it left (tools that it installed, a cache).
    Otherwise HOME is new and empty. What code of the agent's planted there runs here, too.

    Example: `true`
    """
    timeout_s: Duration | None = None
    """The time limit as Touchstone writes it; it wins over the invariant's `timeout`.

    Example: `120`
    """

    @classmethod
    def upgrade(cls, document: dict[str, Any]) -> dict[str, Any]:
        """`cmd` and `expect_exit` become `command` and `exit_code`; both names at once stay, to be refused."""
        if document.get("type") != "command":
            return document
        return {
            _ALIASED[key] if key in _ALIASED and _ALIASED[key] not in document else key: value
            for key, value in document.items()
        }

    @property
    def on_host(self) -> bool:
        """By `runs_in`."""
        return self.runs_in == "host"

    @property
    def run_phase(self) -> Phase:
        """On the host it looks at a copy of its own, like the checks that observe."""
        return "observe" if self.runs_in == "host" else self.phase

    @property
    def in_kept_home(self) -> bool | None:
        """`share_home`; on the host, None."""
        return None if self.runs_in == "host" else self.share_home

    @property
    def own_timeout(self) -> float | None:
        """`timeout_s`, when it is given."""
        return self.timeout_s

    async def evaluate(self, context: CheckContext) -> Outcome:
        argv = ("/bin/sh", "-c", self.command) if isinstance(self.command, str) else tuple(self.command)
        limit = self.timeout_s or context.timeout
        if self.runs_in == "host":
            sandbox, environment = (await context.host({})).sandbox, self.env
        else:
            sandbox, environment = await context.sandbox(), {**context.check_environment, **self.env}
        completed = await sandbox.run(Command(argv, env=environment, timeout=limit))
        return self._grade(completed, limit, context.missing_programs)

    def _grade(self, completed: Completed, limit: float, missing: Mapping[str, Path | None]) -> Outcome:
        log = full_log(completed)
        details: dict[str, Any] = {"exit_code": completed.exit_code, "expected": self.exit_code}
        what = self._show_command()
        if completed.timed_out:
            return failed(
                f"{what} was stopped at its time limit of {seconds(limit)}.\n{tails(completed)}",
                log=log,
                timed_out=True,
                **details,
            )
        if completed.limit is not None:
            return failed(
                f"{what} was stopped at a limit: {completed.limit}.\n{tails(completed)}",
                log=log,
                limit=completed.limit,
                **details,
            )
        code = completed.shell_code
        if code == self.exit_code and not completed.not_found:
            return passed(f"{what} ended with exit code {code}.", log=log, **details)
        program = started_program(self.command)
        if (code == _NOT_FOUND or completed.not_found) and program is not None and program in missing:
            return broken(sentence_on_missing(program, missing[program]), log=log, **details)
        if completed.not_found:
            return failed(f"{what} can't be started: there is no program {program!r}.", log=log, **details)
        return failed(
            f"{what} {describe_ending(completed)}, expected {self.exit_code}.\n{tails(completed)}", log=log, **details
        )

    def _show_command(self) -> str:
        text = self.command if isinstance(self.command, str) else shlex.join(self.command)
        line = " ".join(text.split())
        return f"`{line if len(line) <= 80 else line[:79] + '…'}`"
