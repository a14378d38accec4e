"""Running the checks of a cell: those that observe first, then those that execute, in declared order."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from keystone_action.errors import KeystoneError, ServiceError
from keystone_action.evidence.model import TooMuchPrinted
from keystone_action.files.paths import PathUnreadable
from keystone_action.invariants.check import Check, Outcome, Phase, broken, failed, skipped
from keystone_action.runner.cell.context import Context, Copies
from keystone_action.runner.cell.running_cell import GradedCheck
from keystone_action.scoring.results import InvariantResult
from keystone_action.spec.expressions import leaves, references
from keystone_action.system.shortage import machine_shortage

if TYPE_CHECKING:
    from keystone_action.runner.cell.running_cell import CellUnderWay
    from keystone_action.spec.models.spec import Invariant

_ORDER: dict[Phase, int] = {"observe": 0, "shared_copy": 1, "fresh_copy": 1}
GRACE_SECONDS = 5.0
"""What a check gets beyond its own time limit to notice it itself, before it is stopped from outside."""


async def run_checks(under_way: CellUnderWay) -> None:
    """Every check, also after another one failed; each is in `graded` as soon as it has ended.

    One that names a secret which could not be resolved (a judge) is skipped.
    """
    invariants, copies = under_way.invariants, Copies(under_way)
    ordered = sorted(invariants.items(), key=lambda item: _ORDER[_check(item[1]).run_phase])
    try:
        for (name, invariant), keeps_home in zip(ordered, _keep_home([_check(one) for _, one in ordered]), strict=True):
            under_way.graded.append(await _run(name, invariant, copies, keeps_home=keeps_home))
    finally:
        with anyio.CancelScope(shield=True):
            await copies.close()
    by_name = {entry.result.name: entry for entry in under_way.graded}
    under_way.graded = [by_name[name] for name in invariants]


def _keep_home(checks: Sequence[Check]) -> list[bool]:
    """Of checks in the order in which they run: whether each leaves its HOME to the next one that has to do with it."""
    found, next_one = list[bool](), False
    for check in reversed(checks):
        found.append(check.in_kept_home is not None and next_one)
        next_one = next_one if check.in_kept_home is None else check.in_kept_home
    return found[::-1]


def doubt_what_executed(under_way: CellUnderWay, why: str) -> None:
    """The way out of the cell's network broke: checks that execute code in it are in error, whatever they found."""
    for index, entry in enumerate(under_way.graded):
        found = entry.result
        executes = _check(under_way.invariants[found.name]).run_phase != "observe"
        if executes and found.status in ("pass", "fail"):
            message = f"{why}, so what was found counts for nothing: {found.message}"
            result = replace(found, status="error", score=None, message=message, disqualified=False)
            under_way.graded[index] = replace(entry, result=result)


async def _run(name: str, invariant: Invariant, copies: Copies, *, keeps_home: bool) -> GradedCheck:
    under_way, check = copies.under_way, _check(invariant)
    timeout = check.own_timeout or invariant.timeout or check.default_timeout
    context = Context(under_way, copies, name, check, timeout, keeps_home)
    started = time.monotonic()
    try:
        missing = _missing_secret(check, under_way.secrets.missing)
        if missing:
            outcome = skipped(missing)
        else:
            # `{{ workspace }}` is where this very check runs: a copy, for those that execute.
            check = under_way.fill(check, workspace=str(context.copy_path))
            outcome = await _evaluate(check, context, timeout)
            if outcome.status == "pass" and context.others_can_write:
                outcome = failed(f"{context.others_can_write}.", log=outcome.log)
            if problem := await _broken_service(check, under_way):
                outcome = broken(problem, log=outcome.log or outcome.message)
    finally:
        # Its processes are gone before the next check, also when the run is cancelled.
        with anyio.CancelScope(shield=True):
            await context.close()
    under_way.notices += [f"{name}: {notice}" for notice in outcome.notices]
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


async def _broken_service(check: Check, under_way: CellUnderWay) -> str:
    """What has happened to a service that the check's outcome depends on; empty where all of them are whole."""
    places = [place for name, place in under_way.places.items() if check.depends_on(name)]

    def ask() -> str:
        for place in places:
            try:
                place.require_unbroken()
            except ServiceError as error:
                return error.sentences
        return ""

    return await anyio.to_thread.run_sync(ask) if places else ""


def _missing_secret(check: Check, unavailable: Mapping[str, str]) -> str:
    if not unavailable:
        return ""
    used = {ref.parts[1] for leaf in leaves(check) for ref in references(leaf.value) if ref.parts[0] == "secrets"}
    return "; ".join(why for name, why in unavailable.items() if name in used)


def judge_changes(invariants: Iterable[Invariant]) -> bool:
    """Whether a check among these depends on which files the agent changed."""
    return any(_check(one).judges_changes for one in invariants)


def _check(invariant: Invariant) -> Check:
    check = invariant.check
    if not isinstance(check, Check):
        raise TypeError(f"{type(check).__name__} is no check type")
    return check
