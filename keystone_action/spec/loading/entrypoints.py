"""Whether a `python` agent's entrypoint is in its module, by the module's text.

The module is neither imported nor parsed here; a name that is missing there is only a warning.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from keystone_action.spec.loading.diagnostics import nearest, show_value
from keystone_action.spec.loading.names import Scope
from keystone_action.spec.loading.problems import Problem
from keystone_action.spec.models.agents import PythonAgent

_SOURCE_BYTES = 1 << 20
_NAMES = 1000
_MADE_AS_IT_RUNS = re.compile(
    rb"import\s*\(?\s*\*|\b(?:__getattr__|__dict__|globals|locals|vars|setattr|exec|eval|modules)\b"
)
"""Code that can give a module names that its text does not show."""
_DEFINED = re.compile(
    r"^(?:class|def|async def|from .* import|import .* as)[ \t]+(\w{1,100})|^(\w{1,100})[ \t]*(?::[^=\n]*)?=",
    re.MULTILINE,
)


def module_file(folder: Path, module: str) -> Path | None:
    """The file of a module that a folder on the search path gives: a module's own, or a package's."""
    place = folder.joinpath(*module.split("."))
    candidates = place.with_name(f"{place.name}.py"), place / "__init__.py"
    return next((file for file in candidates if file.is_file()), None)


def names_instead(file: Path, name: str) -> tuple[str, ...] | None:
    """The names that a module's file defines, when `name` is none of them; None when it is, or may be, or the file
    defines nothing: one that can't be imported is for a run to tell."""
    name = name.partition(".")[0]
    beside = file.parent / name, file.parent / f"{name}.py"
    if not name.isascii() or any(one.exists() for one in beside):
        return None
    try:
        if file.stat().st_size > _SOURCE_BYTES:
            return None
        source = file.read_bytes()
    except OSError:
        return None
    if re.search(rb"\b%s\b" % name.encode(), source) or _MADE_AS_IT_RUNS.search(source):
        return None
    found = itertools.islice(_DEFINED.finditer(source.decode("utf-8", "replace")), _NAMES)
    return tuple(dict.fromkeys(match[1] or match[2] for match in found)) or None


def check_entrypoint(scope: Scope, directory: Path, root: Path) -> Iterator[Problem]:
    """A problem when a `python` agent's entrypoint names something that its module does not have. It becomes a warning,
    since the module is part of what is tested, and an agent that can't be called has failed (spec.md 5.1).

    directory: the spec's. root: the directory that no path may leave.
    """
    agent = scope.spec.agent
    if not isinstance(agent, PythonAgent) or "{{" in agent.dir:
        return
    module, _, name = agent.entrypoint.partition(":")
    file = module_file(directory / agent.dir, module)
    if file is None or not file.resolve().is_relative_to(root):
        return
    others = names_instead(file, name)
    if others is not None:
        message = f"there is no {show_value(name)} in {file.relative_to(directory / agent.dir)}"
        yield Problem(("agent", "entrypoint"), message, suggestion=nearest(name, others))
