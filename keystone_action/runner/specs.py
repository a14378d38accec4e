"""The specs of a call, read. What `keystone validate` needs, and no more: its start-up is a budget."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.invariants.registry import CheckTypes
from keystone_action.runner.clones import CLONES
from keystone_action.spec.loading.author_files import POINTER_BYTES, files_below, is_pointer, pointer_error
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError
from keystone_action.spec.loading.discovery import discover
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load

if TYPE_CHECKING:
    from keystone_action.options.model import Options


def find_paths(options: Options) -> list[Path]:
    """The files of a call's specs. Raises UsageError."""
    caller = options.caller
    return discover(options.cells.specs, caller.directory, caller.dialects, tolerate_missing=caller.tolerate_missing)


def load_specs(options: Options) -> list[LoadedSpec]:
    """All specs of a call. Raises UsageError, or SpecError with the errors of every file that has some."""
    loaded, errors = load_paths(find_paths(options), options)
    errors |= pointers_named(loaded)
    if errors:
        raise SpecError.join(list(errors.values()))
    return loaded


def pointers_named(specs: Iterable[LoadedSpec]) -> dict[Path, SpecError]:
    """Of the files that specs name those that Git LFS did not fetch: read as what they stand for, they would make the
    agent fail. Workspace and `agent.dir` are the agent's."""
    return {
        file: pointer_error(str(file))
        for loaded in specs
        for path in loaded.author_files
        for file in ((path,) if path.is_file() else _files_below(path) if path in loaded.withheld else ())
        if _is_pointer(file)
    }


def _files_below(path: Path) -> Iterator[Path]:
    # More than is read is refused by the check that needs it.
    with contextlib.suppress(ValueError, OSError):
        yield from (path / name for name in files_below(path))


def _is_pointer(path: Path) -> bool:
    try:
        return path.stat().st_size <= POINTER_BYTES and is_pointer(path.read_bytes())
    except OSError:
        return False


def load_paths(paths: Sequence[Path], options: Options) -> tuple[list[LoadedSpec], dict[Path, SpecError]]:
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
                    given_parameters=tuple(options.cells.params),
                    dialects=options.caller.dialects,
                    agent=options.cells.agent,
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
