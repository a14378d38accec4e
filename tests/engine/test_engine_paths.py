"""Our paths as the engine's machine has them."""

from __future__ import annotations

from pathlib import Path

from keystone_action.engine.own_container import HostPaths

OWN = (
    ("/github/workspace", "/srv/runner/app/app"),
    ("/github", "/srv/runner/temporary"),
    ("/var/run/docker.sock", "/var/run/docker.sock"),
)


def test_in_a_container_the_deepest_mount_decides() -> None:
    paths = HostPaths(OWN)
    assert paths.source(Path("/github/workspace/a/b")) == ("/github/workspace", "/srv/runner/app/app/a/b")
    assert paths.source(Path("/github/workspace")) == ("/github/workspace", "/srv/runner/app/app")
    assert paths.source(Path("/github/workspaces/a")) == ("/github", "/srv/runner/temporary/workspaces/a")


def test_what_lies_in_our_own_container_has_no_other_path() -> None:
    assert HostPaths(OWN).source(Path("/tmp/keystone")) is None
    assert HostPaths(()).source(Path("/tmp/keystone")) is None


def test_outside_of_containers_paths_are_what_they_are(tmp_path: Path) -> None:
    found = HostPaths(None).source(tmp_path)
    assert found is not None
    mount, source = found
    assert source == str(tmp_path)
    assert tmp_path.is_relative_to(mount)
