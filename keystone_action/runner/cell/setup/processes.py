"""`setup` in the process sandbox: once for the cells of a run in which it would do the same.

Packages and commands are each run in the first such cell, and what they left there is copied to the others (see
`kept.py`). Where a copy would not be what the commands would have made, each cell runs them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.files.copies import GitState, copy_exactly, git_state, put_copies
from keystone_action.runner.cell.setup.commands import (
    PythonEnvironment,
    keep_environment,
    make_environment,
    put_environment,
    run_commands,
)
from keystone_action.runner.cell.setup.kept import SetupSteps, fingerprint

if TYPE_CHECKING:
    from keystone_action.runner.cell.under_way import CellUnderWay

WORTH_KEEPING = 1.0
"""Seconds that commands must take: what is quicker is run again sooner than it is copied."""


async def make_environment_once(under_way: CellUnderWay) -> PythonEnvironment:
    """The packages of `setup`, in an environment of this cell's own. Raises HarnessError."""
    setup, run, area = under_way.setup, under_way.run, under_way.roots.area
    variables = {**run.certificates.variables, **setup.env}
    directory = area / "packages"
    make = partial(
        make_environment,
        setup.packages,
        provider=run.provider,
        directory=directory,
        limits=under_way.limits,
        readable=run.certificates.folders,
        environment=variables,
    )
    if not setup.packages or not _may_share(under_way):
        return await make()
    told = sorted((name, value.replace(str(area), "")) for name, value in variables.items())
    group = repr(("packages", list(setup.packages), told, under_way.limits))
    steps = SetupSteps(make, partial(keep_environment, directory), partial(put_environment, directory=directory))
    return await run.kept_setups.once(group, str, steps)


async def run_commands_once(under_way: CellUnderWay, base: Mapping[str, str]) -> None:
    """The commands of `setup`, in the cell's sandbox. base: what they find in their environment, below what `setup.env`
    says. Raises HarnessError."""
    setup, run = under_way.setup, under_way.run
    if not setup.commands:
        return
    folders = under_way.sandbox.written_folders()
    steps = _Commands(under_way, {**base, **under_way.environment(), **setup.env}, folders or ())
    alike = run.has_alike(under_way.cell) and not sees_others(under_way)
    if folders is None or not alike or not _may_share(under_way):
        await steps.make()
        return
    group = repr(("commands", under_way.spec.id, list(setup.packages), list(setup.commands), under_way.limits))
    await run.kept_setups.once(group, steps.inputs, SetupSteps(steps.make, steps.keep, steps.put))


def own_folders(under_way: CellUnderWay) -> tuple[Path, ...]:
    """What commands can read of the cell's, besides its workspace: the prompt, the agent's own code."""
    given = (under_way.inputs.directory, under_way.agent_directory)
    return tuple(path for path in given if path is not None)


def sees_others(under_way: CellUnderWay) -> bool:
    """Whether commands can see what differs from cell to cell, whatever they are told."""
    return bool(under_way.spec.services or under_way.spec.fixtures)


def _may_share(under_way: CellUnderWay) -> bool:
    """Where nothing isolates agents, they reach all that could be kept."""
    run = under_way.run
    return run.provider.isolation != ("none",) and not run.company[under_way.spec.id].single


class _Commands:
    """See `SetupSteps`. folders: all that the commands can write."""

    def __init__(self, under_way: CellUnderWay, environment: Mapping[str, str], folders: tuple[Path, ...]) -> None:
        self._under_way = under_way
        self._environment = environment
        self._folders = folders
        self._seconds = 0.0
        self._git: GitState | None = None

    def inputs(self) -> str:
        under_way = self._under_way
        return fingerprint(under_way.roots.workspace, self._environment, own_folders(under_way))

    async def make(self) -> None:
        under_way = self._under_way
        with contextlib.suppress(OSError):  # what can't be read can't be kept either
            self._git = await anyio.to_thread.run_sync(git_state, self._folders)
        started = time.monotonic()
        await run_commands(under_way.setup.commands, sandbox=under_way.sandbox, environment=self._environment)
        self._seconds = time.monotonic() - started

    def keep(self, copy: Path) -> tuple[int, ...] | None:
        run, sandbox = self._under_way.run, self._under_way.sandbox
        if sandbox.written_folders() is None or self._seconds < WORTH_KEEPING or git_state(self._folders) != self._git:
            return None
        # All folders of the cell lie in the run's, and the user is no other cell's.
        names = [run.roots.path.name, *([str(sandbox.uid)] if sandbox.uid is not None else [])]
        return copy_exactly(self._folders, copy, names=[os.fsencode(name) for name in names])

    def put(self, copy: Path, modes: tuple[int, ...], _: None) -> None:
        put_copies(copy, modes, self._folders)
