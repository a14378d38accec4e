"""`mode: comment`: posts the results of a run that may not write itself, from a `workflow_run` workflow.

Of that run nothing is believed: its results are read as data, its comment is not read at all; marker, key and size are
made here; and which pull request it is about comes from GitHub's event and API. It sets no status: anybody who can
change the workflow of a fork could choose what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from keystone_action.errors import OutputError
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import GitHubError
from keystone_action.github.inputs import Settings
from keystone_action.github.links import run_url
from keystone_action.github.log.commands import LogCommands
from keystone_action.github.pull_request.comment import StickyComment
from keystone_action.github.pull_request.foreign_results import ended_without_results, read_foreign_results
from keystone_action.github.pull_request.pulls import TriggeringRun, pulls_of_run, read_triggering_run
from keystone_action.github.pull_request.reporting import LIMITS, CommentOutcome, leave_comment
from keystone_action.report.comment.history import Previous
from keystone_action.report.comment.jobs import Job
from keystone_action.report.comment.ladder import COMMENT_LIMIT
from keystone_action.report.comment.marker import Marker
from keystone_action.report.comment.render import CommentFacts
from keystone_action.report.comment.update import comment_of_result
from keystone_action.scoring.results import RunResult


class ForeignComment:
    """The results of another run, and where they go. Raises UsageError for an event that can't be used."""

    run: RunResult

    def __init__(self, settings: Settings, environ: Mapping[str, str], commands: LogCommands) -> None:
        self._settings = settings
        self._environ = environ
        self._commands = commands
        self._origin = read_triggering_run(environ)
        self._marker = Marker.of_key(settings.comment_key)

    def post(self) -> tuple[CommentOutcome, bool]:
        """Whether all went well is the second: nobody else would notice that no comment is there. Raises UsageError for
        results that can't be used."""
        posted, folder = CommentOutcome(), self._settings.results[0]
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
        if self._settings.comment == "never":
            return posted, True
        try:
            self._post(posted)
        except GitHubError as error:
            self._commands.error(f"not posted: {error.sentences}")
            self._leave(posted)
            return posted, False
        return posted, True

    def _relative(self, folder: Path) -> Path:
        workspace = self._settings.workspace
        return folder.relative_to(workspace) if folder.is_relative_to(workspace) else folder

    def _post(self, posted: CommentOutcome) -> None:
        settings = self._settings
        with GitHubClient.from_environ(
            self._environ,
            token=settings.github_token,
            ca_bundle=settings.ca_bundle,
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
            create = not self.run.cancelled and (is_bad or settings.comment != "on-failure")
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
        settings = self._settings
        try:
            posted.file = leave_comment(settings.output_dir, settings.workspace, self._text(None, COMMENT_LIMIT))
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
