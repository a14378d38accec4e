"""One attack in each sandbox that it applies to: as processes, and in containers by both ways that files go in."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.command_line import Called
from support.hostile import attack
from support.hostile_containers import attack_in_container

Attack = Callable[..., Called]
"""`attack(script, checks, **more)`: runs a spec whose agent is this Python script, in the fixture `area`."""

_DOCKER = [pytest.param(mode, marks=pytest.mark.docker, id=f"docker-{mode}") for mode in ("bind", "copy")]
in_both = pytest.mark.parametrize("attack", ["process", *_DOCKER], indirect=True)
in_each = pytest.mark.parametrize("attack", ["process", _DOCKER[0]], indirect=True)
"""Once a sandbox, where the way that files go in makes no difference."""
as_processes = pytest.mark.parametrize("attack", ["process"], indirect=True)


@pytest.fixture
def area() -> Iterator[Path]:
    """An author's directory outside of /root, as a runner's checkout is."""
    with tempfile.TemporaryDirectory(prefix="checkout-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(name="attack")
def attack_fixture(request: pytest.FixtureRequest, area: Path) -> Attack:
    """See `Attack`; which sandbox it runs in is up to the marks above."""
    if request.param == "process":
        return partial(attack, area)
    request.getfixturevalue("image")("python:3.12-slim")
    return partial(attack_in_container, area, mode=request.param)
