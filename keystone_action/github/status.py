"""The commit status: pending while the run is under way, then its verdict.

It is for people and for branch protection that names it; the gate is the job's own exit code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from keystone_action.github.api.answers import StatusState
from keystone_action.github.api.client import MAX_DESCRIPTION, GitHubClient
from keystone_action.github.api.errors import GitHubError
from keystone_action.github.event import Event
from keystone_action.report.comment.history import Job, is_worse_verdict, letter_of, verdict_of_letter, worst_verdict
from keystone_action.report.escape import shortened, visible
from keystone_action.report.sentences.causes import MAX_NAME
from keystone_action.report.sentences.headline import headline
from keystone_action.scoring.fields import Verdict
from keystone_action.scoring.results import RunResult

PENDING = "Keystone is running"
_STATES: dict[str, StatusState] = {"pass": "success", "flaky": "success", "fail": "failure", "error": "error"}
_WITH_PULL_REQUEST = frozenset(
    {"pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment"}
)
_NAMED_BY_EVENT = _WITH_PULL_REQUEST | {"workflow_run"}
"""Events whose GITHUB_SHA is another commit than the one that people look at."""
_EVENTS = _NAMED_BY_EVENT | {"merge_group", "push"}
MAX_STATUSES = 300
"""Of one commit, the newest, that are looked at."""
_OF_JOB = re.compile(
    r"[^#]*/actions/runs/(?P<run>[0-9]+)/attempts/[0-9]+#keystone-(?P<job>[0-9a-f]{12})(?:-(?P<verdict>[efyp]))?"
)
_ADVICE = "which says the worst of them; give each a `status-context` of its own"
_OF_ANOTHER: Mapping[Verdict, str] = {
    "error": "Keystone: another job of this run ended with an error",
    "fail": "Keystone: another job of this run failed",
}
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_SHORT_NAME = 40
"""Characters of a spec's id where there is no room for all of it."""


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """One status of one commit. target_url: where its link leads. job: whose it is; its name and its own verdict stand
    behind the `#` of that address, so that another job of this run that sets this status knows of it. warn: is
    told of such a job; log: of all else."""

    sha: str
    context: str
    target_url: str | None
    job: Job = field(default_factory=Job)
    warn: Callable[[str], None] = lambda _: None
    log: Callable[[str], None] = lambda _: None

    def pending(self, github: GitHubClient) -> None:
        """Says that a run is under way. Raises GitHubError."""
        self._set(github, "pending", PENDING, "")

    def result(self, github: GitHubClient, run: RunResult) -> None:
        """Says how it ended: `pass` and `flaky` are success, and a run that was cancelled is an error, even if all had
        passed by then. Where another job of the run ended worse, says that. Raises GitHubError."""
        own = "error" if run.cancelled else run.verdict
        said: Verdict = own
        worse = self._worse_than(github, said)
        while True:
            said = worse or said
            description = description_of(run) if worse is None else _OF_ANOTHER[worse]
            self._set(github, _STATES[said], description, letter_of(own))
            # Another job may have looked before this was there, and this one before that was.
            worse = self._worse_than(github, said)
            if worse is None:
                return

    def _worse_than(self, github: GitHubClient, said: Verdict) -> Verdict | None:
        """What another job of this run came to, if that is worse than what is said."""
        if said == "error" or not self.job.run or self.target_url is None:
            return None
        try:
            statuses = list(islice(github.statuses(self.sha), MAX_STATUSES))
        except GitHubError as error:
            self.log(f"whether another job sets the status {self.context} is not known: {error.message}")
            return None
        found: dict[str, Verdict] = {}
        for status in statuses:  # the newest first
            known = _OF_JOB.fullmatch(status.target_url)
            if status.context == self.context and known and known["run"] == self.job.run and known["verdict"]:
                found.setdefault(known["job"], verdict_of_letter(known["verdict"]))
        found.pop(self.job.name, None)
        if found:
            self.warn(f"more than one job of this run sets the status {self.context}, {_ADVICE}")
        worst_other = worst_verdict(found.values())
        return (
            worst_other
            if is_worse_verdict(worst_other, said) and _STATES[worst_other or said] != _STATES[said]
            else None
        )

    def _set(self, github: GitHubClient, state: StatusState, description: str, letter: str) -> None:
        url = self.target_url
        if url is not None and self.job.run:
            url += f"#keystone-{self.job.name}{letter and f'-{letter}'}"
        github.create_status(self.sha, state=state, context=self.context, description=description, target_url=url)


def status_sha(event: Event) -> str | None:
    """The commit that a status of this event belongs to; None where there is none, or none that is known: what
    GITHUB_SHA says on a pull request is a merge commit that nobody looks at."""
    if not has_status(event) or (event.problem and event.name in _NAMED_BY_EVENT):
        return None
    return status_sha_of(event.head_sha)


def has_status(event: Event) -> bool:
    """Whether events of this kind are of a commit that people look at."""
    return event.name in _EVENTS


def status_sha_of(value: object) -> str | None:
    """A full commit id; None for anything else."""
    return value if isinstance(value, str) and _SHA.fullmatch(value) else None


def description_of(run: RunResult) -> str:
    """The first line of every report, at most 140 characters, all of them of the basic plane: not every place that
    shows a status takes others. A long name gives way before the verdict and its reason do."""
    for longest in (MAX_NAME, _SHORT_NAME):
        text = _ASTRAL.sub("?", " ".join(visible(headline(run, longest_name=longest)).split()))
        if len(text) <= MAX_DESCRIPTION:
            break
    return shortened(text, MAX_DESCRIPTION)
