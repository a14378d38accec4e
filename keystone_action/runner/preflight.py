"""What must hold before anything starts: exit 2 with a sentence, never a policy that is silently not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import NotSupportedYet, UsageError
from keystone_action.invariants.registry import CheckTypes
from keystone_action.runner.clones import CLONES
from keystone_action.runner.engine import Facilities, find_facilities
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError
from keystone_action.spec.loading.discovery import discover
from keystone_action.spec.loading.loader import LoadedSpec, load
from keystone_action.spec.models.services import ServerBase

if TYPE_CHECKING:
    from keystone_action.plan import Plan
    from keystone_action.runner.options import RunOptions
    from keystone_action.scoring.results import SpecChanges


def load_specs(options: RunOptions) -> list[LoadedSpec]:
    """All specs of a call. Raises UsageError, or SpecError with the errors of every file that has some."""
    paths = discover(options.specs, options.directory, options.dialects, tolerate_missing=options.tolerate_missing)
    loaded, errors = load_paths(paths, options)
    if errors:
        raise SpecError.join(list(errors.values()))
    return loaded


def load_paths(paths: Sequence[Path], options: RunOptions) -> tuple[list[LoadedSpec], dict[Path, SpecError]]:
    """The specs in these files, and the errors of those that have some. Raises UsageError for a bad call."""
    types = CheckTypes()
    loaded: list[LoadedSpec] = []
    errors: dict[Path, SpecError] = {}
    for path in paths:
        try:
            loaded.append(
                load(
                    path,
                    types,
                    given_parameters=tuple(options.params),
                    dialects=options.dialects,
                    agent=options.agent,
                    clone=CLONES,
                )
            )
        except SpecError as error:
            errors[path] = error
    return _number_ids(loaded), errors


def _number_ids(loaded: Sequence[LoadedSpec]) -> list[LoadedSpec]:
    """These specs; one whose id is made from a name is numbered, with a warning, when another one before it, or a spec
    that chose its id, has that id (spec.md 5.5): results are joined on ids."""
    taken = {one.spec.id for one in loaded if not one.id_from_name}
    found = []
    for one in loaded:
        if one.id_from_name:
            name, number = one.spec.id, 2
            while name in taken:
                suffix = f"-{number}"
                name, number = one.spec.id[: 128 - len(suffix)].rstrip("-") + suffix, number + 1
            taken.add(name)
            found.append(one if name == one.spec.id else _rename_spec(one, name))
        else:
            found.append(one)
    return found


def _rename_spec(loaded: LoadedSpec, name: str) -> LoadedSpec:
    message = f"another suite has the id '{loaded.spec.id}' too; this one is {name} in results"
    warning = Diagnostic(str(loaded.path), 1, 1, message, help="give each suite a name of its own")
    spec = loaded.spec.model_copy(update={"id": name})
    return replace(loaded, spec=spec, warnings=(*loaded.warnings, warning))


@dataclass(frozen=True, slots=True)
class GatedSpecs:
    """The specs to run, and what the change does to them; None where nothing was to be compared."""

    specs: list[LoadedSpec]
    changes: SpecChanges | None = None


def preflight(specs: Sequence[LoadedSpec], planned: Plan, options: RunOptions) -> Facilities:
    """What the cells will run in. Refuses what this machine or this version can't do: raises UsageError."""
    planned_ids = {cell.loaded.spec.id for cell in planned.cells}
    wanted = [loaded for loaded in specs if loaded.spec.id in planned_ids]
    facilities = find_facilities(wanted, options)
    try:
        for loaded in wanted:
            _refuse_without_gateway(loaded, options)
            if loaded.spec.services:
                from keystone_action.services.start import refuse_unsupported

                refuse_unsupported(loaded.spec.services, engine=facilities.client is not None)
            if loaded.spec.id in facilities.images:
                _refuse_what_containers_lack(loaded)
            else:
                _refuse_what_processes_lack(loaded, options)
    except BaseException:
        facilities.close()
        raise
    return facilities


def _refuse_without_gateway(loaded: LoadedSpec, options: RunOptions) -> None:
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


def _refuse_what_processes_lack(loaded: LoadedSpec, options: RunOptions) -> None:
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
