"""One answer of GitHub's API, and the error that a refusal means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keystone_action.github.api.errors import (
    ApiForbidden,
    BadToken,
    GitHubError,
    NoPermission,
    NotFound,
    Rejected,
    TooLong,
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
        return one_line("; ".join(part for part in parts if isinstance(part, str) and part))

    def json(self, call: Call) -> Any:
        """The document. Raises UnexpectedAnswer."""
        document = self._document()
        if document is None:
            kind = one_line(self.headers.get("content-type", "")) or "something"
            raise UnexpectedAnswer(f"{call.failed}: GitHub answered {kind} that is no JSON ({self.status})")
        return document

    def _document(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def one_line(text: str) -> str:
    """What a server says as part of a sentence: control characters shown, on one line, cut."""
    return first_line(" ".join(visible(text[: 10 * MAX_WORDS]).split()), MAX_WORDS)


def refusal(call: Call, answer: ApiAnswer, *, has_token: bool) -> GitHubError:
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
        return TooLong(f"{call.failed}: it is longer than GitHub takes{said}")
    if 400 <= answer.status < 500:
        return Rejected(f"{call.failed}: GitHub answered {answer.status}{said}")
    return UnexpectedAnswer(f"{call.failed}: GitHub answered {answer.status}, which it does not describe{said}")


def _forbidden(call: Call, answer: ApiAnswer, said: str) -> GitHubError:
    words = answer.words.lower()
    if _NO_PERMISSION not in words and any(word in words for word in _NOT_OF_THE_TOKEN):
        return ApiForbidden(f"{call.failed}: GitHub forbids it{said}")
    message = f"{call.failed}: the token may not do that{said}"
    return NoPermission(message, permission=call.permission, is_personal="personal access token" in words)
