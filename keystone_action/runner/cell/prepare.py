"""Getting a cell ready for its agent, in the boot order of the contract (5.2).

Putting the author's files where a cell's agent finds them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.agents.program import write_inputs
from keystone_action.errors import HarnessError
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.workspace import CopyReport, copy_tree, keep_originals, snapshot, snapshot_git
from keystone_action.runner.cell.connections import attach_services, seal
from keystone_action.runner.cell.recordings import why_without_history
from keystone_action.runner.cell.sandbox_setup import missing_words, open_sandbox
from keystone_action.runner.journal.entries import holds_results
from keystone_action.runner.roots import make_readable
from keystone_action.runner.started_run import run_shielded
from keystone_action.sandbox.processes.sandboxes import explain_unenforced
from keystone_action.spec.expressions import interpolate
from keystone_action.spec.limits import HIDDEN_VARIABLES
from keystone_action.spec.models.agents import PresetAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from keystone_action.runner.cell.running_cell import CellUnderWay
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes


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


async def boot(under_way: CellUnderWay) -> None:
    """Workspace, secrets, services, fixtures, setup. Raises HarnessError."""
    loaded = under_way.loaded
    under_way.notices += explain_unenforced(under_way.limits) if under_way.image is None else ()
    sandboxes = _sandboxes(under_way)
    under_way.enter("workspace")
    await _lay_out(under_way)
    under_way.names = _names(under_way)
    under_way.enter("services")
    await attach_services(under_way)
    prompt = under_way.prompt = _prompt(under_way)
    under_way.names["task"]["prompt"] = prompt
    under_way.enter("fixtures")
    await _lay_out_fixtures(under_way)
    under_way.enter("setup")
    under_way.agent = interpolate(under_way.cell.agent, under_way.names)
    if isinstance(under_way.agent, PresetAgent):
        from keystone_action.agents.presets.preset import with_preset

        under_way.agent = with_preset(under_way.agent)
    under_way.inputs = write_inputs(under_way.roots.area / "task", prompt, under_way.agent, loaded.library)
    await open_sandbox(under_way, sandboxes)
    await seal(under_way)
    await anyio.to_thread.run_sync(_remember, under_way)
    await missing_words(under_way)


def _sandboxes(under_way: CellUnderWay) -> asyncio.Task[DockerSandboxes] | None:
    """Pulls the image and inspects it while services start. Awaiting it raises its error."""
    if under_way.image is None:
        return None
    assert under_way.run.containers is not None
    task = asyncio.create_task(under_way.run.containers.sandboxes(under_way.image))

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # a cell that failed before it came to this one tells its own

    under_way.stack.push_async_callback(run_shielded, end)
    return task


async def _lay_out(under_way: CellUnderWay) -> None:
    """Workspace, task files, the agent's own code, and the file for its trace (always there, empty at first)."""
    loaded, spec = under_way.loaded, under_way.spec
    why_short = why_without_history(under_way.gateway_wanted)
    copy = partial(
        copy_tree,
        withheld=under_way.hidden,
        results=under_way.run.results_places,
        holds_results=holds_results,
        without_history=why_short,
    )
    if spec.workspace is not None:
        copy_workspace = partial(copy, loaded.code_path(spec.workspace), ignore=loaded.workspace_left_out)
        first = await under_way.run.first_copies.lay_out(
            (spec.id, why_short), copy_workspace, under_way.roots.workspace
        )
        under_way.notices += first.notices
        under_way.first_copy = first
    await anyio.to_thread.run_sync(_lay_out_files, under_way, copy)


def _lay_out_files(under_way: CellUnderWay, copy: Callable[..., CopyReport]) -> None:
    loaded, roots, spec = under_way.loaded, under_way.roots, under_way.spec
    copy_task_files(spec.task.files, loaded.directory, roots.workspace, under_way.withheld)
    own_code = under_way.cell.agent.dir
    if own_code is not None:
        directory = under_way.agent_directory = roots.area / "agent"
        under_way.notices += copy(loaded.code_path(own_code), directory, ignore=loaded.agent_left_out).notices
        make_readable(directory)
    roots.trace.touch()


def _names(under_way: CellUnderWay) -> dict[str, Any]:
    """What expressions can name before there are services (contract, section 1: Expressions).

    `env` is our own environment without GitHub's; that it is used in `agent.env` only is checked by the loader.
    """
    cell, secrets, environ = under_way.cell, under_way.secrets, under_way.run.options.caller.environ
    if secrets.error is not None:
        raise secrets.error
    under_way.notices += secrets.warnings
    names: dict[str, Any] = {
        "params": dict(cell.params),
        "secrets": dict(secrets.values),
        "workspace": str(under_way.roots.workspace),
        "cell": {"id": cell.id, "replica": cell.replica, "seed": cell.seed},
        "env": {name: value for name, value in environ.items() if not name.startswith(HIDDEN_VARIABLES)},
        "task": {"system": under_way.spec.task.system or ""},
        "agent": {"dir": str(under_way.agent_directory) if under_way.agent_directory else ""},
        "services": {},
    }
    if cell.scenario.record is not None:
        names["record"] = cell.scenario.record
    return names


def _prompt(under_way: CellUnderWay) -> str:
    loaded, own = under_way.loaded, under_way.cell.scenario.prompt
    if own is None and loaded.prompt_is_literal:
        return loaded.prompt
    return under_way.fill(loaded.prompt if own is None else own)


async def _lay_out_fixtures(under_way: CellUnderWay) -> None:
    workspace, stubs = under_way.roots.workspace, under_way.loaded.stubs
    fixtures = [under_way.fill(fixture) for fixture in under_way.spec.fixtures]
    if fixtures:
        from keystone_action.runner.cell.fixtures import run_fixtures

        under_way.notices += await run_fixtures(
            fixtures,
            workspace=workspace,
            directory=under_way.loaded.directory,
            withheld=under_way.withheld,
            run_sql=lambda service, script: under_way.places[service].run_sql(script),
        )
    if stubs:
        from keystone_action.runner.cell.fixtures import apply_stubs

        await apply_stubs(stubs, workspace)


def _remember(under_way: CellUnderWay) -> None:
    """What the workspace holds before the agent starts: the originals for the patch, and the snapshot."""
    workspace, first = under_way.roots.workspace, under_way.first_copy
    try:
        under_way.before = snapshot(workspace, attributes=under_way.spec.watches_files)
        if under_way.spec.watches_files:
            under_way.git_before = snapshot_git(workspace, under_way.before)
    except PathUnreadable as error:
        raise HarnessError(f"the agent can't start from this workspace: {error}") from error
    if first is not None and first.is_still(under_way.before):
        under_way.originals = first.originals
    else:
        under_way.originals = keep_originals(workspace, under_way.roots.private / "before")
