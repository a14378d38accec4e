"""Ids that are made from names: results are joined on them, and nothing made their authors choose different names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keystone_action.spec.loading.diagnostics import Diagnostic
from keystone_action.spec.loading.loader import LoadedSpec


def numbered(loaded: Sequence[LoadedSpec]) -> list[LoadedSpec]:
    """These specs; one whose id is made from a name is numbered, with a warning, when another one before it, or a spec
    that chose its id, has that id (spec.md 5.5)."""
    taken = {one.spec.id for one in loaded if not one.id_from_name}
    found = []
    for one in loaded:
        if one.id_from_name:
            name, number = one.spec.id, 2
            while name in taken:
                suffix = f"-{number}"
                name, number = one.spec.id[: 128 - len(suffix)].rstrip("-") + suffix, number + 1
            taken.add(name)
            found.append(one if name == one.spec.id else _renamed(one, name))
        else:
            found.append(one)
    return found


def _renamed(loaded: LoadedSpec, name: str) -> LoadedSpec:
    message = f"another suite has the id '{loaded.spec.id}' too; this one is {name} in results"
    warning = Diagnostic(str(loaded.path), 1, 1, message, help="give each suite a name of its own")
    spec = loaded.spec.model_copy(update={"id": name})
    return replace(loaded, spec=spec, warnings=(*loaded.warnings, warning))
