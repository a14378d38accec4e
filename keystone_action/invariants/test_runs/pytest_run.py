"""Running pytest on a prepared copy, under a driver of ours, and reading the results.

A command line of pytest is taken apart, so that the driver (`pytest_driver.py`) can run it with the author's
configuration. Its report is read only when it carries the signature of this very run.
"""

from __future__ import annotations

import configparser
import contextlib
import functools
import importlib.metadata
import io
import json
import re
import secrets
import shlex
import tomllib
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.files.globs import put_file
from keystone_action.files.paths import PathMissing, PathProblem, read_inside
from keystone_action.invariants.test_runs.case_counts import SHOWN, BadReport, CaseCounts
from keystone_action.invariants.test_runs.graded_copy import GradedCopy
from keystone_action.invariants.test_runs.recorded_runs import OtherCode, read_signed
from keystone_action.sandbox.programs import shell_words
from keystone_action.system.command import Command, Completed

if TYPE_CHECKING:
    from keystone_action.invariants.check import CheckContext

_WORST_FIRST = ("error", "failed", "passed", "xfailed", "skipped")


@dataclass(frozen=True, slots=True)
class PytestResults:
    """What became of each test of one run."""

    outcomes: Mapping[str, str]
    """Test id, exactly as pytest spells it → error, failed, passed, xfailed, skipped or "not run"."""
    collection_errors: tuple[str, ...] = ()
    """Files and classes that could not be collected."""
    missing: str = ""
    """Why there is no pytest to run; empty where there is one."""
    own: str = ""
    """The version of ours that ran, because the sandbox has none; else empty."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What its author should know of the run."""
        return (f"this sandbox has no pytest: the tests were run by Keystone's own {self.own}",) if self.own else ()

    def counts(self) -> CaseCounts:
        """Expected failures and skips are not counted (Touchstone); what was collected and never ran is an error."""
        counts = CaseCounts(errors=len(self.collection_errors), failed=list(self.collection_errors[:SHOWN]))
        for name, outcome in self.outcomes.items():
            if outcome == "passed":
                counts.passed += 1
            elif outcome in ("xfailed", "skipped"):
                counts.skipped += 1
            else:
                counts.failures += outcome == "failed"
                counts.errors += outcome != "failed"
                if len(counts.failed) < SHOWN:
                    counts.failed.append(name)
        return counts


def read_results(workspace: Path, path: str, key: bytes, untrusted: Collection[str]) -> PytestResults:
    """The results of one run. untrusted: files that the agent added or changed; a skip that was raised in one of them
    is the code under test that got out of its test, so an error.

    Raises BadReport: there is none, or not one of this run; OtherCode.
    """
    document = read_signed(workspace, path, key, "pytest")
    try:
        return _results(document, frozenset(untrusted))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadReport("is not as the driver of pytest writes it") from None


def _results(document: Mapping[str, Any], untrusted: frozenset[str]) -> PytestResults:
    if "missing" in document:
        return PytestResults({}, missing=str(document["missing"]))
    OtherCode.refuse(document)
    left = {name for name, files in document["skipped_by"].items() if not untrusted.isdisjoint(files)}
    outcomes = dict.fromkeys(document["collected"], "not run")
    for name, phases in document["outcomes"].items():
        worst = next((outcome for outcome in _WORST_FIRST if outcome in phases), "not run")
        outcomes[name] = "error" if name in left and worst in ("xfailed", "skipped") else worst
    errors = [*document["collection_errors"], *sorted(left - outcomes.keys())]
    return PytestResults(outcomes, tuple(errors), own=str(document["own"]))


_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SHELL = frozenset("$`*?~\\\n")
_OPERATOR = frozenset("();<>|&")
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")
_ALWAYS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
"""Configuration of pytest by their names alone, in pytest's order."""
_SECTIONS = {"tox.ini": ("pytest",), "setup.cfg": ("tool:pytest",)}
_ORDER = (*_ALWAYS, "pyproject.toml", "tox.ini", "setup.cfg")
SHARED_CONFIGURATION = ("pyproject.toml", "setup.cfg")
"""Files with a part for pytest that an agent may change for other reasons."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command line of pytest, taken apart."""

    python: str = "python3"
    arguments: tuple[str, ...] = ()
    """All that follows `pytest`."""
    env: Mapping[str, str] = field(default_factory=dict)


def parse(command: str | Sequence[str]) -> Invocation | None:
    """`[NAME=value] python3 -m pytest …` or `pytest …`; None for everything else, and where a shell has more to do."""
    if isinstance(command, str):
        if _SHELL & set(command):
            return None
        try:
            words = shell_words(command)
        except ValueError:
            return None
        if any(word and _OPERATOR.issuperset(word) for word in words):
            return None
    else:
        words = list(command)
    env = {}
    while words and isinstance(command, str) and (match := _ASSIGNMENT.fullmatch(words[0])):
        env[match[1]] = match[2]
        words = words[1:]
    if words[:1] in (["pytest"], ["py.test"]):
        return Invocation(arguments=tuple(words[1:]), env=env)
    if words[1:3] == ["-m", "pytest"] and _PYTHON.fullmatch(words[0]):
        return Invocation(words[0], tuple(words[3:]), env)
    return None


def of_injected(places: Sequence[str]) -> Invocation:
    """The default command: the injected test files; all that the author's configuration names when none is."""
    python = [p for p in places if p.endswith(".py") and PurePosixPath(p).name not in ("conftest.py", "__init__.py")]
    named = [p for p in python if _TEST_FILE.fullmatch(PurePosixPath(p).name)]
    return Invocation(arguments=("-q", *(named or python)))


OWN_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "typing-extensions")
"""pytest and what it needs on any Python that it runs on: the last three only on 3.10."""
_ARCHIVE = "pytest.zip"


@functools.cache
def own_pytest() -> bytes:
    """The pytest of our own environment, in the version that is locked there: an archive that Python imports from."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in OWN_PYTEST:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                for file in importlib.metadata.distribution(name).files or ():
                    if file.suffix == ".py" and ".." not in file.parts:
                        archive.writestr(zipfile.ZipInfo(str(file)), Path(str(file.locate())).read_bytes())
    return content.getvalue()


async def give_pytest(context: CheckContext) -> str:
    """Lay out our own pytest for the sandbox that the check opens next. Returns its path there."""
    archive = await anyio.to_thread.run_sync(own_pytest)
    return str(context.give({_ARCHIVE: archive}) / _ARCHIVE)


async def run_pytest(
    copy: GradedCopy,
    invocation: Invocation,
    targets: Sequence[str],
    *,
    own: str,
    environment: Mapping[str, str],
    timeout: float,
) -> tuple[Completed, PytestResults | BadReport]:
    """Run pytest with the author's configuration. targets: test ids or files, after the invocation's own arguments.
    own: of `give_pytest`, for a sandbox that has none."""
    root = PurePosixPath(copy.sandbox.workspace_inside)
    driver = await anyio.to_thread.run_sync(copy.write, "run.py", _driver())
    config, rootdir = await anyio.to_thread.run_sync(_configuration, copy, (*invocation.arguments, *targets))
    key = secrets.token_bytes(32)
    environment, inside = await anyio.to_thread.run_sync(copy.guarded_environment, {**environment, **invocation.env})
    arguments = ["-p", "no:cacheprovider", "-c", config, f"--rootdir={rootdir}", f"--confcutdir={root}"]
    order = {
        "args": [*arguments, *invocation.arguments, *targets],
        "paths": [str(root), *inside],
        "trusted": list(copy.trusted),
        "own": own,
        "report": f"{copy.inside}/report",
        "key": key.hex(),
    }
    completed = await copy.sandbox.run(
        Command(
            (invocation.python, driver),
            env=environment,
            timeout=timeout,
            stdin=json.dumps(order).encode(),
        )
    )
    path = f"{copy.private}/report"
    try:
        return completed, await anyio.to_thread.run_sync(
            read_results, copy.sandbox.workspace, path, key, copy.untrusted
        )
    except BadReport as bad:
        return completed, bad


def pin_pytest(copy: GradedCopy, places: Sequence[str], environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment for a command of the author's: where the agent changed what a file says to pytest, any pytest
    that the command starts is told the author's configuration instead. places: files that are injected."""
    changed = [path for path in copy.untrusted if PurePosixPath(path).name in SHARED_CONFIGURATION]
    forged = sorted(path for path in changed if _differs(copy, path))
    if not forged:
        return environment
    config, rootdir = _configuration(copy, places or forged)
    # It comes before the command's own arguments, so that a `-c` among those still counts.
    options = shlex.join(("-c", config, f"--rootdir={rootdir}"))
    return {**environment, "PYTEST_ADDOPTS": f"{options} {environment.get('PYTEST_ADDOPTS', '')}".rstrip()}


def _differs(copy: GradedCopy, path: str) -> bool:
    name = PurePosixPath(path).name
    try:
        left = part_for_pytest(name, read_inside(copy.sandbox.workspace, path))
    except PathMissing:
        left = None
    except PathProblem:
        return True
    return left != part_for_pytest(name, copy.authors(path) or b"")


def no_pytest(why: str) -> str:
    """What to do when the sandbox's python3 has no pytest that runs, and can't run ours."""
    return (
        f"there is no pytest that runs in this sandbox ({why}); add it to setup.packages (`packages: [pytest]`; in a "
        "case of Touchstone's to environment.requirements) or set base to an image that has it"
    )


def _driver() -> bytes:
    return Path(__file__).with_name("pytest_driver.py").read_bytes()


def _configuration(copy: GradedCopy, arguments: Sequence[str]) -> tuple[str, str]:
    """The configuration's path inside, and pytest's root directory: where the author's configuration lies."""
    root = PurePosixPath(copy.sandbox.workspace_inside)
    places = [one.partition("::")[0] for one in arguments if not one.startswith(("-", "/")) and ".." not in one]
    files = [place for place in places if copy.authors(place) is not None or place in copy.untrusted]
    found = find_configuration(files, copy.authors)
    if found is not None and found not in copy.untrusted:
        return str(root / found), str(root / PurePosixPath(found).parent)
    # Without one pytest would look for the agent's. With one in a file that the agent may change (pyproject.toml,
    # setup.cfg), what is in it for pytest is still the author's. Paths in it are relative to where it lies.
    directory, suffix = PurePosixPath(found or "x.ini").parent, PurePosixPath(found or "x.ini").suffix
    content = (copy.authors(found) if found is not None else None) or b""
    name = f"{copy.private}{suffix}"
    put_file(copy.sandbox.workspace, str(directory / name), content, copy.originals)
    return str(root / directory / name), str(root / directory)


def find_configuration(arguments: Sequence[str], read: Callable[[str], bytes | None]) -> str | None:
    """The path of pytest's configuration relative to the workspace, None when the author has none: never a file that
    the agent left. It is named to pytest (`-c`), so that pytest looks for none itself, as it does from the common
    directory of its arguments upwards.

    arguments: files and directories that pytest is given, relative to the workspace. read: the author's bytes at a
    path, None where there is nothing of the author's.
    """
    for directory in _directories_upwards(arguments):
        for name in _ORDER:
            path = str(directory / name)
            content = read(path)
            if content is not None and _is_for_pytest(name, content):
                return path
    return None


def _directories_upwards(arguments: Sequence[str]) -> Iterator[PurePosixPath]:
    directories = [PurePosixPath(argument).parent for argument in arguments] or [PurePosixPath()]
    common = directories[0]
    while not all(one.is_relative_to(common) for one in directories):
        common = common.parent
    yield from (common, *common.parents)


def _is_for_pytest(name: str, content: bytes) -> bool:
    return name in _ALWAYS or part_for_pytest(name, content) is not None


def part_for_pytest(name: str, content: bytes) -> object:
    """The part for pytest of a file that other tools read too (`pyproject.toml`, `tox.ini`, `setup.cfg`), to be
    compared; None where there is none, or the file can't be read."""
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
