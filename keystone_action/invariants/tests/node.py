"""Node's own test runner: its JUnit reporter, and files of tests that ended before their tests did."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from keystone_action.command import Command
from keystone_action.files.paths import PathProblem, read_inside
from keystone_action.invariants.tests.graded_copy import GradedCopy
from keystone_action.invariants.tests.junit import BadReport, CaseCounts
from keystone_action.invariants.tests.junit import read_report as read_junit
from keystone_action.sandbox.base import Sandbox

RUNNER = "node"
_NODE_TESTS = re.compile(r"(?P<node>(?:^|(?<=[\s;&|(]))node\b(?:\s+-[^\s;&|]+)*?\s+--test)(?=\s|$)")
_RELATIVE = re.compile(rb"""["'`](\.{1,2}/[^"'`\s]{1,300})["'`]""")
_ENDINGS = ("", *(f".{suffix}" for suffix in ("js", "cjs", "mjs", "ts", "cts", "mts")), "/index.js", "/index.ts")
_HAS_REPORTER = """process.stdout.write(process.version);
process.exitCode = typeof require("node:test/reporters").junit === "function" ? 0 : 1;"""
_FILES, _FILE_BYTES = 500, 4 << 20
"""Files that one file of tests is followed to, and how much of each is read."""


def with_reporter(cmd: str | list[str], path: str) -> str | list[str] | None:
    """The command with node's JUnit reporter beside its usual one; None when it does not run `node --test`, or chooses
    its reporters itself."""
    options = ["--test-reporter=spec", "--test-reporter-destination=stdout"]
    options += ["--test-reporter=junit", f"--test-reporter-destination={path}"]
    if isinstance(cmd, str):
        if "--test-reporter" in cmd or len(_NODE_TESTS.findall(cmd)) != 1:
            return None
        return _NODE_TESTS.sub(lambda match: " ".join([match["node"], *options]), cmd)
    is_node = PurePosixPath(cmd[0]).name == "node" and "--test" in cmd
    if not is_node or any(word.startswith("--test-reporter") for word in cmd):
        return None
    at = cmd.index("--test") + 1
    return [*cmd[:at], *options, *cmd[at:]]


def read_report(copy: GradedCopy, path: str, _key: bytes) -> CaseCounts:
    """The tests of a run that wrote its report for us (`node_record.cjs`). Raises BadReport, also where a file ended
    before its tests reported."""
    workspace = copy.sandbox.workspace
    try:
        counts = read_junit(read_inside(workspace, path))
    except PathProblem as problem:
        raise BadReport(str(problem)) from None
    errors = counts.errors
    if without_emptied_files(counts, workspace, copy.sandbox.workspace_inside).errors > errors:
        raise BadReport("has a file that ended before its tests reported")
    return counts


async def version_without_reporter(sandbox: Sandbox, environment: Mapping[str, str]) -> str | None:
    """The sandbox's node, if it says that it has no JUnit reporter: those before 20.8.0 and early ones of 18. Their
    exit code can't be trusted: it is 0 when the code under test ends the process with 0."""
    asked = await sandbox.run(Command(("node", "-e", _HAS_REPORTER), env=environment, timeout=30))
    said = re.match(r"v(\d+\.[\d.]+)", asked.stdout.text())
    return said[1] if said and asked.shell_code == 1 else None


def without_emptied_files(counts: CaseCounts, workspace: Path, workspace_inside: str) -> CaseCounts:
    """Node passes a file that ends with exit code 0, also one whose tests never came to a result because the code under
    test ended the process. A file that uses node's test runner, itself or by a file that it loads, and reports no test
    of its own is an error."""
    root = PurePosixPath(workspace_inside)
    for name in list(counts.passed_names):
        place = PurePosixPath(name.removeprefix("test::"))
        if not place.is_absolute() or not place.is_relative_to(root):
            continue
        path = str(place.relative_to(root))
        if _uses_the_runner(workspace, path):
            counts.passed -= 1
            counts.errors += 1
            counts.failed.append(f"{path} (ended before its tests reported)")
    return counts


def _uses_the_runner(workspace: Path, path: str) -> bool:
    """Whether a file, or one that it names by a relative path, and so on, names `node:test`. A file of tests that
    can't be read, and more files than are followed, count as if they did."""
    seen, todo = {path}, [path]
    while todo:
        here = todo.pop()
        content = _read(workspace, here)
        if content is None and here == path:
            return True
        if b"node:test" in (content or b""):
            return True
        for specifier in _RELATIVE.findall(content or b""):
            named = posixpath.normpath(posixpath.join(posixpath.dirname(here), specifier.decode("utf-8", "replace")))
            found = {f"{named}{ending}" for ending in _ENDINGS} - seen
            seen |= found
            todo += found
        if len(seen) > _FILES * len(_ENDINGS):
            return True
    return False


def _read(workspace: Path, path: str) -> bytes | None:
    try:
        return read_inside(workspace, path, limit=_FILE_BYTES)
    except PathProblem:
        return None
