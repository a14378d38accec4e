"""Images pulled by the engine, with progress, retries, and errors that say what to do."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from keystone_action.engine.calls import Refused, UnusableLogin, ask_engine, ask_within
from keystone_action.errors import ServiceError
from keystone_action.spec.registry_names import without_scheme

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import PullEvent

PAUSES: Sequence[float] = (1.0, 4.0)
"""Seconds to wait before the second try, the third, …"""
_PROGRESS_SECONDS = 2.0
_HUB = "docker.io"
_HUB_NAMES = frozenset({_HUB, "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})

Cause = Literal["rate limit", "architecture", "missing", "unauthorized", "disk", "unreachable", "other"]
_UNREACHABLE = (
    r"dial tcp|no such host|timeout|timed out|connection re(fused|set)|network is unreachable|no route to host|\bEOF\b"
    r"|x509|certificate|tls:|gave HTTP response|request canceled|temporary failure|\b50[0234]\b"
)
_CAUSES: Sequence[tuple[Cause, str]] = (
    ("rate limit", r"toomanyrequests|too many requests|rate limit|\b429\b"),
    (
        "architecture",
        r"no matching manifest|no match for platform|image operating system|not match the .*platform",
    ),
    ("disk", "no space left on device"),
    # Docker Hub says "denied" of repositories that don't exist, too.
    ("unauthorized", r"unauthorized|denied|authentication required|no basic auth|\b40[13]\b"),
    ("missing", r"manifest unknown|name unknown|not found|no such image|\b404\b"),
    ("unreachable", _UNREACHABLE),
)
_WORTH_A_RETRY = frozenset({"rate limit", "unreachable", "other"})


@dataclass(frozen=True, slots=True)
class Login:
    """A user of a registry."""

    username: str
    password: str = field(repr=False)
    registry: str | None = None
    """The registry's host, as image names have it; None = the mirror where there is one, else Docker Hub. The login is
    sent to no other registry."""


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image's name, taken apart."""

    registry: str
    repository: str
    version: str
    """A tag, or a digest with `sha256:`."""

    @classmethod
    def parse(cls, name: str) -> ImageReference:
        """Of `postgres:16`, `ghcr.io/org/app@sha256:…`, `localhost:5000/x`. A part before the first `/` is a registry
        when it has a dot or a colon, or is `localhost`, as the engine reads it."""
        rest, _, digest = name.partition("@")
        first, slash, others = rest.partition("/")
        registry = _HUB
        if slash and ("." in first or ":" in first or first == "localhost"):
            registry, rest = first, others
        repository, colon, tag = rest.rpartition(":")
        if not colon:
            repository, tag = rest, "latest"
        if registry in _HUB_NAMES:
            registry = _HUB
            repository = repository if "/" in repository else f"library/{repository}"
        return cls(registry, repository, digest or tag)

    def at(self, registry: str) -> str:
        """The repository's name in a registry."""
        return f"{registry}/{self.repository}"


@dataclass(frozen=True, slots=True)
class Pulling:
    """Where images come from."""

    mirror: str | None = None
    """A registry (perhaps with a path) that stands for Docker Hub; other registries are asked themselves."""
    login: Login | None = None
    user_logins: bool = False
    """Whether what `docker login` kept for our user counts where `login` is not for the registry, credential helpers
    included. On a laptop only: inside the action, the home directory belongs to the steps before."""
    on_progress: Callable[[str], None] | None = None
    """Gets lines for people, one every 2 s at most, from another thread."""


async def ensure_image(client: EngineClient, name: str, how: Pulling, *, pauses: Sequence[float] = PAUSES) -> None:
    """Returns when the engine has this image: at once where it does, else after pulling it. pauses: see PAUSES.

    Raises ServiceError that tells rate limit, missing tag, wrong architecture, missing rights, a full disk and no
    network apart.
    """
    import anyio

    if await ask_engine(lambda: client.has_image(name), f"image {name}"):
        return
    pull = _Pull(client, name, how)
    for pause in (*pauses, None):
        # A registry may be silent for as long as it likes, and a cancelled run waits for nobody's registry.
        problem = await ask_within(pull.run, f"image {name} can't be pulled", math.inf)
        if problem is None:
            return
        if pause is None or cause_of(problem) not in _WORTH_A_RETRY:
            raise _failure(name, pull.registry, problem)
        if how.on_progress is not None:
            how.on_progress(f"pulling {name} failed ({_short(problem)}); the next try is in {pause:g} s")
        await anyio.sleep(pause)


def cause_of(problem: str) -> Cause:
    """What kind of failure the engine's words mean."""
    return next((cause for cause, pattern in _CAUSES if re.search(pattern, problem, re.IGNORECASE)), "other")


class _Pull:
    """One image from where it is to be had."""

    def __init__(self, client: EngineClient, name: str, how: Pulling) -> None:
        self._client = client
        self._name = name
        self._wanted = ImageReference.parse(name)
        self._mirrored = bool(how.mirror) and self._wanted.registry == _HUB
        prefix = without_scheme(how.mirror or "") if self._mirrored else self._wanted.registry
        self._from = self._wanted.at(prefix)
        self.registry = prefix.split("/", 1)[0]
        self._login = how.login if how.login is not None and self._is_for(how.login, how.mirror) else None
        self._user_logins = how.user_logins
        self._on_progress = how.on_progress

    def _is_for(self, login: Login, mirror: str | None) -> bool:
        if login.registry is not None:
            return self.registry == (_HUB if login.registry in _HUB_NAMES else login.registry)
        return self._mirrored if mirror else self.registry == _HUB

    def run(self) -> str | None:
        """One try; what went wrong in the registry's words, or None. Blocking; raises what the client raises."""
        version = self._wanted.version
        progress = _Progress(self._name, self._on_progress)
        try:
            for event in self._events():
                if "error" in event:
                    return str(event["error"])
                progress.event(event)
            if self._mirrored:
                separator = "@" if version.startswith("sha256:") else ":"
                self._tag(f"{self._from}{separator}{version}")
        except Refused as error:
            return error.said
        return None

    def _events(self) -> Iterator[PullEvent]:
        pull = partial(self._client.pull, self._from, self._wanted.version)
        if self._login is not None:
            return pull({"username": self._login.username, "password": self._login.password})
        if self._user_logins:
            try:
                return pull(None)
            except UnusableLogin as error:
                if self._on_progress is not None:
                    self._on_progress(f"your `docker login` can't be used, {self._name} is pulled without: {error}")
        return pull({})

    def _tag(self, pulled: str) -> None:
        tag = "latest" if self._wanted.version.startswith("sha256:") else self._wanted.version
        self._client.tag(pulled, self._name.split("@", 1)[0].rsplit(":", 1)[0], tag)


class _Progress:
    """Layers' bytes, added up and told now and then."""

    def __init__(self, name: str, tell: Callable[[str], None] | None) -> None:
        self._name = name
        self._tell = tell
        self._layers: dict[str, tuple[int, int]] = {}
        self._last = time.monotonic()
        if tell is not None:
            tell(f"pulling {name}")

    def event(self, event: PullEvent) -> None:
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            self._layers[str(event.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
        now = time.monotonic()
        if self._tell is None or now - self._last < _PROGRESS_SECONDS or not self._layers:
            return
        self._last = now
        done, total = (sum(pair[side] for pair in self._layers.values()) for side in (0, 1))
        self._tell(f"pulling {self._name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")


def _short(problem: str) -> str:
    cause = cause_of(problem)
    return " ".join(problem.split())[:200] if cause == "other" else cause


def _failure(name: str, registry: str, problem: str) -> ServiceError:
    said = " ".join(problem.split())[:500]
    sentence, advice = {
        "rate limit": (
            f"{registry} refuses to send image {name}: too many pulls (rate limit)",
            "Log in (registry-username, registry-password), use a mirror (registry-mirror), or run again later.",
        ),
        "architecture": (
            f"image {name} exists, but not for this machine's architecture",
            "Name a tag or another image that is built for it.",
        ),
        "disk": (
            f"image {name} can't be stored: the engine's disk is full",
            "Make room there (`docker system df` shows what takes it).",
        ),
        "unauthorized": (
            f"{registry} does not give image {name} to us: it is private, or there is no such image",
            "Check its name; for a private image set registry-username and registry-password.",
        ),
        "missing": (
            f"{registry} has no image {name}",
            "Check its name and tag.",
        ),
        "unreachable": (
            f"image {name} can't be pulled: {registry} can't be reached",
            "Check the network of the machine that the engine runs on, or use a mirror (registry-mirror).",
        ),
        "other": (f"image {name} can't be pulled from {registry}", "Try `docker pull` by hand on this machine."),
    }[cause_of(problem)]
    return ServiceError(f"{sentence} (it said: {said})", help=advice)
