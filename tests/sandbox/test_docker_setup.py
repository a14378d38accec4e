"""`setup` as an image: made once, found again, and without what it was told in confidence."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from docker.errors import ImageNotFound
from support.docker_world import fresh, images_go, run_bounded, shell, world

from keystone_action.engine.sweep import find_setup_images, remove_leftovers, sweep
from keystone_action.errors import HarnessError
from keystone_action.sandbox.containers.setup import _PACKAGES

pytestmark = pytest.mark.docker


@pytest.fixture
def mark(engine: Any) -> Iterator[str]:
    with images_go(engine) as mark:
        yield mark


def test_packages_come_from_where_they_are_known(engine: Any, mark: str) -> None:
    """Really: of Debian's archive and of PyPI, in an image of the kind that specs name."""
    packages, env = ["tree", "six==1.17.0"], {"TOKEN": f"secret of {mark}"}

    async def main() -> None:
        async with world(engine, image="python:3.12-slim") as (provider, _):
            first, second = await asyncio.gather(*(provider.with_packages(packages, env) for _ in range(2)))
            assert first.image.identifier == second.image.identifier != provider.image.identifier
            sandbox = await fresh(first)
            assert sandbox.which("tree") == "/usr/bin/tree"
            done = await sandbox.run(shell("tree -i --noreport .; python3 -c 'import six; print(six.__version__)'"))
            assert done.stdout.text().split() == [".", "1.17.0"]
            done = await sandbox.run(shell("env; ls -A /; ls -A /var/lib/apt/lists"))
            assert "TOKEN" not in done.stdout.text()
            assert ".keystone" not in done.stdout.text()
            described = engine.api.inspect_image(first.image.identifier)
            original = engine.api.inspect_image(provider.image.identifier)
            assert mark not in str(described)
            assert mark not in str(engine.api.history(first.image.identifier))
            assert described["Config"]["Env"] == original["Config"]["Env"]
        async with world(engine, image="python:3.12-slim") as (provider, _):
            again = await provider.with_packages(packages, env, network="none")
            assert again.image.identifier == first.image.identifier

    run_bounded(main, 600)  # the package index may be slow


def test_nothing_to_do_makes_no_image(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            assert (await provider.with_packages([], {"A": "1"})).image is provider.image
            sandbox = await fresh(provider)
            assert (await provider.with_commands(sandbox, [], {"A": "1"})).image is provider.image

    run_bounded(main)


def test_packages_that_nobody_knows_are_told(engine: Any, mark: str) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            with pytest.raises(HarnessError, match=f"setup.packages could not .*: exit code 1.*(?s:.)*no-such-{mark}"):
                await provider.with_packages([f"no-such-{mark}"])
            with pytest.raises(HarnessError, match=r"setup.packages could not .*(?s:.)*Temporary failure resolving"):
                await provider.with_packages(["tree"], {"MARK": mark}, network="none")
            with pytest.raises(HarnessError, match=r"setup.packages could not .*time limit"):
                await provider.with_packages(["tree"], {"MARK": mark}, timeout=0.01)

    run_bounded(main, 600)


def test_packages_are_installed_by_what_knows_them(engine: Any, tmp_path: Any) -> None:
    """Which installer gets which package: with stand-ins for both, since what they do is their own."""
    (tmp_path / "apt-get").write_text('#!/bin/sh\necho "apt-get $*"\n')
    (tmp_path / "apt-cache").write_text('#!/bin/sh\n[ "$3" != flask ]\n')
    (tmp_path / "python3").write_text('#!/bin/sh\necho "python3 $*"\n')
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    script = f'fail() {{ echo "$1"; exit 1; }}\nset -- git flask "requests>=2" "odd name"\n{_PACKAGES}'
    script = script.replace("rm -rf /var/lib/apt/lists/*", "true")
    done = subprocess.run(
        ["sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert "apt-get install -y -qq --no-install-recommends -- git odd name" in lines
    assert any(line.endswith("install --quiet --no-input --no-cache-dir -- flask requests>=2") for line in lines)


def test_setups_outlive_their_run_and_can_be_removed(engine: Any, mark: str) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            sandbox = await fresh(provider)
            ready = await provider.with_commands(
                sandbox, [f"echo >/opt/{mark}"], networks=("none",), fingerprint=lambda: mark
            )
        assert (await sweep(engine, provider.engine.run_id)).images == 0
        tags = engine.api.inspect_image(ready.image.identifier)["RepoTags"]
        (ours,) = [one for one in find_setup_images(engine) if one.identifier in tags]
        user = engine.containers.create(ours.identifier, ["true"])
        try:
            used = await remove_leftovers(engine, [ours])
            assert (used.images, used.problems) == (0, [])
        finally:
            user.remove()
        assert (await remove_leftovers(engine, [ours])).images == 1
        with pytest.raises(ImageNotFound):
            engine.api.inspect_image(ready.image.identifier)

    run_bounded(main)
