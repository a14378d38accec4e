"""The Docker engine that tests marked `docker` run against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from docker import DockerClient


def missing(reason: str) -> NoReturn:
    """Skip the test for lack of `reason`; fail it where an engine was promised (KEYSTONE_EXPECT_DOCKER=1), as in CI."""
    if os.environ.get("KEYSTONE_EXPECT_DOCKER") == "1":
        pytest.fail(f"{reason}, and KEYSTONE_EXPECT_DOCKER=1 says that it must be there", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    """A client of the engine that DOCKER_HOST names, or of the one on /var/run/docker.sock."""
    from keystone_action.engine.client import connect
    from keystone_action.errors import SandboxError

    try:
        client = connect(os.environ)
    except SandboxError as error:
        missing(f"no Docker engine answers ({error})")
    yield client
    client.close()
