"""What the agent of one cell says to models: its gateway, opened before it and settled after it (spec.md 5.6)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio.to_thread

from keystone_action.errors import HarnessError, OutputError, ServiceError
from keystone_action.runner.cell.grading import ending, violation
from keystone_action.runner.cell.known_agent import why_no_question
from keystone_action.runner.cell.recordings import CellRecording
from keystone_action.runner.started_run import run_shielded
from keystone_action.scoring.results import ENDS_ALIKE
from keystone_action.spec.models.agents import PresetAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keystone_action.evidence.audit import AuditLog
    from keystone_action.evidence.trace import Trace
    from keystone_action.gateway.ledger import Ledger
    from keystone_action.gateway.relay import AnswerSource
    from keystone_action.runner.cell.running_cell import CellUnderWay
    from keystone_action.scoring.results import CellResult
    from keystone_action.spec.models.gateway import Gateway

_LAST_WORDS = 1000
"""Characters of what a program printed that broke off."""
GRACE_SECONDS = 10.0
"""For an agent that was told that its budget is spent."""


async def open_model_gateway(under_way: CellUnderWay) -> None:
    """The gateway, if this cell has one, known to expressions. Raises ServiceError, SecretError."""
    gateway = under_way.gateway_wanted
    if gateway is None:
        return
    from keystone_action.gateway.cell import configure, open_gateway

    options, network = under_way.run.options, under_way.network
    inside = network if under_way.image is not None else None
    filled = under_way.fill(gateway)
    configuration = configure(
        filled,
        options.caller.environ,
        needed=_needed(under_way, filled),
        denied_egress=under_way.spec.egress.default == "deny",
        no_secrets_reason=options.caller.no_secrets_reason,
    )
    under_way.budget_spent = asyncio.Event()
    if gateway.mode != "live":
        under_way.recording = CellRecording(under_way.cell, gateway)
        await under_way.recording.open()
    if under_way.spec.forbidden.secrets_in_logs is not None:
        from keystone_action.runner.cell.forbidden.judging import secret_search
        from keystone_action.runner.cell.leaked_secrets import SentToModels

        search = secret_search(under_way, configuration.real_keys)
        under_way.sent_to_models = SentToModels(search) if search else None
    opened = await open_gateway(
        under_way.run.gateways.started(),
        configuration,
        address="127.0.0.1" if inside is None else inside.host_address,
        admits=(lambda _peer: True) if inside is None else inside.admits,
        on_spent=_ends_soon(under_way.budget_spent),
        on_hopeless=_ends(under_way.budget_spent),
        # What is replayed costs nothing now.
        purse=under_way.run.spending if gateway.mode != "replay" else None,
        source=_of_providers if under_way.recording is None else under_way.recording.source,
        look_through=under_way.sent_to_models,
    )
    under_way.gateway = opened
    under_way.stack.push_async_callback(run_shielded, opened.close)
    under_way.names["gateway"] = {name: address.as_mapping() for name, address in opened.addresses.items()}


def _of_providers(providers: AnswerSource) -> AnswerSource:
    return providers


def _needed(under_way: CellUnderWay, gateway: Gateway) -> list[str]:
    """The providers without which a known agent can't work. Raises HarnessError where there is none of that API."""
    agent = under_way.cell.agent
    if not isinstance(agent, PresetAgent):
        return []
    from keystone_action.agents.presets.preset import load_preset
    from keystone_action.gateway.upstreams import provider_of_api

    # Its other fields may name services, which are not there yet.
    named = agent.model_copy(update={"model": agent.model and under_way.fill(agent.model)})
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


def begin_recording(recording: CellRecording, under_way: CellUnderWay) -> None:
    """The agent starts: what differs from run to run is known. Blocking."""
    recording.begin(dict(_values(under_way)))


def _values(under_way: CellUnderWay) -> Iterator[tuple[str, str]]:
    """What differs from run to run, by its name in recordings."""
    sandbox, roots = under_way.sandbox, under_way.roots
    yield "workspace", sandbox.workspace_inside
    yield "home", sandbox.environment["HOME"]
    yield "tmp", sandbox.environment["TMPDIR"]
    yield "folder", str(roots.area)
    yield "cell", under_way.cell.id
    for name, place in under_way.places.items():
        for key, value in place.for_agent.as_mapping().items():
            yield f"service.{name}.{key}", str(value)
    if under_way.gateway is not None:
        for name, address in under_way.gateway.addresses.items():
            yield f"gateway.{name}.url", address.url
            yield "gateway.key", address.key
    for name, value in under_way.secrets.values.items():
        yield f"secret.{name}", value
    yield from _commit(roots.workspace)


def _commit(workspace: Path) -> Iterator[tuple[str, str]]:
    from keystone_action.files.git import commands as git

    if not (workspace / ".git").is_dir() or not git.has_git():
        return
    try:
        commit = git.run_git("rev-parse", "HEAD", directory=workspace).decode("ascii", "replace").strip()
    except git.GitFailed:
        return
    yield "commit", commit


async def settle_model_gateway(under_way: CellUnderWay) -> None:
    """The agent has ended: what it asked for is whole. Raises ServiceError for a defect of ours, SecretError where it
    asked a provider without a key, HarnessError where the job's money was spent."""
    if under_way.gateway is None:
        return
    await under_way.gateway.settle(_time_left(under_way))
    ledger = under_way.gateway.ledger
    await anyio.to_thread.run_sync(_write_down, ledger, under_way.audit)
    if under_way.recording is not None:
        under_way.notices += under_way.recording.settle(ledger)
    if ledger.missing_key:
        raise under_way.gateway.configuration.key_error(ledger.missing_key)
    if ledger.unreadable:
        raise HarnessError("what a model answered could not be read, so nobody knows what the agent was told to do")
    if ledger.is_cut:
        raise HarnessError(f"max-cost-usd: {ledger.stopped}", help="Give the job more, or run fewer cells.")
    if under_way.agent_run is not None and (why := ledger.stopped):
        under_way.agent_run = replace(under_way.agent_run, stopped=why)
    if defects := under_way.gateway.defects:
        raise ServiceError(f"the model gateway broke while it served: {defects[0]}")


def _time_left(under_way: CellUnderWay) -> float:
    """Seconds until the agent's own limit, or the cell's where that comes first; at least 0."""
    run, passed = under_way.agent_run, time.monotonic() - under_way.started
    of_agent = under_way.agent.timeout - (run.duration_s if run is not None else 0.0)
    return max(0.0, min(of_agent, under_way.spec.resources.timeout - passed))


def _write_down(ledger: Ledger, audit: AuditLog) -> None:
    """Raises OutputError."""
    from keystone_action.gateway.trace import audit_records

    try:
        for event, ts, details in audit_records(ledger):
            audit.write(event, details, ts=ts)
    except OSError as error:
        raise OutputError(f"the audit log can't be written: {error.strerror or error}") from error


def require_provider(under_way: CellUnderWay) -> None:
    """Raises HarnessError where a provider failed, so that the agent could not do better."""
    run = under_way.agent_run
    if under_way.gateway is None or run is None or run.stopped:
        return
    if hopeless := under_way.gateway.ledger.faults.hopeless:
        under_way.rerun = "never"
        raise HarnessError(hopeless, help=ENDS_ALIKE)
    failed = run.exit_code != 0 or run.timed_out or bool(run.failure) or not run.output.strip()
    ledger = under_way.gateway.ledger
    if failed and (why := ledger.provider_failure()):
        if ledger.fails_for_certain:
            under_way.rerun = "never"
            raise HarnessError(why, help=ENDS_ALIKE)
        # An agent that was told to do something has begun its work, and can provoke a provider's limits itself.
        provoked = bool(ledger.spent.tool_calls) or ledger.is_rate_limited
        under_way.rerun = "once" if provoked else "as_asked"
        raise HarnessError(why, help="Run it again; `scoring.retry_errors` does that by itself.")


def require_certain_calls(under_way: CellUnderWay) -> None:
    """Raises HarnessError where a budget of calls may be exceeded by calls that nobody can be certain of. A violated
    rule stands all the same."""
    gateway, run = under_way.gateway_wanted, under_way.agent_run
    if gateway is None or under_way.observed is None or gateway.budget.max_tool_calls is None:
        return
    stopped = run is not None and run.stopped
    if under_way.observed.calls_unsure and not stopped and not violation(under_way.forbidden):
        raise HarnessError(f"gateway.budget.max_tool_calls: {under_way.observed.calls_unsure}")


def require_question(under_way: CellUnderWay) -> None:
    """Raises HarnessError for a known agent that asked no model: its program broke off before the agent began, or went
    elsewhere, so nothing is known of the agent."""
    agent, run = under_way.agent, under_way.agent_run
    if under_way.gateway is None or run is None or not isinstance(agent, PresetAgent):
        return
    ledger = under_way.gateway.ledger
    if ledger.exchanges or ledger.refused:
        return
    from keystone_action.agents.presets.preset import load_preset

    preset = load_preset(agent.type)
    said = run.stderr.strip()[-_LAST_WORDS:]
    under_way.rerun = "once"
    raise HarnessError(
        f"{preset.title} asked no model and {ending(run)}" + (f"\n{said}" if said else ""),
        help=why_no_question(under_way, agent),
    )


def without_real_keys(under_way: CellUnderWay, variables: dict[str, str]) -> dict[str, str]:
    """An agent's variables with the cell's key in place of a provider's; the report says which."""
    if under_way.gateway is None:
        return variables
    replaced, names = under_way.gateway.without_keys(variables)
    if names:
        under_way.notices.append(f"{', '.join(names)}: the agent got the gateway's key instead of the provider's")
    return replaced


def observe_models(under_way: CellUnderWay, declared: Trace | None) -> Trace | None:
    """The trace that checks read: the gateway's where it must have seen everything, else the agent's own word
    (contract, 5.6 "Which trace checks read"). Raises OSError where our copy can't be written."""
    gateway = under_way.gateway
    if gateway is None or not (gateway.ledger.answered or _is_only_way(under_way)):
        return declared
    from keystone_action.evidence.trace import write_trace
    from keystone_action.gateway.trace import differences, trace_of, with_declared

    seen = trace_of(gateway.ledger.exchanges, gateway.ledger.spent)
    if declared is not None and not declared.problem:
        under_way.notices += differences(seen, declared)
        seen = with_declared(seen, declared)
    if under_way.spec.forbidden.needs_trace and not _is_only_way(under_way):
        under_way.notices.append(
            "forbidden.tools and forbidden.commands hold as far as the gateway saw: network.egress is open"
        )
    write_trace(seen, under_way.roots.trace)
    return seen


async def keep_recording(under_way: CellUnderWay, result: CellResult) -> None:
    """The cell was graded: a recording of it replaces the one that there was. Raises HarnessError."""
    if under_way.recording is not None and (gateway := under_way.gateway) is not None:
        await under_way.recording.keep(result, gateway.ledger, gateway.configuration.apis, under_way.run.masker)


def _is_only_way(under_way: CellUnderWay) -> bool:
    """Whether the gateway is the agent's only way out."""
    egress = under_way.spec.egress
    return egress.default == "deny" and not egress.allow


def money_paid(under_way: CellUnderWay) -> float | None:
    """US dollars for what passed the gateway; None where nothing did, or its price is not known."""
    gateway = under_way.gateway
    if under_way.replay is not None:
        return 0.0
    return gateway.ledger.spent.cost_usd if gateway is not None and gateway.ledger.answered else None
