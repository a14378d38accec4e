"""`setup.commands` in an image: root's, in the cell's workspace, and what they leave is there for agent and checks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.docker_world import IMAGE, fresh, images_go, run_bounded, shell, world
from support.process_world import alive, eventually, token

from keystone_action.command import Limits
from keystone_action.engine.sweep import sweep
from keystone_action.errors import HarnessError, SandboxError
from keystone_action.sandbox.containers.sandbox import DockerSandbox
from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
from keystone_action.sandbox.containers.setup_commands import _entries

pytestmark = pytest.mark.docker
MODES = pytest.mark.parametrize("mode", ["bind", "copy"])


@pytest.fixture
def mark(engine: Any) -> Iterator[str]:
    with images_go(engine) as mark:
        yield mark


async def set_up(provider: DockerSandboxes, *commands: str, **options: Any) -> tuple[DockerSandboxes, DockerSandbox]:
    """A fresh sandbox that has run these commands, and the provider for its checks."""
    sandbox = await fresh(provider, options.pop("limits", None), environment=options.pop("environment", None))
    ready = await provider.with_commands(sandbox, commands, **{"networks": ("none",), **options})
    return ready, sandbox


def own_images(engine: Any, provider: DockerSandboxes) -> list[str]:
    filters = {"label": f"keystone.run={provider.engine.run_id}"}
    return [str(image["Id"]) for image in engine.api.images(filters=filters)]


def entries(sandbox: DockerSandbox) -> list[str]:
    return sorted(path.name for path in sandbox.workspace.iterdir())


def kept(ready: DockerSandboxes) -> bool:
    """Whether its image is one that is found again."""
    tags = ready.engine.client.inspect_image(ready.image.identifier)["RepoTags"]
    return any(tag.startswith("keystone-setup:") for tag in tags)


@MODES
def test_commands_work_in_the_workspace_and_on_the_system(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            sandbox = await fresh(provider)
            (sandbox.workspace / "given").write_text("given\n")
            ready = await provider.with_commands(
                sandbox,
                [
                    'cat given >/opt/marker; id -u >>/opt/marker; echo "$KEYSTONE_PROMPT" >>/opt/marker',
                    "mkdir -m 700 made && echo new >made/file && rm given; echo $$ >/tmp/one; echo x >$TMPDIR/two",
                    "cat /tmp/one $TMPDIR/two >/dev/null && echo setting >$HOME/.setting",
                    "printf '#!/bin/sh\\necho tool\\n' >/usr/local/bin/tool && chmod 755 /usr/local/bin/tool",
                ],
                {"KEYSTONE_PROMPT": "do it"},
                networks=("none",),
            )
            assert entries(sandbox) == ["made"]
            assert sandbox.which("tool") == "/usr/local/bin/tool"
            done = await sandbox.run(
                shell("cat /opt/marker made/file $HOME/.setting $TMPDIR/two; tool; echo mine >>made/file; rm -r made")
            )
            assert done.stdout.text().splitlines() == ["given", "0", "do it", "new", "setting", "x", "tool"]
            assert (done.stderr.text(), done.exit_code) == ("", 0)
            assert entries(sandbox) == []

            check = await fresh(ready)
            done = await check.run(shell("tool; cat /opt/marker; ls -A . $HOME; ls -d /tmp/one; readlink /workspace"))
            assert done.stdout.text().splitlines()[:4] == ["tool", "given", "0", "do it"]
            assert done.stdout.text().splitlines()[-2:] == ["/tmp/one", str(check.workspace)]
            assert "setting" not in done.stdout.text()
            plain = await fresh(provider)
            assert plain.which("tool") is None
            await ready.close()
            assert own_images(engine, provider) == []

    run_bounded(main)


@MODES
def test_what_root_made_is_the_users_and_nothing_of_it_is_in_the_image(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            sandbox = await fresh(provider)
            (sandbox.workspace / "old").write_text("")
            ready = await provider.with_commands(
                sandbox,
                ["mkdir a && echo secret-of-the-cell >a/b; ln -s /etc/shadow link; touch $HOME/h $TMPDIR/t /opt/x"],
                networks=("none",),
            )
            done = await sandbox.run(
                shell("id -u; stat -c %u . a a/b link old $HOME $HOME/h $TMPDIR $TMPDIR/t; stat -c %u $HOME/..")
            )
            *owners, above = done.stdout.text().split()
            assert set(owners) == {owners[0]}
            # Whoever owned what holds HOME could put a link in its place.
            assert above == "0" or os.geteuid() != 0
            looked = engine.api.create_container(
                ready.image.identifier, ["find", str(provider.engine.root), "-type", "f"]
            )
            try:
                engine.api.start(looked["Id"])
                engine.api.wait(looked["Id"])
                assert engine.api.logs(looked["Id"]) == b""
            finally:
                engine.api.remove_container(looked["Id"], force=True)
            described = engine.api.inspect_image(ready.image.identifier)["Config"]
            original = engine.api.inspect_image(provider.image.identifier)["Config"]
            assert (described["Env"], described["WorkingDir"]) == (original["Env"], original["WorkingDir"] or "/")
            assert not described["Entrypoint"]
            await ready.close()

    run_bounded(main)


@MODES
def test_what_changes_nothing_of_the_system_makes_no_image(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            ready, sandbox = await set_up(provider, "echo x >file; touch $HOME/a $TMPDIR/b; touch /tmp/c && rm /tmp/c")
            assert ready.image.identifier == provider.image.identifier
            assert own_images(engine, provider) == []
            assert (sandbox.workspace / "file").read_text() == "x\n"
            await ready.close()
            assert (await (await fresh(provider)).run(shell("true"))).exit_code == 0

    run_bounded(main)


@MODES
def test_the_first_that_fails_is_told_with_its_own_output(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (provider, sandbox):
            with pytest.raises(HarnessError) as caught:
                await provider.with_commands(
                    sandbox, ["echo before", "echo out; echo err >&2; touch left /opt/x; exit 4", "echo never >never"]
                )
            assert caught.value.message == (
                f"setup.commands[1] (`echo out; echo err >&2; touch left /opt/x; exit 4`) failed in {IMAGE}: "
                "exit code 4\nstdout: out\nstderr: err"
            )
            assert entries(sandbox) == ["left"]
            assert own_images(engine, provider) == []

    run_bounded(main)


def test_how_it_failed_is_told(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            with pytest.raises(
                HarnessError, match=r"setup.commands\[0\] \(`kill -9 \$\$ …`\) failed in .*: ended by sig"
            ):
                await set_up(provider, "kill -9 $$\n:")
            with pytest.raises(HarnessError, match=r"setup.commands\[1\] .*time limit"):
                await set_up(provider, "true", "touch /opt/x; sleep 600", timeout=5)
            with pytest.raises(
                HarnessError, match=r"setup.commands\[0\] .*memory: a process in the container was kille"
            ):
                await set_up(provider, "python3 -c \"b'x' * (1 << 28)\"; exit 1", limits=Limits(memory=64 << 20))
            assert own_images(engine, provider) == []

    run_bounded(main)


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


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("bind", ["touch file", "chmod 755 given", "touch $HOME/x", "mkdir $TMPDIR/x"]),
        ("copy", ["rm given", "echo x >>given", "touch $HOME/x", "mkdir $TMPDIR/x"]),
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
                return await provider.with_commands(
                    sandbox, [f"touch /opt/x; {change}"], networks=("none",), fingerprint=lambda: f"{mark}{change}"
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


def test_a_link_that_leads_elsewhere_is_seen_whatever_the_clock_says(tmp_path: Path) -> None:
    """Times stand still for up to 10 ms, and both targets have five letters."""
    (tmp_path / "link").symlink_to("given")
    before = _entries(tmp_path)
    then = (tmp_path / "link").lstat()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("other")
    os.utime(tmp_path / "link", ns=(then.st_atime_ns, then.st_mtime_ns), follow_symlinks=False)
    assert _entries(tmp_path) != before


TELLING = [
    "echo $PWD >/opt/x",
    "ln -s $PWD /opt/x",
    "mkdir -p /opt/a/b && printf 'a%sb' $HOME >/opt/a/b/c",
    "touch -d 2001-01-01 /opt/x && echo $TOKEN >/opt/x && touch -d 2001-01-01 /opt/x",
    "echo $TOKEN >>/etc/profile",
]


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
            for command, (ready, _), identifier in zip(TELLING, made, identifiers, strict=True):
                assert not kept(ready), command
                assert secret not in str(engine.api.inspect_image(identifier)), command
                assert secret not in str(engine.api.history(identifier)), command
            # The author's own commands put it there for this cell.
            assert secret in (await made[-1][1].run(shell("cat /etc/profile"))).stdout.text()
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


def test_they_reach_services_and_the_world(engine: Any) -> None:
    """A server stands for a service on an internal network; the second network is what leads outside."""

    async def main() -> None:
        run_id = f"test-{uuid.uuid4().hex}"
        async with world(engine, run_id=run_id) as (provider, _):
            labels = {"keystone.run": run_id, "keystone.kind": "service"}
            inner = engine.networks.create(f"keystone-{run_id}-cell", labels=labels, internal=True)
            service = engine.api.create_container(
                IMAGE,
                ["python3", "-m", "http.server", "8000"],
                labels=labels,
                networking_config=engine.api.create_networking_config(
                    {inner.name: engine.api.create_endpoint_config(aliases=["database"])}
                ),
                host_config=engine.api.create_host_config(network_mode=inner.name),
            )
            engine.api.start(service["Id"])
            fetch = "python3 -c \"import urllib.request as u; print(u.urlopen('http://database:8000/').status)\""
            wait = f"for i in $(seq 50); do {fetch} && exit 0; sleep 0.2; done; exit 1"
            ready, _ = await set_up(
                provider,
                f"({wait}) >/opt/status 2>/dev/null",
                "tail -n +3 /proc/net/route | cut -f 1 >/opt/routes; getent hosts api >>/opt/status",
                networks=("bridge", inner.name),
                extra_hosts={"api": "10.1.2.3"},
            )
            check = await fresh(ready.with_network("none"))
            done = await check.run(shell("cat /opt/status; awk '$2 == \"00000000\"' /proc/net/route"))
            assert done.stdout.text().split() == ["200", "10.1.2.3", "api"]
            await ready.close()
            await sweep(engine, run_id)

    run_bounded(main)


@MODES
def test_cancelled_they_leave_nothing(engine: Any, mode: str) -> None:
    number = token()

    async def main() -> None:
        async with world(engine, mode=mode) as (provider, sandbox):
            task = asyncio.create_task(
                provider.with_commands(sandbox, [f"touch /opt/x file; sleep {number}"], networks=("none",))
            )
            assert await asyncio.to_thread(eventually, lambda: alive(number) != [])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert alive(number) == []
            assert own_images(engine, provider) == []
            await sandbox.close()
            with pytest.raises(SandboxError, match="closed"):
                await provider.with_commands(sandbox, ["true"], networks=("none",))

    run_bounded(main)


@MODES
def test_the_workspace_may_have_any_name(engine: Any, mode: str) -> None:
    name = '-rf it\'s a $HOME; rm -rf *\ntwo lines "and" `quotes` ünï:cöde,ro'

    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            workspace = provider.engine.root / name
            workspace.mkdir()
            (workspace / "given").write_text("given")
            sandbox = await provider.open(workspace, limits=Limits())
            await provider.with_commands(sandbox, ["cat given >made; pwd >where; touch /opt/x"], networks=("none",))
            assert (workspace / "made").read_text() == "given"
            assert (workspace / "where").read_text() == f"{workspace}\n"
            assert (await sandbox.run(shell("cat given && rm given made"))).stdout.text() == "given"
            assert entries(sandbox) == ["where"]

    run_bounded(main)


@MODES
def test_a_workspace_of_another_user_stays_theirs(engine: Any, mode: str) -> None:
    if os.geteuid() != 0:
        return  # a user's own files are all that a user has

    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            for owner in (0, 4321):
                sandbox = await fresh(provider)
                await sandbox.close()
                (sandbox.workspace / "theirs").write_text("")
                for path in (sandbox.workspace, sandbox.workspace / "theirs"):
                    os.chown(path, owner, owner)
                opened = await provider.open(sandbox.workspace, limits=Limits())
                await provider.with_commands(opened, ["mkdir -p a/b && touch a/b/c"], networks=("none",))
                assert (await opened.run(shell("echo >a/d; rm a/b/c"))).exit_code == 0
                await opened.close()
                below = {path.stat().st_uid for path in (sandbox.workspace, *sandbox.workspace.rglob("*"))}
                assert below == {owner}

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
