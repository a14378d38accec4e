"""The names that expressions of a cell can use (contract, section 1: Expressions)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from keystone_action.evidence.model import Address
from keystone_action.plan import Cell
from keystone_action.spec.expressions import interpolate
from keystone_action.spec.limits import HIDDEN_VARIABLES
from keystone_action.spec.loading.loader import LoadedSpec

Value = TypeVar("Value")


def cell_names(
    cell: Cell, *, secrets: Mapping[str, str], environ: Mapping[str, str], workspace: str, agent_directory: Path | None
) -> dict[str, Any]:
    """Everything but the addresses of services, which `with_services` adds once they are attached.

    `env` is our own environment without GitHub's; that it is used in `agent.env` only is checked by the loader.
    """
    spec = cell.loaded.spec
    names: dict[str, Any] = {
        "params": dict(cell.params),
        "secrets": dict(secrets),
        "workspace": workspace,
        "cell": {"id": cell.id, "replica": cell.replica, "seed": cell.seed},
        "env": {name: value for name, value in environ.items() if not name.startswith(HIDDEN_VARIABLES)},
        "task": {"system": spec.task.system or ""},
        "agent": {"dir": str(agent_directory) if agent_directory else ""},
        "services": {},
    }
    if cell.scenario.record is not None:
        names["record"] = cell.scenario.record
    return names


def filled(loaded: LoadedSpec, value: Value, names: Mapping[str, Any]) -> Value:
    """A part of a spec with its expressions replaced. Where it has none, `{{ }}` are braces."""
    return interpolate(value, names) if loaded.has_expressions else value


def with_services(names: Mapping[str, Any], addresses: Mapping[str, Address]) -> dict[str, Any]:
    """The names with `services.<name>.{host,port,url,user,password,database}`."""
    return {**names, "services": {name: address.as_mapping() for name, address in addresses.items()}}
