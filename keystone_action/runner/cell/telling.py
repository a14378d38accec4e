"""Which commands a cell runs, told as they begin and end, for those who asked for all of it (`-v`).

Secrets are masked in each word of a command before it is quoted and cut: afterwards nobody would find them in it.
Sandboxes and their providers are as they were, but that each command is told: whatever else is asked of them goes to
the real one.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from keystone_action.sandbox.protocol import RunningCommand, Sandbox, SandboxProvider
from keystone_action.system.command import Command, Completed, shown_command

Tell = Callable[[str], None]
Mask = Callable[[str], str]


def telling_sandbox(sandbox: Sandbox, tell: Tell, mask: Mask) -> Sandbox:
    """The sandbox, whose commands are told."""
    return cast("Sandbox", _TellingSandbox(sandbox, tell, mask))


def telling_provider(provider: SandboxProvider, tell: Tell, mask: Mask) -> SandboxProvider:
    """The provider, the commands of whose sandboxes are told."""
    return cast("SandboxProvider", _TellingProvider(provider, tell, mask))


class _Telling:
    def __init__(self, told: Any, tell: Tell, mask: Mask) -> None:
        self._told = told
        self._tell = tell
        self._mask = mask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._told, name)


class _TellingProvider(_Telling):
    async def open(self, *arguments: Any, **named: Any) -> Sandbox:
        return telling_sandbox(await self._told.open(*arguments, **named), self._tell, self._mask)

    async def open_host(self, *arguments: Any, **named: Any) -> Sandbox:
        return telling_sandbox(await self._told.open_host(*arguments, **named), self._tell, self._mask)


class _TellingSandbox(_Telling):
    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Completed:
        shown = self._shown(command)
        self._tell(f"$ {shown}")
        completed: Completed = await self._told.run(command, stop)
        how = "time limit" if completed.timed_out else completed.limit or f"exit code {completed.shell_code}"
        self._tell(f"{how} after {_seconds(completed.duration_s)} s: {shown}")
        return completed

    def serve(self, command: Command) -> AbstractAsyncContextManager[RunningCommand]:
        self._tell(f"$ {self._shown(command)}")
        served: AbstractAsyncContextManager[RunningCommand] = self._told.serve(command)
        return served

    def _shown(self, command: Command) -> str:
        return shown_command(shlex.join(map(self._mask, command.argv)))


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 0.995 else f"{seconds:.1f}"
