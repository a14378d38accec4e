"""`swebench`: the fix of a real issue, graded by the tests that it must mend and the tests that it must not break."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import anyio
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.files.paths import PathProblem, exists_inside
from keystone_action.invariants.check import Check, CheckContext, Outcome, Phase, broken, failed, passed, with_notices
from keystone_action.invariants.command_output import describe_ending, full_log, tails
from keystone_action.invariants.test_runs import pytest_run
from keystone_action.invariants.test_runs.case_counts import TOLERANCE, BadReport, stop_outcome
from keystone_action.invariants.test_runs.graded_copy import (
    CannotPrepare,
    GradedCopy,
    Inject,
    Protect,
    destinations,
    prepare_copy,
)
from keystone_action.invariants.test_runs.pytest_run import PytestResults
from keystone_action.invariants.test_runs.stand_ins import ModuleRule
from keystone_action.sandbox.programs import sentence_on_missing
from keystone_action.spec.globs import escape
from keystone_action.spec.models.fields import Duration, PlainText, ShellCommand, text_like
from keystone_action.system.command import Completed

_PINNED = {"TZ": "UTC", "PYTHONHASHSEED": "0"}
"""What ids of parametrised tests are known to depend on."""
_GREEN = frozenset({"passed", "xfailed"})
_TestId = Annotated[
    str,
    text_like(r"^[^-/:][^:]*::", "the id of a test as pytest prints it, such as app/tests.py::TestX::test_one"),
    PlainText(literal=True),
]


def _list_of_json(value: Any) -> Any:
    """The list that a text holds as JSON, as SWE-bench's data set has it; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the list is a text, and can't be read as JSON ({error})") from None


_TestIds = Annotated[list[_TestId], BeforeValidator(_list_of_json, json_schema_input_type=list[_TestId] | str)]


class Swebench(Check):
    """Grades the fix of a real issue: by the tests that it must mend, and the tests that it must not break.

    The score is the share of `fail_to_pass` that passes now. When a test of `pass_to_pass` does not pass, the cell is
    disqualified: its composite is 0 and it fails, as after a failed gate.

    Ids of tests are matched exactly, spaces at the end included. A test counts as passed when it passes, or fails as
    expected. A skipped test has not passed. Neither has an id that does not exist; the message then names a test whose
    id begins like it, if there is one. The files that the ids name are run whole, on a fresh copy of what the agent
    left, with the time zone UTC and `PYTHONHASHSEED=0`. Files are protected as in `tests`.
    """

    type_name: ClassVar[str] = "swebench"
    origin: ClassVar[str] = "Touchstone"
    phase: ClassVar[Phase] = "fresh_copy"
    default_timeout: ClassVar[float] = 600.0
    late_fails: ClassVar[bool] = True

    fail_to_pass: _TestIds = Field(min_length=1, json_schema_extra={"minItems": 1})
    """Tests that fail before the fix and must pass after it: ids as pytest prints them with the workspace as its root,
    such as `dir/test_x.py::test[1]`. A text that holds the list as JSON, as SWE-bench's data set has it, is read too.

    Example: `["tests/test_totals.py::test_empty"]`
    """
    pass_to_pass: _TestIds = Field(default_factory=list)
    """Tests that pass before and must go on passing; one that does not disqualifies.

    Example: `["tests/test_totals.py::test_one"]`
    """
    inject: list[Inject] = Field(default_factory=list)
    """Hidden files, which the agent never sees. A path alone lands at the workspace's root under its own name.

    Example: `[{src: hidden/test_totals.py, dest: tests/}]`
    """
    cmd_prefix: Annotated[str, Field(min_length=1), ShellCommand()] = "python3 -m pytest -q -p no:cacheprovider"
    """The command line of pytest, before the files that it is given.

    Example: `python3 -m pytest -q`
    """
    pass_threshold: float = Field(default=1.0, ge=0, le=1)
    """The lowest share of `fail_to_pass` that passes the check, as long as nothing of `pass_to_pass` is broken.

    Example: `0.5`
    """
    protect: list[Protect] = Field(default_factory=list)
    """Further files that are put back as the author has them; see `tests`.

    Example: `[conftest.py]`
    """
    timeout_s: Duration | None = None
    """The time limit as Touchstone writes it; it wins over the invariant's `timeout`.

    Example: `600`
    """

    @model_validator(mode="after")
    def _can_be_graded(self) -> Self:
        destinations(self.inject)
        if pytest_run.parse(self.cmd_prefix) is None:
            message = "expected cmd_prefix to be `python3 -m pytest …`, without what only a shell understands"
            raise PydanticCustomError("cmd_prefix", "{message}", {"message": message})
        return self

    @property
    def own_timeout(self) -> float | None:
        """`timeout_s`, when it is given."""
        return self.timeout_s

    async def evaluate(self, context: CheckContext) -> Outcome:
        own = await pytest_run.give_pytest(context)
        try:
            protect = [*self.protect, *self._authors(context)]
            rule = ModuleRule.of(self.protect, self.cmd_prefix)
            copy = await prepare_copy(context, destinations(self.inject), protect, rule)
        except CannotPrepare as problem:
            return failed(f"{problem}.", disqualifies=bool(self.pass_to_pass))
        except OSError as error:
            return broken(f"a file of inject can't be read: {error}")
        invocation = pytest_run.parse(self.cmd_prefix)
        assert invocation is not None
        if copy.sandbox.which(invocation.python) is None:
            return broken(sentence_on_missing(invocation.python))
        limit = self.timeout_s or context.timeout
        completed, results = await pytest_run.run_pytest(
            copy,
            invocation,
            # Ids are relative to the workspace; one file that can't be collected says nothing of the others.
            [f"--rootdir={copy.sandbox.workspace_inside}", "--continue-on-collection-errors", *self._files(copy)],
            own=own,
            environment={**context.check_environment, **_PINNED},
            timeout=limit,
        )
        over = stop_outcome(completed, limit, **copy.details)
        if over is not None:
            return failed(over.message, log=over.log, disqualifies=bool(self.pass_to_pass), **over.details)
        if isinstance(results, PytestResults) and results.missing:
            return broken(pytest_run.no_pytest(results.missing), log=full_log(completed))
        outcome = self._grade(completed, results, copy)
        outcome = await anyio.to_thread.run_sync(copy.with_passed_over, outcome)
        return with_notices(outcome, results.notices if isinstance(results, PytestResults) else ())

    def _named_files(self) -> list[str]:
        """The files that the ids name."""
        return list(dict.fromkeys(one.partition("::")[0] for one in (*self.fail_to_pass, *self.pass_to_pass)))

    def _authors(self, context: CheckContext) -> list[str]:
        """Those of them that the author gave, as globs: what such a test says is not the agent's to change."""
        return [escape(path) for path in self._named_files() if path in context.evidence.files.before]

    def _files(self, copy: GradedCopy) -> list[str]:
        """The files of all ids that are there: pytest runs nothing at all when it is given one that isn't."""
        return [path for path in self._named_files() if _is_there(copy, path)] or [copy.inside]  # where no test is

    def _grade(self, completed: Completed, results: PytestResults | BadReport, copy: GradedCopy) -> Outcome:
        log, note = full_log(completed), ""
        outcomes: Mapping[str, str] = {}
        if isinstance(results, BadReport):
            note = f" pytest {describe_ending(completed)}, and its report {results}."
        else:
            counts = results.counts()
            if counts.passed == counts.counted and completed.shell_code not in (0, 5):
                note = f" All tests passed, but pytest {describe_ending(completed)}."
            else:
                outcomes = results.outcomes
        mended, wanted = _green(self.fail_to_pass, outcomes), list(dict.fromkeys(self.fail_to_pass))
        kept, held = _green(self.pass_to_pass, outcomes), list(dict.fromkeys(self.pass_to_pass))
        lost = [one for one in held if one not in kept]
        left = [one for one in wanted if one not in mended]
        score = len(mended) / len(wanted)
        message = f"{len(mended)} of {len(wanted)} tests of fail_to_pass passed"
        message += f", {len(kept)} of {len(held)} of pass_to_pass.{note}" if held else f".{note}"
        message += _name_outcomes("Not mended", left, outcomes) + _name_outcomes("Broken", lost, outcomes)
        details = {
            "fail_to_pass": {one: outcomes.get(one, "not found") for one in wanted},
            "pass_to_pass": {one: outcomes.get(one, "not found") for one in held},
            "exit_code": completed.shell_code,
            **copy.details,
        }
        if not lost and score >= self.pass_threshold - TOLERANCE:
            return passed(message, score=score, log=log, **details)
        return failed(f"{message}\n{tails(completed)}", score=score, log=log, disqualifies=bool(lost), **details)


def _is_there(copy: GradedCopy, path: str) -> bool:
    try:
        return ".." not in path.split("/") and exists_inside(copy.sandbox.workspace, path)
    except PathProblem:
        return False


def _green(ids: Sequence[str], outcomes: Mapping[str, str]) -> list[str]:
    return [one for one in dict.fromkeys(ids) if outcomes.get(one) in _GREEN]


def _name_outcomes(what: str, ids: Sequence[str], outcomes: Mapping[str, str]) -> str:
    if not ids:
        return ""
    shown = ", ".join(f"{_cut(one)} ({outcomes.get(one) or _not_found(one, outcomes)})" for one in ids[:5])
    return f" {what}: {shown}" + (f" and {len(ids) - 5} more." if len(ids) > 5 else ".")


def _not_found(wanted: str, outcomes: Mapping[str, str]) -> str:
    """`not found`, and the test that was most likely meant. In published lists
    hundreds of ids are cut at a blank."""
    start = "".join(wanted.split())
    alike = [one for one in outcomes if "".join(one.split()).startswith(start)]
    cut = [one for one in alike if one.startswith(f"{wanted} ")]
    if not alike:
        return "not found"
    near = min(cut or alike, key=len)
    why = "the id seems to be cut at a blank, " if cut else ""
    more = f"; {len(cut or alike) - 1} more begin like it" if len(cut or alike) > 1 else ""
    return f"not found: {why}did you mean {_cut(near)}, whose outcome is {outcomes[near]}{more}?"


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
