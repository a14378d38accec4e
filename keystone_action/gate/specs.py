"""The specs that a call runs: those of the checkout, or of its base commit, and what the change does to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keystone_action.runner.preflight import GatedSpecs
from keystone_action.runner.specs import load_specs

if TYPE_CHECKING:
    from keystone_action.gate.change_base import ChangeBase
    from keystone_action.options.model import Options


def specs_to_run(options: Options, base: ChangeBase) -> GatedSpecs:
    """All specs of a call, beside those of the base commit where there is one. Raises UsageError and SpecError."""
    if base.commit is None and not base.problem and options.cells.spec_from == "head":
        return GatedSpecs(load_specs(options))
    from keystone_action.gate.compare import gated_specs

    return gated_specs(options, base)
