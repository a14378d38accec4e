"""`tests` (alias `pytest`): the share of tests that pass, hidden ones put in after the agent."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Self

import anyio
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.files.globs import find_paths
from keystone_action.files.paths import PathMissing, PathProblem, name_paths, read_inside
from keystone_action.files.removal import remove_tree
from keystone_action.invariants.check import Check, CheckContext, Outcome, Phase, broken, failed, with_notices
from keystone_action.invariants.command_output import describe_ending, full_log, tails
from keystone_action.invariants.test_runs import pytest_run
from keystone_action.invariants.test_runs.case_counts import (
    BadReport,
    CaseCounts,
    by_confirmed_exit_code,
    by_counts,
    by_exit_code,
    stop_outcome,
)
from keystone_action.invariants.test_runs.graded_copy import (
    CannotPrepare,
    GradedCopy,
    Inject,
    Protect,
    destinations,
    prepare_copy,
)
from keystone_action.invariants.test_runs.junit import read_report, total
from keystone_action.invariants.test_runs.recorded_runs import (
    NODE,
    UNITTEST,
    AddedReport,
    RunKeys,
    node_without_reporter,
    read_node_report,
    read_unittest_report,
    starts_unittest,
    with_javascript_report,
    with_node_reporter,
    without_emptied_files,
)
from keystone_action.invariants.test_runs.stand_ins import ModuleRule
from keystone_action.sandbox.programs import sentence_on_missing, started_program
from keystone_action.spec.models.fields import Duration, ShellCommand, TextOrList, WorkspacePath
from keystone_action.system.command import Command, Completed

_NOT_FOUND = 127
_NO_TESTS = re.compile(rb"^Ran 0 tests in [\d.]+s$", re.MULTILINE)
_TESTS = re.compile(rb"^Ran [1-9]\d* tests? in [\d.]+s$", re.MULTILINE)
_BY_EXIT_CODE = "It was graded by its exit code alone: no junit_xml is set."
_OWN_REPORT = "report"
_REPORTS, _REPORT_BYTES = 10_000, 256 << 20
"""Reports of one run that are read, and how much of them in all."""
_NonEmpty = Annotated[str, Field(min_length=1)]
_Glob = Annotated[_NonEmpty, WorkspacePath(glob=True)]


class Tests(Check):
    """Runs tests on a fresh copy of what the agent left; the score is the share that passes.

    The score is passed / (passed + failed + errors). Skipped tests are not counted. A run without a test that counts
    fails.

    Hidden tests (`inject`) are added after the agent has ended. Files that decide what the tests do, such as
    `conftest.py`, are put back as the author wrote them (`protect`). The same holds for the settings of pytest in
    `pyproject.toml` and `setup.cfg`: the author's settings apply, whatever the agent wrote there, and also when `cmd`
    starts pytest.

    What is injected or protected is what runs. A file of the agent's that the language would take instead is removed
    before the tests start, and the message names it: a package `helpers/` or a built `helpers.*.so` beside
    `helpers.py`, an `__init__.py` with code or a `tests.py` for the folder `tests/` of a hidden test, a bare file
    `helpers` beside `helpers.js`. With pytest and unittest, the tests that were collected are compared with the
    injected files; if they differ, the score is 0.

    The agent can't replace a module of Python's standard library or of an installed package. If the agent adds a file
    with the name of such a module, for example `queue.py`, Python ignores that file, and the message names it. A file
    that was in the author's workspace from the start is imported as usual.

    With `type: pytest`, the sandbox's `python3` runs pytest with the author's configuration. Where it has no pytest,
    Keystone's own runs there, behind all that the sandbox has (Python 3.10 or newer; a notice says so); for another
    version write `setup.packages: ["pytest==8.4.2"]`. For any other runner, give its command as `cmd` and the reports
    that it writes as `junit_xml`. `node --test`, `jest` and `vitest` need no `junit_xml`, because Keystone adds a
    report of its own to a command that runs them (by name, by `npx`, or from `node_modules`). A node without that
    reporter (before 20.8, or an early 18) makes the check an error, because its exit code can't be confirmed. Any other
    `cmd` without `junit_xml` is graded by its exit code alone, and the message says so. If `cmd` runs Python's
    `unittest`, or a script that runs `unittest` or `node --test` (such as `npm test`), exit code 0 is not enough: each
    run of tests must have come to its end, and no test may have failed.

    If tests failed, the score is the share that passed, whatever the exit code was. If all tests passed but the exit
    code is not 0, the score is 0. If a report was asked for and is missing or malformed, the score is 0. Characters
    that XML does not allow, such as colour codes, are replaced before a report is read.

    Printed text earns no credit. Neither does a report that was there before the run, nor a run that ended before its
    report was written (`os._exit`). Two things are not detected: code under test that changes its test framework from
    within, and code that writes the runner's report itself. Other files that a `cmd` reads (`package.json`, a Makefile,
    tests that are not injected) are the agent's to change, unless `protect` names them.
    """

    type_name: ClassVar[str] = "tests"
    aliases: ClassVar[tuple[str, ...]] = ("pytest",)
    origin: ClassVar[str] = "Touchstone"
    phase: ClassVar[Phase] = "fresh_copy"
    default_timeout: ClassVar[float] = 300.0
    late_fails: ClassVar[bool] = True

    cmd: Annotated[TextOrList[_NonEmpty, Annotated[list[_NonEmpty], Field(min_length=1)]], ShellCommand()] | None = None
    """The command that runs the tests. As `pytest` it may be left out (the injected test files are run) or be `python3
    -m pytest …`.

    Example: `python3 -m pytest --junitxml=report.xml`
    """
    inject: list[Inject] = Field(default_factory=list)
    """Hidden files, which the agent never sees. A path alone lands at the workspace's root under its own name.

    Example: `[hidden/test_totals.py]`
    """
    junit_xml: TextOrList[_Glob, Annotated[list[_Glob], Field(min_length=1)]] | None = None
    """Where `cmd` writes its JUnit reports. What is there before the run is removed first.

    Example: `"report*.xml"`
    """
    pass_threshold: float = Field(default=1.0, ge=0, le=1)
    """The lowest score that passes the check; the score stays the share.

    Example: `0.9`
    """
    protect: list[Protect] = Field(default_factory=list)
    """Files that are put back as the author has them, the agent's own additions removed; besides these always every
    injected path, `conftest.py`, `pytest.ini`, `tox.ini`, `sitecustomize.py`, `usercustomize.py`, `*.pth` and the
    like, at any depth. `!queue.py` lets a module of the agent's be that has the name of one of the standard library,
    of an installed package or of an injected or protected file, for a task that asks for one.

    Example: `["tests/**"]`
    """
    timeout_s: Duration | None = None
    """The time limit as Touchstone writes it; it wins over the invariant's `timeout`.

    Example: `600`
    """

    @model_validator(mode="after")
    def _can_be_graded(self) -> Self:
        destinations(self.inject)
        if self.cmd is None and (self.type != "pytest" or self.junit_xml is not None):
            what = "junit_xml is what cmd writes: expected cmd too" if self.junit_xml else "expected cmd"
            raise PydanticCustomError("missing_cmd", "{message}", {"message": what})
        if self.type == "pytest" and self.junit_xml is None and self.cmd is not None and self._pytest() is None:
            message = "expected cmd to be `python3 -m pytest …`, or junit_xml for the report that this one writes"
            raise PydanticCustomError("pytest_cmd", "{message}", {"message": message})
        return self

    @property
    def own_timeout(self) -> float | None:
        """`timeout_s`, when it is given."""
        return self.timeout_s

    def _pytest(self) -> pytest_run.Invocation | None:
        """The run of pytest that this is, None when another command is run."""
        if self.type != "pytest" or self.junit_xml is not None:
            return None
        if self.cmd is None:
            return pytest_run.of_injected(list(destinations(self.inject)))
        return pytest_run.parse(self.cmd)

    def _pytest_of_cmd(self) -> pytest_run.Invocation | None:
        """The run of pytest that a `cmd` of `tests` is, whose exit code is all that it is to be graded by: an exit code
        that anything in the workspace could make 0, so it has to be confirmed."""
        if self.type != "tests" or self.junit_xml is not None or self.cmd is None:
            return None
        return pytest_run.parse(self.cmd)

    async def evaluate(self, context: CheckContext) -> Outcome:
        invocation = self._pytest() or self._pytest_of_cmd()
        own = await pytest_run.give_pytest(context) if invocation is not None else ""
        try:
            rule = ModuleRule.of(self.protect, self.cmd)
            copy = await prepare_copy(context, destinations(self.inject), self.protect, rule)
        except CannotPrepare as problem:
            return failed(f"{problem}.")
        except OSError as error:
            return broken(f"a file of inject can't be read: {error}")
        if invocation is not None:
            outcome = await self._by_pytest(context, copy, invocation, own)
        else:
            outcome = await self._by_command(context, copy)
        return await anyio.to_thread.run_sync(copy.with_passed_over, outcome)

    async def _by_pytest(
        self, context: CheckContext, copy: GradedCopy, invocation: pytest_run.Invocation, own: str
    ) -> Outcome:
        if copy.sandbox.which(invocation.python) is None:
            return broken(sentence_on_missing(invocation.python))
        limit = self.timeout_s or context.timeout
        completed, results = await pytest_run.run_pytest(
            copy, invocation, (), own=own, environment=context.check_environment, timeout=limit
        )
        over = stop_outcome(completed, limit, **copy.details)
        if over is not None:
            return over
        if isinstance(results, BadReport):
            message = f"pytest {describe_ending(completed)}, and its report {results}.\n{tails(completed)}"
            return failed(message, log=full_log(completed), exit_code=completed.shell_code, **copy.details)
        if results.missing:
            return broken(pytest_run.no_pytest(results.missing), log=full_log(completed))
        if self.type == "tests":
            outcome = by_confirmed_exit_code(results.counts(), completed, _BY_EXIT_CODE, **copy.details)
        else:
            outcome = by_counts(results.counts(), completed, self.pass_threshold, **copy.details)
        return with_notices(outcome, results.notices)

    async def _by_command(self, context: CheckContext, copy: GradedCopy) -> Outcome:
        assert self.cmd is not None
        limit = self.timeout_s or context.timeout
        problem = await anyio.to_thread.run_sync(self._remove_old_reports, copy)
        if problem:
            return failed(problem, **copy.details)
        added = self._added_report(copy)
        if added is not None and added.runner == NODE:
            version = await node_without_reporter(copy.sandbox, context.check_environment)
            if version is not None:
                return broken(
                    f"node --test of Node {version} can't be confirmed, because it has no JUnit reporter; set base to "
                    "an image with Node 20.8 or newer, or junit_xml"
                )
        command = copy.guarded_command(self.cmd if added is None else added.command)
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        places, given = list(destinations(self.inject)), context.check_environment
        environment = await anyio.to_thread.run_sync(pytest_run.pin_pytest, copy, places, given)
        keys = await anyio.to_thread.run_sync(RunKeys.lay_out, copy, UNITTEST)
        of_node = await anyio.to_thread.run_sync(RunKeys.lay_out, copy, NODE)
        recorded = of_node.path if added is None else None
        environment, _ = await anyio.to_thread.run_sync(copy.guarded_environment, environment, keys.path, recorded)
        completed = await copy.sandbox.run(Command(argv, env=environment, timeout=limit))
        over = stop_outcome(completed, limit, **copy.details)
        if over is not None:
            return over
        program = started_program(self.cmd)
        missing = completed.not_found or completed.shell_code == _NOT_FOUND
        if missing and program is not None and program in context.missing_programs:
            return broken(sentence_on_missing(program, context.missing_programs[program]), log=full_log(completed))
        runs = await anyio.to_thread.run_sync(keys.runs, read_unittest_report)
        node_runs = await anyio.to_thread.run_sync(of_node.runs, read_node_report)
        problem = runs.problem(expected=starts_unittest(self.cmd)) or node_runs.problem()
        if problem:
            message = f"The command {describe_ending(completed)}; {problem}.\n{tails(completed)}"
            return failed(message, log=full_log(completed), exit_code=completed.shell_code, **copy.details)
        if self.junit_xml is None and added is None:
            if runs.seen or node_runs.seen:
                counts = runs.counts + node_runs.counts
                return by_confirmed_exit_code(counts, completed, _BY_EXIT_CODE, **copy.details)
            if completed.shell_code == 0 and _ran_nothing(completed):
                message = f"The command ended with exit code 0, but no test was run.\n{tails(completed)}"
                return failed(message, log=full_log(completed), exit_code=0, **copy.details)
            return by_exit_code(completed, _BY_EXIT_CODE, **copy.details)
        try:
            counts = await anyio.to_thread.run_sync(self._read_reports, copy, added)
        except (BadReport, PathProblem) as bad:
            message = f"The command {describe_ending(completed)}; {bad}.\n{tails(completed)}"
            return failed(message, log=full_log(completed), exit_code=completed.shell_code, **copy.details)
        if starts_unittest(self.cmd) and runs.counts.fraction < counts.fraction:
            counts = runs.counts  # a report can't have passed what the run has seen fail
        return by_counts(counts, completed, self.pass_threshold, **copy.details)

    def _globs(self) -> list[str]:
        return [self.junit_xml] if isinstance(self.junit_xml, str) else list(self.junit_xml or [])

    def _remove_old_reports(self, copy: GradedCopy) -> str:
        """Reports that are there already count for nothing; the sentence for one that can't be removed."""
        for glob in self._globs():
            try:
                old = find_paths(copy.sandbox.workspace, glob)
            except PathProblem as problem:
                return f"The reports that the agent left can't be removed: {problem}."
            for path in old:
                place = copy.sandbox.workspace / path
                remove_tree(place)
                if place.is_symlink() or place.exists():
                    return f"The report {path} that the agent left can't be removed."
        return ""

    def _added_report(self, copy: GradedCopy) -> AddedReport | None:
        """The command with a report of ours: for the test runners of JavaScript."""
        if self.cmd is None or self.junit_xml is not None:
            return None
        path = f"{copy.inside}/{_OWN_REPORT}"
        with_node = with_node_reporter(self.cmd, path)
        if with_node is not None:
            return AddedReport(NODE, with_node, read_report)
        return with_javascript_report(self.cmd, path)

    def _read_reports(self, copy: GradedCopy, added: AddedReport | None) -> CaseCounts:
        workspace = copy.sandbox.workspace
        if added is not None:
            try:
                content = read_inside(workspace, f"{copy.private}/{_OWN_REPORT}", limit=_REPORT_BYTES)
                counts = added.read(content)
            except PathMissing:
                raise BadReport(f"{added.runner} wrote no report") from None
            except BadReport as bad:
                raise BadReport(f"{added.runner}'s report {bad}") from None
            if added.runner == NODE:
                return without_emptied_files(counts, workspace, copy.sandbox.workspace_inside)
            return counts
        paths = sorted({path for glob in self._globs() for path in find_paths(workspace, glob)})
        if not paths:
            raise BadReport(f"no report matches {', '.join(self._globs())}")
        if len(paths) > _REPORTS:
            raise BadReport(f"{len(paths):,} files match junit_xml, at most {_REPORTS:,} are read")
        counts, size = CaseCounts(), 0
        for path in paths:
            content = read_inside(workspace, path)
            size += len(content)
            if size > _REPORT_BYTES:
                raise BadReport(f"the reports have more than {_REPORT_BYTES >> 20} MiB")
            one = _read(f"the report {name_paths([path])}", content)
            one.passed_names.clear()
            counts += one
        return counts


def _ran_nothing(completed: Completed) -> bool:
    """Whether unittest says so: before Python 3.12 it ends with 0 all the same. (What is printed takes credit away, and
    never gives any.)"""
    said = completed.stderr.head + completed.stderr.tail
    return _NO_TESTS.search(said) is not None and _TESTS.search(said) is None


def _read(name: str, content: bytes) -> CaseCounts:
    try:
        return total([content])
    except BadReport as bad:
        raise BadReport(f"{name} {bad}") from None
