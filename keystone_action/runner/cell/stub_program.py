"""A program: replaces the bodies of functions in Python sources. Imports nothing of ours; run by `own_process`.

stdin: [{"source": text, "functions": [names]}, …]. stdout: for each {"source": text, "missing": [names]}, or
{"problem": a sentence without its full stop}. A body becomes its docstring, if it has one, and
`raise NotImplementedError`. Comments and layout of the file are gone afterwards: nothing of a body is left in them.
"""

from __future__ import annotations

import ast
import json
import sys
from typing import Any

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Stubs(ast.NodeTransformer):
    """Every function of these names, at any depth."""

    def __init__(self, names: list[str]) -> None:
        self.names = set(names)
        self.found: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: _Function) -> ast.AST:
        if node.name not in self.names:
            return self.generic_visit(node)
        self.found.add(node.name)
        raising = ast.Raise(exc=ast.Name(id="NotImplementedError", ctx=ast.Load()), cause=None)
        has_docstring = ast.get_docstring(node, clean=False) is not None
        node.body = [*node.body[: int(has_docstring)], raising]
        return node


def stubbed(source: str, functions: list[str]) -> dict[str, Any]:
    """The answer for one file."""
    try:
        stubs = _Stubs(functions)
        tree = ast.fix_missing_locations(stubs.visit(ast.parse(source)))
        text = ast.unparse(tree) + "\n"
    except SyntaxError as error:
        return {"problem": f"it is not Python (line {error.lineno}: {error.msg})"}
    except (ValueError, RecursionError, MemoryError):
        return {"problem": "it can't be read as Python"}
    return {"source": text, "missing": [name for name in functions if name not in stubs.found]}


def main() -> None:
    """Answer what is on stdin."""
    questions = json.load(sys.stdin)
    json.dump([stubbed(one["source"], one["functions"]) for one in questions], sys.stdout)


if __name__ == "__main__":
    main()
