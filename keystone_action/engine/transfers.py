"""Files into a container and out of it, as archives, and how much a container holds. All of it blocks."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from keystone_action.engine import pack
from keystone_action.engine.errors import engine_errors
from keystone_action.files.tree_size import TooDeep

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient

_MEASURE_TRIES = 3
_INTO = "can't copy into a container"


def put(client: EngineClient, container: str, pieces: Iterable[bytes], directory: str = "/") -> None:
    """Unpack an archive (all but its end) in a container's directory. Raises SandboxError."""
    with engine_errors(_INTO):
        client.put_archive(container, directory, pack.in_chunks(_read_here(itertools.chain(pieces, [pack.END]))))


def _read_here(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The client would take an OSError of what is sent for one of the connection."""
    with engine_errors(_INTO):
        yield from pieces


def fetch(client: EngineClient, container: str, path: str) -> Generator[bytes, None, None]:
    """What is at this path of a container, as pieces of an archive. To be closed. Raises SandboxError; an OSError of
    the caller's own passes through."""
    with engine_errors("can't copy out of a container"):
        yield from client.archive(container, path)


def layer_size(client: EngineClient, container: str) -> int:
    """Bytes that a container added to its image, in its own layer. Raises TooDeep when the engine can't tell, again and
    again, and SandboxError."""
    for _ in range(_MEASURE_TRIES):
        with engine_errors("can't look at a container's size"):
            size = client.layer_size(container)
        if size >= 0:
            return size
    raise TooDeep
