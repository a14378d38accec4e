"""One answer of GitHub's API: the error that a refusal means, and the few fields that we read of a document, checked
when they come in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from keystone_action.github.api.errors import (
    ApiForbidden,
    BadToken,
    BodyTooLong,
    GitHubError,
    NoPermission,
    NotFound,
    Rejected,
    UnexpectedAnswer,
)
from keystone_action.report.escape import first_line, visible

MAX_WORDS = 300
"""Characters that are quoted of what a server says."""
_NO_PERMISSION = "resource not accessible"
"""How GitHub's refusals of tokens of apps ("by integration") and of fine-grained tokens begin."""
_NOT_OF_THE_TOKEN = (
    "locked",
    "archived",
    "saml",
    "single sign-on",
    "ip allow list",
    "suspended",
    "blocked",
    "disabled",
)
_RATE_WORDS = ("rate limit", "abuse detection")


@dataclass(frozen=True, slots=True)
class Call:
    """One thing to ask of the API.

    path: below the API's address, or a whole address. failed: the sentence's beginning when it fails, for example
    `the comment on #3 could not be posted`. permission: what the token needs, as a workflow names it. query: names
    and values, in order. writes: it changes something, so that it is paced. follows: a redirect to another host is
    followed, without the token. once: there is another way, so that a failure is not repeated and says nothing about
    other calls. limit: bytes of the answer.
    """

    method: str
    path: str
    failed: str
    permission: str
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    writes: bool = False
    follows: bool = False
    once: bool = False
    limit: int = 64 * 1024 * 1024  # a page of 100 comments, each of 65,536 characters that JSON writes as \u003c


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What came back. headers: by lower-case name. ours: it came from the API itself, not from where that sent us."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    ours: bool = True

    @property
    def rate_limited(self) -> bool:
        """Whether headers or words say so: every answer has `x-ratelimit-*`, so a plain 403 has them too, and a
        secondary limit may come with nothing but words."""
        if self.status == 429:
            return True
        words = self.words.lower()
        if self.status != 403 or _NO_PERMISSION in words:
            return False
        if "retry-after" in self.headers or self.headers.get("x-ratelimit-remaining", "").strip() == "0":
            return True
        return any(word in words for word in _RATE_WORDS)

    @property
    def words(self) -> str:
        """GitHub's own explanation of an error, with those of single fields; empty when there is none."""
        document = self._document()
        if not isinstance(document, dict):
            return ""
        parts = [document.get("message")]
        errors = document.get("errors")
        fields = errors[:5] if isinstance(errors, list) else []
        parts += [error.get("message") if isinstance(error, dict) else error for error in fields]
        return server_words("; ".join(part for part in parts if isinstance(part, str) and part))

    def json(self, call: Call) -> Any:
        """The document. Raises UnexpectedAnswer."""
        document = self._document()
        if document is None:
            kind = server_words(self.headers.get("content-type", "")) or "something"
            raise UnexpectedAnswer(f"{call.failed}: GitHub answered {kind} that is not JSON ({self.status})")
        return document

    def _document(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def server_words(text: str) -> str:
    """What a server says as part of a sentence: control characters shown, on one line, cut."""
    return first_line(" ".join(visible(text[: 10 * MAX_WORDS]).split()), MAX_WORDS)


def refusal_error(call: Call, answer: ApiAnswer, *, has_token: bool) -> GitHubError:
    """The error that a status outside of 2xx and 5xx means."""
    said = f" (GitHub says: {answer.words})" if answer.words else ""
    if not answer.ours:
        return Rejected(f"{call.failed}: the place that GitHub sent us to answered {answer.status}")
    if answer.status == 401:
        if not has_token:
            return BadToken(f"{call.failed}: there is no token", help="set the input github-token")
        return BadToken(f"{call.failed}: GitHub does not accept the token{said}", help="check the input github-token")
    if answer.status == 403:
        return _forbidden(call, answer, said)
    if answer.status in (404, 410):
        help_ = f"the token may lack `permissions: {call.permission}`, which GitHub hides behind a 404"
        return NotFound(f"{call.failed}: it is not there, or this token can't see it{said}", help=help_)
    if answer.status == 422 and "too long" in answer.words.lower():
        return BodyTooLong(f"{call.failed}: it is longer than GitHub takes{said}")
    if 400 <= answer.status < 500:
        return Rejected(f"{call.failed}: GitHub answered {answer.status}{said}")
    return UnexpectedAnswer(f"{call.failed}: GitHub answered {answer.status}, which it does not describe{said}")


def _forbidden(call: Call, answer: ApiAnswer, said: str) -> GitHubError:
    words = answer.words.lower()
    if _NO_PERMISSION not in words and any(word in words for word in _NOT_OF_THE_TOKEN):
        return ApiForbidden(f"{call.failed}: GitHub forbids it{said}")
    message = f"{call.failed}: the token may not do that{said}"
    return NoPermission(message, permission=call.permission, is_personal="personal access token" in words)


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
        raise ValueError("it is not a file")
    sha = _text(document, "sha")
    if not _SHA.fullmatch(sha):
        raise ValueError("sha is not an id")
    return sha


def merge_base_of(document: Any) -> str:
    """Of a comparison of two commits. Raises ValueError for another document."""
    sha = _text(document, "merge_base_commit", "sha")
    if not _SHA.fullmatch(sha):
        raise ValueError("merge_base_commit.sha is not a full commit id")
    return sha


def value_at(document: Any, *keys: str) -> Any:
    """What stands at the end of these keys, None where one of them is missing."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _text(document: Any, *keys: str) -> str:
    value = value_at(document, *keys)
    if not isinstance(value, str):
        raise ValueError(f"{'.'.join(keys)} is not text")  # noqa: TRY004 - what a document holds is a value
    return value


def _optional(document: Any, *keys: str) -> str:
    """A text that GitHub may leave out or give as null."""
    return "" if value_at(document, *keys) is None else _text(document, *keys)


def _number(document: Any, *keys: str) -> int:
    value = value_at(document, *keys)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{'.'.join(keys)} is not a whole number")
    return value
