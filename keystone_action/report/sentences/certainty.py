"""How sure the figures of a spec are, in plain sentences, each with its n.

Nothing is said where there is nothing to say: of a single cell, or of replicas that all ended alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from keystone_action.report import words
from keystone_action.scoring.regressions import FEWEST_FOR_TEST
from keystone_action.scoring.results import Reliability, SmallestDrop, SpecResult

_SHOWN_TRIES = 3


def certainty(spec: SpecResult) -> list[str]:
    """Plain text, a sentence or clause each without its end, nothing escaped."""
    return [*_interval(spec), *_reliability(spec.reliability), *_drop(spec.smallest_drop)]


def _interval(spec: SpecResult) -> Iterator[str]:
    interval = spec.composite_interval
    if interval is not None and spec.composite is not None:
        low, high = words.score(interval.low), words.score(interval.high)
        over = words.count(interval.n, interval.unit.removesuffix("s"))
        yield f"composite {words.score(spec.composite)}, 95% interval {low}–{high} over {over}"


def _reliability(found: Reliability | None) -> Iterator[str]:
    if found is None:
        return
    k = min(_SHOWN_TRIES, len(found.pass_at_k), len(found.pass_hat_k))
    if k < 2 or found.pass_at_k[0] in (0, 1):
        return
    replicas = words.count(found.replicas, "replica")
    of = f"{replicas} of each of {found.groups:,} groups" if found.groups > 1 else replicas
    at, hat = words.score(found.pass_at_k[k - 1]), words.score(found.pass_hat_k[k - 1])
    yield f"pass@1 {words.score(found.pass_at_k[0])}, pass@{k} {at}, pass^{k} {hat} (n = {of})"


def _drop(found: SmallestDrop | None) -> Iterator[str]:
    if found is None:
        return
    replicas = words.count(found.replicas, "replica")
    if found.replicas < FEWEST_FOR_TEST:
        yield f"{replicas} are too few to tell a drop from noise: {FEWEST_FOR_TEST} are needed"
    elif found.drop is None:
        yield f"with {replicas} and a pass rate of {words.percent(found.rate)} no drop would show"
    else:
        points = found.drop * 100
        yield f"with {replicas} only a drop of {f'{points:.0f}' if points >= 1 else f'{points:.2g}'} points would show"
