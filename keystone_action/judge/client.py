"""What every provider's client is to the judge: one question, one reply, and how a call can fail."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, Protocol

Stop = Literal["end", "truncated", "refused"]
Turn = tuple[Literal["user", "assistant"], str]
Feature = Literal["temperature", "json_schema", "json_object"]

ANSWER_SCHEMA: Mapping[str, Any] = {
    # No minimum and maximum: providers' schema modes refuse them; `answer.parse_answer` checks the range.
    "type": "object",
    "properties": {
        "reason": {"type": "string", "description": "Why, in at most three sentences, with the evidence."},
        "score": {"type": "number", "description": "From 0.0 (fails the criteria) to 1.0 (meets them fully)."},
        "passed": {"type": "boolean", "description": "Whether the criteria are met."},
    },
    "required": ["reason", "score", "passed"],
    "additionalProperties": False,
}
"""`reason` comes first: a model that writes its reasons before the number grades better."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request to a model. turns: (role, text), the last one a user's. without: features that this model was
    found to refuse; temperature is then left out, structured output asked in the next weaker form."""

    model: str
    system: str
    turns: tuple[Turn, ...]
    temperature: float | None
    without: frozenset[Feature] = frozenset()


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """What came back: the text as the model wrote it, why it ended, and what it cost in tokens. input_tokens: neither
    read from a cache nor written to one."""

    text: str
    stop: Stop
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class CallFailed(Exception):  # noqa: N818 - an outcome of a call
    """A call gave no reply. transient: worth trying again. retry_after: seconds the server asked us to wait.
    refuses: the feature that the model doesn't take, when that is why."""

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        retry_after: float | None = None,
        refuses: Feature | None = None,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.retry_after = retry_after
        self.refuses = refuses


class Client(Protocol):
    """A provider's API. Made for one judgement and closed after it."""

    async def ask(self, question: Question) -> JudgeReply:
        """Raises CallFailed. Never retries: the judge does, within its time."""

    async def close(self) -> None:
        """Close the connections."""


def status_failure(
    status: int, message: str, headers: Mapping[str, str], *, sent: Question, key: str, host: str
) -> CallFailed:
    """What an HTTP status of 400 and above means, as a sentence for people. key: the variable that the key is from."""
    said = f": {message}" if message else ""
    if status in (401, 403):
        return CallFailed(f"{host} refused {key} ({status}){said}; check the key")
    if status == 404:
        return CallFailed(f"{host} has no model {sent.model} (404){said}")
    if status == 413:
        return CallFailed(f"{host} found the prompt too large (413){said}")
    if status in (408, 409, 429) or status >= 500:
        what = {429: "is limiting our rate", 529: "is overloaded"}.get(status, "could not answer")
        return CallFailed(f"{host} {what} ({status}){said}", transient=True, retry_after=_retry_after(headers))
    refuses = _refused_feature(message, sent) if status in (400, 422) else None
    return CallFailed(f"{host} refused the request ({status}){said}", refuses=refuses)


def connection_failure(host: str, error: BaseException) -> CallFailed:
    """No answer came. A certificate that is not trusted, and a proxy that refuses, are the same in every try."""
    cause: BaseException | None = error
    for _ in range(10):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", "") or "it could not be verified"
            return CallFailed(
                f"the certificate of {host} is not trusted: {why} "
                "(SSL_CERT_FILE names a file with the certificates of a company's own authority)"
            )
        if type(cause).__name__ == "ProxyError":
            return CallFailed(f"the proxy on the way to {host} refused: {str(cause)[:300] or 'no reason given'}")
        cause = None if cause is None else cause.__cause__ or cause.__context__
    reason = error if error.__cause__ is None or not type(error).__name__.startswith("API") else error.__cause__
    return CallFailed(f"{host} can't be reached ({type(reason).__name__})", transient=True)


def _refused_feature(message: str, sent: Question) -> Feature | None:
    text = message.lower()
    if "temperature" in text and sent.temperature is not None and "temperature" not in sent.without:
        return "temperature"
    names = ("output_config", "output_format", "output format", "structured output", "json_schema", "response_format")
    if any(name in text for name in names):
        weaker: tuple[Feature, ...] = ("json_schema", "json_object")
        return next((feature for feature in weaker if feature not in sent.without), None)
    return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from `retry-after-ms` or `retry-after` (a number or a date); None when absent or unreadable."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) / divisor
        except ValueError:
            continue
        return seconds if 0 <= seconds < 1e9 else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, TypeError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def tokens(value: Any) -> int:
    """A token count as a provider reports it; 0 for anything that is not a count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
