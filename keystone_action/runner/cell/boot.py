"""Getting a cell ready for its agent, in the boot order of the contract (5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.agents.base import Inputs, write_inputs
from keystone_action.agents.environment import agent_environment
from keystone_action.agents.run import run_agent
from keystone_action.command import Limits
from keystone_action.errors import HarnessError
from keystone_action.evidence.model import Address, AgentRun, Evidence
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.workspace import Snapshot, copy_tree, keep_originals, snapshot
from keystone_action.runner.cell.context import CheckWorld
from keystone_action.runner.cell.layout import (
    apart,
    copy_task_files,
    first_words,
    hidden_places,
    make_readable,
    results_places,
    shielded,
)
from keystone_action.runner.cell.names import cell_names, filled, with_services
from keystone_action.runner.cell.opening import Opened, Request, missing_words, open_container, open_process
from keystone_action.runner.cell.reaching import Reach
from keystone_action.runner.parts.recorded import holds_results
from keystone_action.runner.readable_folders import readable_folders
from keystone_action.sandbox.base import Sandbox
from keystone_action.sandbox.processes.sandboxes import unenforced
from keystone_action.services.base import Place
from keystone_action.spec.expressions import interpolate

if TYPE_CHECKING:
    from keystone_action.plan import Cell
    from keystone_action.runner.world import CellRoots, World
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.spec import Invariant


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """A cell that is ready for its agent. checks: makes what its checks share, of what was observed. incomplete: why
    evidence that we collect is not whole, empty when it is. names: for the expressions of checks, None where there are
    none."""

    sandbox: Sandbox
    agent: AgentBase
    run_agent: Callable[[], Awaitable[AgentRun]]
    prompt: str
    names: Mapping[str, Any] | None
    places: Mapping[str, Place]
    originals: Path | None
    before: Snapshot
    light: bool
    audit_log: Path
    trace: Path
    invariants: Mapping[str, Invariant]
    checks: Callable[[Evidence], CheckWorld]
    incomplete: Callable[[], str]
    notices: tuple[str, ...]


async def boot(
    cell: Cell, world: World, roots: CellRoots, stack: AsyncExitStack, enter: Callable[[str], None]
) -> Booted:
    """Workspace, secrets, services, fixtures, setup. `stack` undoes it in reverse. Raises HarnessError."""
    return await _Boot(cell, world, roots, stack).run(enter)


class _Boot:
    def __init__(self, cell: Cell, world: World, roots: CellRoots, stack: AsyncExitStack) -> None:
        self.cell, self.world, self.roots, self.stack = cell, world, roots, stack
        self.spec = cell.loaded.spec
        self.notices: list[str] = []
        self.image = world.images.get(self.spec.id)
        self.reach = Reach(cell, world, roots, stack, self.notices)
        self.results = results_places(world.results, world.options)
        self.unseen = hidden_places(cell.loaded, world.options)
        self.withheld = {*self.unseen, *self.results}
        resources = self.spec.resources
        self.limits = Limits(resources.memory, resources.disk, resources.pids, resources.cpu)
        self.notices += unenforced(self.limits) if self.image is None else ()

    @property
    def light(self) -> bool:
        """Whether there is so little to lay out that a thread for it would cost more than it."""
        spec = self.spec
        more = (spec.task.files, self.cell.agent.dir, spec.fixtures, spec.setup.files, spec.setup.commands)
        return not any(more) and self.world.light[spec.id]

    def _remember(self) -> tuple[Path | None, Snapshot]:
        """What the workspace holds before the agent starts: the originals for the patch, and the snapshot."""
        originals = keep_originals(self.roots.workspace, self.roots.private / "before")
        try:
            return originals, snapshot(self.roots.workspace)
        except PathUnreadable as error:
            raise HarnessError(f"the agent can't start from this workspace: {error}") from error

    async def run(self, enter: Callable[[str], None]) -> Booted:
        sandboxes = self._sandboxes()
        enter("workspace")
        agent_directory, audit_log, trace = await apart(self._lay_out, inline=self.light)
        names = self._names(self._secrets(), agent_directory)
        enter("services")
        places = await self.reach.services(names, audit_log)
        names = with_services(names, {name: place.for_agent for name, place in places.items()})
        prompt = self._prompt(names)
        names["task"] = {**names["task"], "prompt": prompt}
        enter("fixtures")
        await self._fixtures(names)
        await self._stubs()
        enter("setup")
        agent = interpolate(self.cell.agent, names)
        inputs = write_inputs(self.roots.area / "task", prompt, agent, self.cell.loaded.library)
        opened = await self._open(names, prompt, inputs, agent_directory, sandboxes)
        await self.reach.seal()
        originals, before = await apart(self._remember, inline=self.light)
        invariants = {**self.spec.invariants, **self.cell.scenario.invariants}
        check_environment = {**opened.variables, **self.environment()}
        missing = await missing_words(
            first_words(invariants), opened.sandbox, check_environment.get("PATH"), inline=self.image is None
        )
        return Booted(
            sandbox=opened.sandbox,
            agent=agent,
            run_agent=partial(self._run_agent, agent, opened.sandbox, prompt, inputs, agent_directory, names),
            prompt=prompt,
            names=names if self.cell.loaded.has_expressions else None,
            places=places,
            originals=originals,
            before=before,
            light=self.light,
            audit_log=audit_log,
            trace=trace,
            invariants=invariants,
            checks=partial(
                CheckWorld,
                directory=self.cell.loaded.directory,
                roots=self.roots,
                provider=opened.provider,
                limits=self.limits,
                readable=opened.readable,
                environment=check_environment,
                host_services={name: place.for_host.as_mapping() for name, place in places.items()},
                missing_programs=missing,
                judge=self.world.judge,
                author_files=self.world.author_files,
                host=self.world.host,
                originals=originals,
                admit=self.reach.admit,
                agent_directory=agent_directory,
                library=self.cell.loaded.library,
            ),
            incomplete=self.reach.incomplete,
            notices=tuple(self.notices),
        )

    async def _run_agent(
        self,
        agent: AgentBase,
        sandbox: Sandbox,
        prompt: str,
        inputs: Inputs,
        agent_directory: Path | None,
        names: Mapping[str, Any],
    ) -> AgentRun:
        return await run_agent(
            agent,
            sandbox=sandbox,
            prompt=prompt,
            environment=self.environment(agent_directory=agent_directory, agent_env=agent.env),
            inputs=inputs,
            agent_directory=agent_directory,
            context=self._context(names),
            private=self.roots.private,
            transcript=bool(agent.trace and agent.trace.stdout),
        )

    def _names(self, secrets: Mapping[str, str], agent_directory: Path | None) -> dict[str, Any]:
        """What expressions can name before there are services."""
        return cell_names(
            self.cell,
            secrets=secrets,
            environ=self.world.options.environ,
            workspace=str(self.roots.workspace),
            agent_directory=agent_directory,
        )

    def _context(self, names: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What a `python` agent gets beside its input."""
        if not self.cell.loaded.agent_gets_context:
            return None
        return {"params": dict(self.cell.params), "services": names["services"]}

    def _sandboxes(self) -> asyncio.Task[DockerSandboxes] | None:
        """The image is had, and asked what is in it, while services start. Whoever awaits it gets its error."""
        if self.image is None:
            return None
        assert self.world.containers is not None
        task = asyncio.create_task(self.world.containers.sandboxes(self.image))

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # a cell that failed before it came to this one tells its own

        self.stack.push_async_callback(shielded, end)
        return task

    async def _open(
        self,
        names: Mapping[str, Any],
        prompt: str,
        inputs: Inputs,
        agent_directory: Path | None,
        sandboxes: asyncio.Task[DockerSandboxes] | None,
    ) -> Opened:
        """The agent's sandbox, with files, packages and commands of `setup`."""
        setup = filled(self.cell.loaded, self.spec.setup, names)
        common: dict[str, Any] = {
            "prompt": prompt,
            "prompt_file": inputs.prompt_file,
            "services": {name: Address(**address) for name, address in names["services"].items()},
            "seed": self.spec.determinism.seed,
            "setup_env": setup.env,
        }

        def environment(workspace: str) -> Mapping[str, str]:
            return agent_environment(workspace=workspace, **common)

        request = Request(
            setup=setup,
            workspace=self.roots.workspace,
            directory=self.cell.loaded.directory,
            packages_directory=self.roots.area / "packages",
            withheld=self.withheld,
            readable=tuple(path for path in (inputs.directory, agent_directory) if path is not None),
            limits=self.limits,
            secrets=tuple(names["secrets"].values()),
            shown=readable_folders(self.cell.loaded, self.world.options) if self.image is None else (),
            environment=environment,
        )
        if sandboxes is None:
            opened = await open_process(request, self.world.provider, self.stack)
        else:
            opened = await open_container(request, await sandboxes, self.reach.network(), self.stack)
        self.reach.admit(opened.sandbox)
        self.environment = partial(agent_environment, workspace=opened.sandbox.workspace_inside, **common)
        return opened

    def _lay_out(self) -> tuple[Path | None, Path, Path]:
        """Workspace, task files, the agent's own code, and our two logs (always there, empty at first)."""
        loaded, roots = self.cell.loaded, self.roots
        copy = partial(copy_tree, withheld=self.unseen, results=self.results, holds_results=holds_results)
        if self.spec.workspace is not None:
            source = loaded.code_path(self.spec.workspace)
            report = copy(source, roots.workspace, ignore=loaded.workspace_left_out)
            self.notices += report.notices
        copy_task_files(self.spec.task.files, loaded.directory, roots.workspace, self.withheld)
        agent_directory = None
        own_code = self.cell.agent.dir
        if own_code is not None:
            agent_directory = roots.area / "agent"
            report = copy(loaded.code_path(own_code), agent_directory, ignore=loaded.agent_left_out)
            self.notices += report.notices
            make_readable(agent_directory)
        audit_log, trace = roots.private / "audit.jsonl", roots.private / "trace.jsonl"
        audit_log.touch()
        trace.touch()
        return agent_directory, audit_log, trace

    def _secrets(self) -> Mapping[str, str]:
        found = self.world.secrets[self.spec.id]
        if found.error is not None:
            raise found.error
        self.notices += found.warnings
        return found.values

    def _prompt(self, names: Mapping[str, Any]) -> str:
        loaded, own = self.cell.loaded, self.cell.scenario.prompt
        if own is None and loaded.prompt_is_literal:
            return loaded.prompt
        return filled(loaded, loaded.prompt if own is None else own, names)

    async def _stubs(self) -> None:
        stubs = self.cell.loaded.stubs
        if stubs:
            from keystone_action.runner.cell.stubs import apply_stubs

            await apply_stubs(stubs, self.roots.workspace)

    async def _fixtures(self, names: Mapping[str, Any]) -> None:
        fixtures = [filled(self.cell.loaded, fixture, names) for fixture in self.spec.fixtures]
        if fixtures:
            from keystone_action.runner.cell.fixtures import run_fixtures

            self.notices += await run_fixtures(
                fixtures,
                workspace=self.roots.workspace,
                directory=self.cell.loaded.directory,
                withheld=self.withheld,
                run_sql=self.reach.run_sql,
            )
