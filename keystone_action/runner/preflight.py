"""What must hold before anything starts: exit 2 with a sentence, never a policy that is silently not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keystone_action.errors import NotSupportedYet, UsageError
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.diagnostics import SpecError
from keystone_action.spec.discovery import discover
from keystone_action.spec.loader import LoadedSpec, load
from keystone_action.spec.services import ServerBase

if TYPE_CHECKING:
    from keystone_action.plan import Plan
    from keystone_action.runner.options import RunOptions


def load_specs(options: RunOptions) -> list[LoadedSpec]:
    """All specs of a call. Raises UsageError, or SpecError with the errors of every file that has some."""
    types = CheckTypes()
    loaded: list[LoadedSpec] = []
    errors: list[SpecError] = []
    for path in discover(options.specs, options.directory, tolerate_missing=options.tolerate_missing):
        try:
            loaded.append(load(path, types, given_parameters=tuple(options.params)))
        except SpecError as error:
            errors.append(error)
    if errors:
        raise SpecError.joined(errors)
    return loaded


def preflight(specs: Sequence[LoadedSpec], planned: Plan, options: RunOptions) -> None:
    """Refuse what this machine or this version can't do. Raises UsageError."""
    if options.sandbox == "docker":
        raise NotSupportedYet("--sandbox docker", help="the process sandbox runs here: --sandbox process")
    if options.fail_on == "regression":
        raise NotSupportedYet("--fail-on regression", help="--fail-on threshold decides by each spec's pass_threshold")
    planned_ids = {cell.loaded.spec.id for cell in planned.cells}
    for loaded in specs:
        if loaded.spec.id not in planned_ids:
            continue
        if loaded.spec.services:
            from keystone_action.services.start import refuse_unsupported

            refuse_unsupported(loaded.spec.services)
        if loaded.spec.resources.strict:
            raise UsageError(
                f"{loaded.path}: resources.strict: true can't be kept: the process sandbox watches limits and stops"
                " what exceeds them, it does not enforce them",
                help="leave strict out, or set base to run in a container once that is supported",
            )


def substituted_services(specs: Sequence[LoadedSpec], planned: Plan) -> tuple[str, ...]:
    """What runs in place of an image that was asked for, a sentence each."""
    planned_ids = {cell.loaded.spec.id for cell in planned.cells}
    return tuple(
        f"service {service.name} of {loaded.spec.id}: embedded PostgreSQL instead of the image {service.image}"
        + _without_effect(service)
        for loaded in specs
        if loaded.spec.id in planned_ids
        for service in loaded.spec.services
        if isinstance(service, ServerBase) and service.kind == "postgres" and service.image
    )


def _without_effect(service: ServerBase) -> str:
    given = [name for name in ("ports", "wait_for") if getattr(service, name)]
    return f"; {' and '.join(given)} have no effect on it" if given else ""
