"""The check types that a spec can name: ours by the files of `types`, third parties' by the entry points of packages.

Nothing is imported before a spec names it: `sql` pulls in no HTTP client, and a broken plug-in disturbs nobody who
does not ask for it. A plug-in that is asked for and is unfit is refused here, with the distribution it came from.

    [project.entry-points."keystone_action.invariants"]
    word_count = "acme_checks:WordCount"        # the name is what `check.type` says
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, get_args

from keystone_action.errors import UsageError
from keystone_action.invariants.check import Check, Phase
from keystone_action.spec.named_classes import class_of_file

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "keystone_action.invariants"

_TYPES = "keystone_action.invariants.types"
ALIASES: Mapping[str, str] = {"command": "command_exit", "model_judge": "llm_as_judge", "pytest": "tests"}
"""Second names → the type that has them."""


def _files() -> frozenset[str]:
    folder = import_module(_TYPES).__path__
    names = (entry.name for path in folder for entry in os.scandir(path))
    return frozenset(name.removesuffix(".py") for name in names if name.endswith(".py") and not name.startswith("_"))


def _built_in() -> frozenset[str]:
    files = _files()
    return files | {alias for alias, name in ALIASES.items() if name in files}


BUILT_IN = _built_in()
"""What `check.type` may say here (aliases too): the files of the folder `types`. No plug-in may take these names."""


def _installed_entry_points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


class CheckTypes(Mapping[str, type[Check]]):
    """Name or alias → class of the check type, imported when it is looked up.

    Iterating gives the names that a spec may use (for lists and suggestions in errors) and imports no check.
    `types[name]` raises KeyError for an unknown name, and UsageError for a plug-in that is unfit.
    """

    def __init__(self, discover: Callable[[], Iterable[EntryPoint]] = _installed_entry_points) -> None:
        self._discover = discover
        self._plugins: dict[str, list[EntryPoint]] | None = None
        self._loaded: dict[str, type[Check]] = {}

    def __getitem__(self, name: str) -> type[Check]:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN or name in self.plugins

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*BUILT_IN, *self.plugins}))

    def __len__(self) -> int:
        return len({*BUILT_IN, *self.plugins})

    @property
    def plugins(self) -> Mapping[str, list[EntryPoint]]:
        """Entry points by name, the names that are ours left out: no installed package can replace a check of ours."""
        if self._plugins is None:
            self._plugins = {}
            for entry in self._discover():
                if entry.name not in BUILT_IN:
                    self._plugins.setdefault(entry.name, []).append(entry)
        return self._plugins

    def shadowing(self) -> list[str]:
        """A sentence for each entry point that is left out because its name is ours (for `doctor`)."""
        return [
            f"{distribution(entry)} registers the check type {entry.name!r}, which is built in: it is never used"
            for entry in self._discover()
            if entry.name in BUILT_IN
        ]

    def _load(self, name: str) -> type[Check]:
        if name in BUILT_IN:
            return class_of_file(f"{_TYPES}.{ALIASES.get(name, name)}", Check)
        entries = self.plugins.get(name)
        if not entries:
            raise KeyError(name)
        if len(entries) > 1:
            owners = " and ".join(distribution(entry) for entry in entries)
            raise UsageError(
                f"the check type {name!r} is registered by {owners}", help="Uninstall all but one of these packages."
            )
        return _load_plugin(entries[0])


def distribution(entry: EntryPoint) -> str:
    """The package that an entry point came from, with its version: `acme-checks 1.2`."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else f"an unknown package ({entry.value})"


def _load_plugin(entry: EntryPoint) -> type[Check]:
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:  # an import may do anything
        raise UsageError(
            f"the check type {entry.name!r} of {distribution(entry)} can't be imported: "
            f"{type(error).__name__}: {error}",
            help=f"Repair or uninstall that package ({entry.value}).",
        ) from error
    problem = _unfit(entry.name, loaded)
    if problem:
        raise UsageError(
            f"the check type {entry.name!r} of {distribution(entry)} is not a check: {entry.value} {problem}",
            help="A check type derives from keystone_action.invariants.check.Check; see there.",
        )
    checked: type[Check] = loaded
    return checked


def _unfit(name: str, loaded: object) -> str | None:
    """Why this object can't serve as the check type `name`; None when it can."""
    if not isinstance(loaded, type) or not issubclass(loaded, Check):
        return "is not a subclass of Check"
    if name not in (loaded.type_name, *loaded.aliases):
        return f"has the type_name {loaded.type_name!r}, expected {name!r}"
    taken = sorted({loaded.type_name, *loaded.aliases} & BUILT_IN)
    if taken:
        return f"takes the built-in name {taken[0]!r}"
    if loaded.evaluate is Check.evaluate:
        return "has no evaluate"
    if not inspect.iscoroutinefunction(loaded.evaluate):
        return "has an evaluate that is not async"
    if loaded.phase not in get_args(Phase):
        return f"has the phase {loaded.phase!r}, expected one of {', '.join(get_args(Phase))}"
    limit = loaded.default_timeout
    if not isinstance(limit, int | float) or not math.isfinite(limit) or limit <= 0:
        return f"has the default_timeout {limit!r}, expected seconds above zero"
    return None
