"""What a step tells the pull request: a status and a comment, from its start to its end.

Reporting never changes a verdict, an exit code or a file. What could not be posted is said in the log, with its
cause and the permission or setting to change, and the comment is left as a file.

The job of the workflow run tells our comment and status from those of other jobs.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from keystone_action.errors import KeystoneError, OutputError
from keystone_action.files.copies import hand_over, missing_folders
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import GitHubError, NoPermission, RateLimited, UnexpectedAnswer
from keystone_action.github.api.requests import Clock, RequestLimits, Writes
from keystone_action.github.comment import Holds, StickyComment
from keystone_action.github.event import Event
from keystone_action.github.inputs import variable
from keystone_action.github.links import FORKS, run_url
from keystone_action.github.log_commands import LogCommands
from keystone_action.github.outputs import write_outputs
from keystone_action.github.progress import Live, Pace
from keystone_action.github.pulls import pulls_of_commit
from keystone_action.github.status import CommitStatus, has_status, status_sha
from keystone_action.options.model import Options
from keystone_action.report.comment.history import Job, Marker, Previous
from keystone_action.report.comment.render import (
    SHARED,
    CommentFacts,
    CommentProgress,
    comment_of_progress,
    comment_of_result,
)
from keystone_action.report.ladder import COMMENT_LIMIT
from keystone_action.scoring.document import RESULTS_FILE
from keystone_action.scoring.results import RunResult
from keystone_action.system import signals

_NUMBER = re.compile(r"[0-9]{1,20}")
_TELLING = ("comment-key", "status-context", "spec", "params", "tags", "working-directory")
"""Inputs that tell the jobs of a matrix apart, which have one id: their index is not a variable, but it is in the
defaults of the first two, and what differs between them is in the others."""


def job_of(environ: Mapping[str, str]) -> Job:
    """Never raises: without the runner's numbers there is nothing to tell apart."""
    run, attempt = environ.get("GITHUB_RUN_ID", ""), environ.get("GITHUB_RUN_ATTEMPT") or "1"
    if not _NUMBER.fullmatch(run) or not re.fullmatch("[1-9][0-9]{0,4}", attempt):
        return Job()
    parts = [environ.get(name, "") for name in ("GITHUB_JOB", "GITHUB_ACTION", *map(variable, _TELLING))]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Job(run, int(attempt), digest[:12])


COMMENT_FILE = "comment.md"
REPORTED = "reported"
"""What the step saves when it has told GitHub how it ended; the post step finds it as STATE_reported."""
RESULTS = "results"
"""What it saves before: the SHA-256 of its results.json, so that the post step can tell it in its stead."""
CANCELLED = "cancelled"
"""What it saves where it was cancelled and there was no time to tell."""
PACE = Pace()
LIMITS = RequestLimits()
LIVE_LIMITS = RequestLimits(tries=2, waiting=5.0)
"""While cells run: the end must not find the patience used up."""
HURRY = RequestLimits(tries=1, seconds=1.5, waiting=0.0)
"""When the job is cancelled: the runner gives ten seconds, and cleaning up needs most of them."""
HURRY_SECONDS = 3.0
"""For all of it, where no signal says how much time is left."""
_CANCELLED_LATE = "the job is being cancelled: GitHub is told in the seconds that are left, or at its end"
_LAST_SECONDS = 1.2
"""Of the time after a signal, kept for what follows."""
_LIVE_SECONDS = 11.0
"""Until what is being sent must have been answered or given up: one try."""


@dataclass(slots=True)
class CommentOutcome:
    """What became of the comment. missing: one that was wanted is not there. ids: of those that were written. file:
    that holds the one that is missing."""

    missing: bool = False
    ids: tuple[int, ...] = ()
    file: Path | None = None

    def outputs(self, workspace: Path) -> dict[str, str]:
        """The outputs of the step that tell of it; several ids are separated by commas."""
        path = self.file
        if path is not None and path.is_relative_to(workspace):
            path = path.relative_to(workspace)
        ids = ",".join(str(one) for one in self.ids)
        return {"comment-id": ids, "comment-written": "" if path is None else path.as_posix()}


@dataclass(frozen=True, slots=True)
class _Problem:
    """what: is not posted, and why."""

    what: str
    error: GitHubError

    @property
    def sentences(self) -> str:
        return f"{self.what}: {self.error.sentences}"


def _hurry_seconds() -> float:
    if not signals.stop_signal():
        return HURRY_SECONDS
    return max(0.0, signals.seconds_left() - _LAST_SECONDS)


class Reporting:
    """One step's. Nothing is asked of GitHub before `start`. Never raises.

    directory: where a comment that can't be posted is left; None = nowhere.
    """

    def __init__(self, options: Options, event: Event, environ: Mapping[str, str], commands: LogCommands) -> None:
        self._options = options
        self._event = event
        self._environ = environ
        self._commands = commands
        self._repository = environ.get("GITHUB_REPOSITORY", "")
        self._marker = Marker.of_key(options.pull_request.comment_key)
        sha = event.head_sha or ""
        self._facts = CommentFacts(sha=sha, run_url=run_url(environ))
        self._job = job_of(environ)
        self._may_write = not event.read_only_reason and bool(options.pull_request.github_token)
        self._told: set[str] = set()
        self._writes = Writes()
        self.directory: Path | None = None
        self._is_part = options.cells.shard is not None
        self._wants_comment = self._is_comment_wanted()
        self._status = self._wanted_status()
        shows = self._may_write and self._wants_comment and options.pull_request.comment != "on-failure"
        self.live = Live(
            self._connect,
            status=self._status if self._may_write else None,
            show=self._show if shows else None,
            pace=PACE,
            limits=LIVE_LIMITS,
            log=commands.log,
        )

    def start(self) -> None:
        """Says that a run is under way, without waiting for it."""
        if self._is_part and self._options.pull_request.comment != "never":
            self._commands.log("a shard posts neither comment nor status: the job that joins the shards does")
        if (
            self._status is None
            and self._options.pull_request.status_context
            and has_status(self._event)
            and not self._is_part
        ):
            self._commands.log("no status is set: the event does not say of which commit")
        self.live.start()

    def finish(
        self, run: RunResult, *, has_time: bool = False, links: Mapping[str, str] | None = None
    ) -> CommentOutcome:
        """Posts the result. Ends soon when the job is being cancelled, unless it has time, as the post step has.
        links: addresses of the specs' files, by id."""
        self._facts = replace(self._facts, links=links or {})
        posted = CommentOutcome(missing=self._wants_comment)
        is_told = True
        try:
            self._save_for_post_step(RESULTS, self._digest(run))
            if (run.cancelled or signals.stop_signal()) and not has_time:
                if run.cancelled:
                    self._save_for_post_step(CANCELLED, "true")
                if not run.cancelled:
                    self._commands.log(_CANCELLED_LATE)
                is_told = self._hurry(run, posted)
            elif self._is_anything_wanted():
                with signals.interruptible():
                    self.live.stop(_LIVE_SECONDS)
                    self._post(run, posted, LIMITS)
        except KeyboardInterrupt:
            self._commands.log(_CANCELLED_LATE)
            is_told = self._hurry(run, posted)
        except Exception as error:  # noqa: BLE001 - what breaks here changes no verdict
            self._commands.warning(f"posting to GitHub broke: {type(error).__name__}: {error}")
        with suppress(KeyboardInterrupt):
            self._leave_file(run, posted)
            if is_told:
                # All was said that there was patience for.
                self._save_for_post_step(REPORTED, "true")
        return posted

    def _save_for_post_step(self, name: str, value: str) -> None:
        with suppress(OutputError):
            if value and (path := self._environ.get("GITHUB_STATE")):
                write_outputs(Path(path), {name: value})

    def _digest(self, run: RunResult) -> str:
        """Of what this run has written; empty when it came to nothing. What lay there before is not ours."""
        if not run.run_id or self.directory is None:
            return ""
        with suppress(OSError), (self.directory / RESULTS_FILE).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
        return ""

    def _is_comment_wanted(self) -> bool:
        policy = self._options.pull_request.comment
        if self._is_part or policy == "never":
            return False
        return policy == "always" or self._event.name.startswith("pull_request")

    def _wanted_status(self) -> CommitStatus | None:
        sha = status_sha(self._event)
        context = self._options.pull_request.status_context
        if sha is None or not context or self._is_part:
            return None
        return CommitStatus(sha, context, self._facts.run_url or None, self._job, self._warn_once, self._commands.log)

    def _is_anything_wanted(self) -> bool:
        return self._wants_comment or self._status is not None

    def _connect(self, limits: RequestLimits, clock: Clock) -> GitHubClient:
        return GitHubClient.from_environ(
            self._environ,
            token=self._options.pull_request.github_token,
            ca_bundle=self._options.pull_request.ca_bundle,
            log=self._commands.log,
            limits=limits,
            clock=clock,
            writes=self._writes,
        )

    def _hurry(self, run: RunResult, posted: CommentOutcome) -> bool:
        """Whether all was posted. What was not is the post step's to say: a job that is cancelled has time for that."""
        if not self._is_anything_wanted():
            return True
        done = threading.Event()
        what = (run, posted, done)
        thread = threading.Thread(target=self._post_quietly, args=what, daemon=True, name="hurried report")
        try:
            self.live.stop(0.2)
            thread.start()
            thread.join(_hurry_seconds())
        except KeyboardInterrupt:
            return False
        # What the live report is still sending could be the last that GitHub hears.
        is_told = done.is_set() and not self.live.is_alive
        if not is_told:
            self._commands.log("GitHub was not told in time how this step ended; the end of the job tries again")
        return is_told

    def _post_quietly(self, run: RunResult, posted: CommentOutcome, done: threading.Event) -> None:
        try:
            if self._post(run, posted, HURRY):
                done.set()
        except Exception as error:  # noqa: BLE001 - in a thread that nobody looks at
            self._commands.log(f"posting to GitHub broke: {type(error).__name__}: {error}")

    def _post(self, run: RunResult, posted: CommentOutcome, limits: RequestLimits) -> bool:
        """Whether nothing is left that another try could change."""
        if not self._may_write:
            reason = self._event.read_only_reason
            why = f"{reason}; see {FORKS}" if reason else "the input github-token is empty"
            asked_for = not reason and self._wants_comment and self._options.pull_request.comment != "auto"
            say = self._commands.warning if asked_for else self._commands.log
            say(f"neither comment nor status is posted: {why}")
            return True
        problems: list[_Problem] = []
        try:
            with self._connect(limits, Clock()) as github:
                problems += self._post_status(github, run)
                # In a hurry there is no time to see whether another job wrote meanwhile.
                holds = None if limits is HURRY else self._holds(run)
                problems += self._post_comments(github, run, posted, holds)
        except GitHubError as error:
            problems.append(_Problem("nothing is posted", error))
        self._say(problems)
        return all(isinstance(problem.error, NoPermission | RateLimited) for problem in problems)

    def _post_status(self, github: GitHubClient, run: RunResult) -> list[_Problem]:
        if self._status is None:
            return []
        try:
            self._status.result(github, run)
        except GitHubError as error:
            return [_Problem("the status is not set", error)]
        return []

    def _holds(self, run: RunResult) -> Holds | None:
        """Whether a comment has what this job came to; None where jobs can't be told apart."""
        own = (self._job.attempt, run.verdict)
        return (lambda there: there.jobs.ended.get(self._job.name) == own) if self._job.run else None

    def _post_comments(
        self, github: GitHubClient, run: RunResult, posted: CommentOutcome, holds: Holds | None
    ) -> list[_Problem]:
        if not self._wants_comment:
            return []
        problems: list[_Problem] = []
        is_bad = run.verdict not in ("pass", "flaky")
        create = not run.cancelled and (is_bad or self._options.pull_request.comment != "on-failure")
        try:
            numbers = self._numbers(github)
        except GitHubError as error:
            return [_Problem("the comment is not posted", error)]
        for number in numbers:
            try:
                sticky = StickyComment(github, number, self._marker)
                compose = partial(self._of_result, run, github, number)
                comment = sticky.write(compose, create=create, holds=holds)
            except GitHubError as error:
                problems.append(_Problem(f"the comment is not posted on #{number}", error))
                continue
            if comment is not None:
                posted.ids = tuple(dict.fromkeys((*posted.ids, comment.id)))
                self._commands.log(f"the comment is at {comment.url}")
        # Only now: a job that does not wait for the end takes it for missing.
        posted.missing = bool(problems)
        return problems

    def _say(self, problems: list[_Problem]) -> None:
        """A token that may not write is a choice under `auto`, and so is a status without permission; all else is a
        warning, one for everything."""
        for problem in problems:
            self._commands.log(problem.sentences)
        wanted = self._options.pull_request.comment in ("always", "on-failure")
        serious = [one for one in problems if wanted or not isinstance(one.error, NoPermission)]
        if serious:
            self._commands.warning("\n".join(dict.fromkeys(one.sentences for one in serious)))

    def _numbers(self, github: GitHubClient) -> list[int]:
        """The pull requests that get the comment."""
        if self._event.name.startswith("pull_request"):
            if self._event.pull_request is None:
                raise UnexpectedAnswer("the event does not say which pull request it is of")
            return [self._event.pull_request]
        sha = self._event.head_sha or ""
        found = pulls_of_commit(github, sha, self._repository)
        if not found:
            self._commands.log(f"no open pull request holds commit {sha[:7]}, so there is none to comment on")
        return found

    def _is_of_newest(self, previous: Previous, github: GitHubClient, number: int) -> bool:
        """Whether a comment is of the newest commit, and this run of another one: that it is of an older one, which may
        end later, is the usual case. Raises GitHubError."""
        others = {previous.commit, "" if previous.result is None else previous.result.sha} - {"", self._facts.sha}
        if not others:
            return False
        newest = github.pull(number).head_sha
        if newest == self._facts.sha or newest not in others:
            return False
        told = f"the comment on #{number} is of {newest[:7]}, its newest commit: a run of an older one leaves it"
        if told not in self._told:
            self._told.add(told)
            self._commands.log(told)
        return True

    def _of_result(
        self, run: RunResult, github: GitHubClient, number: int, previous: Previous | None, limit: int
    ) -> str | None:
        if previous is not None and self._is_of_newest(previous, github, number):
            return None
        if previous is not None and previous.jobs.others(self._job):
            self._warn_once(SHARED)
        return self._text(run, previous, limit)

    def _warn_once(self, warning: str) -> None:
        if warning not in self._told:
            self._told.add(warning)
            self._commands.warning(warning)

    def _text(self, run: RunResult, previous: Previous | None, limit: int) -> str:
        return comment_of_result(previous, run, self._marker, self._facts, self._job, limit=limit)

    def _leave_file(self, run: RunResult, posted: CommentOutcome) -> None:
        if not posted.missing or self.directory is None:
            return
        try:
            text = self._text(run, None, COMMENT_LIMIT)
            posted.file = leave_comment(self.directory, self._options.caller.workspace, text)
            shown = posted.outputs(self._options.caller.workspace)["comment-written"]
            self._commands.log(f"the comment that was not posted is in {shown}")
        except KeystoneError as error:
            self._commands.warning(error.sentences)

    def _show(self, github: GitHubClient, progress: CommentProgress) -> bool:
        """While cells run. No comment is made by that: people get mail of each."""
        shown = []
        for number in self._numbers(github):
            compose = partial(self._of_progress, progress, github, number)
            shown.append(StickyComment(github, number, self._marker).write(compose, create=False))
        return any(comment is not None for comment in shown)

    def _of_progress(
        self, progress: CommentProgress, github: GitHubClient, number: int, previous: Previous | None, limit: int
    ) -> str | None:
        if previous is None or self._is_of_newest(previous, github, number):
            return None
        self.live.check()
        return comment_of_progress(previous, progress, self._marker, self._facts, limit=limit)


def leave_comment(directory: Path, workspace: Path, text: str) -> Path:
    """A comment that could not be posted, as a file in the folder of the results, which is made if need be and belongs
    to the workspace's owner. Raises OutputError."""
    from keystone_action.report.write import write_file

    made = missing_folders(directory, workspace)
    path = directory / COMMENT_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{directory} can't be made: {error.strerror}") from error
    write_file(path, [text])
    hand_over([path, *made], workspace)
    return path
