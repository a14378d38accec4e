"""`setup` as an image: made once, found again, and without what it was told in confidence."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from docker.errors import ImageNotFound
from docker_world import fresh, run_bounded, shell, world

from keystone_action.errors import HarnessError
from keystone_action.sandbox.docker_setup import _PACKAGES
from keystone_action.sandbox.docker_sweep import find_setup_images, remove_leftovers, sweep

pytestmark = pytest.mark.docker


@pytest.fixture
def mark(engine: Any) -> Iterator[str]:
    """Makes a setup's content new; the images that name it go in the end."""
    before = {image["Id"] for image in engine.api.images(filters={"label": "keystone.kind=setup"})}
    yield uuid.uuid4().hex
    for image in engine.api.images(filters={"label": "keystone.kind=setup"}):
        if image["Id"] not in before:
            engine.api.remove_image(image["Id"], force=True)


def test_what_commands_leave_is_there_for_every_sandbox(engine: Any, mark: str) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            ready = await provider.with_setup(
                [],
                [f"id -u >/opt/{mark}", "printf '#!/bin/sh\\n' >/usr/local/bin/tool && chmod 755 /usr/local/bin/tool"],
            )
            sandbox = await fresh(ready)
            assert (await sandbox.run(shell(f"cat /opt/{mark}"))).stdout.text() == "0\n"
            assert sandbox.which("tool") == "/usr/local/bin/tool"
            plain = await fresh(provider)
            assert (await plain.run(shell(f"cat /opt/{mark}"))).exit_code == 1

    run_bounded(main)


def test_it_is_made_once_by_its_content(engine: Any, mark: str) -> None:
    commands = [f"head -c 16 /dev/urandom | sha256sum >/opt/{mark}"]

    async def main() -> None:
        async with world(engine) as (provider, _):
            several = await asyncio.gather(*(provider.with_setup([], commands) for _ in range(4)))
            assert len({one.image.identifier for one in several}) == 1
            other = await provider.with_setup([], commands, {"A": "1"})
            assert other.image.identifier != several[0].image.identifier
        async with world(engine) as (provider, _):
            again = await provider.with_setup([], commands)
            assert again.image.identifier == several[0].image.identifier

    run_bounded(main)


def test_nothing_to_do_makes_no_image(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            assert (await provider.with_setup([], [], {"A": "1"})).image is provider.image

    run_bounded(main)


def test_its_environment_does_not_stay(engine: Any, mark: str) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            secret = f"secret of {mark}'s"
            ready = await provider.with_setup(
                [], ['test -n "$TOKEN" && printf %s "$TOKEN" | wc -c >/opt/size'], {"TOKEN": secret}
            )
            sandbox = await fresh(ready)
            done = await sandbox.run(shell("cat /opt/size; env; ls -a /; cat /.keystone*"))
            assert done.stdout.text().startswith(f"{len(secret)}\n")
            assert "TOKEN" not in done.stdout.text()
            assert ".keystone" not in done.stdout.text()
            described = engine.api.inspect_image(ready.image.identifier)
            original = engine.api.inspect_image(provider.image.identifier)
            assert secret not in str(described)
            assert secret not in str(engine.api.history(ready.image.identifier))
            assert described["Config"]["Env"] == original["Config"]["Env"]

    run_bounded(main)


def test_a_command_that_fails_is_told_with_its_output(engine: Any, mark: str) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            with pytest.raises(HarnessError) as caught:
                await provider.with_setup([], ["true", f"echo out {mark}; echo err {mark} >&2; exit 4", "echo never"])
            message = caught.value.message
            assert f"stdout: out {mark}" in message
            assert f"err {mark}" in message
            assert (
                f"setup.commands[1] (`echo out {mark}; echo err {mark} >&2; exit 4`) ended with exit code 4" in message
            )
            assert "never" not in message
            with pytest.raises(HarnessError, match="time limit"):
                await provider.with_setup([], [f"sleep 600; : {mark}"], timeout=1)

    run_bounded(main)


def test_packages_that_nobody_knows_are_told(engine: Any, mark: str) -> None:
    async def main() -> None:
        async with world(engine, network="host") as (provider, _):
            with pytest.raises(HarnessError, match=f"setup.packages: .*no-such-{mark}"):
                await provider.with_setup([f"no-such-{mark}"], [])

    run_bounded(main)


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
            ready = await provider.with_setup([], [f"echo >/opt/{mark}"])
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
