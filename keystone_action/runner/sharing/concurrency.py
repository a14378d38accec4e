"""How many cells may run at once, and so which of them share a database and which a service."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.plan import Plan


@dataclass(frozen=True, slots=True)
class Company:
    """Who runs beside the cells of a spec. own: others of this spec, so that each needs a database of its own. others:
    cells of other specs, while those of this one run one after the other by the names of `env`: services of the same
    definition are not shared with them. single: it has one cell."""

    own: bool
    others: bool
    single: bool


def most_at_once(spec: Spec, options: Options) -> int:
    """Cells of a spec that may run at once."""
    return options.running.max_concurrency or spec.parallelism.max_concurrency or os.cpu_count() or 1


def company(options: Options, planned: Plan) -> dict[str, Company]:
    """By spec id."""
    counts = Counter(cell.loaded.spec.id for cell in planned.cells)
    specs = {cell.loaded.spec.id: cell.loaded.spec for cell in planned.cells}
    most = {spec_id: most_at_once(spec, options) for spec_id, spec in specs.items()}
    several = len(specs) > 1 and max(most.values()) > 1
    found = {}
    for spec_id, count in counts.items():
        own = count > 1 and most[spec_id] > 1
        found[spec_id] = Company(own=own, others=several and not own, single=count == 1)
    return found
