"""Gateways that record, and that replay what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from support.gateway_world import World, world
from support.scripted_provider import Answer

from keystone_action.gateway.recordings.names import Names
from keystone_action.gateway.recordings.recorder import Recorder, Requests
from keystone_action.gateway.recordings.recording import Recording
from keystone_action.gateway.recordings.replay import Replay
from keystone_action.gateway.recordings.request_key import Sameness

HERE, THERE = {"workspace": "/tmp/run-1/workspace"}, {"workspace": "/home/ci/run-2/ws"}


@dataclass
class Recorded:
    """A world that records."""

    world: World
    recorder: Recorder

    def recording(self) -> Recording:
        """What there is by now."""
        self.world.settled()
        assert self.recorder.problem == ""
        return Recording(self.recorder.entries, "spec", "spec.r0", "1.0", "2026-11-23T14:05:00Z")


@dataclass
class Replayed:
    """A world that replays."""

    world: World
    replay: Replay


@contextmanager
def recorded(*answers: Answer, ignore: tuple[str, ...] = (), **settings: Any) -> Iterator[Recorded]:
    """answers: of the provider."""
    requests, made = Requests(Sameness(ignore=ignore)), []
    requests.begin(Names(HERE))

    def source(providers: Any) -> Any:
        made.append(Recorder(providers, requests))
        return made[0]

    with world(*answers, source=source, **settings) as one:  # type: ignore[arg-type]
        yield Recorded(one, made[0])


@contextmanager
def replayed(
    recording: Recording, match: Literal["content", "turn"] = "content", ignore: tuple[str, ...] = (), **settings: Any
) -> Iterator[Replayed]:
    """Nobody asks a provider: that fails the test."""
    requests = Requests(Sameness(ignore=ignore))
    requests.begin(Names(THERE))
    replay = Replay(recording, match, requests, "spec.r0.jsonl")
    with world(source=lambda _: replay, **settings) as one:
        yield Replayed(one, replay)
        assert one.behind.asked == []
