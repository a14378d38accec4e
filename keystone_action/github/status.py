"""The commit status: pending while the run is under way, then its verdict.

It is for people and for branch protection that names it; the gate is the job's own exit code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from keystone_action.github.api_types import StatusState
from keystone_action.github.client import MAX_DESCRIPTION, GitHubClient
from keystone_action.github.event import Event
from keystone_action.report import view
from keystone_action.report.comment import headline
from keystone_action.report.escape import first_line, visible
from keystone_action.scoring.results import RunResult

PENDING = "Keystone is running"
_STATES: dict[str, StatusState] = {"pass": "success", "flaky": "success", "fail": "failure", "error": "error"}
_WITH_PULL_REQUEST = frozenset(
    {"pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment"}
)
_NAMED_BY_EVENT = _WITH_PULL_REQUEST | {"workflow_run"}
"""Events whose GITHUB_SHA is another commit than the one that people look at."""
_EVENTS = _NAMED_BY_EVENT | {"merge_group", "push"}
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """One status of one commit. target_url: where its link leads."""

    sha: str
    context: str
    target_url: str | None

    def pending(self, github: GitHubClient) -> None:
        """Says that a run is under way. Raises GitHubError."""
        self._set(github, "pending", PENDING)

    def result(self, github: GitHubClient, run: RunResult) -> None:
        """Says how it ended. Raises GitHubError."""
        self._set(github, state_of(run), description_of(run))

    def _set(self, github: GitHubClient, state: StatusState, description: str) -> None:
        url = self.target_url
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


def state_of(run: RunResult) -> StatusState:
    """`pass` and `flaky` are success; a run that was cancelled is an error, whatever had passed by then."""
    return "error" if run.cancelled else _STATES[run.verdict]


def description_of(run: RunResult) -> str:
    """Verdict, composite and cells, at most 140 characters, all of them of the basic plane: not every place that shows
    a status takes others."""
    if run.error is not None:
        text = f"{view.headline(run)}: {first_line(run.error).rstrip(':')}"
    else:
        text = " · ".join([headline(run), *view.facts(run)[:1]])
    line = _ASTRAL.sub("?", " ".join(visible(text).split()))
    return line if len(line) <= MAX_DESCRIPTION else line[: MAX_DESCRIPTION - 1].rstrip() + "…"
