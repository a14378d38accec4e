"""Files that would run in place of what the author, Python or an installed package has (spec.md 5.3).

Two kinds. *Planted modules* have the name of a module of the standard library or of an installed package. *Rivals* are
what a language takes instead of a file that is injected or protected: a package `helpers/` before `helpers.py` in
Python, a bare file `helpers` before `helpers.js` in Node, a newer class file before its source in Maven. What the agent
left of either kind where a command looks first is taken out of the copy before the tests start. For all other places a
guard in every interpreter of Python (`import_guard.py`) keeps them from being imported.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from keystone_action.evidence.model import Evidence
from keystone_action.files.globs import matcher
from keystone_action.files.paths import PathProblem, display_path, read_head_inside
from keystone_action.files.snapshot import Change

GUARD = "sitecustomize.py"
NODE_RECORD = "keystone_node_record.cjs"
PROGRAMS = {
    GUARD: "import_guard.py",
    "keystone_injected_code.py": "injected_code.py",
    "keystone_run_record.py": "run_record.py",
    NODE_RECORD: "node_record.cjs",
}
"""The files beside the guard by the names that they have there → by ours."""
NOTES = "passed-over"
_ORDER = "guard.json"
_NAMES = frozenset(sys.stdlib_module_names)
_SUFFIXES = (".py", ".pyc", ".so")
_ASSIGNED = re.compile(r"""\bPYTHONPATH=("[^"]*"|'[^']*'|[^\s;&|]*)""")
_ASSIGNING = re.compile(r"""\bPYTHONPATH=(?P<empty>(""|'')?(?=[\s;&|)]|$))?""")
_NOTES_BYTES = 1 << 16
_SHOWN_MODULES = 3


@dataclass(frozen=True, slots=True)
class ModuleRule:
    """Which modules of the agent's are taken out."""

    exempt: tuple[str, ...] = ()
    """Globs of files that stay: `!glob` in `protect`."""
    directories: tuple[str, ...] = ()
    """Where the command looks for modules, besides the workspace itself."""

    @classmethod
    def of(cls, protect: Iterable[str], command: str | Sequence[str] | None) -> ModuleRule:
        """protect: as the spec has it. command: what will be run."""
        exempt = tuple(pattern[1:] for pattern in protect if pattern.startswith("!"))
        text = command if isinstance(command, str) else " ".join(command or ())
        entries = [entry for found in _ASSIGNED.findall(text) for entry in found.strip("\"'").split(":")]
        return cls(exempt, tuple({str(PurePosixPath(_relative(entry))) for entry in entries}))

    def find_planted(self, changes: Sequence[Change], injected: Collection[str]) -> list[Change]:
        """The agent's own files that would stand in for modules of the standard library."""
        exempt = self.exempts
        return [
            change
            for change in changes
            if change.before is None
            and change.path not in injected
            and _stands_in(change.path, {".", *self.directories}, change.after is not None and change.after.kind)
            and not exempt(change.path)
        ]

    def find_allowed(self, evidence: Evidence, injected: Collection[str]) -> list[str]:
        """The files that modules of any name may be taken from: the author's, and those that are let be."""
        authors = {path for path, state in evidence.files.before.items() if state.kind != "directory"} | set(injected)
        exempt = self.exempts
        let_be = {path for path in evidence.files.after if exempt(path)} if self.exempt else set()
        return sorted(path for path in authors | let_be if path.endswith(_SUFFIXES))

    @property
    def exempts(self) -> Callable[[str], bool]:
        """Whether a path is one that the author lets be."""
        return matcher(list(self.exempt), dot=True) if self.exempt else lambda _: False


def _relative(entry: str) -> str:
    for start in ("$PWD", "${PWD}", "$(pwd)", "."):
        if entry == start or entry.startswith(f"{start}/"):
            return entry[len(start) :].lstrip("/") or "."
    return entry


def _stands_in(path: str, directories: Collection[str], kind: object) -> bool:
    place = PurePosixPath(path)
    name = place.name.split(".")[0]
    if str(place.parent) in directories and name in _NAMES:
        return place.suffix in _SUFFIXES or (kind == "link" and place.name == name)
    is_package = name == "__init__" and place.suffix in _SUFFIXES and place.parent.name in _NAMES
    return is_package and str(place.parent.parent) in directories


def write_order(
    guard: Path,
    *,
    workspace: str,
    allowed: Sequence[str],
    held: Sequence[str],
    injected: Mapping[str, bytes],
    path: Sequence[str],
    notes: str,
    keys: str | None,
    node_keys: str | None,
) -> None:
    """What the guard is to do; see `import_guard.py` and `node_record.cjs`."""
    place = guard / _ORDER
    order = {
        "workspace": workspace,
        "allowed": list(allowed),
        "held": list(held),
        "injected": {name: base64.b64encode(content).decode() for name, content in injected.items()},
        "path": list(path),
        "notes": notes,
        "keys": keys,
        "node_keys": node_keys,
    }
    place.write_text(json.dumps(order), "utf-8")
    place.chmod(0o644)


def read_notes(workspace: Path, file: str) -> list[str]:
    """The files that the guard passed over, as code in the sandbox says: for people only."""
    try:
        content, _ = read_head_inside(workspace, file, limit=_NOTES_BYTES)
    except PathProblem:
        return []
    found = []
    for line in content.decode("utf-8", "replace").splitlines():
        try:
            path = json.loads(line)
        except ValueError:
            continue
        if isinstance(path, str):
            found.append(path)
    return found


def passed_over_sentence(paths: Sequence[str]) -> str:
    """What is said of modules that were passed over; empty when there are none."""
    if not paths:
        return ""
    shown = ", ".join(display_path(path) for path in paths[:_SHOWN_MODULES])
    more = f" and {len(paths) - _SHOWN_MODULES} more" if len(paths) > _SHOWN_MODULES else ""
    what = "the name of a module" if len(paths) == 1 else "names of modules"
    return (
        f" Passed over: {shown}{more}, with {what} that Python, an installed package or the author has "
        f"(protect: ['!{display_path(paths[0])}'] lets it be)."
    )


def split_search_path(value: str | None, workspace: str) -> tuple[list[str], list[str]]:
    """PYTHONPATH as entries outside of a workspace, and those in it, made absolute."""
    outside, inside = [], []
    for entry in (value or "").split(":"):
        if entry and entry.startswith("/") and not PurePosixPath(entry).is_relative_to(workspace):
            outside.append(entry)
        elif entry:
            inside.append(str(PurePosixPath(workspace) / entry))
    return outside, inside


def guarded_command(command: str | list[str], guard: Path) -> str | list[str]:
    """A command whose own assignments to PYTHONPATH have the guard, too."""

    def add(match: re.Match[str]) -> str:
        return f"PYTHONPATH={guard}" + ("" if match["empty"] is not None else ":")

    if isinstance(command, str):
        return _ASSIGNING.sub(add, command)
    return [_ASSIGNING.sub(add, word) for word in command]


def guarded_environment(
    values: Mapping[str, str], guard: Path, outside: Sequence[str], *, node: bool
) -> dict[str, str]:
    """The environment of a command whose interpreters are all guarded. node: whether runs of node's tests are
    recorded."""
    guarded = {**values, "PYTHONPATH": ":".join([str(guard), *outside])}
    if node:
        guarded["NODE_OPTIONS"] = f'--require="{guard / NODE_RECORD}" {values.get("NODE_OPTIONS", "")}'.strip()
    return guarded


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


def taken_away_sentence(rivals: Mapping[str, str]) -> str:
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
