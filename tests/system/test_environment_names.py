"""Every variable that we look up ourselves is among those that stay to be found."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from support.command_line import ROOT

import keystone_action
from keystone_action.engine.connect import VARIABLES
from keystone_action.system.environment import _HARMLESS, _LOOKED_UP


def looked_up() -> Iterator[tuple[Path, str]]:
    """Names that the package reads from `os.environ`: a text, or a constant of the file."""
    for path in sorted(Path(keystone_action.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
                (name, *_) = node.args
                if isinstance(name, ast.Constant):
                    yield path, name.value
                else:
                    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                    yield path, getattr(import_module(module), ast.unparse(name))


def test_what_we_look_up_ourselves_is_there_to_be_found() -> None:
    """`take` leaves nothing else in `os.environ`."""
    found = set(looked_up())
    assert {name for _, name in found} >= {"PATH", "CONTAINER_HOST", "TOUCHSTONE_FIXTURES_REPO"}
    lost = {
        (str(path), name)
        for path, name in found | {(Path("engine/connect.py"), name) for name in VARIABLES}
        if path.name != "environment.py" and not (_HARMLESS.fullmatch(name) or _LOOKED_UP.fullmatch(name))
    }
    assert lost == set()
