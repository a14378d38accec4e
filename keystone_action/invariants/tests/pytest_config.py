"""Which configuration pytest is to take: the author's, never one that the agent left.

pytest looks for it from the common directory of its arguments upwards; so does this, over the files of the snapshot and
those that were injected. It is named to pytest (`-c`), so that pytest looks for none itself.
"""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

ALWAYS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
"""Configuration of pytest by their names alone, in pytest's order."""
_SECTIONS = {"tox.ini": ("pytest",), "setup.cfg": ("tool:pytest",)}
_ORDER = (*ALWAYS, "pyproject.toml", "tox.ini", "setup.cfg")
SHARED = ("pyproject.toml", "setup.cfg")
"""Files with a part for pytest that an agent may change for other reasons."""
Reader = Callable[[str], bytes | None]


def find(arguments: Sequence[str], read: Reader) -> str | None:
    """The configuration's path relative to the workspace, None when the author has none.

    arguments: files and directories that pytest is given, relative to the workspace. read: the author's bytes at a
    path, None where there is nothing of the author's.
    """
    for directory in _upwards(arguments):
        for name in _ORDER:
            path = str(directory / name)
            content = read(path)
            if content is not None and _is_pytests(name, content):
                return path
    return None


def _upwards(arguments: Sequence[str]) -> Iterator[PurePosixPath]:
    directories = [PurePosixPath(argument).parent for argument in arguments] or [PurePosixPath()]
    common = directories[0]
    while not all(one.is_relative_to(common) for one in directories):
        common = common.parent
    yield from (common, *common.parents)


def _is_pytests(name: str, content: bytes) -> bool:
    return name in ALWAYS or part_for_pytest(name, content) is not None


def part_for_pytest(name: str, content: bytes) -> object:
    """What of a file that others share (`pyproject.toml`, `tox.ini`, `setup.cfg`) is for pytest, to be compared; None
    where nothing is, or nothing can be read."""
    text = content.decode("utf-8", "replace")
    if name == "pyproject.toml":
        try:
            tool = tomllib.loads(text).get("tool", {})
        except (tomllib.TOMLDecodeError, RecursionError):
            return None
        return tool.get("pytest") if isinstance(tool, dict) else None
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    return {one: dict(parser.items(one)) for one in _SECTIONS[name] if parser.has_section(one)} or None
