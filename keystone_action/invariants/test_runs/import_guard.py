"""Keeps Python from taking modules of the standard library, or of installed distributions, from a workspace; a program
of its own, which every interpreter that tests start imports as `sitecustomize`, from a directory on PYTHONPATH.

`guard.json` beside it: `{"workspace": path, "allowed": [relative paths of the author's files], "held": [relative paths
of injected and protected modules], "injected": {relative path: content in base64}, "path": [entries of PYTHONPATH that
lie in the workspace], "notes": file, "keys": file for `run_record.py` or null}`. An import that both the workspace
and something outside of it could serve is served from outside, unless the file in the workspace is allowed; which one
was passed over goes to the notes. The same holds for each part of a namespace package. An import that both a file of
the agent's and a held one could serve is served by the held one. The rule is in the finder itself, so it holds for
late imports, too (`pdb` when a test fails), and wherever `sys.path` has the workspace.

It runs under the sandbox's python3, so it is written for 3.8.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
FREE = frozenset({"test", "tests", "sitecustomize", "usercustomize"})
"""Names that some distributions take without need, and that nobody else imports; the last two are protected files."""

WATCHED = frozenset({"unittest.main", "pytest.__main__", "_pytest.main", "_pytest.assertion.rewrite"})
MARK = "KEYSTONE_INSIDE_TESTS"


class Guard:
    """The rule, over the finder as it was."""

    def __init__(self, find: Any, order: Any) -> None:
        self._find = find
        self._workspace = os.path.join(os.path.realpath(order["workspace"]), "")
        self._allowed = frozenset(order["allowed"])
        self._held = frozenset(order["held"])
        self._folders = frozenset(folder for path in order["held"] for folder in _folders_above(path))
        self._notes, self._keys = order["notes"], order["keys"]
        self._noted: set[str] = set()
        self._known: dict[str, bool] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As `PathFinder.find_spec`."""
        spec = self._choose(name, path, target)
        locations: Any = getattr(spec, "submodule_search_locations", None)
        if hasattr(locations, "_path_finder"):  # a namespace package looks again whenever its search path changes
            locations._path_finder = self._look_again
        if name in WATCHED:
            self._watch(name, spec)
        return spec

    def _watch(self, name: str, spec: Any) -> None:
        """Have runs of unittest recorded, but those that tests of pytest start, and what is collected compared."""
        if name == "pytest.__main__":
            os.environ[MARK] = "1"
        elif hasattr(spec, "loader"):
            load = spec.loader.exec_module

            def load_and_watch(module: Any) -> None:
                load(module)
                if module.__name__ == name:
                    self._loaded(name, module)

            spec.loader.exec_module = load_and_watch

    def _loaded(self, name: str, module: Any) -> None:
        from keystone_injected_code import INJECTED  # type: ignore[import-not-found]

        if name == "unittest.main" and self._keys is not None:
            from keystone_run_record import watch  # type: ignore[import-not-found]

            watch(module, self._workspace, self._keys)
        elif name == "_pytest.main":
            INJECTED.watch_session(module.Session)
        elif name == "_pytest.assertion.rewrite":
            INJECTED.watch_loader(module.AssertionRewritingHook)

    def _choose(self, name: str, path: Any, target: Any = None) -> Any:
        spec = self._choose_outside(name, path, target)
        origin = getattr(spec, "origin", None) if _is_module(spec) else None
        if not self._held or origin is None or not self._lies_inside(os.path.dirname(origin)):
            return spec
        relative = os.path.realpath(origin)[len(self._workspace) :]
        if relative in self._allowed or relative in self._held:
            return spec
        return self._held_instead(name, path, relative) or spec

    def _held_instead(self, name: str, path: Any, relative: str) -> Any:
        """The held module, or the folder above one, that a file of the agent's would stand for; None where there is
        none. relative: that file's path, for the notes."""
        entries = [(entry, name.rpartition(".")[2]) for entry in (sys.path if path is None else path)]
        if path is not None:  # whatever the agent's package says of where its modules lie
            entries += [(entry, name.replace(".", os.sep)) for entry in sys.path]
        for entry, tail in entries:
            if not self._is_inside(entry):
                continue
            place = os.path.join(os.path.realpath(entry or os.curdir), tail)
            inner = place[len(self._workspace) :]
            for file, locations in ((inner + ".py", None), (os.path.join(inner, "__init__.py"), [place])):
                if file in self._held:
                    self._note(relative)
                    where = os.path.join(self._workspace, file)
                    return spec_from_file_location(name, where, submodule_search_locations=locations)
            if inner in self._folders:
                namespace = self._find(name, [os.path.dirname(place)])
                if _is_namespace(namespace):
                    self._note(relative)
                    return namespace
        return None

    def _choose_outside(self, name: str, path: Any, target: Any = None) -> Any:
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
        """A namespace package, without those of its folders in the workspace that have no module of the author's."""
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
        self._note(relative)
        return False

    def _note(self, relative: str) -> None:
        if relative not in self._noted:
            self._noted.add(relative)
            try:
                with open(self._notes, "a", errors="surrogateescape") as notes:
                    notes.write(json.dumps(relative) + "\n")
            except OSError:
                pass  # it is for people only


def _folders_above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


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


def install_guard() -> None:
    """Does nothing where there is no order."""
    try:
        with open(os.path.join(HERE, "guard.json"), encoding="utf-8") as file:
            order = json.load(file)
    except OSError:
        return
    if os.path.basename((getattr(sys, "argv", None) or [""])[0]) in ("pytest", "py.test"):
        os.environ[MARK] = "1"
    if order["injected"]:
        from keystone_injected_code import INJECTED

        INJECTED.begin(order["workspace"], order["injected"])
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
    install_guard()
    go_on()
