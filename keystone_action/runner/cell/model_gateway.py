"""What the agent of one cell says to models: its gateway, opened before it and settled after it (spec.md 5.6)."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio.to_thread

from keystone_action.errors import HarnessError, OutputError
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.evidence.model import ModelEvidence, ObservedCall, ProviderFaults
from keystone_action.runner.cell.recordings import CellRecording
from keystone_action.runner.started_run import run_shielded
from keystone_action.spec.models.agents import LoopAgent, PresetAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path

    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.evidence.audit import AuditLog
    from keystone_action.evidence.masking import Masker
    from keystone_action.evidence.model import Address
    from keystone_action.gateway.cell import CellGateway, GatewayConfiguration
    from keystone_action.gateway.ledger import Ledger
    from keystone_action.gateway.relay import AnswerSource
    from keystone_action.runner.cell.leaked_secrets import SentToModels
    from keystone_action.runner.cell.running_cell import Expressions, RunningCell
    from keystone_action.sandbox.protocol import Sandbox
    from keystone_action.scoring.results import CellResult
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.gateway import Gateway

GRACE_SECONDS = 10.0
"""For an agent that was told that its budget is spent."""


@dataclass(frozen=True, slots=True)
class CellModels:
    """The gateway of one cell."""

    gateway: CellGateway

    recording: CellRecording | None
    """What is recorded or replayed; None where models answer and nothing is kept."""

    budget_spent: asyncio.Event
    """Set some seconds after the budget was."""

    sent: SentToModels | None
    """What a rule on secrets found in requests; None without such a rule."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is answered: a budget was spent, or a provider given up."""
        return self.budget_spent.is_set() or bool(self.gateway.ledger.stopped)

    def evidence(self) -> ModelEvidence:
        """What has passed it so far."""
        ledger, replayed = self.gateway.ledger, self.recording is not None and self.recording.replay is not None
        answers = [(one.ts, one.answer) for one in ledger.exchanges if one.answer is not None]
        return ModelEvidence(
            answered=bool(answers),
            asked=bool(ledger.exchanges or ledger.refused),
            cost_usd=0.0 if replayed else ledger.spent.cost_usd if answers else None,
            calls=tuple(ObservedCall(ts, call.arguments) for ts, answer in answers for call in answer.calls),
            tool_calls=ledger.spent.tool_calls,
            faults=ProviderFaults(
                hopeless=ledger.faults.hopeless,
                failure=ledger.provider_failure(),
                is_certain=ledger.fails_for_certain,
                is_rate_limited=ledger.is_rate_limited,
            ),
            replay=self.recording.fit() if self.recording is not None else None,
            leaks=tuple(self.sent.leaks) if self.sent is not None else (),
            keys=self.gateway.configuration.real_keys,
        )

    async def keep_recording(self, result: CellResult, masker: Masker) -> None:
        """The cell was graded: a recording of it replaces the one that there was. Raises HarnessError."""
        if self.recording is not None:
            apis = self.gateway.configuration.apis
            await self.recording.keep(result, self.gateway.ledger, apis, masker)


async def open_models(
    running: RunningCell, network: ContainerNetwork | None, expressions: Expressions, stack: AsyncExitStack
) -> CellModels | None:
    """The gateway, if this cell has one. stack: closes it. Raises ServiceError, SecretError, HarnessError."""
    wanted = running.gateway
    if wanted is None:
        return None
    from keystone_action.gateway.cell import configure, open_gateway

    filled = expressions.fill(wanted)
    configuration = configure(
        filled,
        running.options.caller.environ,
        needed=_needed(running.cell.agent, filled, expressions),
        denied_egress=running.spec.egress.default == "deny",
        no_secrets_reason=running.options.caller.no_secrets_reason,
    )
    budget_spent = asyncio.Event()
    recording = await _open_recording(running, wanted)
    sent = _look_through(running, configuration)
    inside = network if running.image is not None or running.agent_service is not None else None
    opened = await open_gateway(
        running.run.servers.gateways.started(),
        configuration,
        address="127.0.0.1" if inside is None else inside.host_address,
        admits=_admits(running, inside),
        on_spent=_ends_soon(budget_spent),
        on_hopeless=_ends(budget_spent),
        # What is replayed costs nothing now.
        purse=running.run.spending if wanted.mode != "replay" else None,
        source=_of_providers if recording is None else recording.source,
        look_through=sent,
    )
    stack.push_async_callback(run_shielded, opened.close)
    models = CellModels(opened, recording, budget_spent, sent)
    running.progress.open_models(models.evidence)
    return models


def _admits(running: RunningCell, inside: ContainerNetwork | None) -> Callable[[str], bool]:
    """Whose address may ask: the cell's own containers, and this machine where the agent's loop runs on it, which may
    come by any of its addresses. Who else is there lacks the cell's key."""
    if inside is None:
        return lambda _peer: True
    if not isinstance(running.cell.agent, LoopAgent):
        return inside.admits
    return lambda peer: inside.admits(peer) or _is_of_this_machine(peer)


def _is_of_this_machine(address: str) -> bool:
    with socket.socket() as one:
        try:
            one.bind((address, 0))
        except OSError:
            return False
    return True


async def _open_recording(running: RunningCell, gateway: Gateway) -> CellRecording | None:
    if gateway.mode == "live":
        return None
    recording = CellRecording(running.cell, gateway)
    await recording.open()
    # Where nothing more comes of the cell, its result still says which recording it would have been replayed from.
    running.progress.open_models(lambda: ModelEvidence(replay=recording.fit()))
    return recording


def _look_through(running: RunningCell, configuration: GatewayConfiguration) -> SentToModels | None:
    if running.spec.forbidden.secrets_in_logs is None:
        return None
    from keystone_action.runner.cell.leaked_secrets import SentToModels, secret_search

    search = secret_search(running, configuration.real_keys)
    return SentToModels(search) if search else None


def _of_providers(providers: AnswerSource) -> AnswerSource:
    return providers


def _needed(agent: AgentBase, gateway: Gateway, expressions: Expressions) -> list[str]:
    """The providers without which a known agent can't work. Raises HarnessError where there is none of that API."""
    if isinstance(agent, LoopAgent):
        from keystone_action.gateway.upstreams import provider_of_api

        own = provider_of_api(agent.api, gateway.apis)
        return [] if own is None else [own]
    if not isinstance(agent, PresetAgent):
        return []
    from keystone_action.agents.presets.preset import load_preset
    from keystone_action.gateway.upstreams import provider_of_api

    # Its other fields may name services, which are not there yet.
    named = agent.model_copy(update={"model": agent.model and expressions.fill(agent.model)})
    preset = load_preset(agent.type)
    found = {api: provider_of_api(api, gateway.apis) for api in preset.needed(named)}
    if lacking := [api for api, name in found.items() if name is None]:
        raise HarnessError(
            f"{preset.title} needs a provider with the API {lacking[0]}; gateway.providers has "
            + ", ".join(gateway.provider_names)
        )
    return [name for name in found.values() if name is not None]


def _ends(event: asyncio.Event) -> Callable[[], None]:
    """For the gateway's thread: sets the event."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.call_soon_threadsafe(event.set)

    return end


def _ends_soon(event: asyncio.Event) -> Callable[[], None]:
    """For the gateway's thread: sets the event some seconds after the first call."""
    loop = asyncio.get_running_loop()
    told = False

    def tell() -> None:
        nonlocal told
        if not told:
            told = True
            loop.call_soon_threadsafe(loop.call_later, GRACE_SECONDS, event.set)

    return tell


def begin_recording(
    models: CellModels, running: RunningCell, sandbox: Sandbox, addresses: Mapping[str, Address]
) -> None:
    """The agent starts: what differs from run to run is known. addresses: of services. Blocking."""
    if models.recording is not None:
        models.recording.begin(dict(_values(models.gateway, running, sandbox, addresses)))


def _values(
    gateway: CellGateway, running: RunningCell, sandbox: Sandbox, addresses: Mapping[str, Address]
) -> Iterator[tuple[str, str]]:
    """What differs from run to run, by its name in recordings."""
    yield "workspace", sandbox.workspace_inside
    yield "home", sandbox.environment["HOME"]
    yield "tmp", sandbox.environment["TMPDIR"]
    yield "folder", str(running.roots.area)
    yield "cell", running.cell.id
    for name, service in addresses.items():
        for key, value in service.as_mapping().items():
            yield f"service.{name}.{key}", str(value)
    for name, address in gateway.addresses.items():
        yield f"gateway.{name}.url", address.url
        yield "gateway.key", address.key
    for name, value in running.secrets.values.items():
        yield f"secret.{name}", value
    yield from _commit(running.roots.workspace)


def _commit(workspace: Path) -> Iterator[tuple[str, str]]:
    from keystone_action.files.git import commands as git

    if not (workspace / ".git").is_dir() or not git.has_git():
        return
    try:
        commit = git.run_git("rev-parse", "HEAD", directory=workspace).decode("ascii", "replace").strip()
    except git.GitFailed:
        return
    yield "commit", commit


async def settle_models(
    models: CellModels, running: RunningCell, agent: AgentBase, run: AgentRun, audit: AuditLog
) -> AgentRun:
    """The agent has ended: what it asked for is whole. Returns its run, with the limit of the budget that stopped it.
    Raises SecretError where it asked a provider without a key, HarnessError where the job's money was spent."""
    await models.gateway.settle(_time_left(running, agent, run))
    ledger = models.gateway.ledger
    await anyio.to_thread.run_sync(_write_down, ledger, audit)
    if models.recording is not None:
        running.progress.note(*models.recording.settle(ledger))
    if ledger.missing_key:
        raise models.gateway.configuration.key_error(ledger.missing_key)
    if ledger.unreadable:
        raise HarnessError("what a model answered could not be read, so nobody knows what the agent was told to do")
    if ledger.is_cut:
        raise HarnessError(f"max-cost-usd: {ledger.stopped}", help="Give the job more, or run fewer cells.")
    if not ledger.stopped:
        return run
    # Our own loop knows of the request that was refused for it.
    return replace(run, stopped=ledger.stopped, problem="" if isinstance(agent, LoopAgent) else run.problem)


def _time_left(running: RunningCell, agent: AgentBase, run: AgentRun) -> float:
    """Seconds until the agent's own limit, or the cell's where that comes first; at least 0."""
    passed = time.monotonic() - running.started
    duration = run.turns[-1].duration_s if run.turns else run.duration_s
    return max(0.0, min(agent.timeout - duration, running.spec.resources.timeout - passed))


def _write_down(ledger: Ledger, audit: AuditLog) -> None:
    """Raises OutputError."""
    from keystone_action.gateway.trace import audit_records

    try:
        for event, ts, details in audit_records(ledger):
            audit.write(event, details, ts=ts)
    except OSError as error:
        raise OutputError(f"the audit log can't be written: {error.strerror or error}") from error
