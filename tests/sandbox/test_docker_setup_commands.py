"""`setup.commands` in an image: root's, in the cell's workspace, and what they leave is there for agent and checks."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

import pytest
from support.docker_world import IMAGE, fresh, own_images, run_bounded, set_up, shell, world
from support.process_world import alive, eventually, token

from keystone_action.engine.sweep import sweep
from keystone_action.errors import HarnessError, SandboxError
from keystone_action.sandbox.containers.sandbox import DockerSandbox
from keystone_action.system.command import CommandLimits

pytestmark = pytest.mark.docker
MODES = pytest.mark.parametrize("mode", ["bind", "copy"])


def entries(sandbox: DockerSandbox) -> list[str]:
    return sorted(path.name for path in sandbox.workspace.iterdir())


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
                await set_up(provider, "python3 -c \"b'x' * (1 << 28)\"; exit 1", limits=CommandLimits(memory=64 << 20))
            assert own_images(engine, provider) == []

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
            sandbox = await provider.open(workspace, limits=CommandLimits())
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
                opened = await provider.open(sandbox.workspace, limits=CommandLimits())
                await provider.with_commands(opened, ["mkdir -p a/b && touch a/b/c"], networks=("none",))
                assert (await opened.run(shell("echo >a/d; rm a/b/c"))).exit_code == 0
                await opened.close()
                below = {path.stat().st_uid for path in (sandbox.workspace, *sandbox.workspace.rglob("*"))}
                assert below == {owner}

    run_bounded(main)
