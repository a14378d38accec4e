"""What made the workflow run: the kind of event, whose code it is about, and the commit that is judged.

It also says what a change is compared with: the base commit of its gate, and the branches whose results are its
baseline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keystone_action.errors import UsageError
from keystone_action.github.api.answers import value_at
from keystone_action.github.links import FORKS

DEPENDABOT = "dependabot[bot]"
MAX_EVENT = 32 * 1024 * 1024
"""Bytes; GitHub caps a payload at 25 MB."""

_COMMENTED = "issue_comment"
_TRUSTED_CONTEXT = frozenset({"pull_request_target", "workflow_run", _COMMENTED})
"""Events that run with secrets and a token that may write, even for code of a stranger."""
_MERGE_QUEUE_REF = re.compile(r"refs/heads/gh-readonly-queue/.+/pr-([0-9]{1,10})-[0-9a-f]+")

_REFUSED = """
Why: on this event GitHub hands secrets and a token that may write to the job, although somebody from outside proposed
the code. Code of an agent runs here; it could take both along.

What to do instead, the first being the best:
- Run on pull_request. Forks then get no secrets and a token that may only read; judges are skipped, and said.
- To have a comment on their pull requests all the same, let a second workflow on workflow_run post it with
  mode: comment. It runs no code of theirs.
- Set the input allow-pull-request-target to true. Then everybody who can open a pull request can run code beside your
  secrets: only for repositories where a maintainer approves every run (an environment with reviewers)."""


@dataclass(frozen=True, slots=True)
class Event:
    """The event of this workflow run.

    name: as GITHUB_EVENT_NAME has it; empty outside of a workflow. is_fork: the code comes from another repository.
    is_dependabot: started by Dependabot, whose runs get no Actions secrets. pull_request: its number, when there is
    exactly one. head_sha: the commit that people see on the pull request (GITHUB_SHA is the merge commit there).
    commented: the pull request that a comment was made on; the event does not say whose code that proposes.
    problem: a sentence when the event file could not be read; the rest is then what the environment says.
    """

    name: str = ""
    is_fork: bool = False
    is_dependabot: bool = False
    pull_request: int | None = None
    head_sha: str | None = None
    commented: int | None = None
    problem: str = ""

    @property
    def no_secrets_reason(self) -> str:
        """Why GitHub gives this run no secrets; empty when it does."""
        if self.is_fork and self.name not in _TRUSTED_CONTEXT:
            return "this pull request comes from a fork, and GitHub passes no secrets to such runs"
        if self.is_dependabot and self.name not in _TRUSTED_CONTEXT:
            return "this run was started by Dependabot, and GitHub passes only Dependabot secrets to such runs"
        return ""

    @property
    def read_only_reason(self) -> str:
        """Why this run's token may not write, told before anything is tried; empty where only a try tells: a workflow
        may give the token of Dependabot's runs the right to write."""
        if self.name in _TRUSTED_CONTEXT:
            return ""
        if self.is_fork:
            return "this pull request comes from a fork, and the token of such a run may only read"
        if self.problem and self.name.startswith("pull_request"):
            return f"whether this pull request comes from a fork is not known ({self.problem})"
        return ""

    def refuse_foreign_code(self) -> None:
        """Raises UsageError when code of a fork would run beside secrets and a token that may write.

        An event of this kind that can't be read is refused too: nothing then says whose code it is. Of a comment on a
        pull request `of_commented_pull` is asked before.
        """
        if self.name not in _TRUSTED_CONTEXT or not (self.is_fork or self.problem or self.commented):
            return
        why = self.problem or f"whose pull request #{self.commented} is was not asked"
        whose = "the code of a fork" if self.is_fork else f"code of unknown origin ({why})"
        raise UsageError(
            f"{self.name} would run {whose} with this repository's secrets and token; "
            f"that is refused (input allow-pull-request-target is false)\n{_REFUSED}",
            help=f"{FORKS} has workflows that work for forks, in full",
        )

    def of_commented_pull(self, head_repository: str, repository: str) -> Event:
        """The event when it is known whose code the pull request that was commented on proposes. head_repository:
        empty for a fork that was deleted."""
        return replace(self, commented=None, is_fork=_is_other(head_repository or None, repository))


def read_event(environ: Mapping[str, str]) -> Event:
    """Reads the event from GITHUB_EVENT_NAME and GITHUB_EVENT_PATH.

    A missing or malformed file is tolerated (`Event.problem`): a run needs nothing from it. Where it decides about
    safety, `Event.refuse_foreign_code` takes it for the worst.
    """
    name = environ.get("GITHUB_EVENT_NAME", "")
    dependabot = environ.get("GITHUB_ACTOR") == DEPENDABOT
    sha = environ.get("GITHUB_SHA") or None
    if not name:
        return Event(head_sha=sha)
    try:
        payload = load_event(environ.get("GITHUB_EVENT_PATH", ""))
    except (OSError, ValueError, RecursionError) as error:
        problem = f"the event file could not be read: {_reason(error)}"
        return Event(name=name, is_dependabot=dependabot, head_sha=sha, problem=problem)
    return _interpret(name, payload, environ, is_dependabot=dependabot)


def load_event(path: str) -> dict[str, Any]:
    """The payload that GITHUB_EVENT_PATH names. Raises OSError; ValueError or RecursionError for other files."""
    if not path:
        raise ValueError("GITHUB_EVENT_PATH is not set")
    file = Path(path)
    if file.exists() and not file.is_file():
        raise ValueError(f"{path} is not a file")
    if file.stat().st_size > MAX_EVENT:
        raise ValueError(f"{path} is larger than {MAX_EVENT} bytes")
    payload = json.loads(file.read_bytes())
    if not isinstance(payload, dict):
        raise ValueError(f"{path} holds no JSON object")  # noqa: TRY004 - what a file holds is a value
    return payload


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "it holds no JSON"
    return str(error)


def _interpret(name: str, payload: dict[str, Any], environ: Mapping[str, str], *, is_dependabot: bool) -> Event:
    sha = environ.get("GITHUB_SHA") or None
    repository = environ.get("GITHUB_REPOSITORY") or _text(payload, "repository", "full_name") or ""
    if name in {"pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment"}:
        return Event(
            name=name,
            # A fork that was deleted has no repository any more; it still is not ours.
            is_fork=_is_other(_text(payload, "pull_request", "head", "repo", "full_name"), repository),
            is_dependabot=is_dependabot,
            pull_request=_number(payload, "pull_request", "number"),
            head_sha=_text(payload, "pull_request", "head", "sha") or sha,
        )
    if name == "workflow_run":
        pulls = value_at(payload, "workflow_run", "pull_requests")
        only = pulls[0] if isinstance(pulls, list) and len(pulls) == 1 else {}
        return Event(
            name=name,
            is_fork=_is_other(_text(payload, "workflow_run", "head_repository", "full_name"), repository),
            is_dependabot=is_dependabot,
            pull_request=_number(only, "number"),
            head_sha=_text(payload, "workflow_run", "head_sha") or sha,
        )
    if name == _COMMENTED:
        return _of_comment(payload, sha, is_dependabot=is_dependabot)
    queued = _MERGE_QUEUE_REF.fullmatch(_text(payload, "merge_group", "head_ref") or "")
    return Event(
        name=name,
        is_dependabot=is_dependabot,
        pull_request=int(queued[1]) if queued else None,
        head_sha=_text(payload, "merge_group", "head_sha") or sha,
    )


def _of_comment(payload: dict[str, Any], sha: str | None, *, is_dependabot: bool) -> Event:
    """A pull request is an issue too, with a field that says so."""
    issue, number = value_at(payload, "issue"), _number(payload, "issue", "number")
    event = Event(name=_COMMENTED, is_dependabot=is_dependabot, head_sha=sha)
    if not isinstance(issue, dict) or number is None:
        return replace(event, problem="the event does not say what was commented on")
    return replace(event, commented=number) if issue.get("pull_request") else event


def _is_other(head: str | None, repository: str) -> bool:
    """Repository names ignore case on GitHub."""
    return head is None or head.lower() != repository.lower()


def _text(document: Any, *keys: str) -> str | None:
    value = value_at(document, *keys)
    return value if isinstance(value, str) and value else None


def _number(document: Any, *keys: str) -> int | None:
    value = value_at(document, *keys)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = "refs/heads/"
_TARGET = "pull_request_target"
_PULL_REQUESTS = ("pull_request", _TARGET, "pull_request_review", "pull_request_review_comment")


@dataclass(frozen=True, slots=True)
class EventBase:
    """sha: the commit to compare the gate with, None when the event proposes no change to one. name: what it is, in
    words. why_none: in words, where there is none. is_problem: whether there should be one. branches: where a baseline
    is looked for, the first one first. head: the commit that is proposed, where the event names it. left: the branch
    whose merge base with the head is the one to compare with, if it can be known; empty otherwise. is_merged: whether
    what is checked out is a merge of the head into its base, which may be a newer one than the event names."""

    sha: str | None = None
    name: str = ""
    why_none: str = ""
    is_problem: bool = False
    branches: tuple[str, ...] = ()
    head: str = ""
    left: str = ""
    is_merged: bool = False


def base_of_event(environ: Mapping[str, str]) -> EventBase:
    """The base of this workflow run's event. Never raises: a run without it goes on, and says so."""
    event = environ.get("GITHUB_EVENT_NAME", "")
    if not event:
        return EventBase(why_none="there is no event")
    try:
        payload = load_event(environ.get("GITHUB_EVENT_PATH", ""))
    except (OSError, ValueError, RecursionError):
        return EventBase(why_none="the event file could not be read", is_problem=True)
    own = _branch(environ.get("GITHUB_REF", "")) or _branch(_text_at(payload, "ref"))
    default = _text_at(payload, "repository", "default_branch")
    branches = tuple(dict.fromkeys(filter(None, (own, default))))
    if event in _PULL_REQUESTS:
        target = _text_at(payload, "pull_request", "base", "ref")
        name = f"the pull request's base {target}".rstrip()
        found = _of(_text_at(payload, "pull_request", "base", "sha"), name, (target,))
        # The code of pull_request_target is that of the base.
        return replace(found, head=_commit(payload, "pull_request", "head", "sha"), is_merged=event != _TARGET)
    if event == "merge_group":
        target = _branch(_text_at(payload, "merge_group", "base_ref"))
        return _of(_text_at(payload, "merge_group", "base_sha"), "the merge group's base", (target,))
    if event == "push":
        found = _before(_text_at(payload, "before"), branches)
        is_own = bool(own and default) and own != default
        return replace(found, head=_commit(payload, "after"), left=default if is_own else "")
    nothing = EventBase(why_none=f"the event {event} proposes no change to one", branches=branches)
    if event == "workflow_dispatch" and own and default and own != default:
        # Its job counts for the commit as that of a push does.
        return replace(nothing, head=_full(environ.get("GITHUB_SHA", "")), left=default)
    return nothing


def _before(before: str, branches: tuple[str, ...]) -> EventBase:
    if before and not before.strip("0"):
        return EventBase(why_none="this push made the branch, so that no commit was before it", branches=branches)
    return _of(before, "the commit before this push", branches)


def _of(sha: str, name: str, branches: tuple[str, ...]) -> EventBase:
    named = tuple(filter(None, branches))
    if not _SHA.fullmatch(sha):
        return EventBase(why_none=f"the event does not name {name}", is_problem=True, branches=named)
    return EventBase(sha, name, branches=named)


def _commit(document: Any, *keys: str) -> str:
    return _full(_text_at(document, *keys))


def _full(sha: str) -> str:
    return sha if _SHA.fullmatch(sha) and sha.strip("0") else ""


def _branch(ref: str) -> str:
    return ref.removeprefix(_BRANCH) if ref.startswith(_BRANCH) else ""


def _text_at(document: Any, *keys: str) -> str:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""
