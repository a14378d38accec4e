"""Keeps Python from taking modules of the standard library, or of installed distributions, from a workspace; a program
of its own, which every interpreter that tests start imports as `sitecustomize`, from a directory on PYTHONPATH.

`guard.json` beside it: `{"workspace": path, "allowed": [relative paths of the author's files], "path": [entries of
PYTHONPATH that lie in the workspace], "notes": file}`. An import that both the workspace and something outside of it
could serve is served from outside, unless the file in the workspace is allowed; which one was passed over goes to the
notes. The rule is in the finder itself, so it holds for late imports, too (`pdb` when a test fails), and wherever
`sys.path` has the workspace.

It runs under whatever python3 the sandbox has, so it is written for 3.8.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
FREE = frozenset({"test", "tests", "sitecustomize", "usercustomize"})
"""Names that some distributions take without need, and that nobody else imports; the last two are protected files."""


class Guard:
    """The rule, over the finder as it was."""

    def __init__(self, find: Any, order: Any) -> None:
        self._find = find
        self._workspace = os.path.join(os.path.realpath(order["workspace"]), "")
        self._allowed = frozenset(order["allowed"])
        self._notes = order["notes"]
        self._noted: set[str] = set()
        self._known: dict[str, bool] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As `PathFinder.find_spec`."""
        if path is None and "." not in name and name not in FREE:
            inside = [entry for entry in sys.path if self._is_inside(entry)]
            if inside:
                outside = [entry for entry in sys.path if entry not in inside]
                found = self._find(name, outside, target)
                planted = self._find(name, inside, target) if _is_module(found) else None
                if _is_module(planted) and not self._is_allowed(planted):
                    return found
        return self._find(name, path, target)

    def _is_inside(self, entry: Any) -> bool:
        if not isinstance(entry, str):
            return False
        if not os.path.isabs(entry):  # it depends on where the process is by now
            return self._lies_inside(entry or os.curdir)
        if entry not in self._known:
            self._known[entry] = self._lies_inside(entry)
        return self._known[entry]

    def _lies_inside(self, entry: str) -> bool:
        try:
            return os.path.join(os.path.realpath(entry), "").startswith(self._workspace)
        except OSError:
            return False

    def _is_allowed(self, spec: Any) -> bool:
        relative = os.path.realpath(spec.origin)[len(self._workspace) :]
        if relative in self._allowed:
            return True
        if relative not in self._noted:
            self._noted.add(relative)
            try:
                with open(self._notes, "a", errors="surrogateescape") as notes:
                    notes.write(json.dumps(relative) + "\n")
            except OSError:
                pass  # it is for people only
        return False


def _is_module(spec: Any) -> bool:
    """Whether it is more than a directory that happens to have the name."""
    return spec is not None and spec.loader is not None and bool(spec.has_location)


def install() -> None:
    """Does nothing where there is no order."""
    try:
        with open(os.path.join(HERE, "guard.json"), encoding="utf-8") as file:
            order = json.load(file)
    except OSError:
        return
    PathFinder.find_spec = Guard(PathFinder.find_spec, order).find_spec  # type: ignore[method-assign, assignment]
    at = sys.path.index(HERE) + 1 if HERE in sys.path else 0
    sys.path[at:at] = order["path"]


def go_on() -> None:
    """The `sitecustomize` that this one stands in front of."""
    places = [place for place in sys.path if os.path.abspath(place) != HERE]
    spec = PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    install()
    go_on()
