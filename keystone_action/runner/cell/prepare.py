"""The first stage of a cell: all that is there when its agent starts, in the boot order of the contract (5.2)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.agents.program import write_inputs
from keystone_action.errors import HarnessError
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.workspace import CopyReport, copy_tree, keep_originals, snapshot, snapshot_git
from keystone_action.runner.cell.connections import Connections, connect_cell, seal_services
from keystone_action.runner.cell.context import CheckSandboxes
from keystone_action.runner.cell.recordings import why_without_history
from keystone_action.runner.cell.running_cell import Expressions, RunningCell
from keystone_action.runner.cell.sandbox_setup import AgentTask, OpenedSandbox, find_missing_programs, open_sandbox
from keystone_action.runner.cell.shared_copies import FirstCopies, FirstCopy
from keystone_action.runner.journal.entries import holds_results
from keystone_action.runner.roots import make_readable
from keystone_action.runner.started_run import run_shielded
from keystone_action.sandbox.processes.sandboxes import explain_unenforced
from keystone_action.spec.expressions import escaped, interpolate
from keystone_action.spec.limits import HIDDEN_VARIABLES
from keystone_action.spec.models.agents import HttpAgent, NoneAgent, PresetAgent

if TYPE_CHECKING:
    from keystone_action.files.snapshot import Snapshot
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
    from keystone_action.spec.models.agents import AgentBase


@dataclass(frozen=True, slots=True)
class WorkspaceBefore:
    """What the workspace held before the agent started."""

    entries: Snapshot

    git: Snapshot | None
    """What its `.git` held; None where nobody asks."""

    originals: Path | None
    """The files, to tell changes from; None when there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A cell whose agent may start."""

    running: RunningCell
    task: AgentTask
    opened: OpenedSandbox
    connections: Connections
    before: WorkspaceBefore

    audit_start: int
    """The byte of the audit log where the agent starts."""

    expressions: Expressions
    """They know all that a cell has."""

    checks: CheckSandboxes
    """For checks that execute."""


@asynccontextmanager
async def prepare(running: RunningCell) -> AsyncIterator[Prepared]:
    """Workspace, services, fixtures, setup, snapshot; when the block is left, all that was opened is closed. Raises
    HarnessError."""
    async with AsyncExitStack() as stack:
        yield await _prepare(running, stack)


async def _prepare(running: RunningCell, stack: AsyncExitStack) -> Prepared:
    progress, loaded = running.progress, running.loaded
    if running.image is None:
        progress.note(*explain_unenforced(running.limits))
    images = _pull(running, stack)
    progress.enter("workspace")
    first = await _copy_workspace(running, stack)
    code = await anyio.to_thread.run_sync(_lay_out_files, running)
    expressions = Expressions(_names(running, code), loaded.has_expressions)
    progress.enter("services")
    connections, expressions = await connect_cell(running, expressions, stack)
    prompt = _prompt(running, expressions)
    expressions = expressions.knowing(task={**expressions.names["task"], "prompt": prompt})
    turns = tuple(expressions.fill(text) for text in running.spec.task.turns)
    if prompt and not isinstance(running.cell.agent, NoneAgent):
        progress.ask((prompt, *turns))
    progress.enter("fixtures")
    await _lay_out_fixtures(running, expressions, connections)
    progress.enter("setup")
    # The address of one that is a service is known once that was started (`run_agent`).
    is_service = connections.start_agent is not None
    agent = running.cell.agent if is_service else fill_agent(running, expressions)
    inputs = write_inputs(running.roots.task, prompt, agent, loaded.library)
    task = AgentTask(agent, prompt, inputs, code, turns)
    opened = await open_sandbox(running, task, expressions, connections, images, stack)
    audit_start = await seal_services(connections, running)
    before = await anyio.to_thread.run_sync(_remember, running, first)
    missing = await anyio.to_thread.run_sync(find_missing_programs, running, opened)

    async def close() -> str:
        await stack.aclose()
        return connections.network.incomplete()

    checks = CheckSandboxes(
        provider=opened.provider,
        limits=running.limits,
        readable=opened.readable,
        environment=opened.check_environment,
        area=running.roots.area,
        admit=connections.users.admit,
        missing_programs=missing,
        agent_directory=code,
        close=close,
    )
    return Prepared(
        running=running,
        task=task,
        opened=opened,
        connections=connections,
        before=before,
        audit_start=audit_start,
        expressions=expressions,
        checks=checks,
    )


def fill_agent(running: RunningCell, expressions: Expressions) -> AgentBase:
    """The agent of the cell with its expressions replaced, and with what its preset says."""
    agent = running.cell.agent
    # A request is filled once more when it is sent; a secret or a parameter with braces has no expressions for that.
    agent = interpolate(agent, escaped(expressions.names) if isinstance(agent, HttpAgent) else expressions.names)
    if not isinstance(agent, PresetAgent):
        return agent
    from keystone_action.agents.presets.preset import with_preset

    return with_preset(agent)


def _pull(running: RunningCell, stack: AsyncExitStack) -> asyncio.Task[DockerSandboxes] | None:
    """Pulls the image and inspects it while services start. Awaiting it raises its error."""
    if running.image is None:
        return None
    assert running.run.containers is not None
    task = asyncio.create_task(running.run.containers.sandboxes(running.image))

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # a cell that failed before it came to this one tells its own

    stack.push_async_callback(run_shielded, end)
    return task


def _copy(running: RunningCell) -> Callable[..., CopyReport]:
    """Copies a directory of the author's for the agent: without what it may not see."""
    return partial(
        copy_tree,
        withheld=running.hidden,
        results=running.run.planned.results_places,
        holds_results=holds_results,
        without_history=why_without_history(running.gateway),
    )


async def _copy_workspace(running: RunningCell, stack: AsyncExitStack) -> FirstCopy | None:
    """What the workspace is a copy of now; None for a spec without one. Where nothing isolates agents, they reach
    all that cells share, so each cell has a first copy of its own."""
    spec, loaded = running.spec, running.loaded
    if spec.workspace is None:
        return None
    copy = partial(_copy(running), loaded.code_path(spec.workspace), ignore=loaded.workspace_left_out)
    key = (spec.id, why_without_history(running.gateway))
    isolated = running.run.provider.isolation != ("none",)
    copies = running.run.copies.workspaces if isolated else FirstCopies(running.roots.private)
    first = await stack.enter_async_context(copies.lay_out(key, copy, running.roots.workspace))
    running.progress.note(*first.notices)
    return first


def _lay_out_files(running: RunningCell) -> Path | None:
    """Task files, the agent's own code, and the file for its trace (always there, empty at first). Returns where that
    code is; None without any."""
    loaded, roots, own_code = running.loaded, running.roots, running.cell.agent.dir
    copy_task_files(running.spec.task.files, loaded.directory, roots.workspace, running.withheld)
    roots.trace.touch()
    if own_code is None:
        return None
    directory = roots.area / "agent"
    running.progress.note(*_copy(running)(loaded.code_path(own_code), directory, ignore=loaded.agent_left_out).notices)
    make_readable(directory)
    return directory


def copy_task_files(files: Sequence[str], directory: Path, workspace: Path, withheld: Collection[Path]) -> None:
    """`task.files` keep their path relative to the spec; one from above it (`../brief.md`) keeps what follows the
    dots. Raises HarnessError."""
    for name in files:
        source = directory / name
        kept = Path(*[part for part in Path(os.path.normpath(name)).parts if part not in ("..", "/")])
        target = workspace / kept
        try:
            if source.is_dir():
                copy_tree(source, target, withheld=withheld)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        except OSError as error:
            raise HarnessError(f"task.files: {name} can't be copied: {error.strerror}") from error


def _names(running: RunningCell, agent_directory: Path | None) -> Mapping[str, Any]:
    """What expressions can name before there are services (contract, section 1: Expressions).

    `env` is our own environment without GitHub's; that it is used in `agent.env` only is checked by the loader.
    """
    cell, secrets, environ = running.cell, running.secrets, running.options.caller.environ
    if secrets.error is not None:
        raise secrets.error
    running.progress.note(*secrets.warnings)
    names: dict[str, Any] = {
        "params": dict(cell.params),
        "secrets": dict(secrets.values),
        "workspace": str(running.roots.workspace),
        "cell": {"id": cell.id, "replica": cell.replica, "seed": cell.seed},
        "env": {name: value for name, value in environ.items() if not name.startswith(HIDDEN_VARIABLES)},
        "task": {"system": running.spec.task.system or ""},
        "agent": {"dir": str(agent_directory) if agent_directory else ""},
        "services": {},
    }
    if cell.scenario.record is not None:
        names["record"] = cell.scenario.record
    return names


def _prompt(running: RunningCell, expressions: Expressions) -> str:
    loaded, own = running.loaded, running.cell.scenario.prompt
    if own is None and loaded.prompt_is_literal:
        return loaded.prompt
    return expressions.fill(loaded.prompt if own is None else own)


async def _lay_out_fixtures(running: RunningCell, expressions: Expressions, connections: Connections) -> None:
    workspace, stubs = running.roots.workspace, running.loaded.stubs
    fixtures = [expressions.fill(fixture) for fixture in running.spec.fixtures]
    if fixtures:
        from keystone_action.runner.cell.fixtures import run_fixtures

        notices = await run_fixtures(
            fixtures,
            workspace=workspace,
            directory=running.loaded.directory,
            withheld=running.withheld,
            run_sql=lambda service, script: connections.places[service].run_sql(script),
            sql_files=running.loaded.sql_files,
        )
        running.progress.note(*notices)
    if stubs:
        from keystone_action.runner.cell.fixtures import apply_stubs

        await apply_stubs(stubs, workspace)


def _remember(running: RunningCell, first: FirstCopy | None) -> WorkspaceBefore:
    """What the workspace holds before the agent starts: the originals for the patch, and the snapshot."""
    workspace, watched = running.roots.workspace, running.spec.watches_files
    try:
        entries = snapshot(workspace, attributes=watched)
        git = snapshot_git(workspace, entries) if watched else None
    except PathUnreadable as error:
        raise HarnessError(f"the agent can't start from this workspace: {error}") from error
    if first is not None and first.is_still(entries):
        return WorkspaceBefore(entries, git, first.originals)
    return WorkspaceBefore(entries, git, keep_originals(workspace, running.roots.private / "before"))
