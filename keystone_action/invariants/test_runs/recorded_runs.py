"""Runs of tests that a command starts, of unittest and of node's test runner, and whether their reports can be
believed.

Each run takes a key of ours when it begins and signs its report with it when its tests have ended. A key that was taken
without a report is a run that did not come to its end. Python's runs are recorded by `run_record.py`, node's by
`node_record.cjs`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import posixpath
import re
import secrets
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from keystone_action.files.paths import PathProblem, name_paths, read_inside
from keystone_action.invariants.test_runs.case_counts import SHOWN, BadReport, CaseCounts
from keystone_action.invariants.test_runs.graded_copy import GradedCopy
from keystone_action.invariants.test_runs.junit import read_report
from keystone_action.sandbox.programs import shell_words
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.system.command import Command


class OtherCode(BadReport):
    """The code that was collected for injected files is not theirs. paths: those files, in the workspace."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        super().__init__(f"says that other code was collected than that of the injected {name_paths(self.paths)}")

    @classmethod
    def refuse(cls, document: Mapping[str, Any]) -> None:
        """Raises OtherCode where a run's report names such files."""
        if paths := document.get("other_code"):
            raise cls([str(path) for path in paths])


def read_signed(workspace: Path, path: str, key: bytes, runner: str) -> Any:
    """The JSON document of a report that `write_signed` in `run_record.py` wrote.

    runner: the name of the test runner, for messages. Raises BadReport when there is no report, or when it is not
    signed with the key of this run.
    """
    try:
        signature, _, content = read_inside(workspace, path).partition(b"\n")
    except PathProblem:
        raise BadReport(f"was never written: {runner} did not come to its end") from None
    expected = hmac.new(key, content, hashlib.sha256).hexdigest().encode()
    if not hmac.compare_digest(signature, expected):
        raise BadReport(f"is not the one that this run of {runner} wrote")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise BadReport(f"is not as the driver of {runner} writes it") from None


_KEY_BYTES, _KEYS = 32, 1024
"""The length of a key, and how many runs of a command can take one."""


@dataclass(frozen=True, slots=True)
class RecordedRuns:
    """What the runs of tests that a command started came to."""

    runner: str
    """The test runner: `unittest` or `node`."""
    seen: int = 0
    """How many runs there were."""
    unfinished: int = 0
    """How many of them did not come to the end of their tests."""
    counts: CaseCounts = field(default_factory=CaseCounts)
    """The tests of the runs that did."""
    other_code: tuple[str, ...] = ()
    """Injected files for which other code was collected."""

    def problem(self, *, expected: bool = False) -> str:
        """Why the command has not run its tests, the end of a sentence; empty when nothing says so. expected: there
        has to be a run."""
        if self.other_code:
            return f"{self.runner} collected other code than that of the injected {name_paths(self.other_code)}"
        if self.unfinished:
            which = "a run" if self.unfinished == 1 else f"{self.unfinished} runs"
            return f"{which} of {self.runner} did not come to the end of its tests"
        return f"no run of {self.runner} was seen" if expected and not self.seen else ""


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys that runs on one copy may take."""

    copy: GradedCopy
    runner: str
    keys: bytes
    path: str
    """The file of keys, as code in the sandbox names it."""

    @classmethod
    def lay_out(cls, copy: GradedCopy, runner: str) -> RunKeys:
        """Put keys into the copy. runner: the test runner that takes them. Blocks."""
        keys = secrets.token_bytes(_KEY_BYTES * _KEYS)
        return cls(copy, runner, keys, copy.write(runner, keys))

    def runs(self, read: Callable[[GradedCopy, str, bytes], CaseCounts]) -> RecordedRuns:
        """What became of the runs. read: the tests that a report tells of, by its path in the workspace and its run's
        key; raises BadReport. Blocks."""
        file = f"{self.copy.private}/{self.runner}"
        try:
            left = read_inside(self.copy.sandbox.workspace, file, limit=len(self.keys))
        except PathProblem:
            left = b""
        seen, unfinished, counts = 0, 0, CaseCounts()
        paths: list[str] = []
        for number in range(_KEYS):
            block = slice(number * _KEY_BYTES, (number + 1) * _KEY_BYTES)
            if left[block] == self.keys[block]:
                continue
            seen += 1
            try:
                counts += read(self.copy, f"{file}-{number}", self.keys[block])
            except OtherCode as other:
                paths += other.paths
            except BadReport:
                unfinished += 1
        return RecordedRuns(self.runner, seen, unfinished, counts, tuple(dict.fromkeys(paths)))


UNITTEST = "unittest"
_PYTHON = re.compile(r"(.*/)?python(3(\.\d+)?)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_WITH_VALUE = ("-W", "-X")
_ISOLATED = frozenset("EIS")
"""Options with which Python imports no `sitecustomize` from PYTHONPATH."""


def starts_unittest(command: str | Sequence[str]) -> bool:
    """Whether a command begins with `[NAME=value] python3 … -m unittest`, so that a run has to be seen."""
    if isinstance(command, str):
        try:
            words = shell_words(command)
        except ValueError:
            return False
        while words and _ASSIGNMENT.fullmatch(words[0]):
            del words[0]
    else:
        words = list(command)
    if not words or not _PYTHON.fullmatch(words[0]):
        return False
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "") == "unittest"
        if word == "-munittest":
            return True
        isolated = _ISOLATED & set(word) and not word.startswith(_WITH_VALUE)
        if isolated or word == "-c" or not word.startswith("-"):
            return False
        if word in _WITH_VALUE:
            next(rest, "")
    return False


def read_unittest_report(copy: GradedCopy, path: str, key: bytes) -> CaseCounts:
    """The tests of one run. Raises BadReport, OtherCode."""
    document = read_signed(copy.sandbox.workspace, path, key, UNITTEST)
    try:
        return _unittest_counts(document, copy.untrusted)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadReport(f"is not as a run of unittest writes it ({error})") from None


def _unittest_counts(document: Mapping[str, Any], untrusted: Collection[str]) -> CaseCounts:
    """The tests of one run. untrusted: files that the agent added or changed; a skip that was raised in one of them is
    the code under test that got out of its test, so an error."""
    OtherCode.refuse(document)
    failures, errors = list(document["failures"]), list(document["errors"])
    skipped = document.get("skipped_by", {})
    left = [name for name, files in skipped.items() if not frozenset(untrusted).isdisjoint(files)]
    stopped = int(document.get("not_run", 0))
    return CaseCounts(
        passed=int(document["passed"]),
        failures=len(failures),
        errors=len(errors) + len(left) + stopped,
        skipped=max(0, int(document["skipped"]) - len(left)),
        failed=[str(name) for name in (*failures, *errors, *left)][:SHOWN],
    )


NODE = "node"
_NODE_TESTS = re.compile(r"(?P<node>(?:^|(?<=[\s;&|(]))node\b(?:\s+-[^\s;&|]+)*?\s+--test)(?=\s|$)")
_RELATIVE = re.compile(rb"""["'`](\.{1,2}/[^"'`\s]{1,300})["'`]""")
_ENDINGS = ("", *(f".{suffix}" for suffix in ("js", "cjs", "mjs", "ts", "cts", "mts")), "/index.js", "/index.ts")
_HAS_REPORTER = """process.stdout.write(process.version);
process.exitCode = typeof require("node:test/reporters").junit === "function" ? 0 : 1;"""
_FILES, _FILE_BYTES = 500, 4 << 20
"""Files that one file of tests is followed to, and how much of each is read."""


def with_node_reporter(cmd: str | list[str], path: str) -> str | list[str] | None:
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


@dataclass(frozen=True, slots=True)
class AddedReport:
    """A command with a report of ours beside what it prints. runner: whose tests it runs."""

    runner: str
    command: str | list[str]
    read: Callable[[bytes], CaseCounts]
    """Raises BadReport."""


_BEGINNING = r"(?P<before>(?:^|&&|\|\||;|\(|\n)\s*(?:[A-Za-z_]\w*=[^\s;&|()'\"`$]*\s+)*)"
_BY_NODE = r"(?:npx\s+(?:-[^\s;&|()]+\s+)*|node\s+(?:-[^\s;&|()]+\s+)*)?(?:[\w.@/-]*?node_modules/[\w.@/-]*/)?"
_IN_SHELL = {
    "jest": re.compile(rf"{_BEGINNING}(?P<runner>{_BY_NODE}jest(?:\.js)?)(?=$|[\s;&|)])"),
    "vitest": re.compile(rf"{_BEGINNING}(?P<runner>{_BY_NODE}vitest(?:\.mjs)?(?:\s+run)?)(?=$|[\s;&|)])"),
}
_OPTIONS = {
    "jest": ("--json", "--outputFile={}"),
    "vitest": ("--reporter=default", "--reporter=json", "--outputFile.json={}"),
}
_OWN_REPORTS = re.compile(
    r"--(json|reporters?|outputFile|output-file|bail|list|listTests|watch|watchAll|showConfig|init|clearCache|help"
    r"|version|shard|mergeReports|merge-reports)\b|\s-[hvw]+\b|\b(watch|list|bench|typecheck|related|init)\b"
)
"""What chooses reports, ends a run before its last test, or runs none."""


def with_javascript_report(cmd: str | list[str], path: str) -> AddedReport | None:
    """A command that runs `jest` or `vitest` once, writing its results as JSON to `path`; None for any other command,
    and where it chooses its reports itself."""
    text = cmd if isinstance(cmd, str) else shlex.join(cmd)
    if _OWN_REPORTS.search(text):
        return None
    found = [(name, match) for name, pattern in _IN_SHELL.items() for match in pattern.finditer(text)]
    if len(found) != 1:
        return None
    name, match = found[0]
    options = shlex.join(option.format(path) for option in _OPTIONS[name])
    command = f"{text[: match.end('runner')]} {options}{text[match.end('runner') :]}"
    return AddedReport(
        name, command if isinstance(cmd, str) else shlex.split(command), partial(_javascript_counts, name)
    )


_PASSED, _FAILED = frozenset({"passed"}), frozenset({"failed"})
_FILE_RAN = frozenset({"passed", "focused", "pending", "skipped"})


def _javascript_counts(runner: str, content: bytes) -> CaseCounts:
    """The tests of Jest's or Vitest's JSON. Raises BadReport, also for a run that ended before its last file."""
    try:
        document = json.loads(content)
        counts, files = CaseCounts(), document["testResults"]
        if document.get("wasInterrupted") or (runner == "jest" and len(files) < int(document["numTotalTestSuites"])):
            raise BadReport(f"says that {runner} ended before its last file of tests")
        for file in files:
            cases = [(str(case["fullName"]), str(case["status"])) for case in file["assertionResults"]]
            counts += CaseCounts(
                passed=sum(status in _PASSED for _, status in cases),
                failures=sum(status in _FAILED for _, status in cases),
                skipped=sum(status not in _PASSED | _FAILED for _, status in cases),
                failed=[name[:500] for name, status in cases if status in _FAILED][:SHOWN],
            )
            if file["status"] not in _FILE_RAN and not any(status in _FAILED for _, status in cases):
                counts.lost.append(str(file["name"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadReport(f"is not as {runner} writes it ({type(error).__name__})") from None
    return counts


def read_node_report(copy: GradedCopy, path: str, _key: bytes) -> CaseCounts:
    """The tests of a run that wrote its report for us (`node_record.cjs`). Raises BadReport, also where a file ended
    before its tests reported."""
    workspace = copy.sandbox.workspace
    try:
        counts = read_report(read_inside(workspace, path))
    except PathProblem as problem:
        raise BadReport(str(problem)) from None
    errors = counts.errors
    if without_emptied_files(counts, workspace, copy.sandbox.workspace_inside).errors > errors:
        raise BadReport("has a file that ended before its tests reported")
    return counts


async def node_without_reporter(sandbox: Sandbox, environment: Mapping[str, str]) -> str | None:
    """The sandbox's node, if it says that it has no JUnit reporter: those before 20.8.0 and early ones of 18. Their
    exit code can't be trusted: it is 0 when the code under test ends the process with 0."""
    asked = await sandbox.run(Command(("node", "-e", _HAS_REPORTER), env=environment, timeout=30))
    said = re.match(r"v(\d+\.[\d.]+)", asked.stdout.text())
    return said[1] if said and asked.shell_code == 1 else None


def without_emptied_files(counts: CaseCounts, workspace: Path, workspace_inside: str) -> CaseCounts:
    """Node passes a file that ends with exit code 0, also one whose tests never came to a result because the code under
    test ended the process. A file that uses node's test runner, itself or by a file that it loads, and reports no test
    of its own is an error. So many of its tests are lost as of a file that could not be loaded."""
    root = PurePosixPath(workspace_inside)
    for name in list(counts.passed_names):
        path = _file_in(root, name)
        if path and _uses_the_runner(workspace, path):
            counts.passed -= 1
            counts.errors += 1
            counts.failed.append(f"{path} (ended before its tests reported)")
            counts.lost.append(path)
    broken = filter(None, (_file_in(root, name) for name in counts.failed))
    counts.lost += [path for path in broken if _uses_the_runner(workspace, path)]
    return counts


def _file_in(root: PurePosixPath, name: str) -> str:
    """The file that a case of node's stands for, relative to the workspace; empty where it is a test."""
    place = PurePosixPath(name.removeprefix("test::"))
    return str(place.relative_to(root)) if place.is_absolute() and place.is_relative_to(root) else ""


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
