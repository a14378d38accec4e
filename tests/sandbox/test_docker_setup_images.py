"""Images that setup commands made: which are found again, and which are not kept since they tell of one cell."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.docker_world import fresh, images_go, kept, own_images, run_bounded, set_up, shell, world

from keystone_action.runner.cell.shared_copies import fingerprint as fingerprint_of
from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
from keystone_action.sandbox.containers.setup import _entries

pytestmark = pytest.mark.docker


@pytest.fixture
def mark(engine: Any) -> Iterator[str]:
    with images_go(engine) as mark:
        yield mark


async def once(
    engine: Any, provider: DockerSandboxes, commands: tuple[str, ...], options: dict[str, Any]
) -> tuple[DockerSandboxes, str]:
    """Where they are run for several cells at once: the provider of one, and the first line that all print."""
    several = await asyncio.gather(*(set_up(provider, *commands, **options) for _ in range(2)))
    assert len({ready.image.identifier for ready, _ in several}) == 1
    assert kept(several[0][0])
    assert own_images(engine, provider) == []
    printed = []
    for ready, sandbox in several:
        done = await sandbox.run(shell("cat /opt/made; readlink /workspace"))
        first, place = done.stdout.text().splitlines()
        printed.append(first)
        assert place == str(sandbox.workspace)
        await ready.close()
    assert len(printed[0]) > 60
    assert printed[0] == printed[1]
    return several[0][0], printed[0]


COMMANDS = ("head -c 16 /dev/urandom | sha256sum >/opt/made", "mkdir -p $HOME/.cache/pip")


def test_equal_commands_are_run_once_in_copies(engine: Any, mark: str) -> None:
    async def main() -> None:
        async with world(engine, mode="copy") as (provider, _):
            await once(engine, provider, COMMANDS, {"fingerprint": lambda: mark})

    run_bounded(main)


def test_equal_commands_are_run_once(engine: Any, mark: str) -> None:
    def options(content: str = "content", **env: str) -> dict[str, Any]:
        return {"env": env, "fingerprint": lambda: f"{mark}{content}"}

    async def main() -> None:
        async with world(engine, mode="bind") as (provider, _):
            made, first = await once(engine, provider, COMMANDS, options())
            others = [options(A="1"), options("other content")]
            for other in others:
                ready, _ = await set_up(provider, *COMMANDS, **other)
                assert ready.image.identifier != made.image.identifier
        async with world(engine, mode="bind") as (provider, _):
            ready, sandbox = await set_up(provider, *COMMANDS, **options())
            assert (await sandbox.run(shell("cat /opt/made"))).stdout.text() == f"{first}\n"
            assert ready.image.identifier == made.image.identifier

    run_bounded(main)


REWRITTEN = "touch -r given /opt/time; printf 'as it is!' >given; touch -r /opt/time given"
"""At its length and time."""


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("bind", ["touch file", "chmod 755 given", "touch $HOME/x", "mkdir $TMPDIR/x", REWRITTEN]),
        ("copy", ["rm given", "echo x >>given", "touch $HOME/x", "mkdir $TMPDIR/x", REWRITTEN]),
    ],
    ids=["bind", "copy"],
)
def test_what_also_changes_the_cells_directories_is_not_kept(
    engine: Any, mode: str, changes: list[str], mark: str
) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):

            async def made(change: str) -> DockerSandboxes:
                sandbox = await fresh(provider)
                (sandbox.workspace / "given").write_text("as it was")
                fingerprint = partial(fingerprint_of, sandbox.workspace, {"MARK": mark + change})
                return await provider.with_commands(
                    sandbox, [f"touch /opt/x; {change}"], networks=("none",), fingerprint=fingerprint
                )

            ready = await asyncio.gather(*map(made, changes))
            assert dict(zip(changes, map(kept, ready), strict=True)) == dict.fromkeys(changes, False)
            assert sorted(own_images(engine, provider)) == sorted({one.image.identifier for one in ready})
            assert len({one.image.identifier for one in ready}) == len(changes)

    run_bounded(main)


@pytest.mark.parametrize(
    "change", ["touch file", "rm given", "echo x >>given", "chmod 755 given", "ln -sf other link", "mkdir folder/x"]
)
def test_a_change_of_the_workspace_is_seen(tmp_path: Path, change: str) -> None:
    (tmp_path / "given").write_text("as it was")
    (tmp_path / "link").symlink_to("given")
    (tmp_path / "folder").mkdir()
    before = _entries(tmp_path)
    assert _entries(tmp_path) == before
    subprocess.run(["sh", "-c", change], cwd=tmp_path, check=True)
    assert _entries(tmp_path) != before


@pytest.mark.parametrize("name", [".git/config", ".git/index", ".git/hooks/post-checkout", "sub/.git/HEAD", "sub/.git"])
def test_a_file_of_git_that_is_another_is_seen_whatever_the_clock_says(tmp_path: Path, name: str) -> None:
    """The fingerprint of the workspace knows no more of `.git` than the commit."""
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text("as it was")
    before = _entries(tmp_path)
    assert _entries(tmp_path) == before
    then = file.lstat()
    file.write_text("as it is!")
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert _entries(tmp_path) != before


def test_a_link_that_leads_elsewhere_is_seen_whatever_the_clock_says(tmp_path: Path) -> None:
    """Times stand still for up to 10 ms, and both targets have five letters."""
    (tmp_path / "link").symlink_to("given")
    before = _entries(tmp_path)
    then = (tmp_path / "link").lstat()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("other")
    os.utime(tmp_path / "link", ns=(then.st_atime_ns, then.st_mtime_ns), follow_symlinks=False)
    assert _entries(tmp_path) != before


TELLING = {
    "echo $PWD >/opt/x": ("cat /opt/x", "$PWD"),
    "ln -s $PWD /opt/x": ("readlink /opt/x", "$PWD"),
    "mkdir -p /opt/a/b && printf 'a%sb' $HOME >/opt/a/b/c": ("cat /opt/a/b/c", "a${HOME}b"),
    "touch -d 2001-01-01 /opt/x && echo $TOKEN >/opt/x && touch -d 2001-01-01 /opt/x": ("cat /opt/x", "$TOKEN"),
    "echo $TOKEN >>/etc/profile": ("tail -n 1 /etc/profile", "$TOKEN"),
}
"""For each what shows its effect, and the text that it shows."""


def test_no_image_is_kept_that_says_something_of_the_cell(engine: Any, mark: str) -> None:
    secret = f"secret of {mark}"

    async def main() -> None:
        async with world(engine) as (provider, _):
            made = await asyncio.gather(
                *(
                    set_up(provider, command, env={"TOKEN": secret}, secrets=[secret], fingerprint=lambda: mark)
                    for command in TELLING
                )
            )
            identifiers = [ready.image.identifier for ready, _ in made]
            assert sorted(own_images(engine, provider)) == sorted(identifiers)
            for command, (ready, sandbox), identifier in zip(TELLING, made, identifiers, strict=True):
                assert not kept(ready), command
                # The author's own commands put it there for this cell.
                shown, text = TELLING[command]
                found = await sandbox.run(shell(f'TOKEN=\'{secret}\'; test "$({shown})" = "{text}"'))
                assert found.exit_code == 0, command
                assert secret not in str(engine.api.inspect_image(identifier)), command
                assert secret not in str(engine.api.history(identifier)), command
            for ready, _ in made:
                await ready.close()
            assert own_images(engine, provider) == []

    run_bounded(main)


def test_the_environment_does_not_stay(engine: Any, mark: str) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            secret = f"secret of\n{mark}'s"
            ready, _ = await set_up(
                provider,
                'printf %s "$TOKEN" | wc -c >/opt/size; ls -A / | grep keystone >>/opt/size; echo "$FROM" >>/opt/size',
                env={"TOKEN": secret, "not a name": "x"},
                environment={"FROM": "opening"},
                secrets=[secret],
                fingerprint=lambda: mark,
            )
            assert kept(ready)
            check = await fresh(ready)
            done = await check.run(shell("cat /opt/size; env; ls -A /"))
            assert done.stdout.text().splitlines()[:2] == [str(len(secret)), "opening"]
            assert "TOKEN" not in done.stdout.text()
            assert ".keystone" not in done.stdout.text()
            assert mark not in str(engine.api.inspect_image(ready.image.identifier))
            assert mark not in str(engine.api.history(ready.image.identifier))

    run_bounded(main)


def test_closing_the_provider_takes_images_of_cells_along(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            ready, _ = await set_up(provider, "touch /opt/x")
            second = await fresh(ready)
            more = await ready.with_commands(second, ["touch /opt/y"], networks=("none",))
            assert set(own_images(engine, provider)) == {ready.image.identifier, more.image.identifier}
            await provider.close()
            assert own_images(engine, provider) == []

    run_bounded(main)
