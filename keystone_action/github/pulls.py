"""What GitHub says of pull requests: those of a workflow run or a commit, and whose code a commented one brings.

A report links to the files of specs at the head of the pull request. A pull request is judged as GitHub would merge it,
so GitHub is asked whether a file is the same at the head: only then are the lines that the report names right there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keystone_action.errors import UsageError
from keystone_action.github.api.answers import PullRequest
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import GitHubError
from keystone_action.github.api.requests import RequestLimits
from keystone_action.github.event import Event, load_event
from keystone_action.github.links import FORKS, file_url
from keystone_action.github.status import status_sha_of
from keystone_action.options.model import Options
from keystone_action.scoring.results import RunResult

MAX_PULLS = 10
"""Pull requests of one commit that are commented on."""
_PATIENCE = RequestLimits(tries=3, waiting=15.0)


@dataclass(frozen=True, slots=True)
class TriggeringRun:
    """The workflow run that a `workflow_run` event is about, as GitHub says, not as that run says.

    head_repository: `owner/name`, perhaps a fork. conclusion: `success`, `failure`, …
    """

    id: int
    attempt: int
    conclusion: str
    head_sha: str
    head_branch: str
    head_repository: str


def read_triggering_run(environ: Mapping[str, str]) -> TriggeringRun:
    """Reads the event. Raises UsageError where it is not a `workflow_run`, or one that can't be read."""
    name = environ.get("GITHUB_EVENT_NAME", "")
    if name != "workflow_run":
        raise UsageError(
            f"input mode is 'comment', which works in workflows on workflow_run; the event is {name or 'missing'}",
            help=f"{FORKS} has both workflows in full",
        )
    try:
        return _triggering_run(load_event(environ.get("GITHUB_EVENT_PATH", "")).get("workflow_run"))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not an event of a workflow run"
        raise UsageError(f"the event file can't be read: {reason}", help="GITHUB_EVENT_PATH names it") from None


def _triggering_run(document: Any) -> TriggeringRun:
    if not isinstance(document, dict):
        raise TypeError("no object")
    repository = document.get("head_repository")
    found = TriggeringRun(
        id=document["id"],
        attempt=document.get("run_attempt", 1),
        conclusion=document.get("conclusion") or "",
        head_sha=document["head_sha"],
        head_branch=document.get("head_branch") or "",
        # Of a fork that was deleted: nothing then tells whose branch it is.
        head_repository=repository["full_name"] if repository else "",
    )
    numbers, texts = (found.id, found.attempt), (found.conclusion, found.head_branch, found.head_repository)
    if not all(isinstance(number, int) and not isinstance(number, bool) and number > 0 for number in numbers):
        raise ValueError("no number")
    if not all(isinstance(text, str) for text in texts) or not re.fullmatch("[a-z_]{0,40}", found.conclusion):
        raise ValueError("no text")
    if not status_sha_of(found.head_sha):
        raise ValueError("no commit")
    return found


def pulls_of_run(github: GitHubClient, run: TriggeringRun, repository: str) -> list[int]:
    """The open pull requests whose newest commit the run was of: of the same head repository, so that nobody's results
    reach the pull request of somebody else. Raises GitHubError."""
    if not run.head_repository:
        return []
    owner = run.head_repository.partition("/")[0]
    if _same(run.head_repository, repository):
        found = list(github.pulls_of_commit(run.head_sha))
    else:
        found = list(github.open_pulls(owner=owner, branch=run.head_branch))
    fit = [pull for pull in _open(found, repository) if _same(pull.head_repository, run.head_repository)]
    return [pull.number for pull in fit if pull.head_sha == run.head_sha][:MAX_PULLS]


def pulls_of_commit(github: GitHubClient, sha: str, repository: str) -> list[int]:
    """The open pull requests into this repository that hold a commit. Raises GitHubError."""
    return [pull.number for pull in _open(list(github.pulls_of_commit(sha)), repository)][:MAX_PULLS]


def _open(found: list[PullRequest], repository: str) -> list[PullRequest]:
    return [pull for pull in found if pull.state == "open" and _same(pull.base_repository, repository)]


def _same(one: str, other: str) -> bool:
    """Names of repositories ignore case."""
    return one.lower() == other.lower()


def whose_code(event: Event, options: Options, environ: Mapping[str, str], log: Callable[[str], None]) -> Event:
    """The event with what GitHub says, or with its problem where that can't be told; any other event as it is."""
    if event.commented is None:
        return event
    repository = environ.get("GITHUB_REPOSITORY", "")
    asked = options.pull_request
    try:
        with GitHubClient.from_environ(
            environ,
            token=asked.github_token,
            ca_bundle=asked.ca_bundle,
            log=log,
            limits=_PATIENCE,
        ) as github:
            pull = github.pull(event.commented)
    except GitHubError as error:
        return replace(event, problem=error.message)
    return event.of_commented_pull(pull.head_repository, repository)


MAX_SPECS = 5
"""Specs that GitHub is asked about."""
MAX_BYTES = 4 * 1024 * 1024
_LINK_PATIENCE = RequestLimits(tries=1, seconds=5.0, waiting=0.0)


def spec_links(
    run: RunResult, options: Options, event: Event, environ: Mapping[str, str], log: Callable[[str], None]
) -> dict[str, str]:
    """The address of each failing spec's file, by the spec's id; nothing where it is not known. Never raises."""
    sha = status_sha_of(event.head_sha)
    wanted = _paths(run, options)
    if sha is None or not wanted or run.cancelled or options.cells.spec_from == "base":
        return {}
    if sha != environ.get("GITHUB_SHA"):
        # The token of a fork's run is not used for anything, so nobody has to think about what it might do.
        if event.is_fork or not options.pull_request.github_token:
            return {}
        wanted = _is_same_at(sha, wanted, options, environ, log)
    found = {spec: file_url(environ, sha, path) for spec, path in wanted.items()}
    return {spec: url for spec, url in found.items() if url}


def _paths(run: RunResult, options: Options) -> dict[str, str]:
    """Of specs that did not pass, as the repository has them, by id."""
    found = {}
    for spec in run.specs:
        path = (options.caller.directory / spec.path).resolve()
        if spec.verdict != "pass" and path.is_relative_to(options.caller.workspace) and path.is_file():
            found[spec.id] = path.relative_to(options.caller.workspace).as_posix()
    return dict(list(found.items())[:MAX_SPECS])


def _is_same_at(
    sha: str, paths: Mapping[str, str], options: Options, environ: Mapping[str, str], log: Callable[[str], None]
) -> dict[str, str]:
    asked = options.pull_request
    try:
        with GitHubClient.from_environ(
            environ,
            token=asked.github_token,
            ca_bundle=asked.ca_bundle,
            log=log,
            limits=_LINK_PATIENCE,
        ) as github:
            return {
                spec: path
                for spec, path in paths.items()
                if github.blob_of(path, sha) == _blob(options.caller.workspace / path)
            }
    except (GitHubError, OSError) as error:
        why = error.message if isinstance(error, GitHubError) else str(error)
        log(f"checks are not linked to their lines: {why}")
        return {}


def _blob(path: Path) -> str:
    """The id by which git knows what a file holds."""
    if path.stat().st_size > MAX_BYTES:
        return ""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
