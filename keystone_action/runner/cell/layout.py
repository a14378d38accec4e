"""Putting the author's files where a cell's agent finds them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import HarnessError
from keystone_action.files.descent import walk_down
from keystone_action.files.workspace import copy_tree
from keystone_action.sandbox.programs import first_word
from keystone_action.spec.expressions import leaves, references
from keystone_action.spec.models.base import ShellCommand

if TYPE_CHECKING:
    from pydantic import BaseModel

    from keystone_action.runner.options import RunOptions
    from keystone_action.spec.loading.loader import LoadedSpec
    from keystone_action.spec.models.spec import Invariant

_OF_A_CELL = ("cell", "workspace", "record", "task")


def hidden_places(loaded: LoadedSpec, options: RunOptions) -> set[Path]:
    """What no agent of a spec may see."""
    recordings = (_recordings(folder, loaded.recordings) for folder in (loaded.directory, loaded.code_directory))
    return {*loaded.withheld, *options.withheld, *recordings}


def _recordings(directory: Path, name: str) -> Path:
    """Where a spec's recordings are, or the folder above where that holds nothing but recordings: it was not there
    when the first of them was made, and an agent that lists its workspace must see the same in a replay."""
    place = directory / name
    return place.parent if place.parent != directory and _holds_recordings_alone(place.parent) else place


def _holds_recordings_alone(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return all(
            entry.is_dir() and not entry.is_symlink() and all(one.suffix == ".jsonl" for one in entry.iterdir())
            for entry in folder.iterdir()
        )
    return False


def results_places(directory: Path, options: RunOptions) -> set[Path]:
    """Where results are, this run's (`directory`) and earlier ones: they may lie inside of what is copied."""
    return {Path(os.path.realpath(directory)), Path(os.path.realpath(options.directory)) / ".keystone"}


def copy_task_files(files: Sequence[str], directory: Path, workspace: Path, withheld: Collection[Path]) -> None:
    """`task.files` keep their path relative to the spec; one from above it (`../brief.md`) keeps what follows the
    dots. Raises HarnessError."""
    for name in files:
        source = directory / name
        kept = Path(*[part for part in Path(os.path.normpath(name)).parts if part not in ("..", "/")])
        target = workspace / kept
        try:
            if source.is_dir():
                copy_tree(source, target, withheld=withheld)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        except OSError as error:
            raise HarnessError(f"task.files: {name} can't be copied: {error.strerror}") from error


def make_readable(directory: Path) -> None:
    """Let every user read (and run what was executable in) a directory of ours, and nobody but us write."""
    for _, folder, entries in walk_down(directory):
        os.fchmod(folder, 0o755)
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                os.chmod(entry.name, 0o755 if mode & 0o100 else 0o644, dir_fd=folder)


def names_a_cell(model: BaseModel) -> bool:
    """Whether an expression of this model differs between cells with equal parameters."""
    return any(
        reference.parts[0] in _OF_A_CELL for leaf in leaves(model) for reference in references(leaf.value, ("request",))
    )


def first_words(invariants: Mapping[str, Invariant]) -> frozenset[str]:
    """The programs that the string commands of checks start with."""
    words = (
        first_word(leaf.value)
        for invariant in invariants.values()
        for leaf in leaves(invariant.check)
        if leaf.marker(ShellCommand) is not None
    )
    return frozenset(word for word in words if word is not None and "{{" not in word)


async def run_shielded(close: Callable[[], Awaitable[None]]) -> None:
    """Run a clean-up to its end, also when the cell is being cancelled."""
    with anyio.CancelScope(shield=True):
        await close()
