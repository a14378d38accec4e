"""What must hold before anything starts: exit 2 with a sentence, never a policy that is silently not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keystone_action.errors import NotSupportedYet, UsageError
from keystone_action.runner.engine import Facilities, find_facilities
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.models.services import ServerBase

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.scoring.differences import SpecChanges
    from keystone_action.spec.plan import Plan


@dataclass(frozen=True, slots=True)
class GatedSpecs:
    """The specs to run, and what the change does to them; None where nothing was to be compared."""

    specs: list[LoadedSpec]
    changes: SpecChanges | None = None


def preflight(specs: Sequence[LoadedSpec], planned: Plan, options: Options) -> Facilities:
    """What the cells will run in. Refuses what this machine or this version can't do: raises UsageError."""
    planned_ids = {cell.loaded.spec.id for cell in planned.cells}
    wanted = [loaded for loaded in specs if loaded.spec.id in planned_ids]
    facilities = find_facilities(wanted, options)
    try:
        for loaded in wanted:
            _refuse_without_gateway(loaded, options)
            if loaded.spec.services:
                from keystone_action.services.service import refuse_unsupported

                refuse_unsupported(loaded.spec.services, engine=facilities.client is not None)
            if loaded.spec.id in facilities.images:
                _refuse_what_containers_lack(loaded)
            else:
                _refuse_what_processes_lack(loaded, options)
    except BaseException:
        facilities.close()
        raise
    return facilities


def _refuse_without_gateway(loaded: LoadedSpec, options: Options) -> None:
    if (option := options.needs_gateway) and loaded.spec.gateway == "off":
        raise UsageError(
            f"{loaded.path}: {option} needs what `gateway: off` switches off",
            help=f"leave `gateway` out of the spec, or the option away (in the action: the input {option[2:]})",
        )


def _refuse_what_containers_lack(loaded: LoadedSpec) -> None:
    resources = loaded.spec.resources
    if resources.readable:
        raise UsageError(
            f"{loaded.path}: resources.readable shows folders of this machine, and this spec runs in an image",
            help="install what the agent needs in the image (`base`), or by setup.packages and setup.commands",
        )
    if loaded.spec.audit.processes:
        raise NotSupportedYet(f"{loaded.path}: audit.processes in containers")
    if resources.strict and resources.disk is not None:
        raise UsageError(
            f"{loaded.path}: resources.strict: true can't be kept for disk: a container is stopped once it is seen"
            " above the limit, the engine does not enforce it",
            help="leave disk or strict out; cpu, memory and pids are enforced",
        )


def _refuse_what_processes_lack(loaded: LoadedSpec, options: Options) -> None:
    spec = loaded.spec
    if spec.resources.readable:
        from keystone_action.runner.readable_folders import readable_folders

        readable_folders(loaded, options)
    if spec.resources.strict:
        raise UsageError(
            f"{loaded.path}: resources.strict: true can't be kept: the process sandbox watches limits and stops"
            " what exceeds them, it does not enforce them",
            help="leave strict out, or set base to run in a container, where limits are enforced",
        )
    if spec.network.egress.default == "deny":
        raise UsageError(
            f"{loaded.path}: network.egress: deny can't be kept by the process sandbox, whose network is"
            " this machine's",
            help="set base to run in a container, which has a network of its own, or leave network.egress out",
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
