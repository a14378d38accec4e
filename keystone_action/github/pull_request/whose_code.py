"""Whose code a comment on a pull request would run: the event does not say it, so GitHub is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import GitHubError
from keystone_action.github.api.waiting import RequestLimits
from keystone_action.github.event import Event
from keystone_action.github.inputs import Settings

_PATIENCE = RequestLimits(tries=3, waiting=15.0)


def whose_code(event: Event, settings: Settings, environ: Mapping[str, str], log: Callable[[str], None]) -> Event:
    """The event with what GitHub says, or with its problem where that can't be told; any other event as it is."""
    if event.commented is None:
        return event
    repository = environ.get("GITHUB_REPOSITORY", "")
    try:
        with GitHubClient.from_environ(
            environ, token=settings.github_token, ca_bundle=settings.ca_bundle, log=log, limits=_PATIENCE
        ) as github:
            pull = github.pull(event.commented)
    except GitHubError as error:
        return replace(event, problem=error.message)
    return event.of_commented_pull(pull.head_repository, repository)
