"""Getting a cell ready for its agent, in the boot order of the contract (5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.agents.base import Inputs, run_agent, write_inputs
from keystone_action.agents.environment import agent_environment
from keystone_action.evidence.model import Address
from keystone_action.runner.layout import apart, copy_task_files, first_words, make_readable, names_a_cell, shielded
from keystone_action.runner.names import cell_names, with_services
from keystone_action.runner.setup import make_environment, run_setup
from keystone_action.sandbox.base import Limits, Sandbox
from keystone_action.sandbox.process import unenforced
from keystone_action.sandbox.workspace import Snapshot, copy_tree, keep_originals, snapshot
from keystone_action.services.base import Attached, CellScope
from keystone_action.spec.expressions import interpolate

if TYPE_CHECKING:
    from keystone_action.plan import Cell
    from keystone_action.runner.world import CellRoots, World
    from keystone_action.spec.agents import AgentBase
    from keystone_action.spec.models import Invariant


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """A cell that is ready for its agent."""

    sandbox: Sandbox
    agent: AgentBase
    run_agent: Callable[[], Any]
    prompt: str
    names: Mapping[str, Any]
    attached: Mapping[str, Attached]
    originals: Path | None
    before: Snapshot
    light: bool
    audit_log: Path
    trace: Path
    secrets: Mapping[str, str]
    unresolved_secrets: Mapping[str, str]
    limits: Limits
    readable: tuple[Path, ...]
    check_environment: Mapping[str, str]
    missing_programs: frozenset[str]
    invariants: Mapping[str, Invariant]
    admit: Callable[[Sandbox], None]
    notices: tuple[str, ...]


async def boot(
    cell: Cell, world: World, roots: CellRoots, stack: AsyncExitStack, enter: Callable[[str], None]
) -> Booted:
    """Workspace, secrets, services, fixtures, setup. `stack` undoes it in reverse. Raises HarnessError."""
    return await _Boot(cell, world, roots, stack).run(enter)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The agent's sandbox, and what its environment is made of."""

    sandbox: Sandbox
    readable: tuple[Path, ...]
    variables: Mapping[str, str]
    common: Mapping[str, Any]

    def environment(
        self, agent_directory: Path | None = None, agent_env: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """For the agent, or (without arguments) for setup and checks, which don't get what is the agent's own."""
        return agent_environment(agent_directory=agent_directory, agent_env=agent_env, **self.common)


class _Boot:
    def __init__(self, cell: Cell, world: World, roots: CellRoots, stack: AsyncExitStack) -> None:
        self.cell, self.world, self.roots, self.stack = cell, world, roots, stack
        self.spec = cell.loaded.spec
        self.notices: list[str] = []
        self.users: set[int] = set()
        # Results, this run's and earlier ones, may lie inside the workspace that is copied.
        self.results = {world.results.resolve(), world.options.directory.resolve() / ".keystone"}
        self.withheld = {*cell.loaded.withheld, *self.results}
        resources = self.spec.resources
        self.limits = Limits(resources.memory, resources.disk, resources.pids, resources.cpu)
        self.notices += unenforced(self.limits)

    @property
    def light(self) -> bool:
        """Whether there is so little to lay out that a thread for it would cost more than it."""
        spec = self.spec
        more = (spec.task.files, spec.agent.dir, spec.fixtures, spec.setup.files, spec.setup.commands)
        return not any(more) and self.world.light[spec.id]

    def _remember(self) -> tuple[Path | None, Snapshot]:
        """What the workspace holds before the agent starts: the originals for the patch, and the snapshot."""
        originals = keep_originals(self.roots.workspace, self.roots.private / "before")
        return originals, snapshot(self.roots.workspace)

    async def run(self, enter: Callable[[str], None]) -> Booted:
        enter("workspace")
        agent_directory, audit_log, trace = await apart(self._lay_out, inline=self.light)
        secrets = self._secrets()
        names: dict[str, Any] = cell_names(
            self.cell,
            secrets=secrets,
            environ=self.world.options.environ,
            workspace=str(self.roots.workspace),
            agent_directory=agent_directory,
        )
        enter("services")
        attached = await self._attach(names, audit_log)
        names = with_services(names, {name: one.for_agent for name, one in attached.items()})
        prompt = self._prompt(names)
        names["task"] = {**names["task"], "prompt": prompt}
        enter("fixtures")
        await self._fixtures(names, attached)
        enter("setup")
        agent = interpolate(self.spec.agent, names)
        inputs = write_inputs(self.roots.area / "task", prompt, agent)
        opened = await self._open(names, prompt, inputs, agent_directory)
        for name, one in attached.items():
            await self.running[name].seal(one)
        originals, before = await apart(self._remember, inline=self.light)
        invariants = {**self.spec.invariants, **self.cell.scenario.invariants}
        sandbox = opened.sandbox
        return Booted(
            sandbox=sandbox,
            agent=agent,
            run_agent=lambda: run_agent(
                agent,
                sandbox=sandbox,
                prompt=prompt,
                environment=opened.environment(agent_directory, agent.env),
                inputs=inputs,
                agent_directory=agent_directory,
                context={"params": dict(self.cell.params), "services": names["services"]},
            ),
            prompt=prompt,
            names=names,
            attached=attached,
            originals=originals,
            before=before,
            light=self.light,
            audit_log=audit_log,
            trace=trace,
            secrets=secrets,
            unresolved_secrets=self.world.secrets[self.spec.id].missing,
            limits=self.limits,
            readable=opened.readable,
            check_environment={**opened.variables, **opened.environment()},
            missing_programs=frozenset(word for word in first_words(invariants) if sandbox.which(word) is None),
            invariants=invariants,
            admit=self._admit,
            notices=tuple(self.notices),
        )

    async def _open(
        self, names: Mapping[str, Any], prompt: str, inputs: Inputs, agent_directory: Path | None
    ) -> _Opened:
        """Packages, the agent's sandbox, files and commands of `setup`."""
        setup = interpolate(self.spec.setup, names)
        packages = await make_environment(
            setup.packages,
            provider=self.world.provider,
            directory=self.roots.area / "packages",
            limits=self.limits,
            environment=setup.env,
        )
        directories = (inputs.directory, agent_directory, packages.directory)
        readable = tuple(path for path in directories if path is not None)
        sandbox = await self.world.provider.open(
            self.roots.workspace, limits=self.limits, readable=readable, environment=packages.variables
        )
        self.stack.push_async_callback(shielded, sandbox.close)
        self._admit(sandbox)
        common = {
            "prompt": prompt,
            "prompt_file": inputs.prompt_file,
            "workspace": sandbox.workspace_inside,
            "services": {name: Address(**address) for name, address in names["services"].items()},
            "seed": self.spec.determinism.seed,
            "setup_env": setup.env,
        }
        opened = _Opened(sandbox, readable, packages.variables, common)
        await run_setup(
            setup,
            sandbox=sandbox,
            workspace=self.roots.workspace,
            directory=self.cell.loaded.directory,
            environment=opened.environment(),
            withheld=self.withheld,
        )
        return opened

    def _lay_out(self) -> tuple[Path | None, Path, Path]:
        """Workspace, task files, the agent's own code, and our two logs (always there, empty at first)."""
        loaded, roots = self.cell.loaded, self.roots
        copy = partial(copy_tree, withheld=loaded.withheld, results=self.results)
        if self.spec.workspace is not None:
            report = copy(loaded.directory / self.spec.workspace, roots.workspace)
            self.notices += report.notices
        copy_task_files(self.spec.task.files, loaded.directory, roots.workspace, self.withheld)
        agent_directory = None
        if self.spec.agent.dir is not None:
            agent_directory = roots.area / "agent"
            report = copy(loaded.directory / self.spec.agent.dir, agent_directory)
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

    async def _attach(self, names: Mapping[str, Any], audit_log: Path) -> dict[str, Attached]:
        definitions = [interpolate(service, names) for service in self.spec.services]
        if not definitions:
            return {}
        directory = self.cell.loaded.directory
        running = await self.world.services.acquire(definitions, directory)
        last = any(names_a_cell(service) for service in self.spec.services)
        self.stack.push_async_callback(shielded, lambda: self.world.services.release(definitions, directory, last=last))
        scope = CellScope(
            cell_id=self.cell.id,
            private=self.roots.private,
            workspace=self.roots.workspace,
            audit_log=audit_log,
            exclusive=not self.world.concurrent[self.spec.id],
            allowed_users=self.users if "user" in self.world.provider.isolation else None,
        )
        attached: dict[str, Attached] = {}
        for service in running:
            one = await service.attach(scope)
            self.stack.push_async_callback(shielded, partial(service.detach, one))
            attached[service.name] = one
            self.notices += one.notices
        self.running = {service.name: service for service in running}
        return attached

    def _prompt(self, names: Mapping[str, Any]) -> str:
        loaded, own = self.cell.loaded, self.cell.scenario.prompt
        if own is None and loaded.prompt_is_literal:
            return loaded.prompt
        return interpolate(loaded.prompt if own is None else own, names)

    async def _fixtures(self, names: Mapping[str, Any], attached: Mapping[str, Attached]) -> None:
        async def run_sql(service: str, script: str) -> None:
            await self.running[service].run_sql(attached[service], script)

        fixtures = [interpolate(fixture, names) for fixture in self.spec.fixtures]
        if fixtures:
            from keystone_action.runner.fixtures import run_fixtures

            self.notices += await run_fixtures(
                fixtures,
                workspace=self.roots.workspace,
                directory=self.cell.loaded.directory,
                withheld=self.withheld,
                run_sql=run_sql,
            )

    def _admit(self, sandbox: Sandbox) -> None:
        """Let the user of a sandbox reach this cell's services."""
        uid = getattr(sandbox, "uid", None)
        if uid is not None:
            self.users.add(uid)
