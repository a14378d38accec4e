"""A program: says of Python sources whether they do anything. Imports nothing of ours; run by `own_process`.

stdin: [{"after": text, "before": text or null}, …]. stdout: for each {"kind", "changed"} with a kind of

- `real`: something in it does something;
- `declarations`: nothing in it is left to be done, but nothing is done either (imports, Protocol and abstract classes);
- `stub`: it has functions or classes that do nothing, and nothing else; or it is empty;
- `broken`: it is not valid Python.

changed: whether the syntax trees differ, docstrings aside: comments and layout are not a change. A file that was not
valid Python before has changed.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_ABSTRACT = {"abstractmethod", "abstractproperty", "abstractclassmethod", "abstractstaticmethod", "overload"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_EFFECTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_NO_CODE = (ast.Pass, ast.Import, ast.ImportFrom, ast.Break, ast.Continue)
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def judge_files(after: str, before: str | None) -> dict[str, Any]:
    """The answer for one file."""
    try:
        tree = ast.parse(after)
        return {"kind": kind_of(tree), "changed": before is None or _meaning(before) != _plain(tree)}
    except _UNREADABLE:
        return {"kind": "broken", "changed": True}


def kind_of(tree: ast.Module) -> str:
    """`real`, `declarations` or `stub`."""
    module = _Module(tree)
    if module.does_something:
        return "real"
    if module.stubs or not module.declarations:
        return "stub"
    return "declarations"


class _Module:
    """What is in a module, abstract and Protocol members and overloads aside.

    stubs: functions and classes that do nothing. does_something: whether any function does something, or code of the
    module itself. Assignments count where there are no stubs: a module of constants is what it is meant to be, while a
    logger beside stubs is not.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.stubs: set[str] = set()
        self.declarations = 0
        self._real = False
        self._assigns = False
        self._code: list[ast.stmt] = []
        self._scope(tree.body, is_protocol=False)
        for statement in self._code:
            self._real = self._real or self._runs(statement)

    @property
    def does_something(self) -> bool:
        return self._real or (self._assigns and not self.stubs)

    def _scope(self, body: list[ast.stmt], *, is_protocol: bool) -> None:
        for statement in _without_docstring(body):
            if isinstance(statement, _FUNCTIONS):
                self._function(statement, is_protocol=is_protocol)
            elif isinstance(statement, ast.ClassDef):
                self._class(statement)
            elif isinstance(statement, ast.Import | ast.ImportFrom):
                self.declarations += 1
            elif isinstance(statement, _ASSIGNMENTS):
                self._assigns = self._assigns or not is_protocol
                self.declarations += 1
            elif blocks := list(_blocks(statement)):
                for block in blocks:
                    self._scope(block, is_protocol=is_protocol)
                self._code.extend(_header_code(statement))
            else:
                self._code.append(statement)

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef, *, is_protocol: bool) -> None:
        if is_protocol or _names(function.decorator_list) & _ABSTRACT:
            self.declarations += 1
        elif is_stub(function.body):
            self.stubs.add(function.name)
        else:
            self._real = True

    def _class(self, node: ast.ClassDef) -> None:
        body = [one for one in _without_docstring(node.body) if not _is_nothing(one)]
        if body:
            self._scope(body, is_protocol="Protocol" in _names(node.bases))
        elif node.bases or node.keywords:
            self.declarations += 1  # `class NotFound(Exception): ...` says all there is to say
        else:
            self.stubs.add(node.name)

    def _runs(self, statement: ast.stmt) -> bool:
        """Whether a statement of the module does something, calls of its own stubs aside."""
        if not _does(statement):
            return False
        called = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        ours = [one for one in called if isinstance(one.func, ast.Name) and one.func.id in self.stubs]
        return not called or len(ours) < len(called)


def is_stub(body: list[ast.stmt]) -> bool:
    """Whether the body of a function does nothing, or always ends in NotImplementedError."""
    left = _without_docstring(body)
    for index, one in enumerate(left):
        if _raises_not_implemented(one):  # what is left for the cases that were not answered before it is not a stub
            return not any(map(_answers, left[:index]))
    return not any(map(_does, left))


def _answers(statement: ast.stmt) -> bool:
    """Whether a function can end with a value in a statement."""
    if isinstance(statement, ast.Return):
        return not _is_nothing_value(statement.value)
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return False
    return any(map(_answers, (one for block in _blocks(statement) for one in block)))


def _does(statement: ast.stmt) -> bool:
    """Whether a statement does anything that could be noticed."""
    if isinstance(statement, _NO_CODE) or _raises_not_implemented(statement):
        return False
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return False  # what it returns or calls is noticed where that happens
    if isinstance(statement, ast.Return):
        return not _is_nothing_value(statement.value)
    if isinstance(statement, ast.Expr):
        return _has_effect(statement.value)
    if isinstance(statement, _ASSIGNMENTS):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        kept = any(isinstance(node, ast.Attribute | ast.Subscript) for one in targets for node in ast.walk(one))
        return kept or (statement.value is not None and _has_effect(statement.value))
    blocks = list(_blocks(statement))
    if blocks:
        inner = (one for block in blocks for one in block)
        return any(map(_has_effect, _header(statement))) or any(map(_does, inner))
    return not isinstance(statement, ast.Delete)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The bodies of a compound statement that is neither a function nor a class."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list) and block:
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _header(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a compound statement outside its bodies."""
    for name in ("test", "iter", "subject"):
        if isinstance(expression := getattr(statement, name, None), ast.expr):
            yield expression
    for item in getattr(statement, "items", ()):
        yield item.context_expr


def _header_code(statement: ast.stmt) -> Iterator[ast.stmt]:
    for expression in _header(statement):
        yield ast.Expr(expression)


def _has_effect(expression: ast.expr) -> bool:
    return any(isinstance(node, _EFFECTS) for node in ast.walk(expression))


def _is_nothing_value(value: ast.expr | None) -> bool:
    if value is None or (isinstance(value, ast.Constant) and value.value in (None, ...)):
        return True
    return isinstance(value, ast.Name) and value.id == "NotImplemented"


def _is_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _raises_not_implemented(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Raise) and bool(
        {"NotImplementedError", "NotImplemented"} & _names([statement.exc] if statement.exc else [])
    )


def _names(expressions: Iterable[ast.expr]) -> set[str]:
    """The last names of `typing.Protocol[T]`, `abc.abstractmethod`, `NotImplementedError("…")`."""
    found = set()
    for one in expressions:
        here = one
        while isinstance(here, ast.Call | ast.Subscript):
            here = here.func if isinstance(here, ast.Call) else here.value
        if isinstance(here, ast.Name | ast.Attribute):
            found.add(here.id if isinstance(here, ast.Name) else here.attr)
    return found


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body


def _plain(tree: ast.Module) -> str:
    """A tree as text, without docstrings and places."""
    for node in ast.walk(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Module)):
            node.body = _without_docstring(node.body)
    return ast.dump(tree)


def _meaning(source: str) -> str | None:
    try:
        return _plain(ast.parse(source))
    except _UNREADABLE:
        return None


if __name__ == "__main__":
    json.dump([judge_files(**one) for one in json.load(sys.stdin)], sys.stdout)
