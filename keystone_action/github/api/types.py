"""What we read of GitHub's documents: the few fields that we use, checked when they come in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

StatusState = Literal["error", "failure", "pending", "success"]


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on an issue or pull request. author: login, with `[bot]` for apps; empty for a deleted account."""

    id: int
    author: str
    body: str
    url: str

    @classmethod
    def read(cls, document: Any) -> Comment:
        """Raises ValueError for anything but a comment."""
        return cls(
            id=_number(document, "id"),
            author=_optional(document, "user", "login"),
            body=_optional(document, "body"),
            url=_text(document, "html_url"),
        )


@dataclass(frozen=True, slots=True)
class Status:
    """A status of a commit. target_url: empty where it has none."""

    context: str
    target_url: str

    @classmethod
    def read(cls, document: Any) -> Status:
        """Raises ValueError for anything but a status."""
        return cls(context=_text(document, "context"), target_url=_optional(document, "target_url"))


@dataclass(frozen=True, slots=True)
class PullRequest:
    """head_repository: `owner/name`, empty when the fork was deleted."""

    number: int
    state: str
    head_sha: str
    head_repository: str
    base_repository: str
    url: str

    @classmethod
    def read(cls, document: Any) -> PullRequest:
        """Raises ValueError for anything but a pull request."""
        return cls(
            number=_number(document, "number"),
            state=_text(document, "state"),
            head_sha=_text(document, "head", "sha"),
            head_repository=_optional(document, "head", "repo", "full_name"),
            base_repository=_optional(document, "base", "repo", "full_name"),
            url=_text(document, "html_url"),
        )


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """path: of the workflow's file, perhaps with `@ref`. conclusion: empty while it runs. created_at: ISO 8601, UTC."""

    id: int
    event: str
    status: str
    conclusion: str
    head_branch: str
    head_sha: str
    head_repository: str
    path: str
    created_at: str
    url: str

    @classmethod
    def read(cls, document: Any) -> WorkflowRun:
        """Raises ValueError for anything but a workflow run."""
        return cls(
            id=_number(document, "id"),
            event=_text(document, "event"),
            status=_optional(document, "status"),
            conclusion=_optional(document, "conclusion"),
            head_branch=_optional(document, "head_branch"),
            head_sha=_text(document, "head_sha"),
            head_repository=_optional(document, "head_repository", "full_name"),
            path=_optional(document, "path"),
            created_at=_text(document, "created_at"),
            url=_text(document, "html_url"),
        )


@dataclass(frozen=True, slots=True)
class Artifact:
    """size_bytes: of the zip. created_at: ISO 8601, UTC; empty when GitHub does not say."""

    id: int
    name: str
    size_bytes: int
    expired: bool
    created_at: str

    @classmethod
    def read(cls, document: Any) -> Artifact:
        """Raises ValueError for anything but an artifact."""
        return cls(
            id=_number(document, "id"),
            name=_text(document, "name"),
            size_bytes=_number(document, "size_in_bytes"),
            expired=value_at(document, "expired") is True,
            created_at=_optional(document, "created_at"),
        )


def blob_of(document: Any) -> str:
    """The blob of a file, from what a repository holds at a path. Raises ValueError, for a folder too."""
    if not isinstance(document, Mapping) or document.get("type") != "file":
        raise ValueError("it is no file")
    sha = _text(document, "sha")
    if not _SHA.fullmatch(sha):
        raise ValueError("sha is no id")
    return sha


def merge_base_of(document: Any) -> str:
    """Of a comparison of two commits. Raises ValueError for another document."""
    sha = _text(document, "merge_base_commit", "sha")
    if not _SHA.fullmatch(sha):
        raise ValueError("merge_base_commit.sha is no full commit id")
    return sha


def value_at(document: Any, *keys: str) -> Any:
    """What stands at the end of these keys, None where one of them is missing."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _text(document: Any, *keys: str) -> str:
    value = value_at(document, *keys)
    if not isinstance(value, str):
        raise ValueError(f"{'.'.join(keys)} is no text")  # noqa: TRY004 - what a document holds is a value
    return value


def _optional(document: Any, *keys: str) -> str:
    """A text that GitHub may leave out or give as null."""
    return "" if value_at(document, *keys) is None else _text(document, *keys)


def _number(document: Any, *keys: str) -> int:
    value = value_at(document, *keys)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{'.'.join(keys)} is no whole number")
    return value
