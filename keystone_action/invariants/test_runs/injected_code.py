"""Compares the tests that pytest or unittest collected with the hidden files that were put in; copied into the sandbox
as `keystone_injected_code`, and loaded by `import_guard.py` in every interpreter.

A package or an `__init__.py` of the agent's can put a module of its own into `sys.modules`, whose `__file__` says the
path of a hidden file. So it is remembered which file each module was executed from, and code that was collected for a
hidden file has to be what this file's content compiles to. What the code under test does to a test framework from
within is not found out.

It runs under the sandbox's python3, so it is written for 3.8.
"""

from __future__ import annotations

import base64
import functools
import os
import sys
import warnings
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import Any

_DEEP = 6
"""How many wrappers around a function are looked into."""


class InjectedCode:
    """What is known of the hidden files of Python in this interpreter."""

    def __init__(self) -> None:
        self._root = ""
        self._files: Any = {}
        self._earlier: list[Any] = []
        self._executed: Any = {}
        self._expected: Any = {}
        self._rewrite: Any = None
        self._differing: set[str] = set()

    def begin(self, workspace: str, files: Any) -> None:
        """From now on remember what is executed. files: content in base64 by path in the workspace."""
        self._root = os.path.realpath(workspace)
        self._earlier = list(sys.modules.values())  # of the interpreter itself, whatever a hidden file is called
        self._files = {os.path.join(self._root, path): base64.b64decode(text) for path, text in files.items()}
        self.watch_loader(SourceFileLoader)

    def differing(self) -> list[str]:
        """The hidden files whose collected code is another, relative to the workspace."""
        self._compare_modules()
        return sorted(self._differing)

    def watch_loader(self, loader: Any) -> None:
        """Remember what a kind of loader executes."""
        execute = loader.exec_module

        @functools.wraps(execute)
        def remember(this: Any, module: Any) -> None:
            origin = getattr(module.__spec__, "origin", None)
            if isinstance(origin, str):
                # The module is kept, so that no other one can have its id.
                self._executed[id(module)] = (module, os.path.realpath(origin), self._is_as_injected(origin))
            execute(this, module)

        loader.exec_module = remember

    def _is_as_injected(self, origin: str) -> bool:
        content = self._files.get(os.path.realpath(origin))
        if content is None:
            return True
        with open(origin, "rb") as file:
            return bool(file.read() == content)

    def _compare_modules(self) -> None:
        """Each module that has the name of a hidden file has to have been executed from a file: from that one, or from
        one that `sys.path` has before it."""
        if not self._files:
            return
        entries = [os.path.realpath(entry or os.curdir) for entry in sys.path if isinstance(entry, str)]
        inside = [entry for entry in entries if os.path.join(entry, "").startswith(os.path.join(self._root, ""))]
        for name, module in list(sys.modules.items()):
            if name == "__main__" or module is None or any(module is one for one in self._earlier):
                continue
            self._compare_attributes(module)
            tail = name.replace(".", os.sep)
            for entry in inside:
                for place in (os.path.join(entry, tail) + ".py", os.path.join(entry, tail, "__init__.py")):
                    if place in self._files and not self._was_executed(module):
                        self._differs(place)

    def _compare_attributes(self, package: Any) -> None:
        """`from package import name` takes an attribute before it imports: where a package has one in the name of a
        hidden file, that file has to have been executed."""
        folders = getattr(package, "__path__", None)
        inside = {os.path.realpath(str(one)) for one in folders} if isinstance(folders, list) else ()
        for place in self._files if inside else ():
            name = os.path.basename(place)[: -len(".py")]
            if os.path.dirname(place) in inside and name in vars(package) and not self._has_run(place):
                self._differs(place)

    def _has_run(self, place: str) -> bool:
        return any(executed[1] == place and executed[2] for executed in self._executed.values())

    def _was_executed(self, module: Any) -> bool:
        found = self._executed.get(id(module))
        return found is not None and found[2]

    def _compare(self, test: Any, file: str, names: Any, module: Any) -> None:
        """One collected test. test: its function. file: where it is said to be. names: of its classes and itself.
        module: the one that it was found in."""
        place = os.path.realpath(file)
        if place not in self._files:
            return
        executed = self._executed.get(id(module))
        is_its_module = executed is not None and executed[1] == place and executed[2]
        if not is_its_module or not self._is_expected(test, place, tuple(names)):
            self._differs(place)

    def _differs(self, place: str) -> None:
        self._differing.add(os.path.relpath(place, self._root).replace(os.sep, "/"))

    def _is_expected(self, test: Any, place: str, names: Any) -> bool:
        codes, definitions = self._expected_of(place)
        found = [one.__code__ for one in _functions(test)]
        if any(_is_same(code, one) for code in found for one in codes.get(code.co_name, ())):
            return True
        # A decorator can put any function in its place; one that is defined elsewhere is inherited.
        return names not in definitions

    def _expected_of(self, place: str) -> Any:
        """The code objects of a hidden file by their names, as it is and as pytest rewrites it; and the names of its
        functions without a decorator."""
        if place not in self._expected:
            with warnings.catch_warnings():  # the author's settings may make an error of each one
                warnings.simplefilter("ignore")
                self._expected[place] = self._compiled(place)
        return self._expected[place]

    def _compiled(self, place: str) -> Any:
        import ast  # each start of an interpreter would wait for it

        content = self._files[place]
        codes: Any = {}
        tree = ast.parse(content)
        definitions = set(_undecorated(tree.body, ()))
        _collect(compile(content, place, "exec", dont_inherit=True), codes)
        if self._rewrite is not None:
            try:
                self._rewrite(tree, content, place)
                _collect(compile(tree, place, "exec", dont_inherit=True), codes)
            except (TypeError, ValueError, AttributeError):
                definitions = set()  # of a pytest that rewrites in another way
        return codes, definitions

    def watch_session(self, kind: Any) -> None:
        """Have all that a pytest collects compared, which ends it where that differs. kind: `_pytest.main.Session`."""
        collect = kind.perform_collect

        @functools.wraps(collect)
        def collect_and_compare(session: Any, *args: Any, **kwargs: Any) -> Any:
            found = collect(session, *args, **kwargs)
            self._compare_session(session)
            if differing := self.differing():
                message = f"other code was collected than that of the injected {', '.join(differing)}"
                raise sys.modules["pytest"].UsageError(message)
            return found

        kind.perform_collect = collect_and_compare

    def _compare_session(self, session: Any) -> None:
        config = session.config
        rewrite = getattr(sys.modules.get("_pytest.assertion.rewrite"), "rewrite_asserts", None)
        if rewrite is not None and config.getoption("assertmode", "rewrite") == "rewrite":
            self._rewrite = lambda tree, content, place: rewrite(tree, content, place, config)
        for item in session.items:
            chain = [one for one in item.listchain() if hasattr(one, "obj")]
            module = next((one.obj for one in chain if type(one).__name__ == "Module"), None)
            if module is None or not hasattr(item, "originalname"):
                continue  # no function of Python: a doctest, a linter
            names = [one.name for one in chain if type(one).__name__ in ("Class", "UnitTestCase")]
            file = str(getattr(item, "path", None) or item.fspath)
            self._compare(item.obj, file, [*names, item.originalname or item.name.partition("[")[0]], module)

    def compare_suite(self, suite: Any) -> None:
        """All that unittest loaded."""
        waiting = [suite]
        while waiting:
            one = waiting.pop()
            if hasattr(one, "__iter__"):
                waiting.extend(one)
                continue
            kind, name = type(one), getattr(one, "_testMethodName", None)
            module = sys.modules.get(kind.__module__)
            file = getattr(module, "__file__", None)
            if name is None or not file or kind.__module__ == "__main__":
                continue
            self._compare(getattr(one, name, None), file, [*kind.__qualname__.split("."), name], module)


def _undecorated(body: Any, names: Any) -> Any:
    import ast

    for node in body:
        if isinstance(node, ast.ClassDef) and not node.decorator_list:
            yield from _undecorated(node.body, (*names, node.name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.decorator_list:
            yield (*names, node.name)


def _collect(code: Any, found: Any) -> None:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            found.setdefault(one.co_name, []).append(one)
            _collect(one, found)


def _functions(test: Any) -> Any:
    """A function, and those that it wraps."""
    seen: Any = set()
    waiting = [(test, 0)]
    while waiting:
        one, deep = waiting.pop(0)
        if id(one) in seen or deep > _DEEP:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            yield one
            inner = [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
        else:
            inner = [getattr(one, name, None) for name in ("__func__", "func", "inner_test")]
        inner += list(vars(one).values()) if hasattr(one, "__dict__") and not isinstance(one, type) else []
        waiting += [(found, deep + 1) for found in inner if callable(found) or hasattr(found, "inner_test")]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _is_same(one: Any, other: Any) -> bool:
    """Whether two code objects do the same: all but file and lines."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if not isinstance(one, CodeType):
        return bool(one == other or repr(one) == repr(other))
    names = ("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_consts")
    counts = ("co_argcount", "co_kwonlyargcount")
    return all(_is_same(getattr(one, name), getattr(other, name)) for name in (*names, *counts))


INJECTED = InjectedCode()
