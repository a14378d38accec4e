"""One attack in each sandbox that it applies to: as processes, and in containers by both ways that files go in."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called, keystone
from support.hostile import attack, document_of, write_agent
from support.hostile_containers import attack_in_container, keystone_that_copies
from support.images import PYTHON

Attack = Callable[..., Called]
"""`attack(script, checks, **more)`: runs a spec whose agent is this Python script, in the fixture `area`."""

_DOCKER = [pytest.param(mode, marks=pytest.mark.docker, id=f"docker-{mode}") for mode in ("bind", "copy")]
in_both = pytest.mark.parametrize("attack", ["process", *_DOCKER], indirect=True)
in_each = pytest.mark.parametrize("attack", ["process", _DOCKER[0]], indirect=True)
"""Once a sandbox, where the way that files go in makes no difference."""
as_processes = pytest.mark.parametrize("attack", ["process"], indirect=True)


def played_in(*where: str) -> pytest.MarkDecorator:
    """Have the module's `SCENARIOS` played here, all in one run: `process`, `bind` and `copy`."""
    docker = dict(zip(("bind", "copy"), _DOCKER, strict=True))
    places = [docker.get(one, one) for one in where]
    return pytest.mark.parametrize("played", places, indirect=True, scope="module")


@dataclass(frozen=True)
class Scenario:
    """An attack, or a twin of one, that is a spec of its own in a run of many. files: beside the spec, by path; where:
    the sandboxes that it is played in; agent, more: further keys of the agent and of the spec."""

    script: str
    checks: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    where: tuple[str, ...] = ("process", "bind")
    agent: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


_CODES = {"pass": 0, "fail": 1, "error": 3}


@dataclass(frozen=True)
class Played:
    """One run of scenarios. where: `process`, `bind` or `copy`; left: in its folder for temporary files."""

    where: str
    called: Called
    names: Mapping[str, str]
    left: tuple[str, ...]

    def cell(self, name: str) -> dict[str, Any]:
        """Of the scenario of this name, its only cell."""
        assert self.called.code in _CODES.values(), self.called.out + self.called.err
        cells = [(spec["id"], cell) for spec in self.called.document["specs"] for cell in spec["cells"]]
        assert sorted(spec for spec, _ in cells) == sorted(self.names.values())
        assert self.called.code == max(_CODES[cell["verdict"]] for _, cell in cells), self.called.err
        return dict(dict(cells)[self.names[name]])

    def checks(self, name: str) -> dict[str, dict[str, Any]]:
        """The checks of a scenario, by their names."""
        return {check["name"]: check for check in self.cell(name)["invariants"]}

    def statuses(self, name: str) -> dict[str, str]:
        """How the checks of a scenario ended, by their names."""
        return {check: found["status"] for check, found in self.checks(name).items()}


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    """The run of the module's scenarios that are for the sandbox of `played_in`. A run costs more than an attack,
    most of all where its sandboxes are containers. It is in the module's place of `PLACES`, by sandbox, if it has
    one."""
    where = {"docker-bind": "bind", "docker-copy": "copy"}.get(request.param, request.param)
    scenarios = {name: one for name, one in request.module.SCENARIOS.items() if where in one.where}
    names = {name: f"s{number}" for number, name in enumerate(scenarios)}
    if where != "process":
        request.getfixturevalue("image")(PYTHON)
    place = getattr(request.module, "PLACES", {}).get(where)
    with tempfile.TemporaryDirectory(prefix="checkout-", dir=place) as made:
        directory, temporary = Path(made), Path(made, "temporary")
        temporary.mkdir()
        for folder in (directory, temporary):
            folder.chmod(0o755)
        for name, one in scenarios.items():
            _lay_out(directory / names[name], names[name], one, {} if where == "process" else {"base": PYTHON})
        words = ["run", *(f"{name}/keystone.yaml" for name in names.values()), "--output", "out"]
        environ = {"TMPDIR": str(temporary)}
        if where == "copy":
            called = keystone_that_copies(words, directory, environ)
        else:
            called = keystone(*words, directory=directory, environ=environ)
        yield Played(where, called, names, tuple(path.name for path in temporary.iterdir()))


def _lay_out(directory: Path, name: str, scenario: Scenario, base: Mapping[str, str]) -> None:
    directory.mkdir()
    for path, text in scenario.files.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(text, "utf-8")
    write_agent(directory, scenario.script)
    more = {"id": name, **base, **scenario.more}
    document = document_of(scenario.checks, agent=scenario.agent, **more)
    (directory / "keystone.yaml").write_text(json.dumps(document), "utf-8")


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
