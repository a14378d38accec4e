"""Lets Python scripts of the author's import what the agent installed, behind all else; a program of its own, which
every interpreter that such a script starts imports as `sitecustomize`, from a directory on PYTHONPATH.

A name is looked for in the copies in `tree` only where nothing else has it. So a package of ours wins whole, namespace
packages too; no `.pth` file is read, and no module of the standard library can come from there. Distributions are found
by their name, and never listed: what they register (plug-ins of pytest, …) is not loaded unasked. Nor is what only the
standard library or an installed package asks for: `copy` and `pickle` try a module of Jython's, `org`, and others have
the like. Only a script, modules beside it, `python -m` and the agent's packages themselves find names here.

It runs under the sandbox's python3, so it is written for 3.8.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
BASES = ("home/.local", ".venv", "venv")
"""Where the copies of site-packages are, as `runner/cell/python_packages.py` lays them out."""
_VERSION = "python{}.{}".format(*sys.version_info[:2])
PLACES = [os.path.join(os.path.dirname(HERE), "tree", base, "lib", _VERSION, "site-packages") for base in BASES]
_STANDARD: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset())

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_IMPORTING = ("importlib.__init__", "importlib._bootstrap", "importlib._bootstrap_external", "importlib.util", "runpy")
"""Modules that import what others name, or are told on the command line."""


def _is_asked_for() -> bool:
    """Whether the code that imports is neither of the standard library nor of an installed package of ours."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen "):
            name = file[len("<frozen ") : -1]
        elif file.startswith(_LIBRARY):
            name = os.path.splitext(file[len(_LIBRARY) :])[0].replace(os.sep, ".")
        else:
            return not _is_installed(file)
        if name not in _IMPORTING:
            return False
        frame = frame.f_back
    return True


def _is_installed(file: str) -> bool:
    parts = file.split(os.sep)
    is_agents = any(file.startswith(place + os.sep) for place in PLACES)
    return not is_agents and ("site-packages" in parts or "dist-packages" in parts)


class AgentPackages:
    """The last finder of an interpreter."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """As `PathFinder.find_spec`; what is below a package is found by the package's own path."""
        if path is not None or name in _STANDARD or name in ("sitecustomize", "usercustomize"):
            return None
        if not _is_asked_for():
            return None
        return PathFinder.find_spec(name, PLACES, target)

    @staticmethod
    def find_distributions(context: Any = None) -> Any:
        """The distribution of this name; none where all are asked for."""
        if context is None or context.name is None:
            return iter(())
        from importlib.metadata import DistributionFinder, MetadataPathFinder

        return MetadataPathFinder.find_distributions(DistributionFinder.Context(name=context.name, path=PLACES))


def load_hidden_sitecustomize() -> None:
    """The `sitecustomize` that this one stands in front of."""
    places = [place for place in sys.path if os.path.abspath(place) != HERE]
    spec = PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    sys.meta_path.append(AgentPackages)
    load_hidden_sitecustomize()
