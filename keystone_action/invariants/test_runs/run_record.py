"""Records how runs of tests ended, in a report that only the process that ran them can have signed; copied into the
sandbox as `keystone_run_record`.

`import_guard.py` loads it when `unittest.main` is imported. A run of unittest takes a key out of a file before anything
of the workspace is imported, and signs its report with it. A run that the code under test has ended (`os._exit`,
`sys.exit`, another program in its place) is therefore known by a key that was taken without a report; its exit code
counts for nothing. A run inside another run, or inside pytest, is part of the tests: only the outermost one is
recorded. `pytest_driver.py` signs its report here too.

It runs under the sandbox's python3, so it is written for 3.8.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import hmac
import json
import os
import sys
from typing import Any

from keystone_injected_code import INJECTED  # type: ignore[import-not-found]

KEY_BYTES = 32
MARK = "KEYSTONE_INSIDE_TESTS"


def write_signed(path: str, key: bytes, document: dict[str, Any]) -> None:
    """Write a report as JSON below a line with its HMAC. Nothing but the process that writes it has the key."""
    content = json.dumps(document).encode()
    with open(path, "wb") as file:
        file.write(hmac.new(key, content, hashlib.sha256).hexdigest().encode() + b"\n" + content)


def files_through(error: Any, workspace: str) -> list[str]:
    """The workspace's files that an exception was raised through, relative to it."""
    prefix = os.path.join(os.path.realpath(workspace), "")
    trace, files = error.__traceback__, []
    while trace is not None:
        name = os.path.realpath(trace.tb_frame.f_code.co_filename)
        if name.startswith(prefix) and name[len(prefix) :] not in files:
            files.append(name[len(prefix) :])
        trace = trace.tb_next
    return files


def watch(module: Any, workspace: str, keys: str) -> None:
    """Have each run of a `unittest.main` module recorded. keys: the file of keys; reports go beside it."""
    original, run_tests = module.TestProgram.__init__, module.TestProgram.runTests

    @functools.wraps(run_tests)
    def compare_and_run(program: Any) -> None:
        INJECTED.compare_suite(program.test)
        run_tests(program)

    @functools.wraps(original)
    def run(program: Any, *args: Any, **kwargs: Any) -> None:
        if MARK in os.environ:
            return original(program, *args, **kwargs)  # type: ignore[no-any-return]
        number, key = take_key(keys)
        os.environ[MARK] = "1"
        process, record = os.getpid(), Record(workspace)
        try:
            with record.listening():
                return original(program, *args, **kwargs)  # type: ignore[no-any-return]
        finally:
            os.environ.pop(MARK, None)
            result = getattr(program, "result", None)  # there is none before the last test has ended
            if result is not None and os.getpid() == process:
                write_signed(f"{keys}-{number}", key, record.document(program, result))

    module.TestProgram.__init__, module.TestProgram.runTests = run, compare_and_run


def take_key(keys: str) -> tuple[int, bytes]:
    """The first key that is left, which is wiped out; its number comes first."""
    try:
        with open(keys, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            number = 0
            while True:
                key = file.read(KEY_BYTES)
                if len(key) < KEY_BYTES:
                    break
                if any(key):
                    file.seek(number * KEY_BYTES)
                    file.write(bytes(KEY_BYTES))
                    return number, key
                number += 1
    except OSError as error:
        sys.exit(f"Keystone can't confirm this run of unittest: {error}")
    sys.exit("Keystone can't confirm this run of unittest: too many were started")


class Record:
    """Which tests passed, and through which files of the workspace one was skipped."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._passed = 0
        self._skipped_by: dict[str, list[str]] = {}

    def document(self, program: Any, result: Any) -> dict[str, Any]:
        from unittest import TestResult

        other_code = INJECTED.differing()
        if not isinstance(result, TestResult):  # of a runner that only starts as unittest does
            passed = bool(result.wasSuccessful())
            counts = {"passed": int(passed), "failures": [] if passed else ["a test"], "errors": [], "skipped": 0}
            return {**counts, "other_code": other_code}
        failures = {_name(test) for test, _ in result.failures} | {_name(one) for one in result.unexpectedSuccesses}
        errors = {_name(test) for test, _ in result.errors} - failures
        return {
            "passed": self._passed,
            "failures": sorted(failures),
            "errors": sorted(errors),
            "skipped": len(result.skipped) + len(result.expectedFailures),
            "skipped_by": self._skipped_by,
            "other_code": other_code,
            "not_run": max(0, program.test.countTestCases() - result.testsRun) if result.shouldStop else 0,
        }

    @contextlib.contextmanager
    def listening(self) -> Any:
        """Hear of each test's success, and of each skip with where it was raised."""
        from unittest import SkipTest, TestResult, case, loader

        kind: Any = TestResult
        outcome: Any = case._Outcome  # type: ignore[attr-defined]
        executor, success, skip = outcome.testPartExecutor, kind.addSuccess, kind.addSkip
        skipped_module = loader._make_skipped_test  # type: ignore[attr-defined]

        @contextlib.contextmanager
        def part(this: Any, test: Any, *args: Any, **kwargs: Any) -> Any:
            with executor(this, test, *args, **kwargs):
                try:
                    yield
                except SkipTest as error:
                    self._note(_name(test), error)
                    raise

        def add_success(this: Any, test: Any) -> None:
            self._passed += 1
            success(this, test)

        def add_skip(this: Any, test: Any, reason: str) -> None:
            self._note(_name(test), sys.exc_info()[1])  # of a class or a module
            skip(this, test, reason)

        def make_skipped(name: str, error: Any, suite: Any) -> Any:
            self._note(name, error)
            return skipped_module(name, error, suite)

        outcome.testPartExecutor = part
        kind.addSuccess, kind.addSkip = add_success, add_skip
        loader._make_skipped_test = make_skipped  # type: ignore[attr-defined]
        try:
            yield
        finally:
            outcome.testPartExecutor = executor
            kind.addSuccess, kind.addSkip = success, skip
            loader._make_skipped_test = skipped_module  # type: ignore[attr-defined]

    def _note(self, name: str, error: Any) -> None:
        from unittest import SkipTest

        if isinstance(error, SkipTest):
            self._skipped_by.setdefault(name, []).extend(files_through(error, self._workspace))


def _name(test: Any) -> str:
    """A test's id; that of the whole test for a part of it."""
    return str(getattr(test, "test_case", test).id())
