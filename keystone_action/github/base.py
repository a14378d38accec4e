"""What a change is compared with: the base commit of its gate, and the branches whose results are its baseline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keystone_action.github.event import load_event

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
    own = _branch(environ.get("GITHUB_REF", "")) or _branch(_text(payload, "ref"))
    default = _text(payload, "repository", "default_branch")
    branches = tuple(dict.fromkeys(filter(None, (own, default))))
    if event in _PULL_REQUESTS:
        target = _text(payload, "pull_request", "base", "ref")
        name = f"the pull request's base {target}".rstrip()
        found = _of(_text(payload, "pull_request", "base", "sha"), name, (target,))
        # The code of pull_request_target is that of the base.
        return replace(found, head=_commit(payload, "pull_request", "head", "sha"), is_merged=event != _TARGET)
    if event == "merge_group":
        target = _branch(_text(payload, "merge_group", "base_ref"))
        return _of(_text(payload, "merge_group", "base_sha"), "the merge group's base", (target,))
    if event == "push":
        found = _before(_text(payload, "before"), branches)
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
    return _full(_text(document, *keys))


def _full(sha: str) -> str:
    return sha if _SHA.fullmatch(sha) and sha.strip("0") else ""


def _branch(ref: str) -> str:
    return ref.removeprefix(_BRANCH) if ref.startswith(_BRANCH) else ""


def _text(document: Any, *keys: str) -> str:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""
