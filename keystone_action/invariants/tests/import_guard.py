"""Keeps Python from taking modules of the standard library, or of installed distributions, from a workspace; a program
of its own, which every interpreter that tests start imports as `sitecustomize`, from a directory on PYTHONPATH.

`guard.json` beside it: `{"workspace": path, "allowed": [relative paths of the author's files], "path": [entries of
PYTHONPATH that lie in the workspace], "notes": file, "keys": file for `unittest_record.py` or null}`. An import that
both the workspace and something outside of it could serve is served from outside, unless the file in the workspace is
allowed; which one was passed over goes to the notes. The same holds for each part of a namespace package. The rule is
in the finder itself, so it holds for late imports, too (`pdb` when a test fails), and wherever `sys.path` has the
workspace.

It runs under the sandbox's python3, so it is written for 3.8.
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

WATCHED = frozenset({"unittest.main", "pytest.__main__"})
MARK = "KEYSTONE_INSIDE_TESTS"


class Guard:
    """The rule, over the finder as it was."""

    def __init__(self, find: Any, order: Any) -> None:
        self._find = find
        self._workspace = os.path.join(os.path.realpath(order["workspace"]), "")
        self._allowed = frozenset(order["allowed"])
        self._notes, self._keys = order["notes"], order["keys"]
        self._noted: set[str] = set()
        self._known: dict[str, bool] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As `PathFinder.find_spec`."""
        spec = self._choose(name, path, target)
        locations: Any = getattr(spec, "submodule_search_locations", None)
        if hasattr(locations, "_path_finder"):  # a namespace package looks again whenever its search path changes
            locations._path_finder = self._look_again
        if self._keys is not None and name in WATCHED:
            self._watch(name, spec)
        return spec

    def _watch(self, name: str, spec: Any) -> None:
        """Have runs of unittest recorded, but those that tests of pytest start."""
        if name != "unittest.main":
            os.environ[MARK] = "1"
        elif hasattr(spec, "loader"):
            load, keys = spec.loader.exec_module, self._keys

            def load_and_watch(module: Any) -> None:
                load(module)
                if module.__name__ == name:
                    from keystone_unittest_record import watch  # type: ignore[import-not-found]

                    watch(module, self._workspace, keys)

            spec.loader.exec_module = load_and_watch

    def _choose(self, name: str, path: Any, target: Any = None) -> Any:
        entries = sys.path if path is None else list(path)
        inside = [entry for entry in entries if self._is_inside(entry)]
        if name in FREE or not inside or len(inside) == len(entries):
            return self._find(name, path, target)
        found = self._find(name, [entry for entry in entries if entry not in inside], target)
        planted: Any = self._find(name, inside, target) if _is_module(found) or _has_modules(found) else None
        if _is_module(planted):
            return self._find(name, path, target) if self._is_allowed(planted.origin) else found
        if _is_namespace(planted) and _is_namespace(found):
            return self._with_authors_portions(name, path, list(planted.submodule_search_locations))
        return self._find(name, path, target)

    def _with_authors_portions(self, name: str, path: Any, inside: Any) -> Any:
        """A namespace package, of whose folders in the workspace only those count that have modules of the author's."""
        spec = self._find(name, path)
        dropped = {folder for folder in inside if not self._is_allowed(folder)}
        portions = [folder for folder in spec.submodule_search_locations if folder not in dropped]
        spec.submodule_search_locations._path = portions
        return spec

    def _look_again(self, name: str, path: Any) -> Any:
        spec = self._choose(name, path)
        if _is_namespace(spec):
            spec.submodule_search_locations = list(spec.submodule_search_locations)
        return spec

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

    def _is_allowed(self, place: str) -> bool:
        """Whether a module, or a folder of modules, in the workspace is the author's."""
        relative = os.path.realpath(place)[len(self._workspace) :]
        if relative in self._allowed or any(one.startswith(relative + os.sep) for one in self._allowed):
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


def _is_namespace(spec: Any) -> bool:
    return spec is not None and not spec.has_location and bool(spec.submodule_search_locations)


def _has_modules(spec: Any) -> bool:
    """Whether it is a namespace package with modules in it, rather than a folder for something else."""
    if not _is_namespace(spec):
        return False
    for portion in spec.submodule_search_locations:
        for _, folders, files in os.walk(portion):
            if any(file.endswith((".py", ".pyc", ".so")) for file in files):
                return True
            folders[:] = [folder for folder in folders if folder.isidentifier()]
    return False


def install() -> None:
    """Does nothing where there is no order."""
    try:
        with open(os.path.join(HERE, "guard.json"), encoding="utf-8") as file:
            order = json.load(file)
    except OSError:
        return
    if os.path.basename((getattr(sys, "argv", None) or [""])[0]) in ("pytest", "py.test"):
        os.environ[MARK] = "1"
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
