"""`mode: comment`: posts the results of a run that may not write itself, from a `workflow_run` workflow.

That run may be a fork's, so nothing of it is believed. Of its artifact only `results.json` is read: no link is
followed, no FIFO is waited for, nothing larger than the limit is read, and every field must be one of ours. Its texts
stay data. Marker, key and size of the comment are made here, and which pull request it is about comes from GitHub's
event and API. No status is set: anybody who can change the workflow of a fork could choose what it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from keystone_action.errors import OutputError, UsageError
from keystone_action.files.descent import read_plain
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import GitHubError
from keystone_action.github.comment import StickyComment
from keystone_action.github.links import run_url
from keystone_action.github.log_commands import LogCommands
from keystone_action.github.pulls import TriggeringRun, pulls_of_run, read_triggering_run
from keystone_action.github.reporting import LIMITS, CommentOutcome, leave_comment
from keystone_action.options.model import Options
from keystone_action.report.comment.history import Job, Marker, Previous
from keystone_action.report.comment.render import CommentFacts, comment_of_result
from keystone_action.report.ladder import COMMENT_LIMIT
from keystone_action.scoring.results import RunResult, SpecResult

NAME = "results.json"
COMMENT = "comment.md"
MAX_RESULTS = 32 * 1024 * 1024
"""Bytes."""
MAX_FOLDERS = 100
MAX_NAME = 4_000
"""Characters of a name; those that specs can give have 128, and a cell's is made of a few."""
_MOST = 1e12
_HELP = "results takes the folder that the artifact of the other run was downloaded to"


def read_foreign_results(folder: Path) -> RunResult:
    """The results in a folder, or in the only folder in it that has some, as `actions/download-artifact` makes one for
    each artifact. Raises UsageError."""
    from keystone_action.scoring.document import run_from_document

    place = _place(folder)
    content = read_bounded(place)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise UsageError(f"{place} holds no JSON", help=_HELP) from None
    if not isinstance(document, dict):
        raise UsageError(f"{place} holds no results", help=_HELP)
    run = run_from_document(document)
    if not all(_is_sane(*amounts) for amounts in _amounts(run)):
        raise UsageError(f"{place} holds a score, an amount or a time that is out of range", help=_HELP)
    if any(len(name) > MAX_NAME for name in _names(run)):
        raise UsageError(f"{place} holds a name of more than {MAX_NAME:,} characters", help="no name of ours is")
    return run


def ended_without_results(folder: Path) -> bool:
    """Whether the other run left the comment that it could not post, and no results: it ended before there were any, as
    with a bad spec. The comment is not read."""
    try:
        places = [folder, *(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))]
    except OSError:
        return False
    return not any(_is_there(place / NAME) for place in places) and any(_is_there(one / COMMENT) for one in places)


def _names(run: RunResult) -> Iterator[str]:
    """Names that are shown whole, and looked for in other texts."""
    for spec in run.specs:
        yield spec.id
        for cell in spec.cells:
            yield from (cell.id, cell.scenario, *(check.name for check in cell.invariants))


def _amounts(run: RunResult) -> Iterator[tuple[tuple[float | None, ...], float]]:
    """Numbers that are shown, with the highest that each may be; the lowest is 0."""
    yield (run.composite,), 1
    yield (run.duration_s, *run.counts.values(), *run.usage.values(), *run.judge_usage.values()), _MOST
    for spec in run.specs:
        rate = spec.pass_rate
        rates = () if rate is None else (rate.value, rate.low, rate.high)
        yield (spec.composite, spec.pass_threshold, *rates, *_certainty(spec)), 1
        yield _sample_sizes(spec), _MOST
        yield tuple(spec.positions.values()), _MOST
        for group in spec.groups:
            yield (group.composite,), 1
            yield (group.passed, group.total, group.not_run), _MOST
        for cell in spec.cells:
            yield (cell.composite, *(check.score for check in cell.invariants)), 1
            ran = () if cell.agent is None else (cell.agent.duration_s,)
            spent = (*cell.usage.values(), *cell.judge_usage.values())
            yield (cell.replica, cell.attempts, cell.duration_s, *ran, *spent), _MOST
            yield tuple(number for check in cell.invariants for number in (check.weight, check.duration_s)), _MOST
    if (baseline := run.baseline) is not None:
        yield (baseline.composite,), 1
        yield (baseline.regressions, baseline.tests, baseline.false_alarms), _MOST
        yield (*baseline.usage.values(), *baseline.judge_usage.values()), _MOST
        for one in (*baseline.specs, *baseline.groups, *baseline.invariants):
            yield (one.score_before, one.score_after, one.p_value, one.p_worse), 1
            yield (one.passed_before, one.total_before, one.passed_after, one.total_after), _MOST
            yield (one.replicas_before, one.replicas_after), _MOST


def _certainty(spec: SpecResult) -> Iterator[float | None]:
    if (interval := spec.composite_interval) is not None:
        yield from (interval.low, interval.high)
    if (tries := spec.reliability) is not None:
        yield from (*tries.pass_at_k, *tries.pass_hat_k)
    if (drop := spec.smallest_drop) is not None:
        yield from (drop.rate, drop.drop, drop.drop_with_power)


def _sample_sizes(spec: SpecResult) -> tuple[int, ...]:
    rate, interval, tries, drop = spec.pass_rate, spec.composite_interval, spec.reliability, spec.smallest_drop
    return (
        0 if rate is None else rate.n,
        0 if interval is None else interval.n,
        *(() if tries is None else (tries.replicas, tries.groups)),
        0 if drop is None else drop.replicas,
    )


def _is_sane(amounts: tuple[float | None, ...], most: float) -> bool:
    return all(amount is None or 0 <= amount <= most for amount in amounts)


def _place(folder: Path) -> Path:
    try:
        if _is_there(folder / NAME):
            return folder / NAME
        inner = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise UsageError(f"{folder} can't be read: {error.strerror}", help=_HELP) from None
    found = [folder / name / NAME for name in inner[:MAX_FOLDERS] if _is_there(folder / name / NAME)]
    if len(found) != 1:
        how_many = "no" if not found else f"{len(found)} files named"
        raise UsageError(f"there are {how_many} {NAME} in {folder}; one is expected", help=_HELP)
    return found[0]


def _is_there(path: Path) -> bool:
    """Whether something is there that is worth opening; a link is, so that it is refused by name."""
    return os.path.lexists(path)


def read_bounded(path: Path) -> bytes:
    """A results file of at most MAX_RESULTS bytes; no link is followed. Raises UsageError."""
    try:
        return read_plain(path, MAX_RESULTS)
    except UsageError as error:
        raise UsageError(error.message, help=_HELP) from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", help=f"links are not followed; {_HELP}") from None


class ForeignComment:
    """The results of another run, and where they go. Raises UsageError for an event that can't be used."""

    run: RunResult

    def __init__(self, options: Options, environ: Mapping[str, str], commands: LogCommands) -> None:
        self._options = options
        self._environ = environ
        self._commands = commands
        self._origin = read_triggering_run(environ)
        self._marker = Marker.of_key(options.pull_request.comment_key)

    def post(self) -> tuple[CommentOutcome, bool]:
        """Whether all went well is the second: nobody else would notice that no comment is there. Raises UsageError for
        results that can't be used."""
        posted, folder = CommentOutcome(), self._options.jobs.results[0]
        if not folder.exists():
            self._commands.notice(
                f"there is nothing to post: {self._relative(folder)} is not there, so the other run has left no results"
            )
            return posted, True
        if ended_without_results(folder):
            self._commands.log(
                "that run ended before it had results, for a reason that its log tells: nothing is posted"
            )
            return posted, True
        self.run = read_foreign_results(folder)
        if self._options.pull_request.comment == "never":
            return posted, True
        try:
            self._post(posted)
        except GitHubError as error:
            self._commands.error(f"not posted: {error.sentences}")
            self._leave(posted)
            return posted, False
        return posted, True

    def _relative(self, folder: Path) -> Path:
        workspace = self._options.caller.workspace
        return folder.relative_to(workspace) if folder.is_relative_to(workspace) else folder

    def _post(self, posted: CommentOutcome) -> None:
        options = self._options
        with GitHubClient.from_environ(
            self._environ,
            token=options.pull_request.github_token,
            ca_bundle=options.pull_request.ca_bundle,
            log=self._commands.log,
            limits=LIMITS,
        ) as github:
            numbers = pulls_of_run(github, self._origin, self._environ.get("GITHUB_REPOSITORY", ""))
            if not numbers:
                self._commands.log(
                    f"no open pull request is at commit {self._origin.head_sha[:7]} of that run (it may have moved on, "
                    "or be closed), so there is none to comment on"
                )
            is_bad = self.run.verdict not in ("pass", "flaky")
            create = not self.run.cancelled and (is_bad or options.pull_request.comment != "on-failure")
            for number in numbers:
                comment = StickyComment(github, number, self._marker).write(self._text, create=create)
                if comment is not None:
                    posted.ids = (*posted.ids, comment.id)
                    self._commands.log(f"the comment is at {comment.url}")

    def _text(self, previous: Previous | None, limit: int) -> str:
        origin = self._origin
        foreign = origin.head_repository.lower() != self._environ.get("GITHUB_REPOSITORY", "").lower()
        doubt = _doubt(self.run, origin.conclusion)
        facts = CommentFacts(
            sha=origin.head_sha,
            run_url=run_url(self._environ, run_id=str(origin.id), attempt=str(origin.attempt)),
            origin=_origin_in_words(origin, foreign=foreign) + doubt,
            doubted=bool(doubt),
            reporter="a fork" if foreign else "",
        )
        # Its job is not known; its attempt replaces the one before.
        return comment_of_result(previous, self.run, self._marker, facts, Job(), limit=limit)

    def _leave(self, posted: CommentOutcome) -> None:
        options = self._options
        try:
            text = self._text(None, COMMENT_LIMIT)
            posted.file = leave_comment(options.reports.folder, options.caller.workspace, text)
        except OutputError as error:
            self._commands.warning(error.sentences)


def _origin_in_words(origin: TriggeringRun, *, foreign: bool) -> str:
    whose, what = "a run whose token may not write", "its verdict"
    if foreign:
        whose = f"a run of code from {origin.head_repository}, without secrets of this repository,"
        what = "its verdict and any change of its own gate"
    said = f" GitHub says that the run ended with {origin.conclusion}." if origin.conclusion else ""
    return f"This is what {whose} says of itself, {what} included.{said}"


def _doubt(run: RunResult, conclusion: str) -> str:
    """What does not agree: the step's exit code is the gate, and no setting makes it fail when all has passed."""
    if run.verdict in ("pass", "flaky") and conclusion not in ("", "success"):
        return " That is not how a run ends that has passed, unless another job or step of it failed: look at it."
    return ""
