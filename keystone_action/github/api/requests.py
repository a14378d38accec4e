"""Asking GitHub until it answers or the patience ends: tries, waits, redirects, pages.

How long to wait, and when to give up, follows from the headers of its answers and the best practices of its REST API
(docs.github.com/rest/guides/best-practices-for-using-the-rest-api), within the bounds of the contract.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from keystone_action.github.api.answers import ApiAnswer, Call, refusal_error
from keystone_action.github.api.errors import (
    ApiForbidden,
    GitHubError,
    NoPermission,
    RateLimited,
    Unavailable,
    UnexpectedAnswer,
    UntrustedCertificate,
)
from keystone_action.github.api.transport import FailedTry, Transport, origin

_WITHOUT_HEADERS = 60.0
"""Seconds: a rate limit that names no time asks for at least a minute, twice as long each time."""
_LONGEST = 10.0**9


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """tries: of one request. seconds: of one try. waiting: seconds between tries, of all requests together.
    between_writes: seconds from the end of one write to the next, which that sum does not hold."""

    tries: int = 4
    seconds: float = 10.0
    waiting: float = 60.0
    between_writes: float = 1.0


@dataclass(frozen=True, slots=True)
class Clock:
    """monotonic: seconds from anywhere. now: seconds since 1970. sleep: takes seconds."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def seconds_to_wait(headers: Mapping[str, str], *, rate_limited: bool, tried: int, now: float) -> float:
    """Seconds until the next try.

    headers: of the answer, by lower-case name; empty when there was none. tried: from 1. now: since 1970, used when
    the server does not say its own time: what it calls a time is measured by its clock, not by ours.
    """
    here = _date(headers.get("date", ""))
    now = now if here is None else here
    after = _retry_after(headers.get("retry-after", ""), now)
    if after is not None:
        return max(after, 1.0)
    if rate_limited:
        reset = _number(headers.get("x-ratelimit-reset", ""))
        if headers.get("x-ratelimit-remaining", "").strip() == "0" and reset is not None:
            # Both are whole seconds, cut: one more, or the limit would still stand.
            return min(max(reset - now, 0.0) + 1.0, _LONGEST)
        return _WITHOUT_HEADERS * 2.0 ** (tried - 1)
    return 2.0 ** (tried - 1)


def _retry_after(value: str, now: float) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3)."""
    seconds = _number(value)
    if seconds is not None:
        return min(seconds, _LONGEST)
    date = _date(value)
    return None if date is None else min(date - now, _LONGEST)


def _number(value: str) -> float | None:
    value = value.strip()
    if not value.isascii() or not value.isdecimal():
        return None
    return 10.0**12 if len(value) > 12 else float(value)


def _date(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


class Writes:
    """What is known of a step's writes so far, by all of its clients, which may be in several threads: when the last
    one was under way, until when GitHub wants none, and what it has refused for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: float | None = None
        self._not_before: float | None = None
        self._refused: dict[str, GitHubError] = {}

    def note(self, now: float) -> None:
        """A write starts or ends."""
        with self._lock:
            self._last = now if self._last is None else max(self._last, now)

    def postpone(self, until: float) -> None:
        """GitHub asks for no write before then."""
        with self._lock:
            self._not_before = until if self._not_before is None else max(self._not_before, until)

    def pause(self, now: float, between: float) -> float:
        """Seconds until `between` have gone by since the last write; 0 or less when they have."""
        with self._lock:
            return 0.0 if self._last is None else self._last + between - now

    def postponement(self, now: float) -> float:
        """Seconds for which GitHub wants no write; 0 or less for none."""
        with self._lock:
            return 0.0 if self._not_before is None else self._not_before - now

    def refuse(self, what: str, error: GitHubError) -> None:
        """GitHub refused it, and would each time. what: a permission, or one thing to write."""
        with self._lock:
            self._refused[what] = error

    def refusal(self, what: str) -> GitHubError | None:
        """The error of an earlier try; None where there was none."""
        with self._lock:
            return self._refused.get(what)


class Patience:
    """The waiting of all requests of one client: it is said, paced and bounded here.

    log: takes a line for every wait. A client that hangs silently looks like one that is broken. writes: those of
    other clients of this step count, too.
    """

    def __init__(
        self, limits: RequestLimits, clock: Clock, log: Callable[[str], None], writes: Writes | None = None
    ) -> None:
        self._clock = clock
        self._log = log
        self._limits = limits
        self._writes = writes or Writes()
        self.left = limits.waiting

    def wait(self, seconds: float, why: str) -> bool:
        """Waits, or returns False at once when that is longer than what is left of all waiting."""
        if seconds > self.left:
            return False
        self.left -= seconds
        self._log(f"{why}; waiting {seconds:.0f} s ({self.left:.0f} s of waiting left)")
        self._clock.sleep(seconds)
        return True

    def pause(self) -> None:
        """Waits until a second has gone by since the last write of any client, also of one that failed."""
        pause = self._writes.pause(self._clock.monotonic(), self._limits.between_writes)
        if pause > 0:
            self._log(f"waiting {pause:.1f} s, since GitHub asks for a second between writes")
            self._clock.sleep(pause)

    def before_write(self) -> None:
        """Pauses, and notes when the write begins."""
        self.pause()
        self._writes.note(self._clock.monotonic())

    def after_write(self) -> None:
        """Notes when the last write ended."""
        self._writes.note(self._clock.monotonic())

    def postpone_writes(self, seconds: float) -> None:
        """GitHub refused a request, and asks for so long a wait."""
        self._writes.postpone(self._clock.monotonic() + seconds)

    def wait_for_writes(self, why: str) -> float:
        """Waits until GitHub takes writes again. Returns the seconds that this would take where there is not so much
        waiting left, else 0."""
        seconds = self._writes.postponement(self._clock.monotonic())
        if seconds <= 0 or self.wait(seconds, why):
            return 0.0
        return seconds


MAX_PAGES = 100
"""Of 100 entries each; GitHub stops at 2,500 comments."""
_MAX_REDIRECTS = 3
_LINK = re.compile(r"<([^<>]*)>([^<>]*)")

WasDone = Callable[[], bool]
"""Asked after a write whose answer was lost: whether it was done."""


class ApiRequests:
    """Sends calls one after the other, as GitHub asks its clients to. api_url: without a slash at its end. log: takes
    a line for every wait and every failed try. writes: what other clients of this step have been told, too."""

    def __init__(
        self,
        *,
        transport: Transport,
        api_url: str,
        has_token: bool,
        log: Callable[[str], None],
        limits: RequestLimits,
        clock: Clock,
        writes: Writes | None = None,
    ) -> None:
        self._transport = transport
        self._api_url = api_url
        self._has_token = has_token
        self._limits = limits
        self._clock = clock
        self._writes = writes or Writes()
        self._patience = Patience(limits, clock, log, self._writes)
        self._down = False

    def send(self, call: Call, *, was_done: WasDone | None = None) -> ApiAnswer | None:
        """The answer, a status of 200 or 201.

        was_done: for a call that must not be done twice; asked before every further try that follows an answer which
        was lost or a 5xx, and after the last. None is returned when it says yes. Raises GitHubError.
        """
        if call.writes:
            self._refuse_writing(call)
        # What was down a moment ago gets one chance, not another minute.
        tries = 1 if self._down or call.once else self._limits.tries
        for tried in range(1, tries + 1):
            outcome = self._once(call)
            if isinstance(outcome, ApiAnswer) and not _is_retried(outcome):
                self._down = False
                if outcome.status not in (200, 201):
                    raise self._refusal(call, outcome)
                return outcome
            if isinstance(outcome, ApiAnswer) and outcome.rate_limited:
                self._patience.postpone_writes(self._seconds(outcome, tried) or 0.0)
            waited = tried < tries and self._wait(call, outcome, tried)
            if was_done and _maybe_done(outcome) and self._look(call, outcome, was_done, tried):
                return None
            if not waited:
                self._give_up(call, outcome, tried)
        raise AssertionError("the last try ends in an answer or an error")

    def pause(self) -> None:
        """Waits as before a write."""
        self._patience.pause()

    def _refuse_writing(self, call: Call) -> None:
        """Raises what a write is known to end in: nothing is sent then."""
        if isinstance(known := self._writes.refusal(call.permission), NoPermission):
            raise known.again(call.failed)
        if known := self._writes.refusal(_name_of(call)):
            raise known
        seconds = self._patience.wait_for_writes(f"{call.failed} yet: GitHub limits the rate")
        if seconds:
            asked = f"GitHub limits the rate and asks to wait {seconds:.0f} s more"
            raise RateLimited(
                f"{call.failed}: {asked}, longer than the {self._patience.left:.0f} s left for reporting",
                help="run the job again later",
            )

    def _refusal(self, call: Call, answer: ApiAnswer) -> GitHubError:
        error = refusal_error(call, answer, has_token=self._has_token)
        if call.writes and isinstance(error, NoPermission):
            self._writes.refuse(call.permission, error)
        elif call.writes and isinstance(error, ApiForbidden):
            self._writes.refuse(_name_of(call), error)
        return error

    def pages(self, call: Call, name: str | None = None) -> Iterator[Any]:
        """The entries of a list, page by page, each asked for when it is needed.

        name: of the field that holds the list; None when the document is the list. Raises GitHubError.
        """
        query = (*call.query, ("per_page", "100"))
        seen = set()
        for _ in range(MAX_PAGES):
            answer = self.send(replace(call, query=query))
            assert answer is not None
            document = answer.json(call)
            if name is not None:
                document = document.get(name) if isinstance(document, dict) else None
            if not isinstance(document, list):
                raise UnexpectedAnswer(f"{call.failed}: GitHub answered JSON that is not a list")
            yield from document
            seen.add(query)
            following = next_query(answer.headers.get("link", ""))
            if following is None:
                return
            query = following
            if query in seen:
                raise UnexpectedAnswer(f"{call.failed}: GitHub's next page is one that was read already")
        raise UnexpectedAnswer(f"{call.failed}: there are more than {MAX_PAGES} pages")

    def _once(self, call: Call) -> ApiAnswer | FailedTry:
        """One try, redirects followed: to the API's own origin with everything, to another without the token and only
        where that is expected."""
        url = self._api_url + call.path if call.path.startswith("/") else call.path
        if call.query:
            url += "?" + urlencode(call.query)
        body = None if call.body is None else json.dumps(call.body).encode()
        for _ in range(_MAX_REDIRECTS + 1):
            if call.writes:
                self._patience.before_write()
            outcome = self._transport.send(call.method, url, body, call.limit)
            if call.writes:
                self._patience.after_write()
            if not isinstance(outcome, ApiAnswer) or not _is_redirect(call, outcome):
                return outcome
            url = self._target(call, url, outcome)
        raise UnexpectedAnswer(f"{call.failed}: GitHub redirects more than {_MAX_REDIRECTS} times")

    def _target(self, call: Call, url: str, answer: ApiAnswer) -> str:
        try:
            target = urljoin(url, answer.headers.get("location", ""))
            scheme, host, _ = origin(target)
        except ValueError:
            raise UnexpectedAnswer(f"{call.failed}: GitHub redirects to what is not an address") from None
        if not self._transport.is_ours(target):
            if not call.follows:
                raise UnexpectedAnswer(f"{call.failed}: GitHub redirects to {host}, which is not followed")
            if scheme == "http" and origin(url)[0] == "https":
                raise UnexpectedAnswer(f"{call.failed}: GitHub redirects to {host} without encryption")
        return target

    def _wait(self, call: Call, outcome: ApiAnswer | FailedTry, tried: int) -> bool:
        seconds = self._seconds(outcome, tried)
        if seconds is None:
            return False
        return self._patience.wait(seconds, f"{call.failed} yet: GitHub {_reason(outcome)} (try {tried})")

    def _seconds(self, outcome: ApiAnswer | FailedTry, tried: int) -> float | None:
        """Until the next try; None when there should be none."""
        if isinstance(outcome, FailedTry):
            if outcome.lasting:
                return None
            return seconds_to_wait({}, rate_limited=False, tried=tried, now=self._clock.now())
        limited = outcome.rate_limited
        return seconds_to_wait(outcome.headers, rate_limited=limited, tried=tried, now=self._clock.now())

    def _look(self, call: Call, outcome: ApiAnswer | FailedTry, was_done: WasDone, tried: int) -> bool:
        try:
            return was_done()
        except GitHubError as error:
            # Trying again blindly could do it twice.
            unknown = f"whether it was done all the same could not be told ({error.message})"
            raise Unavailable(f"{_failure(call, outcome, tried)}; {unknown}", maybe_done=True) from None

    def _give_up(self, call: Call, outcome: ApiAnswer | FailedTry, tried: int) -> NoReturn:
        if isinstance(outcome, FailedTry) and outcome.untrusted:
            raise UntrustedCertificate(
                f"{call.failed}: GitHub {outcome.reason}",
                help="name the authority that signed it in the input ca-bundle",
            )
        if isinstance(outcome, FailedTry) and outcome.lasting:
            raise UnexpectedAnswer(f"{call.failed}: GitHub {outcome.reason}")
        if isinstance(outcome, ApiAnswer) and outcome.rate_limited:
            seconds, left = self._seconds(outcome, tried) or 0.0, self._patience.left
            said = f" (GitHub says: {outcome.words})" if outcome.words else ""
            asked = f"GitHub limits the rate and asks to wait {seconds:.0f} s"
            why = f"more than the {left:.0f} s left for reporting" if seconds > left else f"after {tried} tries"
            raise RateLimited(f"{call.failed}: {asked}, {why}{said}", help="run the job again later")
        self._down = self._down or not call.once
        raise Unavailable(_failure(call, outcome, tried), maybe_done=call.writes and _maybe_done(outcome))


def next_query(link: str) -> tuple[tuple[str, str], ...] | None:
    """The query of the next page by a `Link` header (RFC 8288); None on the last.

    Only the query is taken: where to send the token to is not a header's to say, and behind a proxy the address that
    a server thinks it has does not work.
    """
    for url, parameters in _LINK.findall(link):
        if _is_next(parameters):
            try:
                query = tuple(parse_qsl(urlsplit(url).query, keep_blank_values=True, max_num_fields=50))
            except ValueError:
                return None
            return query or None
    return None


def _is_next(parameters: str) -> bool:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        relations = value.strip().rstrip(",").strip().strip('"').lower().split()
        if name.strip().lower() == "rel" and "next" in relations:
            return True
    return False


def _name_of(call: Call) -> str:
    return f"{call.method} {call.path}"


def _is_retried(answer: ApiAnswer) -> bool:
    return answer.rate_limited or 500 <= answer.status < 600


def _is_redirect(call: Call, answer: ApiAnswer) -> bool:
    """307 and 308 repeat the request as it was; after the others a client may turn a POST into a GET, whose answer is
    another."""
    return answer.status in (307, 308) or (call.method == "GET" and answer.status in (301, 302, 303))


def _maybe_done(outcome: ApiAnswer | FailedTry) -> bool:
    return outcome.sent if isinstance(outcome, FailedTry) else outcome.status >= 500


def _reason(outcome: ApiAnswer | FailedTry) -> str:
    if isinstance(outcome, FailedTry):
        return outcome.reason
    if outcome.rate_limited:
        return f"limits the rate ({outcome.status})"
    return f"answered {outcome.status}" + (f" ({outcome.words})" if outcome.words else "")


def _failure(call: Call, outcome: ApiAnswer | FailedTry, tried: int) -> str:
    return f"{call.failed}: GitHub {_reason(outcome)}; gave up after {tried} {'try' if tried == 1 else 'tries'}"
