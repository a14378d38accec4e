"""The last stage of a cell: what its evidence comes to, by the rules on what an agent must not do and by its checks.

Nothing is asked of the cell but its evidence; checks that execute get a sandbox on a copy of the tree that the agent
left. So the same evidence can be judged again.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from keystone_action.errors import HarnessError, KeystoneError, ServiceError
from keystone_action.evidence.agent_run import TooMuchPrinted
from keystone_action.evidence.audit import AuditLine, read_audit_log
from keystone_action.evidence.trace import GATEWAY
from keystone_action.files.paths import PathUnreadable
from keystone_action.invariants.check import Check, Outcome, Phase, broken, failed, skipped
from keystone_action.runner.cell.context import CheckSandboxes, Context, Copies
from keystone_action.runner.cell.grading import ending, grade_cell, violation
from keystone_action.runner.cell.known_agent import why_no_question
from keystone_action.runner.cell.running_cell import GradedCheck
from keystone_action.runner.cell.seal import write_logs
from keystone_action.scoring.results import ENDS_ALIKE, InvariantResult
from keystone_action.spec.expressions import leaves, references
from keystone_action.spec.models.agents import LoopAgent, PresetAgent
from keystone_action.system.shortage import machine_shortage

if TYPE_CHECKING:
    from keystone_action.evidence.model import Evidence
    from keystone_action.evidence.trace import Trace
    from keystone_action.evidence.writes import TableWrite
    from keystone_action.runner.cell.running_cell import Expressions, RunningCell
    from keystone_action.scoring.results import CellResult, ForbiddenResult
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.spec import Invariant

_ORDER: dict[Phase, int] = {"observe": 0, "shared_copy": 1, "fresh_copy": 1}
GRACE_SECONDS = 5.0
"""What a check gets beyond its own time limit to notice it itself, before it is stopped from outside."""
_LAST_WORDS = 1000
"""Characters of what a program printed that broke off."""


@dataclass(frozen=True, slots=True)
class JudgedCell:
    """A cell, and what it is judged from."""

    running: RunningCell

    agent: AgentBase
    """Interpolated."""

    evidence: Evidence
    sandboxes: CheckSandboxes
    """For checks that execute."""

    expressions: Expressions
    """For those that checks have."""


async def judge(cell: JudgedCell) -> CellResult:
    """The cell's result by the rules, checks and threshold of its spec, with its files written.

    Raises HarnessError where nothing can be said of the agent: then what the rules and the checks that ended came to
    stands in the cell's progress.
    """
    running, evidence, progress = cell.running, cell.evidence, cell.running.progress
    try:
        await anyio.to_thread.run_sync(_judge_rules, cell)
    except KeystoneError as error:
        raise evidence.broken or error from None
    if evidence.broken is not None:
        # Of what broke nobody can say that it was let alone.
        progress.judge_rules([rule for rule in progress.found.forbidden if rule.violated])
        raise evidence.broken
    _require_provider(cell)
    _require_question(cell)
    graded = await run_checks(cell)
    # Checks have the agent's network, and by now all of it is closed.
    problem = await cell.sandboxes.close()
    if problem:
        graded = doubt_what_executed(graded, running.invariants, problem)
        progress.grade(graded)
    await anyio.to_thread.run_sync(running.files.write_graded, evidence, graded)
    result = grade_cell(running, cell.agent, evidence)
    if problem and result.verdict != "fail":
        raise HarnessError(problem)
    return result


async def run_checks(cell: JudgedCell) -> list[GradedCheck]:
    """Every check, also after another one failed: those that observe first, then those that execute, in declared order.
    Returns them in that of the spec; the cell's progress knows each as soon as it has ended.

    One that names a secret which could not be resolved (a judge) is skipped.
    """
    invariants, progress = cell.running.invariants, cell.running.progress
    copies = Copies(cell.evidence.workspace, cell.sandboxes)
    ordered = sorted(invariants.items(), key=lambda item: _ORDER[_check(item[1]).run_phase])
    graded: dict[str, GradedCheck] = {}
    try:
        for (name, invariant), keeps_home in zip(ordered, _keep_home([_check(one) for _, one in ordered]), strict=True):
            graded[name] = await _run_check(cell, name, invariant, copies, keeps_home=keeps_home)
            progress.add_graded(graded[name])
    finally:
        with anyio.CancelScope(shield=True):
            await copies.close()
    found = [graded[name] for name in invariants]
    progress.grade(found)
    return found


def _keep_home(checks: Sequence[Check]) -> list[bool]:
    """Of checks in the order in which they run: whether each leaves its HOME to the next one that has to do with it."""
    found, next_one = list[bool](), False
    for check in reversed(checks):
        found.append(check.in_kept_home is not None and next_one)
        next_one = next_one if check.in_kept_home is None else check.in_kept_home
    return found[::-1]


def doubt_what_executed(
    graded: Sequence[GradedCheck], invariants: Mapping[str, Invariant], why: str
) -> list[GradedCheck]:
    """The way out of the cell's network broke: checks that execute code in it are in error, whatever they found."""

    def doubted(entry: GradedCheck) -> GradedCheck:
        found = entry.result
        if _check(invariants[found.name]).run_phase == "observe" or found.status not in ("pass", "fail"):
            return entry
        message = f"{why}, so what was found counts for nothing: {found.message}"
        result = replace(found, status="error", score=None, message=message, disqualified=False)
        return replace(entry, result=result)

    return [doubted(entry) for entry in graded]


async def _run_check(
    cell: JudgedCell, name: str, invariant: Invariant, copies: Copies, *, keeps_home: bool
) -> GradedCheck:
    running, evidence, check = cell.running, cell.evidence, _check(invariant)
    timeout = check.own_timeout or invariant.timeout or check.default_timeout
    context = Context(running, evidence, cell.sandboxes, copies, name, check, timeout, keeps_home)
    started = time.monotonic()
    try:
        missing = _missing_secret(check, running.secrets.missing)
        if missing:
            outcome = skipped(missing)
        else:
            # `{{ workspace }}` is where this very check runs: a copy, for those that execute.
            check = cell.expressions.fill(check, workspace=str(context.copy_path))
            outcome = await _evaluate(check, context, timeout)
            if outcome.status == "pass" and context.others_can_write:
                outcome = failed(f"{context.others_can_write}.", log=outcome.log)
            if problem := await _broken_service(check, evidence):
                outcome = broken(problem, log=outcome.log or outcome.message)
    finally:
        # Its processes are gone before the next check, also when the run is cancelled.
        with anyio.CancelScope(shield=True):
            await context.close()
    running.progress.note(*(f"{name}: {notice}" for notice in outcome.notices))
    return GradedCheck(
        InvariantResult(
            name=name,
            type=check.type_name,
            status=outcome.status,
            score=outcome.score,
            weight=invariant.weight,
            gate=invariant.gate,
            message=outcome.message,
            details=dict(outcome.details),
            duration_s=time.monotonic() - started,
            description=invariant.description,
            on_skip=invariant.on_skip,
            disqualified=outcome.disqualifies,
        ),
        outcome.log,
        outcome.judge_usage,
        outcome.unpriced,
    )


async def _evaluate(check: Check, context: Context, timeout: float) -> Outcome:
    try:
        with anyio.move_on_after(timeout + GRACE_SECONDS):
            return await check.evaluate(context)
        late = failed if check.late_fails else broken
        return late(f"the check took longer than {timeout:g} s and was stopped")
    except TooMuchPrinted as problem:
        # Of any check: none may judge a part as if it were all.
        return failed(f"{problem}.")
    except PathUnreadable as problem:
        # What code that the agent wrote made unreadable is its failure (contract, 5.1).
        return failed(f"{problem}.")
    except KeystoneError as error:
        return broken(error.sentences)
    except Exception as error:  # noqa: BLE001 - a defect of a check is that check's error, not the run's end
        if lacking := machine_shortage(error):
            return broken(lacking, log=traceback.format_exc())
        return broken(f"the check itself broke: {type(error).__name__}: {error}", log=traceback.format_exc())


async def _broken_service(check: Check, evidence: Evidence) -> str:
    """What has happened to a service that the check's outcome depends on; empty where all of them are whole."""
    services = [service for name, service in evidence.services.items() if check.depends_on(name)]

    def ask() -> str:
        for service in services:
            try:
                service.require_unbroken()
            except ServiceError as error:
                return error.sentences
        return ""

    return await anyio.to_thread.run_sync(ask) if services else ""


def _missing_secret(check: Check, unavailable: Mapping[str, str]) -> str:
    if not unavailable:
        return ""
    used = {ref.parts[1] for leaf in leaves(check) for ref in references(leaf.value) if ref.parts[0] == "secrets"}
    return "; ".join(why for name, why in unavailable.items() if name in used)


def _check(invariant: Invariant) -> Check:
    check = invariant.check
    if not isinstance(check, Check):
        raise TypeError(f"{type(check).__name__} is not a check type")
    return check


def _require_provider(cell: JudgedCell) -> None:
    """Raises HarnessError where a provider failed, so that the agent could not do better."""
    run, models, progress = cell.evidence.agent, cell.evidence.models, cell.running.progress
    if models is None or run.stopped:
        return
    faults = models.faults
    if faults.hopeless:
        progress.allow_rerun("never")
        raise HarnessError(faults.hopeless, help=ENDS_ALIKE)
    failed_agent = run.exit_code != 0 or run.timed_out or bool(run.failure or run.unheard) or not run.output.strip()
    if failed_agent and faults.failure:
        if faults.is_certain:
            progress.allow_rerun("never")
            raise HarnessError(faults.failure, help=ENDS_ALIKE)
        # An agent that was told to do something has begun its work, and can provoke a provider's limits itself.
        provoked = bool(models.tool_calls) or faults.is_rate_limited
        progress.allow_rerun("once" if provoked else "as_asked")
        raise HarnessError(faults.failure, help="Run it again; `scoring.retry_errors` does that by itself.")


def _require_question(cell: JudgedCell) -> None:
    """Raises HarnessError for a known agent that asked no model: its program broke off before the agent began, or went
    elsewhere, so nothing is known of the agent."""
    agent, run, models = cell.agent, cell.evidence.agent, cell.evidence.models
    if isinstance(agent, LoopAgent) and run.unanswered:
        cell.running.progress.allow_rerun("once")
        raise HarnessError(run.problem, help=f"agent.model is {agent.model}.")
    if models is None or models.asked or not isinstance(agent, PresetAgent):
        return
    from keystone_action.agents.presets.preset import load_preset

    said = run.stderr.strip()[-_LAST_WORDS:]
    cell.running.progress.allow_rerun("once")
    raise HarnessError(
        f"{load_preset(agent.type).title} asked no model and {ending(run)}" + (f"\n{said}" if said else ""),
        help=why_no_question(cell.running, agent, cell.evidence.files.before),
    )


def _judge_rules(cell: JudgedCell) -> None:
    """Tells the cell's progress a result for each rule that the spec has, in the order of the format. Blocking.

    Raises HarnessError where evidence is missing, and what services raise, once the other rules were judged: a report
    shows what is known to be broken."""
    rules, problem, found = cell.running.spec.forbidden, None, list["ForbiddenResult"]()
    for names, judge_rule in _JUDGES.items():
        if all(getattr(rules, name) is None for name in names):
            continue
        try:
            found += judge_rule(cell)
        except HarnessError as error:
            problem = problem or error
        cell.running.progress.judge_rules(found)
    if problem is not None:
        raise problem
    _require_certain_calls(cell, found)


def _require_certain_calls(cell: JudgedCell, rules: Sequence[ForbiddenResult]) -> None:
    """Raises HarnessError where a budget of calls may be exceeded by calls that nobody can be certain of. A violated
    rule stands all the same."""
    gateway, observed = cell.running.gateway, cell.evidence.observed
    if gateway is None or observed is None or gateway.budget.max_tool_calls is None:
        return
    if observed.calls_unsure and not cell.evidence.agent.stopped and not violation(rules):
        raise HarnessError(f"gateway.budget.max_tool_calls: {observed.calls_unsure}")


def _table_writes(cell: JudgedCell) -> Iterator[ForbiddenResult]:
    from keystone_action.runner.cell.forbidden_rules import judge_table_writes

    spec = cell.running.spec
    logs = write_logs(cell.evidence.services, "forbidden.db_writes_outside")
    for name, log in logs.items():
        if log.not_seen:
            cell.running.progress.note(f"forbidden.db_writes_outside, {name}: {'; '.join(log.not_seen)}")
    writes, problems = list["TableWrite"](), list[HarnessError]()
    for log in logs.values():
        with _put_off(problems):
            writes += log.writes()
    without_schemas = [service.name for service in spec.services if service.kind == "sqlite"]
    found = judge_table_writes(spec.forbidden.db_writes_outside or (), writes, without_schemas=without_schemas)
    yield _certain(found, problems)


@contextmanager
def _put_off(problems: list[HarnessError]) -> Iterator[None]:
    """Evidence that can't be had keeps no other from being judged: the rest may violate the rule for certain."""
    try:
        yield
    except HarnessError as error:
        problems.append(error)


def _certain(found: ForbiddenResult, problems: Sequence[HarnessError]) -> ForbiddenResult:
    """Raises the first problem, unless the rule is violated all the same."""
    if problems and not found.violated:
        raise problems[0]
    return found


def _hosts(cell: JudgedCell) -> Iterator[ForbiddenResult]:
    from keystone_action.runner.cell.forbidden_rules import judge_hosts

    evidence, problems = cell.evidence, list[HarnessError]()
    for service in evidence.services.values():
        with _put_off(problems):
            service.require_whole_record()
    found = judge_hosts(
        cell.running.spec.forbidden.http_except or (),
        _lines_of_agent(evidence),
        services={name: [(one.for_agent.host, one.for_agent.port)] for name, one in evidence.services.items()},
        own=evidence.audit.own_addresses,
        is_full=evidence.audit.is_full,
    )
    yield _certain(found, problems)


def _secrets(cell: JudgedCell) -> Iterator[ForbiddenResult]:
    from keystone_action.runner.cell.leaked_secrets import LeakSearch, explain_unsearched, secret_search

    running, evidence = cell.running, cell.evidence
    keys = evidence.models.keys if evidence.models is not None else ()
    search, problems = LeakSearch(secret_search(running, keys)), list[HarnessError]()
    for service in evidence.services.values():
        with _put_off(problems):
            service.require_whole_record()
    search.in_output(evidence.agent)
    search.in_changes(evidence.files.changes, evidence.workspace, evidence.files.originals)
    search.in_requests(_lines_of_agent(evidence))
    search.in_model_requests(evidence.models.leaks if evidence.models is not None else ())
    for name, log in write_logs(evidence.services, "forbidden.secrets_in_logs").items():
        with _put_off(problems):
            search.in_rows(name, log)
    if unsearched := explain_unsearched(running, keys):
        running.progress.note(unsearched)
    yield _certain(search.result(), problems)


def _file_writes(cell: JudgedCell) -> Iterator[ForbiddenResult]:
    from keystone_action.runner.cell.forbidden_rules import judge_file_writes

    allowed = cell.running.spec.forbidden.file_writes_outside or ()
    yield judge_file_writes(allowed, cell.evidence.files.all_changes)


def _calls(cell: JudgedCell) -> Iterator[ForbiddenResult]:
    from keystone_action.runner.cell.forbidden_rules import judge_calls

    models = cell.evidence.models
    yield from judge_calls(
        cell.running.spec.forbidden,
        _whole_calls(cell.evidence),
        has_gateway=models is not None,
        times=[call.ts for call in models.calls] if models is not None else (),
        harmless=_harmless_tools(cell.agent),
    )


def _harmless_tools(agent: AgentBase) -> Collection[str] | None:
    """Those of a known agent that run no command; None for an agent whose tools nobody knows."""
    if isinstance(agent, LoopAgent):
        return {"read", "write", "edit"}
    if not isinstance(agent, PresetAgent):
        return None
    from keystone_action.agents.presets.preset import load_preset

    return load_preset(agent.type).harmless_tools


def _whole_calls(evidence: Evidence) -> Trace | None:
    """The trace with all of the arguments of calls, of which traces keep the beginnings: for rules on what was run."""
    trace, models = evidence.observed, evidence.models
    if models is None or trace is None or trace.source != GATEWAY:
        return trace
    calls = zip(trace.tool_calls or (), models.calls, strict=True)
    return replace(trace, tool_calls=tuple(replace(call, arguments=whole.arguments) for call, whole in calls))


def _lines_of_agent(evidence: Evidence) -> Iterator[AuditLine]:
    """The lines of the audit log on what happened while the agent ran. Raises OutputError."""
    return read_audit_log(evidence.audit.log, evidence.audit.agent_start)


_JUDGES: dict[tuple[str, ...], Callable[[JudgedCell], Iterator[ForbiddenResult]]] = {
    ("db_writes_outside",): _table_writes,
    ("http_except",): _hosts,
    ("secrets_in_logs",): _secrets,
    ("file_writes_outside",): _file_writes,
    ("tools", "commands"): _calls,
}
