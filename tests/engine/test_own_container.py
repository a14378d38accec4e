"""Which container we run in: really in one, as the action is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.docker_world import IMAGE, left, place, run_bounded

import keystone_action
from keystone_action.engine import own_container
from keystone_action.engine.own_container import candidates, find_own_container
from keystone_action.engine.sweep import sweep

INSIDE = """
import asyncio, dataclasses, json, os, sys
from pathlib import Path
sys.path[:0] = ["/packages", "/source"]
from keystone_action.system.command import Command, CommandLimits
from keystone_action.sandbox.containers.sandboxes import start_docker
from keystone_action.engine.connect import connect
from keystone_action.engine.own_container import find_own_container

async def main(root, mode):
    client = connect(os.environ)
    provider = await start_docker(
        image=%r, run_id=%r, root=root, host=None, client=client, network="none", mode=mode
    )
    try:
        workspace = root / "workspace"
        workspace.mkdir()
        (workspace / "given").write_text("given")
        sandbox = await provider.open(workspace, limits=CommandLimits())
        done = await sandbox.run(Command(("sh", "-c", "cat given; echo made >made")))
        own = find_own_container(client)
        return {
            "own": dataclasses.asdict(own) if own else None,
            "bound": bool(sandbox.transfer.mounts),
            "stdout": done.stdout.text(),
            "made": (workspace / "made").read_text(),
        }
    finally:
        await provider.close()

print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))))
"""


class Outside:
    """Starts containers that are to us what the action's is to an engine."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.run_id = f"test-{uuid.uuid4().hex}"
        self._labels = {"keystone.run": self.run_id}

    def start(self, argv: list[str], **options: Any) -> Any:
        import docker

        packages, source = Path(docker.__file__).parents[1], Path(keystone_action.__file__).parents[1]
        volumes = [
            f"{packages}:/packages:ro",
            f"{source}:/source:ro",
            "/var/run/docker.sock:/var/run/docker.sock",
            *options.pop("volumes", []),
        ]
        return self.engine.containers.run(
            IMAGE, argv, detach=True, labels=self._labels, volumes=volumes,
            environment={"PYTHONDONTWRITEBYTECODE": "1"}, **options,
        )  # fmt: skip

    def seen(self, root: str, mode: str = "auto", **options: Any) -> dict[str, Any]:
        """What the sandboxes of a run in a container of ours come to."""
        container = self.start(["python3", "-c", INSIDE % (IMAGE, self.run_id), root, mode], **options)
        code = container.wait()["StatusCode"]
        assert code == 0, container.logs().decode()
        seen: dict[str, Any] = json.loads(container.logs(stderr=False))
        assert (seen["stdout"], seen["made"]) == ("given", "made\n")
        return {**seen, "id": container.id}

    def volume(self) -> str:
        return str(self.engine.volumes.create(f"keystone-{self.run_id}", labels=self._labels).name)


@pytest.fixture
def outside(engine: Any) -> Iterator[Outside]:
    world = Outside(engine)
    try:
        yield world
    finally:
        run_bounded(lambda: sweep(engine, world.run_id))
    assert left(engine, world.run_id) == []


@pytest.mark.docker
def test_its_mounts_are_translated(outside: Outside) -> None:
    with place() as root:
        seen = outside.seen("/github/_temp/keystone", "bind", volumes=[f"{root}:/github"])
        assert (root / "_temp/keystone/workspace/made").read_text() == "made\n"
    assert (seen["own"]["identifier"], seen["own"]["network"], seen["bound"]) == (seen["id"], seen["id"], True)


@pytest.mark.docker
def test_a_volume_has_a_place_on_the_engines_machine_too(outside: Outside) -> None:
    """As `act` has it: the workspace lies in a named volume."""
    seen = outside.seen("/volume/deep/keystone", "bind", volumes=[f"{outside.volume()}:/volume"])
    assert seen["bound"] is True


@pytest.mark.docker
def test_what_lies_in_the_containers_own_layer_is_copied(outside: Outside) -> None:
    assert outside.seen("/tmp/keystone")["bound"] is False


@pytest.mark.docker
def test_what_lies_in_memory_is_copied(outside: Outside) -> None:
    seen = outside.seen("/memory/keystone", tmpfs={"/memory": ""})
    assert (seen["own"]["identifier"], seen["bound"]) == (seen["id"], False)


@pytest.mark.docker
def test_a_shared_network_is_anothers_and_the_mounts_are_ours(outside: Outside) -> None:
    owner = outside.start(["sleep", "600"])
    seen = outside.seen(
        "/volume/x", "bind", volumes=[f"{outside.volume()}:/volume"], network_mode=f"container:{owner.id}"
    )
    assert (seen["own"]["identifier"], seen["own"]["network"]) == (seen["id"], owner.id)


@pytest.mark.docker
def test_the_machines_network_is_nobodys(outside: Outside) -> None:
    seen = outside.seen("/tmp/x", network_mode="host")
    assert (seen["own"]["identifier"], seen["own"]["network"]) == (seen["id"], None)


@pytest.mark.docker
def test_on_a_machine_there_is_none(engine: Any) -> None:
    assert find_own_container(engine) is None


@pytest.mark.docker
def test_by_its_own_layer_where_the_kernel_does_not_name_it(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control groups of version 2 are nameless inside, and the files that are mounted are the network owner's."""
    owner = outside.start(["sleep", "600"])
    twins = [outside.start(["sleep", "600"], network_mode=f"container:{owner.id}") for _ in range(2)]
    for ours in twins:
        mounts = ours.exec_run(["cat", "/proc/self/mountinfo"]).output.decode()
        with place() as process, monkeypatch.context() as patched:
            (process / "mountinfo").write_text(mounts)
            known, upper = candidates(process), own_container._upper_directory(process)
            assert known[0] == owner.id
            patched.setattr(own_container, "candidates", lambda known=known: known)
            patched.setattr(own_container, "_upper_directory", lambda upper=upper: upper)
            found = find_own_container(outside.engine)
        assert found is not None
        assert (found.identifier, found.network) == (ours.id, owner.id)


def test_ours_by_control_group_before_ours_by_mounts(tmp_path: Path) -> None:
    own, other, group = "a" * 64, "b" * 64, "c" * 64
    (tmp_path / "mountinfo").write_text(
        f"1 0 8:1 /var/lib/docker/containers/{other}/mounts/shm /var/lib/docker/containers/{other}/mounts/shm rw - x\n"
        f"2 0 8:1 /var/lib/docker/containers/{own}/hostname /etc/hostname rw - ext4 /dev/sda rw\n"
    )
    (tmp_path / "cgroup").write_text(f"4:memory:/docker/{other}/docker/{group}\n0::/\n")
    assert candidates(tmp_path) == [group, own]


def test_a_machine_without_proc_has_no_container(tmp_path: Path) -> None:
    assert candidates(tmp_path / "nowhere") == []
    assert own_container._upper_directory(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("rw,lowerdir=/l/A:/l/B,upperdir=/var/lib/docker/overlay2/abc/diff,workdir=/w", "abc/diff"),
        ("rw,lowerdir=l/A:l/B,upperdir=abc/diff,workdir=abc/work,index=off", "abc/diff"),
        ("rw,lowerdir=/l/A", None),
    ],
)
def test_the_own_layer_is_read_of_what_the_kernel_says(tmp_path: Path, options: str, expected: str | None) -> None:
    lines = [
        "50 183 0:46 / /other rw - overlay overlay rw,upperdir=/x/diff",
        f"51 183 0:47 / / rw,relatime master:16 - overlay overlay {options}",
    ]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    assert own_container._upper_directory(tmp_path) == expected


def test_where_layers_have_no_names_the_host_name_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that keep images in containerd's store say nothing of layers."""
    ours, other = "a" * 64, "b" * 64

    def described(identifier: str, host_name: str, mode: str = "bridge") -> dict[str, Any]:
        return {
            "Id": identifier,
            "State": {"Running": True},
            "Config": {"Hostname": host_name},
            "HostConfig": {"NetworkMode": mode},
            "GraphDriver": None,
            "Mounts": [{"Destination": "/github", "Source": "/srv/runner"}, {"Destination": "/memory", "Source": ""}],
        }

    known = {other: described(other, "another"), ours: described(ours, "this")}
    client = SimpleNamespace(inspect_container=known.__getitem__, list_containers=list)
    monkeypatch.setattr(own_container, "candidates", lambda: [other, ours])
    monkeypatch.setattr(own_container, "_upper_directory", lambda: "abc/diff")
    monkeypatch.setattr(own_container.socket, "gethostname", lambda: "this")
    found = find_own_container(client)
    assert found == own_container.OwnContainer(ours, ours, (("/github", "/srv/runner"),))
