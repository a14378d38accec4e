"""Where people read the specs of a run: their files on GitHub, at the commit that the pull request's head is.

A pull request is judged as GitHub would merge it; the lines that the report names are those of the head only where the
file is the same there, which GitHub is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import GitHubError
from keystone_action.github.api.waiting import RequestLimits
from keystone_action.github.event import Event
from keystone_action.github.inputs import Settings
from keystone_action.github.links import file_url
from keystone_action.github.pull_request.status import status_sha_of
from keystone_action.scoring.results import RunResult

MAX_SPECS = 5
"""Specs that GitHub is asked about."""
MAX_BYTES = 4 * 1024 * 1024
_PATIENCE = RequestLimits(tries=1, seconds=5.0, waiting=0.0)


def spec_links(
    run: RunResult, settings: Settings, event: Event, environ: Mapping[str, str], log: Callable[[str], None]
) -> dict[str, str]:
    """The address of each failing spec's file, by the spec's id; nothing where it is not known. Never raises."""
    sha = status_sha_of(event.head_sha)
    wanted = _paths(run, settings)
    if sha is None or not wanted or run.cancelled or settings.spec_from == "base":
        return {}
    if sha != environ.get("GITHUB_SHA"):
        # The token of a fork's run is not used for anything, so nobody has to think about what it might do.
        if event.is_fork or not settings.github_token:
            return {}
        wanted = _same_at(sha, wanted, settings, environ, log)
    found = {spec: file_url(environ, sha, path) for spec, path in wanted.items()}
    return {spec: url for spec, url in found.items() if url}


def _paths(run: RunResult, settings: Settings) -> dict[str, str]:
    """Of specs that did not pass, as the repository has them, by id."""
    found = {}
    for spec in run.specs:
        path = (settings.directory / spec.path).resolve()
        if spec.verdict != "pass" and path.is_relative_to(settings.workspace) and path.is_file():
            found[spec.id] = path.relative_to(settings.workspace).as_posix()
    return dict(list(found.items())[:MAX_SPECS])


def _same_at(
    sha: str, paths: Mapping[str, str], settings: Settings, environ: Mapping[str, str], log: Callable[[str], None]
) -> dict[str, str]:
    try:
        with GitHubClient.from_environ(
            environ, token=settings.github_token, ca_bundle=settings.ca_bundle, log=log, limits=_PATIENCE
        ) as github:
            return {
                spec: path
                for spec, path in paths.items()
                if github.blob_of(path, sha) == _blob(settings.workspace / path)
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
