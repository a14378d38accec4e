"""Runs pytest inside the sandbox and writes down what became of each test; a program of its own, copied there.

An order comes on stdin: `{"args": […], "paths": […], "trusted": […], "own": path, "report": path, "key": hex}`. `own`
is an archive with a pytest of ours, for a python3 that has none; it comes last on `sys.path`. The report is signed with
the key (`run_record.py`). Nothing that the agent left is on `sys.path` before pytest and its plug-ins are there,
so neither a `pytest` package nor the metadata of a plug-in in the workspace is ever found, but in `trusted`, folders
that are as the author left them; then come `paths`, as `python3 -m pytest` and PYTHONPATH would have had them.

It runs under the sandbox's python3, so it is written for 3.8.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from pathlib import Path
from typing import Any

from keystone_injected_code import INJECTED  # type: ignore[import-not-found]
from keystone_run_record import files_through, write_signed  # type: ignore[import-not-found]

NO_PYTEST = 3
OLDEST = (3, 10)
"""Of Python, that the pytest of the archive runs on."""


def main() -> int:
    order = json.loads(sys.stdin.buffer.read())
    # Standard input can be read again from its start: the key must not be found there.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    here, workspace = Path(__file__).resolve().parent, Path.cwd()
    trusted = [Path(path).resolve() for path in order["trusted"]]
    sys.path[:] = [path for path in sys.path if path and is_ours(Path(path).resolve(), (here, workspace), trusted)]
    key = bytes.fromhex(order["key"])
    try:
        pytest, own = find_pytest(order["own"])
    except ImportError as error:
        write_signed(order["report"], key, {"missing": str(error)})
        return NO_PYTEST
    sys.argv[:] = [str(Path(pytest.__file__).parent / "__main__.py"), *order["args"]]
    listener = recorder(pytest, workspace, order["paths"])
    status = int(pytest.main(order["args"], plugins=[listener]))
    found = {"status": status, "own": own, "other_code": INJECTED.differing()}
    write_signed(order["report"], key, {**found, **listener.document()})
    return status


def find_pytest(archive: str) -> tuple[Any, str]:
    """This python3's pytest, else that of the archive with its version. Raises ImportError, also where this python3 has
    one that is broken."""
    try:
        import pytest
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        if sys.version_info < OLDEST:
            needed, found = (".".join(map(str, one)) for one in (OLDEST, sys.version_info[:2]))
            raise ImportError(f"{error}, and Keystone's own needs Python {needed}, not {found}") from None
    else:
        return pytest, ""
    sys.path.append(archive)
    import pytest

    return pytest, str(pytest.__version__)


def is_ours(path: Path, closed: tuple[Path, ...], trusted: list[Path]) -> bool:
    """Whether it neither is one of the closed directories nor lies in one, or is one that the author filled."""
    return path in trusted or not any(directory == path or directory in path.parents for directory in closed)


def recorder(pytest: Any, workspace: Path, paths: list[str]) -> Any:
    """The plug-in that listens, with hooks as this pytest wants them."""
    skips = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)

    class Recorder(Results):
        @pytest.hookimpl(tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_load_initial_conftests(self) -> None:
            sys.path[:0] = paths

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            self.notice(item.nodeid, call)
            yield

        @pytest.hookimpl(hookwrapper=True)  # type: ignore[untyped-decorator]
        def pytest_make_collect_report(self, collector: Any) -> Any:
            result = yield
            self.notice(collector.nodeid, getattr(result.get_result(), "call", None))

    return Recorder(workspace, skips)


class Results:
    """What was collected, how each test ended in each of its phases, and through which files a skip came."""

    def __init__(self, workspace: Path, skips: tuple[Any, ...]) -> None:
        self._workspace = str(workspace)
        self._skips = skips
        self._collected: list[str] = []
        self._outcomes: dict[str, list[str]] = {}
        self._skipped_by: dict[str, list[str]] = {}
        self._collection_errors: list[str] = []

    def document(self) -> dict[str, Any]:
        return {
            "collected": self._collected,
            "outcomes": self._outcomes,
            "skipped_by": self._skipped_by,
            "collection_errors": self._collection_errors,
        }

    def notice(self, nodeid: str, call: Any) -> None:
        """Remember the workspace's files that a skip or an expected failure was raised through."""
        if call is None or call.excinfo is None or not isinstance(call.excinfo.value, self._skips):
            return
        self._skipped_by.setdefault(nodeid, []).extend(files_through(call.excinfo.value, self._workspace))

    def pytest_collection_finish(self, session: Any) -> None:
        self._collected = [item.nodeid for item in session.items]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._collection_errors.append(report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        found = self._outcomes.setdefault(report.nodeid, [])
        if report.outcome == "failed":
            found.append("failed" if report.when == "call" else "error")
        elif report.outcome == "skipped" and report.when != "teardown":
            found.append("xfailed" if hasattr(report, "wasxfail") else "skipped")
        elif report.outcome == "passed" and report.when == "call":
            found.append("passed")


if __name__ == "__main__":
    sys.exit(main())
