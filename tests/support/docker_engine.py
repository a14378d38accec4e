"""The Docker engine that tests marked `docker` run against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from docker import DockerClient

from keystone_action.engine.client import EngineClient
from keystone_action.engine.connect import connect
from keystone_action.errors import SandboxError


def missing(reason: str) -> NoReturn:
    """Skip the test for lack of `reason`; fail it where an engine was promised (KEYSTONE_EXPECT_DOCKER=1), as in CI."""
    if os.environ.get("KEYSTONE_EXPECT_DOCKER") == "1":
        pytest.fail(f"{reason}, and KEYSTONE_EXPECT_DOCKER=1 says that it must be there", pytrace=False)
    pytest.skip(reason)


class Engine(EngineClient):
    """The client of the product, and by docker-py's own names (`containers`, `networks`, `images`, `api`, …) what tests
    ask an engine besides, over the same connection."""

    def __init__(self, client: EngineClient) -> None:
        super().__init__(client._connection)
        self._docker = DockerClient.__new__(DockerClient)
        self._docker.api = self._connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._docker, name)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A client of the engine that DOCKER_HOST names, or of the one on /var/run/docker.sock."""
    try:
        client = connect(os.environ)
    except SandboxError as error:
        missing(f"no Docker engine answers ({error})")
    yield Engine(client)
    client.close()
