"""From a name of the format (a kind of service, a format of transcripts, a check type) to the class in the file of that
name. Nothing is imported before a spec names it.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TypeVar

Base = TypeVar("Base")


def class_of_file(module: str, base: type[Base]) -> type[Base]:
    """The one class that a module defines, that derives from `base` and that is not abstract.

    Raises TypeError, which names the file, when there is no such file, when it has no such class or several, and when
    the class lacks methods.
    """
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise TypeError(f"a class of {base.__name__} is expected in {module}, which is not there") from None
    own = [one for one in vars(loaded).values() if isinstance(one, type) and one.__module__ == module]
    derived = [one for one in own if issubclass(one, base)]
    found = [one for one in derived if not inspect.isabstract(one)]
    if not found and derived:
        lacking = "; ".join(f"{one.__name__} lacks {_abstract_methods(one)}" for one in derived)
        raise TypeError(f"the class in {loaded.__file__} is not complete: {lacking}, which {base.__name__} demands")
    if len(found) != 1:
        names = ", ".join(one.__name__ for one in found) or "none"
        raise TypeError(f"expected one class of {base.__name__} in {loaded.__file__}, found {names}")
    return found[0]


def _abstract_methods(kind: type) -> str:
    return ", ".join(sorted(name for name in dir(kind) if getattr(getattr(kind, name), "__isabstractmethod__", False)))
