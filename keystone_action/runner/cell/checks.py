"""Running the checks of a cell: those that observe first, then those that execute, in declared order."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.errors import KeystoneError
from keystone_action.evidence.model import TooMuchPrinted
from keystone_action.files.paths import PathUnreadable
from keystone_action.invariants.base import Check, Outcome, Phase, broken, failed, skipped
from keystone_action.runner.cell.context import CheckWorld, Context
from keystone_action.sandbox.shortage import of_machine
from keystone_action.scoring.results import InvariantResult
from keystone_action.spec.expressions import interpolate, references
from keystone_action.spec.loading.annotations import leaves

if TYPE_CHECKING:
    from keystone_action.spec.models.spec import Invariant

_ORDER: dict[Phase, int] = {"observe": 0, "shared_copy": 1, "fresh_copy": 1}
GRACE_SECONDS = 5.0
"""What a check gets beyond its own time limit to notice it itself, before it is stopped from outside."""


@dataclass(frozen=True, slots=True)
class Graded:
    """A check's result, its log, and what its judge spent."""

    result: InvariantResult
    log: str
    judge_usage: Mapping[str, float]


async def run_checks(
    invariants: Mapping[str, Invariant],
    world: CheckWorld,
    names: Mapping[str, Any] | None,
    *,
    unavailable: Mapping[str, str],
    on_result: Callable[[Graded], None],
) -> None:
    """Every check, whatever the others found. `on_result` is told each as it ends; names are for expressions, None
    where there are none.

    unavailable: secrets that could not be resolved, with why; a check that names one (a judge) is skipped.
    """
    ordered = sorted(invariants.items(), key=lambda item: _ORDER[_check(item[1]).run_phase])
    for index, (name, invariant) in enumerate(ordered):
        following = [_check(later) for _, later in ordered[index + 1 :]]
        on_result(await _run(name, invariant, world, names, unavailable, following))


async def _run(
    name: str,
    invariant: Invariant,
    world: CheckWorld,
    names: Mapping[str, Any] | None,
    unavailable: Mapping[str, str],
    following: Sequence[Check],
) -> Graded:
    check = _check(invariant)
    timeout = check.own_timeout or invariant.timeout or check.default_timeout
    next_home = next((one.in_kept_home for one in following if one.in_kept_home is not None), False)
    context = Context(
        world,
        name,
        timeout,
        check.run_phase,
        in_kept_home=bool(check.in_kept_home),
        keeps_home=check.in_kept_home is not None and bool(next_home),
    )
    started = time.monotonic()
    try:
        missing = _missing_secret(check, unavailable)
        if missing:
            outcome = skipped(missing)
        else:
            if names is not None:
                # `{{ workspace }}` is where this very check runs: a copy, for those that execute.
                check = interpolate(check, {**names, "workspace": str(context.copy_path)})
            outcome = await _evaluate(check, context, timeout)
    finally:
        # Its processes are gone before the next check, also when the run is cancelled.
        with anyio.CancelScope(shield=True):
            await context.close()
    duration = time.monotonic() - started
    result = InvariantResult(
        name=name,
        type=check.type_name,
        status=outcome.status,
        score=outcome.score,
        weight=invariant.weight,
        gate=invariant.gate,
        message=outcome.message,
        details=dict(outcome.details),
        duration_s=duration,
        description=invariant.description,
        on_skip=invariant.on_skip,
        disqualified=outcome.disqualifies,
    )
    return Graded(result, outcome.log, outcome.judge_usage)


async def _evaluate(check: Check, context: Context, timeout: float) -> Outcome:
    try:
        with anyio.move_on_after(timeout + GRACE_SECONDS):
            return await check.evaluate(context)
        late = failed if check.late_fails else broken
        return late(f"the check took longer than {timeout:g} s and was stopped")
    except TooMuchPrinted as problem:
        # Whichever check asked for it: none may judge a part as if it were all.
        return failed(f"{problem}.")
    except PathUnreadable as problem:
        # What code that the agent wrote made unreadable is its failure (contract, 5.1).
        return failed(f"{problem}.")
    except KeystoneError as error:
        return broken(error.sentences)
    except Exception as error:  # noqa: BLE001 - a defect of a check is that check's error, not the run's end
        if lacking := of_machine(error):
            return broken(lacking, log=traceback.format_exc())
        return broken(f"the check itself broke: {type(error).__name__}: {error}", log=traceback.format_exc())


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
