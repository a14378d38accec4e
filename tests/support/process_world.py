"""What the tests of the process sandbox share: a world to run things in, and a look at what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from keystone_action.sandbox.processes.sandbox import ProcessSandbox
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes, start
from keystone_action.system.command import Command, CommandLimits, Completed

ROOT = os.geteuid() == 0


def run(main: Callable[[], Coroutine[Any, Any, Any]], seconds: float = 600) -> Any:
    """Run an async test; one that hangs fails. Engines on busy machines take minutes to remove what is large."""

    async def bounded() -> Any:
        async with asyncio.timeout(seconds):
            return await main()

    return asyncio.run(bounded())


@contextlib.asynccontextmanager
async def world(
    limits: CommandLimits | None = None, **options: Any
) -> AsyncIterator[tuple[ProcessSandboxes, ProcessSandbox]]:
    """A provider, and one sandbox with a fresh workspace."""
    sandboxes = await start(**options)
    try:
        yield sandboxes, await another(sandboxes, limits)
    finally:
        await sandboxes.close()


async def another(sandboxes: ProcessSandboxes, limits: CommandLimits | None = None, **options: Any) -> ProcessSandbox:
    workspace = sandboxes.root / f"workspace-{uuid.uuid4().hex}"
    workspace.mkdir()
    return await sandboxes.open(workspace, limits=limits or CommandLimits(), **options)


def shell(text: str, **options: Any) -> Command:
    return Command(("sh", "-c", text), **options)


def in_shell(text: str, limits: CommandLimits | None = None, **options: Any) -> Completed:
    """Run this text in a fresh world."""

    async def main() -> Completed:
        async with world(limits) as (_, sandbox):
            return await sandbox.run(shell(text, **options))

    result: Completed = run(main)
    return result


def token() -> str:
    """An argument for `sleep` by which its process is recognised: no two tests use the same."""
    return f"7{uuid.uuid4().int % 10**15:015d}"


def alive(mark: str) -> list[int]:
    """Every process on this machine that has this word in its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def runs(pid: int | str) -> bool:
    """Whether there is such a process. One that has ended is listed until its parent asks, which some never do: process
    1 of a container."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it holds sooner or later (half a minute)."""
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def no_descriptor_left(free: int) -> Iterator[None]:
    """This process may open so many files more, and no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 16, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> set[tuple[int, str]]:
    """What this process has open, each with what it is. Those of two moments tell what was opened in between and is
    open still, whatever other threads have closed; their numbers alone do not."""
    found = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            found.add((int(number), os.readlink(f"/proc/self/fd/{number}")))  # noqa: PTH115
    return found
