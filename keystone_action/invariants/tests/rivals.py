"""What a language would take instead of a file that was injected or is protected (spec.md 5.3, "What is injected or
protected is what runs").

A package `helpers/` comes before `helpers.py` in Python, a bare file `helpers` before `helpers.js` in Node, a class
file with a late date before its source in Maven. What the agent left of that kind is taken out of the copy before the
tests start; in Python the import guard sees to the same names in other folders (`import_guard.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from keystone_action.files.changes.entries import Change
from keystone_action.files.paths import display_path

_NODE_FIRST = {
    ".js": ("",),
    ".mjs": ("",),
    ".cjs": ("",),
    ".jsx": ("", ".js", ".mjs", ".cjs"),
    ".ts": ("", ".js", ".mjs", ".cjs", ".jsx"),
    ".mts": ("", ".js", ".mjs", ".cjs"),
    ".cts": ("", ".js", ".mjs", ".cjs"),
    ".tsx": ("", ".js", ".mjs", ".cjs", ".jsx", ".ts"),
    ".json": ("", ".js"),
    ".node": ("", ".js", ".json"),
}
"""For a file with the suffix: the suffixes of files beside it that Node, a bundler or Jest takes first. The compiled
twin of a TypeScript file is one."""
_OTHERS_FIRST = {".pm": (".pmc",)}
"""Perl's compiled modules."""
_CLASSES = frozenset({".java", ".kt", ".scala", ".groovy"})
"""Sources whose class files a build may find newer, wherever they lie."""
_MODULES = (".so", ".py", ".pyc")
_SHOWN = 3


@dataclass(slots=True)
class Held:
    """The files that have to be what runs, relative to the workspace: injected, or protected and the author's."""

    paths: Collection[str]
    modules: set[str] = field(default_factory=set)
    """Modules of Python, without `.py`; a package as the path of its `__init__`."""
    folders: set[str] = field(default_factory=set)
    """Folders in which a module lies, at any depth."""
    beside: dict[str, str] = field(default_factory=dict)
    """Paths that another language would take first → the held file."""
    classes: dict[str, str] = field(default_factory=dict)
    """Names of classes → their source."""

    @classmethod
    def of(cls, paths: Collection[str]) -> Held:
        """What follows from the names of the held files."""
        held = cls(paths)
        for path in paths:
            held._add(PurePosixPath(path))
        return held

    def _add(self, place: PurePosixPath) -> None:
        if place.suffix == ".py":
            self.modules.add(str(place.with_suffix("")))
            self.folders.update(str(folder) for folder in place.parents if folder.name)
        for suffix in (*_NODE_FIRST.get(place.suffix, ()), *_OTHERS_FIRST.get(place.suffix, ())):
            self.beside[str(place.with_name(place.stem + suffix))] = str(place)
        if place.suffix in _NODE_FIRST and place.stem == "index" and place.parent.name:
            self.beside[str(place.with_name("package.json"))] = str(place)
            for suffix in _NODE_FIRST[".node"] + (".node",):
                self.beside[f"{place.parent}{suffix}"] = str(place)
        if place.suffix in _CLASSES:
            self.classes[place.stem] = str(place)

    def rivals(
        self, changes: Sequence[Change], authors: Collection[str], is_exempt: Callable[[str], bool]
    ) -> dict[str, str]:
        """The agent's files that would run in place of held ones → the held file, or the folder above one.

        changes: what the agent changed. authors: the paths of the author's snapshot. is_exempt: what the author lets be
        (`!glob` of `protect`).
        """
        found = {}
        for change in changes:
            if change.after is None or change.path in self.paths:
                continue
            instead_of = self._rival(PurePosixPath(change.path), change, authors)
            if instead_of and not is_exempt(change.path):
                found[change.path] = instead_of
        return found

    def _rival(self, place: PurePosixPath, change: Change, authors: Collection[str]) -> str:
        if str(place) in self.beside:
            return self.beside[str(place)]
        if place.suffix == ".class":
            return self.classes.get(place.name.split(".")[0].split("$")[0].removesuffix("Kt"), "")
        stem = place.name.split(".")[0]
        is_folder = change.after is not None and change.after.kind == "link" and place.name == stem
        if place.suffix not in _MODULES and not is_folder:
            return ""
        module = str(place.with_name(stem))
        if module in self.modules and place.suffix != ".py":
            return f"{module}.py"
        if stem == "__init__" and str(place.parent) in self.modules:
            return f"{place.parent}.py"
        # Of a folder above one, the author's own `__init__.py` may be what the task is about; code that was collected
        # is compared all the same.
        if change.before is not None and change.before.kind != "directory":
            return ""
        if stem == "__init__" and module not in self.modules and str(place.parent) in self.folders:
            return f"{place.parent}/"
        is_package = f"{module}/__init__" in self.modules or f"{module}/__init__.py" in authors
        return f"{module}/" if module in self.folders and not is_package else ""


def sentence(rivals: Mapping[str, str]) -> str:
    """What is said of files that were taken away; empty when there are none."""
    if not rivals:
        return ""
    shown = [f"{display_path(path)} (in place of {display_path(held)})" for path, held in list(rivals.items())[:_SHOWN]]
    more = f" and {len(rivals) - _SHOWN} more" if len(rivals) > _SHOWN else ""
    first = display_path(next(iter(rivals)))
    return (
        f" Taken away, because it would have run in place of an injected or protected file: {', '.join(shown)}{more}"
        f" (protect: ['!{first}'] lets it be)."
    )
