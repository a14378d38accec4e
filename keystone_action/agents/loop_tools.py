"""The tools of the tool loop. Each call is a process of the sandbox, under the agent's limits and as its user: our own
process reads and writes nothing in a tree that the agent may have laid out. When a call has ended, all its processes
have, those in the background included.

What a tool says depends on nothing but the sandbox: no durations, no names that are made anew. So a recording of the
conversation can be replayed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from keystone_action.agents.loop_models import CallOutcome, ToolForm
from keystone_action.errors import HarnessError
from keystone_action.system.command import Command, Completed

if TYPE_CHECKING:
    import asyncio

    from keystone_action.agents.loop_models import RequestedCall
    from keystone_action.sandbox.protocol import Sandbox

RESULT_LIMIT = 30_000
"""Characters of a result that the model is told: the beginning and the end, the cut said."""
_SECONDS, _MOST_SECONDS = 120, 600
"""For a command, unless the model asks for more or less; for a file."""
_COMMAND_LIMIT = 100 << 10
"""Bytes of a command: the kernel takes 128 KiB as one argument."""
_PATH_LIMIT = 4096
_CONTENT_LIMIT = 4 << 20
"""Bytes that `write` takes."""
_LINES = 2000
_MOST_LINES = 10**9
_SHELL = "/bin/sh"
_RUN = 'exec "$0" -c "$1" 2>&1'
_READ = '[ ! -d "$1" ] || { echo "$1 is a directory" >&2; exit 1; }; exec <"$1" && tail -n "+$2" | head -n "$3"'
_WHOLE = '[ ! -d "$1" ] || { echo "$1 is a directory" >&2; exit 1; }; exec cat <"$1"'
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && exec cat >"$1"'
_OVERWRITE = 'exec cat >"$1"'


class AgentAtLimit(Exception):  # noqa: N818 - an outcome
    """A call reached a limit of the sandbox, which ends the agent; the message is the limit's sentence."""


class _Refused(Exception):  # noqa: N818 - an outcome
    """A call that is not made; the message is for the model."""


def _form(name: str, description: str, required: Sequence[str], **properties: tuple[str, str]) -> ToolForm:
    described = {key: {"type": kind, "description": text} for key, (kind, text) in properties.items()}
    schema = {"type": "object", "properties": described, "required": list(required), "additionalProperties": False}
    return ToolForm(name, description, schema)


FORMS: Mapping[str, ToolForm] = {
    form.name: form
    for form in (
        _form(
            "bash",
            "Run a shell command in the working directory. The answer is what it prints, standard error included, and "
            "its exit code where that is not 0. Each call is a new shell: a changed directory and variables do not "
            "carry over, and processes in the background end with the call.",
            ["command"],
            command=("string", "The command."),
            timeout=("integer", f"Seconds after which it is ended, at most {_MOST_SECONDS}. Default: {_SECONDS}."),
        ),
        _form(
            "read",
            "Read a text file.",
            ["path"],
            path=("string", "The file, relative to the working directory or absolute."),
            offset=("integer", "The first line to read, counted from 1. Default: 1."),
            limit=("integer", f"How many lines to read. Default: {_LINES}."),
        ),
        _form(
            "write",
            "Write a text file. A file that is there is replaced, and folders that are missing are made.",
            ["path", "content"],
            path=("string", "The file, relative to the working directory or absolute."),
            content=("string", "All that the file is to hold."),
        ),
        _form(
            "edit",
            "Replace a text in a file by another one. The old text must be there exactly once.",
            ["path", "old_text", "new_text"],
            path=("string", "The file, relative to the working directory or absolute."),
            old_text=("string", "What is there now, with its white space; several lines are fine."),
            new_text=("string", "What is to be there instead."),
        ),
    )
}


class LoopTools:
    """Does what a model calls for. names: of the tools that it has. environment: complete, of each process. ended: told
    of each process that has ended. stop: once it is set, what runs is killed."""

    def __init__(
        self,
        names: Sequence[str],
        sandbox: Sandbox,
        environment: Mapping[str, str],
        *,
        lists_processes: bool = False,
        ended: Callable[[Completed], None] = lambda _completed: None,
        stop: asyncio.Event | None = None,
    ) -> None:
        self._sandbox, self._environment = sandbox, environment
        self._lists_processes, self._ended, self._stop = lists_processes, ended, stop
        every: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[CallOutcome]]] = {
            "bash": self._bash,
            "read": self._read,
            "write": self._write,
            "edit": self._edit,
        }
        self._tools = {name: every[name] for name in names}
        self._bash_program = ""

    @property
    def forms(self) -> tuple[ToolForm, ...]:
        """As the model is told of them."""
        return tuple(FORMS[name] for name in self._tools)

    async def call(self, call: RequestedCall) -> CallOutcome:
        """What came of a call. One that can't be made has an error for its result. Raises AgentAtLimit, SandboxError,
        and ShortageError where the machine ran out of something."""
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return CallOutcome(f"there is no tool {call.name[:100]!r}; there is {known}", is_error=True)
        if call.arguments is None:
            return CallOutcome("the arguments are not a JSON object", is_error=True)
        try:
            return await tool(call.arguments)
        except _Refused as refused:
            return CallOutcome(str(refused), is_error=True)

    async def _bash(self, arguments: Mapping[str, Any]) -> CallOutcome:
        command = _text(arguments, "command", _COMMAND_LIMIT)
        seconds = _number(arguments, "timeout", _SECONDS, _MOST_SECONDS)
        if not self._bash_program:
            path = self._environment.get("PATH")
            found = await anyio.to_thread.run_sync(self._sandbox.which, "bash", path)
            self._bash_program = found or _SHELL
        done = await self._run(_RUN, self._bash_program, command, seconds=seconds)
        printed = _bounded((done.stdout.text() + done.stderr.text()).rstrip("\n"))
        ending = _ending(done, seconds)
        return CallOutcome("\n".join(filter(None, (printed, ending))) or "(no output)", is_error=bool(ending))

    async def _read(self, arguments: Mapping[str, Any]) -> CallOutcome:
        path = _path(arguments)
        first = _number(arguments, "offset", 1, _MOST_LINES)
        lines = _number(arguments, "limit", _LINES, _MOST_LINES)
        done = await self._run(_READ, _SHELL, path, str(first), str(lines))
        _require(done)
        return CallOutcome(_bounded(done.stdout.text()) or "(nothing)")

    async def _write(self, arguments: Mapping[str, Any]) -> CallOutcome:
        path, content = _path(arguments), _text(arguments, "content", _CONTENT_LIMIT, empty=True).encode()
        _require(await self._run(_WRITE, _SHELL, path, stdin=content))
        return CallOutcome(f"{path} was written")

    async def _edit(self, arguments: Mapping[str, Any]) -> CallOutcome:
        path = _path(arguments)
        old = _text(arguments, "old_text", _CONTENT_LIMIT).encode()
        new = _text(arguments, "new_text", _CONTENT_LIMIT, empty=True).encode()
        found = await self._run(_WHOLE, _SHELL, path)
        _require(found)
        if found.stdout.cut:
            raise _Refused(f"{path} is too long to be edited ({found.stdout.total:,} bytes); use another tool")
        before = found.stdout.head + found.stdout.tail
        if (times := before.count(old)) != 1:
            where = "is not there" if not times else f"is there {times:,} times; take more of its surroundings along"
            raise _Refused(f"{path} was not changed: the old text {where}")
        _require(await self._run(_OVERWRITE, _SHELL, path, stdin=before.replace(old, new)))
        return CallOutcome(f"{path} was changed")

    async def _run(self, script: str, *words: str, seconds: float = _SECONDS, stdin: bytes = b"") -> Completed:
        """Run a script of ours. words: its $0, $1, …. Raises AgentAtLimit, SandboxError."""
        command = Command(
            (_SHELL, "-c", script, *words),
            env=self._environment,
            timeout=seconds,
            stdin=stdin,
            lists_processes=self._lists_processes,
        )
        if self._stop is not None and self._stop.is_set():
            raise AgentAtLimit("it is over")  # a file that is half edited stays as it is
        done = await self._sandbox.run(command, self._stop)
        self._ended(done)
        if done.limit is not None:
            raise AgentAtLimit(done.limit)
        if done.not_found:
            raise HarnessError(
                f"the tools of this agent need {_SHELL}, which is not in this sandbox",
                help="set `base:` to an image that has a shell",
            )
        return done


def _ending(done: Completed, seconds: float) -> str:
    """How a command ended; empty where it ended well."""
    if done.timed_out:
        return f"[ended after {seconds:g} s: it took longer than its timeout]"
    if done.signal is not None:
        return f"[ended by signal {done.signal}]"
    return f"[exit code {done.exit_code}]" if done.exit_code else ""


def _require(done: Completed) -> None:
    """Raises _Refused for a file that can't be read or written."""
    if not done.succeeded:
        said = _bounded(done.stderr.text().strip(), 2000)
        raise _Refused("\n".join(filter(None, (said, _ending(done, _SECONDS)))))


def _text(arguments: Mapping[str, Any], name: str, limit: int, *, empty: bool = False) -> str:
    """Raises _Refused."""
    value = arguments.get(name)
    if not isinstance(value, str):
        raise _Refused(f"expected a text for {name}, found {'nothing' if value is None else type(value).__name__}")
    if not value and not empty:
        raise _Refused(f"{name} is empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise _Refused(f"{name} has half a character (a lone surrogate)") from None
    if size > limit:
        raise _Refused(f"{name} has {size:,} bytes, of {limit:,} that are taken")
    if "\0" in value and name != "content" and not name.endswith("_text"):
        raise _Refused(f"{name} has a NUL character")
    return value


def _path(arguments: Mapping[str, Any]) -> str:
    return _text(arguments, "path", _PATH_LIMIT)


def _number(arguments: Mapping[str, Any], name: str, default: int, most: int) -> int:
    """Raises _Refused."""
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _Refused(f"expected a whole number from 1 to {most:,} for {name}")
    return value


def _bounded(text: str, limit: int = RESULT_LIMIT) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters cut …]\n{text[-half:]}"
