"""A provider that refuses our key, can't be paid or can't be reached: no agent can do better, so one that tries again
is ended (contract, 5.6 "Fault")."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from keystone_action.evidence.trace_readers.builder import mapping, objects, text
from keystone_action.gateway.upstreams import Upstream

UNREACHABLE_SECONDS = 20.0
"""After so many, an upstream that answers nothing is given up."""
_TOLD = 300
"""Characters of a provider's own words."""
_A_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|AIza|ya29|ghp|key)[-_][\w.*-]{2,}[\w*]|\bAIza[\w*-]{4,}|\b(?=[\w*-]*\d)(?=[\w*-]*[A-Za-z])[\w*-]{20,}"
)
"""What looks like a key, some of it starred or not."""
_NAMES_THE_KEY = re.compile(r"\bkey\b|api[_-]?key|authenti", re.IGNORECASE)

_REASONS = {
    "account_deactivated",
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient_quota",
    "API_KEY_INVALID",
    "BILLING_DISABLED",
    "CONSUMER_SUSPENDED",
}
"""Words of the providers. Only words out of their lists count: a message may repeat what the agent asked."""
_NO_CREDIT = "Your credit balance is too low"
"""How Anthropic's message begins. Its type is that of every bad request."""

Kind = Literal["key", "unreachable", "certificate", "proxy", "page"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an upstream is useless."""

    kind: Kind
    sentence: str
    """What people are told. There is no key in it."""

    @property
    def is_certain(self) -> bool:
        """Whether two of them in a row are enough to give the upstream up, and another run would end alike."""
        return self.kind != "unreachable"


def fault_of_answer(upstream: Upstream, status: int, body: Any) -> Fault | None:
    """The fault of an error that refuses our key, or says that it does not pay. body: parsed; None where it could not
    be read."""
    first = body[0] if isinstance(body, list) and body else body
    error = mapping(first, "error") if isinstance(first, dict) else {}
    told = " ".join((text(error, "message") or text(first if isinstance(first, dict) else {}, "message")).split())
    words = " ".join([told, text(error, "type"), text(error, "code"), text(error, "status")])
    is_refused = status in (401, 402) or reason_of_account(body) == "API_KEY_INVALID"
    if not is_refused and not (status == 403 and _NAMES_THE_KEY.search(words)):
        return None
    said = f": {_A_KEY.sub('(a key)', told)[:_TOLD]}" if told else ""
    return Fault("key", f"{upstream.name} refused {upstream.key_in_words} ({status}){said}")


def fault_of_error(upstream: Upstream, error: BaseException) -> Fault | None:
    """The fault of a request that got no answer at all; None where a connection broke off."""
    import httpx

    place = urlsplit(upstream.base).netloc.rpartition("@")[2]
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", "") or "it could not be verified"
            return Fault(
                "certificate",
                f"the certificate of {place} is not trusted: {why} "
                "(SSL_CERT_FILE names a file with the certificates of a company's own authority)",
            )
    if isinstance(error, httpx.ProxyError):
        said = _A_KEY.sub("(a key)", str(error))[:_TOLD] or "no reason given"
        return Fault("proxy", f"the proxy on the way to {upstream.name} refused: {said}")
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        why = next((one.strerror for one in _causes(error) if isinstance(one, OSError) and one.strerror), "")
        return Fault("unreachable", f"{upstream.name} could not be reached at {place}" + (f": {why}" if why else ""))
    return None


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo and len(found) < 50:
        one = todo.pop(0)
        if one is None or any(one is known for known in found):
            continue
        found.append(one)
        todo += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]
    return found


def page_instead(upstream: Upstream, status: int) -> Fault:
    """The fault of an answer that is a page of HTML."""
    return Fault(
        "page",
        f"{upstream.name} answered with a page of HTML (status {status}), as a login page does that stands in between",
    )


@dataclass(slots=True)
class _Row:
    """Requests of one upstream that ended alike, one after the other."""

    kind: Kind
    sentence: str
    since: float
    """When the first of them began."""
    last: float
    """When the last one that counts ended."""
    count: int = 1


class Faults:
    """The faults of one cell's upstreams, by their names.

    hopeless: the sentence on the upstream that was given up; empty while there is none. seconds: how long to try an
    upstream that can't be reached.
    """

    def __init__(self, seconds: float = UNREACHABLE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock = seconds, clock
        self._rows: dict[str, _Row] = {}
        self.hopeless = ""

    def add(self, name: str, fault: Fault | None, began: float) -> bool:
        """A request of an upstream has ended. Returns whether it is the first that did not reach it: then `look` has to
        be called after `seconds`.

        fault: None for a request that was answered. began: when the request was made; requests that were under way at
        the same time count as one.
        """
        now, row = self._clock(), self._rows.get(name)
        if fault is None:
            self._rows.pop(name, None)
            return False
        is_first = row is None or row.kind != fault.kind
        if row is None or is_first:
            row = self._rows[name] = _Row(fault.kind, fault.sentence, began, now)
        elif began >= row.last:
            row.count, row.last = row.count + 1, now
        row.sentence = fault.sentence
        if fault.is_certain:
            self._give_up(row, row.count > 1)
        else:
            self._give_up(row, now - row.since >= self.seconds)
        return is_first and not fault.is_certain

    def look(self, name: str) -> None:
        """Time has gone by. An upstream that was tried again and could not be reached is given up."""
        row = self._rows.get(name)
        if row is not None:
            self._give_up(
                row, row.kind == "unreachable" and row.count > 1 and self._clock() - row.since >= self.seconds
            )

    def _give_up(self, row: _Row, is_certain: bool) -> None:
        if is_certain and not self.hopeless:
            self.hopeless = row.sentence if row.kind != "unreachable" else f"{row.sentence} (for {self.seconds:.0f} s)"


def reason_of_account(body: Any) -> str:
    """The provider's word for a key or an account that is refused; empty where the error has none. body: of the error;
    None where it could not be read."""
    first = body[0] if isinstance(body, list) and body else body
    error = mapping(first, "error") if isinstance(first, dict) else {}
    told = [text(error, "type"), text(error, "code"), *(text(one, "reason") for one in objects(error, "details"))]
    if text(error, "message").startswith(_NO_CREDIT):
        told.append("billing_error")
    return next((word for word in told if word in _REASONS), "")
