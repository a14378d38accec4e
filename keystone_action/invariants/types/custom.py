"""`custom`: a script of the spec's author decides. It reads KeystoneContext from stdin and prints a CheckResult."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

import anyio.to_thread
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import PACKAGE_NAMES
from keystone_action.invariants.check import Check, CheckContext, Outcome, Phase, broken, failed, passed
from keystone_action.invariants.command_output import describe_ending, full_log, seconds, tails
from keystone_action.invariants.json_values import parse_strict
from keystone_action.sandbox.programs import sentence_on_missing
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.spec.models.fields import AuthorPath, TextOrList
from keystone_action.system.command import Capture, Command, Completed

_READ = ("passed", "score", "reason", "details")
_NAMED = 10
_NAME_LIMIT = 100
"""Keys that a notice names, and characters of one."""
_FINDER = Path(__file__).parent.parent / "agent_packages_program.py"
_MARK = "The script could import what the agent installed (agent_packages)."
_MISSING_MODULE = re.compile(rb"^ModuleNotFoundError: No module named '([\w.]{1,100})'", re.MULTILINE)
_BY_SUFFIX = {
    ".py": "python3",
    ".sh": "sh",
    ".bash": "bash",
    ".js": "node",
    ".mjs": "node",
    ".rb": "ruby",
    ".pl": "perl",
}


class Custom(Check):
    """Runs a script of yours, which reads KeystoneContext from its standard input and prints a CheckResult.

    KeystoneContext is a JSON object with `sandbox_id`, `workspace_path`, `services`, `audit_log_path`, `trace_path`,
    `task` and `scenario_params`. CheckResult is a JSON object with `passed` (true or false) and, if you like, `score`
    (0 to 1, else 1 or 0), `reason` (the message) and `details` (a mapping); it is all that is printed, or the last line
    of it. Nobody reads its other keys, which a notice names.

    Exit code ≠ 0, a time-out, and output that is not a CheckResult are the check's own error, never the agent's. The
    script is run as it was before the agent started, and the agent can't see it.
    """

    type_name: ClassVar[str] = "custom"
    origin: ClassVar[str] = "Keystone"
    default_timeout: ClassVar[float] = 60.0

    script: Annotated[str, Field(min_length=1), AuthorPath("file", withheld=True)]
    """The script, relative to the spec. It is run as it was before the agent started.

    Example: `checks/report.py`
    """
    runs_in: Literal["host", "sandbox"] = "host"
    """`host`: with our network and PATH, as a user of its own where we are root, confined by Landlock, in a throw-away
    copy of the workspace without the links that lead outside; the script finds the checkout around it,
    in a copy, and a `.py` runs under our own interpreter. `sandbox`: confined as the agent is, with a HOME of its
    own; a `.py` runs under the sandbox's python3, from a directory of its own. Python takes no modules from the
    workspace (`PYTHONSAFEPATH`) or from HOME there, and git directories in the workspace have lost their hooks and
    what their configuration could run.

    Example: `sandbox`
    """
    args: list[str] = Field(default_factory=list)
    """Arguments that the script is given.

    Example: `[--strict]`
    """
    interpreter: TextOrList[Annotated[str, Field(min_length=1)], Annotated[list[str], Field(min_length=1)]] | None = (
        None
    )
    """What runs the script, such as `node`. Otherwise its suffix decides (`.py`), or its `#!` line.

    Example: `node`
    """

    agent_packages: bool = False
    """Only with `runs_in: sandbox`. `true`: a Python script can also import what the agent installed with pip, for
    itself (`~/.local`) or in `.venv` or `venv` of the workspace: from a copy, without `.pth` files, `sitecustomize`,
    `usercustomize` and modules with the name of one of the standard library. What the sandbox has, and `setup.packages`
    installed, comes first, and what these import by themselves is never the agent's. Code of the agent's then runs in
    the script's process and can print its verdict: message and details say so, and a gate that does this gets a
    warning.

    Example: `true`
    """

    @model_validator(mode="after")
    def _sees_packages_in_the_sandbox(self) -> Self:
        if self.agent_packages and self.runs_in == "host":
            message = (
                "agent_packages: true lets the agent's code run in the script: expected runs_in: sandbox beside it"
            )
            raise PydanticCustomError("agent_packages", "{message}", {"message": message})
        return self

    @property
    def doubt_as_gate(self) -> str:
        """A script that imports the agent's code."""
        why = "with agent_packages the agent's code runs in the script, and can decide what it prints"
        return why if self.agent_packages else ""

    @property
    def reads_agent_packages(self) -> bool:
        """By `agent_packages`."""
        return self.agent_packages

    @property
    def on_host(self) -> bool:
        """By `runs_in`."""
        return self.runs_in == "host"

    @property
    def run_phase(self) -> Phase:
        """On the host it observes; in the sandbox it shares the copy of the checks that execute."""
        return "observe" if self.runs_in == "host" else "shared_copy"

    async def evaluate(self, context: CheckContext) -> Outcome:
        try:
            content = context.author_file(self.script)
        except OSError as error:
            return broken(f"the script {self.script} can't be read: {error}")
        if self.runs_in == "host":
            return await self._on_host(context, content)
        return await self._in_sandbox(context, content)

    async def _on_host(self, context: CheckContext, content: bytes) -> Outcome:
        host = await context.host(self._sandbox_files(context, content))
        there = host.checkout.inside(context.directory / self.script)
        script = _unchanged_script(there, content) or host.given / "script" / Path(self.script).name
        interpreter = self._interpreter(content, python=host.python.program)
        if interpreter is None:
            return broken(self._no_interpreter())
        document = _keystone_context(
            context,
            workspace=host.sandbox.workspace_inside,
            services={service: one.for_host.as_mapping() for service, one in context.evidence.services.items()},
            audit_log=str(host.given / "audit.jsonl"),
            trace=str(host.given / "trace.jsonl"),
        )
        environment = host.python.environment(script)
        return await self._run(context, host.sandbox, [*interpreter, str(script)], document, environment=environment)

    def _sandbox_files(self, context: CheckContext, content: bytes) -> dict[str, bytes]:
        """The script and the evidence, as files for its sandbox."""
        return {
            f"script/{Path(self.script).name}": content,
            "audit.jsonl": context.evidence.audit.log.read_bytes(),
            "trace.jsonl": context.evidence.trace.read_bytes(),
        }

    async def _in_sandbox(self, context: CheckContext, content: bytes) -> Outcome:
        name = Path(self.script).name
        # Never in the workspace: code of the agent's that a check before this one ran owns everything there.
        files, packages = self._sandbox_files(context, content), context.evidence.packages
        if self.agent_packages:
            files["path/sitecustomize.py"] = _FINDER.read_bytes()
        given = await anyio.to_thread.run_sync(context.give, files, packages if self.agent_packages else None)
        sandbox = await context.sandbox(without_programs_of_git=True)
        interpreter = self._interpreter(content, python="python3")
        if interpreter is None:
            return broken(self._no_interpreter())
        if "/" not in interpreter[0] and sandbox.which(interpreter[0]) is None:
            return broken(sentence_on_missing(interpreter[0]))
        document = _keystone_context(
            context,
            workspace=sandbox.workspace_inside,
            services={service: one.for_agent.as_mapping() for service, one in context.evidence.services.items()},
            audit_log=str(given / "audit.jsonl"),
            trace=str(given / "trace.jsonl"),
        )
        argv = [*interpreter, str(given / "script" / name)]
        environment = _without_the_agents_modules(context.check_environment, sandbox.workspace_inside)
        if self.agent_packages:
            environment["PYTHONPATH"] = ":".join(filter(None, (str(given / "path"), environment["PYTHONPATH"])))
        outcome = await self._run(context, sandbox, argv, document, environment=environment)
        if not self.agent_packages:
            return outcome
        details = {**outcome.details, "agent_packages": _names(packages)}
        return replace(outcome, message=f"{outcome.message}\n{_MARK}", details=details)

    async def _run(
        self,
        context: CheckContext,
        sandbox: Sandbox,
        argv: list[str],
        document: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
    ) -> Outcome:
        completed = await sandbox.run(
            Command(
                (*argv, *self.args),
                env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8", **environment},
                timeout=context.timeout,
                stdin=json.dumps(document).encode(),
            )
        )
        return self._grade(completed, context)

    def _grade(self, completed: Completed, context: CheckContext) -> Outcome:
        log = full_log(completed)
        removed = context.host_removed_links if self.runs_in == "host" else ()
        if removed:
            log = f"Links that led outside were removed from the copy: {', '.join(removed)}\n{log}"
        problem = self._how_it_broke(completed, context.timeout)
        if problem is not None:
            return broken(problem, log=log)
        try:
            outcome = read_result(completed.stdout)
        except BadResult as bad:
            return broken(f"{self.script} {bad}.\n{tails(completed)}", log=log)
        details = {**outcome.details, **({"removed_links": list(removed)} if removed else {})}
        return replace(outcome, log=log, details=details)

    def _how_it_broke(self, completed: Completed, limit: float) -> str | None:
        if completed.timed_out:
            return f"{self.script} was stopped at its time limit of {seconds(limit)}.\n{tails(completed)}"
        if completed.limit is not None:
            return f"{self.script} was stopped at a limit: {completed.limit}.\n{tails(completed)}"
        if completed.not_found:
            return f"{self.script} can't be started: its interpreter does not exist."
        if completed.shell_code != 0:
            return (
                f"{self.script} {describe_ending(completed)}, expected 0.{self._advice(completed)}\n{tails(completed)}"
            )
        return None

    def _advice(self, completed: Completed) -> str:
        missing = _MISSING_MODULE.search(completed.stderr.head + completed.stderr.tail)
        if missing is None or self.agent_packages or self.runs_in == "host":
            return ""
        name = missing[1].decode("utf-8", "replace")
        return (
            f" It found no module {name}: `setup.packages` installs one, and with `agent_packages: true` the script "
            "can import what the agent installed."
        )

    def _interpreter(self, content: bytes, *, python: str) -> list[str] | None:
        if self.interpreter is not None:
            return shlex.split(self.interpreter) if isinstance(self.interpreter, str) else list(self.interpreter)
        suffix = Path(self.script).suffix
        if suffix == ".py":
            return [python]
        if content.startswith(b"#!"):
            line = content[2:].split(b"\n", 1)[0].decode("utf-8", "replace").strip()
            if line:
                # As the kernel does: the program, and everything after it as one argument.
                return line.split(None, 1)
        return [_BY_SUFFIX[suffix]] if suffix in _BY_SUFFIX else None

    def _no_interpreter(self) -> str:
        return (
            f"nothing says how to run {self.script}: set interpreter, begin it with a #! line, or use one of the "
            f"suffixes {', '.join(_BY_SUFFIX)}"
        )


def _keystone_context(
    context: CheckContext, *, workspace: str, services: Mapping[str, Any], audit_log: str, trace: str
) -> dict[str, Any]:
    """KeystoneContext with exactly the keys of the source document."""
    evidence = context.evidence
    return {
        "sandbox_id": evidence.cell_id,
        "workspace_path": workspace,
        "services": {name: dict(address) for name, address in services.items()},
        "audit_log_path": audit_log,
        "trace_path": trace,
        "task": {"prompt": evidence.task_prompt},
        "scenario_params": dict(evidence.params),
    }


def _names(packages: Path | None) -> list[str]:
    """Of modules and packages that the agent installed, as far as they are named in details."""
    try:
        return [] if packages is None else (packages / PACKAGE_NAMES).read_text("utf-8").split()
    except FileNotFoundError:
        return []


def _unchanged_script(path: Path | None, content: bytes) -> Path | None:
    """The script where the checkout has it, as long as that is what it was when the run started."""
    try:
        return path if path is not None and path.read_bytes() == content else None
    except OSError:
        return None


def _without_the_agents_modules(environment: Mapping[str, str], workspace: str) -> dict[str, str]:
    """The environment for a script of the author's: no Python that it starts takes modules from the workspace or from
    HOME by itself, also where PYTHONPATH is meant to have the agent's code imported by other checks. (A Python before
    3.11 knows no PYTHONSAFEPATH: one that the script starts as `python3 -c` or `-m` there needs `-I`.)"""
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(":") if entry.startswith("/")]
    outside = [entry for entry in entries if not _is_below(entry, workspace)]
    # Empty, it names nothing; left out, the sandbox would put its own in.
    return {**environment, "PYTHONPATH": ":".join(outside), "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}


def _is_below(path: str, directory: str) -> bool:
    return PurePosixPath(os.path.normpath(path)).is_relative_to(directory)


class BadResult(Exception):  # noqa: N818 - an outcome: the check is in error
    """The script did not print a CheckResult; the message follows the script's name."""


def read_result(stdout: Capture) -> Outcome:
    """The outcome of `{"passed": bool, "score": number, "reason": text, "details": mapping}`; all but `passed` may be
    left out, and other keys are named in a notice.

    The document is all of stdout or, when something else was printed before it, the last line that is not empty.
    `passed` decides the status and `score` [1 or 0] the credit, also where the two disagree (a script that passes
    with 0.4 has passed, and earns 0.4). Raises BadResult.
    """
    document = _printed_document(stdout)
    if not isinstance(document, dict):
        raise BadResult(f"printed a JSON {_json_type(document)}, expected an object with `passed`")
    verdict = document.get("passed")
    if not isinstance(verdict, bool):
        what = f"has {json.dumps(verdict)[:80]}" if "passed" in document else "is missing"
        raise BadResult(f"printed a result whose `passed` {what}, expected true or false")
    score = document.get("score")
    if score is None:
        score = 1.0 if verdict else 0.0
    reason = document.get("reason")
    text = reason if isinstance(reason, str) else "" if reason is None else json.dumps(reason)
    outcome = (passed if verdict else failed)(text or f"The script says passed: {str(verdict).lower()}.", score=score)
    if outcome.status == "error":
        raise BadResult(f"printed the score {json.dumps(score)[:80]}, expected a number from 0 to 1")
    details = document.get("details")
    mapping = details if isinstance(details, dict) else {} if details is None else {"details": details}
    return replace(outcome, details=mapping, notices=_unread(document))


def _unread(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What to say of keys that nobody reads, `message` first where it stands for `reason`; nothing where all are."""
    names = sorted((name for name in document if name not in _READ), key=lambda name: name != "message")
    if not names:
        return ()
    meant = "; `reason` is what is shown" if "message" in names and "reason" not in document else ""
    shown = ", ".join(name[:_NAME_LIMIT] for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return (f"nobody reads these keys of what the script printed: {shown}{more}{meant}",)


def _printed_document(stdout: Capture) -> Any:
    if not stdout.total:
        raise BadResult("printed nothing, expected a JSON object with `passed`")
    problem: ValueError | None = None
    if not stdout.cut:
        try:
            return parse_strict((stdout.head + stdout.tail).decode("utf-8"))
        except ValueError as error:
            problem = error
    lines = (stdout.tail or stdout.head).decode("utf-8", "replace").rstrip().rsplit("\n", 1)
    if stdout.cut and len(lines) == 1:
        # The end of a line is not the line: what is in it may be what the agent wrote.
        raise BadResult(f"printed {stdout.total:,} bytes; the line with its result may have {len(stdout.tail):,}")
    try:
        return parse_strict(lines[-1])
    except ValueError as error:
        raise BadResult(f"printed no JSON ({problem or error})") from None


def _json_type(document: object) -> str:
    return {list: "array", str: "text", bool: "boolean", type(None): "null"}.get(type(document), "number")
