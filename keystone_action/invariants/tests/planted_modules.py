"""Modules in a workspace that have the name of one that Python, or an installed package, has already (spec.md 5.3).

Two means: those of the standard library are taken out of the copy where a command looks for modules first, and a guard
in every interpreter (`import_guard.py`) serves all others, and those elsewhere, from outside of the workspace.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from keystone_action.evidence.model import Evidence
from keystone_action.files.changes.entries import Change
from keystone_action.files.globs import matcher
from keystone_action.files.paths import PathProblem, display_path, read_head_inside

GUARD = "sitecustomize.py"
NODE_RECORD = "keystone_node_record.cjs"
PROGRAMS = {
    GUARD: "import_guard.py",
    "keystone_injected_code.py": "injected_code.py",
    "keystone_run_report.py": "run_report.py",
    "keystone_unittest_record.py": "unittest_record.py",
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
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ModuleRule:
    """What is let be: `!glob` of `protect`. directories: besides the workspace itself, where the command looks for
    modules."""

    exempt: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()

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
        authors = {path for path, state in evidence.before.items() if state.kind != "directory"} | set(injected)
        exempt = self.exempts
        let_be = {path for path in evidence.after if exempt(path)} if self.exempt else set()
        return sorted(path for path in authors | let_be if path.endswith(_SUFFIXES))

    @property
    def exempts(self) -> Callable[[str], bool]:
        """Whether a path is let be."""
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


def sentence(paths: Sequence[str]) -> str:
    """What is said of modules that were passed over; empty when there are none."""
    if not paths:
        return ""
    shown = ", ".join(display_path(path) for path in paths[:_SHOWN])
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
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


def environment(values: Mapping[str, str], guard: Path, outside: Sequence[str], *, node: bool) -> dict[str, str]:
    """The environment of a command whose interpreters are all guarded. node: whether runs of node's tests are
    recorded."""
    guarded = {**values, "PYTHONPATH": ":".join([str(guard), *outside])}
    if node:
        guarded["NODE_OPTIONS"] = f'--require="{guard / NODE_RECORD}" {values.get("NODE_OPTIONS", "")}'.strip()
    return guarded
