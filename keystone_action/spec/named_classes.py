"""From a name of the format (a kind of service, a format of transcripts, a check type) to the class in the file of that
name. Nothing is imported before a spec names it."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TypeVar

Base = TypeVar("Base")


def class_of_file(module: str, base: type[Base]) -> type[Base]:
    """The one class of a module's own that derives from `base` and is not abstract. Raises TypeError, which names the
    file, when there is no such file, or no such class in it, or several."""
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise TypeError(f"a class of {base.__name__} is expected in {module}, which is not there") from None
    found = [
        one
        for one in vars(loaded).values()
        if isinstance(one, type) and issubclass(one, base) and one.__module__ == module and not inspect.isabstract(one)
    ]
    if len(found) != 1:
        names = ", ".join(one.__name__ for one in found) or "none"
        raise TypeError(f"expected one class of {base.__name__} in {loaded.__file__}, found {names}")
    return found[0]
