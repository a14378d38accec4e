"""What code in a container finds when it looks around: nothing of ours."""

from __future__ import annotations

import dataclasses
import time
import uuid
from typing import Any

import pytest
from support.docker_world import IMAGE, fresh, in_shell, run_bounded, shell, world

from keystone_action.engine.container import HOST_NAME, ContainerPlan, ContainerRun
from keystone_action.engine.sweep import sweep
from keystone_action.errors import SandboxError
from keystone_action.spec.models.services import OWN_NAMES
from keystone_action.system.command import Command

pytestmark = pytest.mark.docker
MODES = pytest.mark.parametrize("mode", ["bind", "copy"])

SEARCH = r"""
import os, socket, stat, sys
secret, began = sys.argv[1], float(sys.argv[2])
for folder, folders, files in os.walk("/"):
    if folder.startswith(("/proc", "/sys")):
        folders[:] = []
        continue
    for name in (*folders, *files):
        path = os.path.join(folder, name)
        try:
            status = os.lstat(path)
            if stat.S_ISSOCK(status.st_mode):
                print("socket", path)
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o6000 and not path.startswith(("/usr", "/bin")):
                print("set-user", path)
            if "github" in path.lower() and not path.startswith("/usr/"):
                print("github", path)
            # What is older than the secret doesn't have it.
            if not stat.S_ISREG(status.st_mode) or status.st_size > 100000 or status.st_ctime < began:
                continue
            if secret in open(path, errors="replace").read():
                print("secret", path)
        except OSError:
            continue
for variable in os.environ:
    if variable.startswith(("GITHUB_", "ACTIONS_", "INPUT_", "DOCKER_", "ANTHROPIC_", "KEYSTONE_")):
        print("variable", variable)
for number in filter(str.isdigit, os.listdir("/proc")):
    try:
        if secret in open(f"/proc/{number}/environ", errors="replace").read():
            print("environment of", number)
    except OSError:
        pass
print("looked")
"""


@MODES
def test_who_searches_finds_nothing(engine: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # In two parts, so that the searcher's own command line is not a find.
    secret, began = uuid.uuid4().hex, time.time() - 60
    for name in ("GITHUB_TOKEN", "INPUT_KEY", "ACTIONS_RUNTIME_TOKEN", "ANTHROPIC_API_KEY", "DOCKER_CERT"):
        monkeypatch.setenv(name, secret)

    async def main() -> None:
        async with world(engine, mode=mode) as (provider, sandbox):
            other = await fresh(provider)
            (other.workspace / "other cell").write_text(secret)
            (provider.engine.root / "hidden test").write_text(secret)
            await other.run(shell(f"echo {secret} >$HOME/other; echo {secret} >/tmp/other"))
            done = await sandbox.run(Command(("python3", "-c", SEARCH, secret, str(began))))
            assert (done.stdout.text(), done.stderr.text()) == ("looked\n", "")

    run_bounded(main)


def test_a_container_has_no_names_that_a_service_can_have(engine: Any) -> None:
    """A service by such a name would never be reached: a container means itself by it."""

    async def main() -> list[str]:
        async with world(engine, network="bridge") as (_, sandbox):
            done = await sandbox.run(shell("cat /etc/hosts; echo 0 $(cat /etc/hostname)"))
            return list(done.stdout.text().splitlines())

    lines = run_bounded(main)
    names = {name for line in lines if not line.startswith("#") for name in line.split()[1:]}
    assert HOST_NAME in names
    assert names <= OWN_NAMES


def test_it_has_no_rights_and_gets_none(engine: Any) -> None:
    done = in_shell(
        engine, "id -u; grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status"
    )
    uid, *rest = done.stdout.text().split("\n", 1)
    assert int(uid) > 0
    assert dict(line.split(":\t") for line in rest[0].splitlines()) == {
        "CapInh": "0" * 16,
        "CapPrm": "0" * 16,
        "CapEff": "0" * 16,
        "CapBnd": "0" * 16,
        "CapAmb": "0" * 16,
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }


def test_without_a_network_there_is_none(engine: Any) -> None:
    done = in_shell(engine, "cat /proc/net/dev | tail -n +3 | cut -d: -f1")
    assert done.stdout.text().split() == ["lo"]


def test_names_given_are_known_inside_and_networks_are_joined(engine: Any) -> None:
    async def main() -> None:
        run_id = f"test-{uuid.uuid4().hex}"
        async with world(engine, run_id=run_id) as (provider, _):
            engine.networks.create(f"keystone-{run_id}", labels={"keystone.run": run_id}, internal=True)
            joined = provider.with_network(f"keystone-{run_id}", {"database": "10.1.2.3"})
            sandbox = await fresh(joined)
            done = await sandbox.run(shell("getent hosts database"))
            assert done.stdout.text().split() == ["10.1.2.3", "database"]
            interfaces = await sandbox.run(shell("tail -n +3 /proc/net/dev | cut -d: -f1"))
            assert sorted(interfaces.stdout.text().split()) == ["eth0", "lo"]
            await joined.close()
            with pytest.raises(Exception, match="closed"):
                await sandbox.run(shell("true"))
            still = await fresh(provider)
            assert (await still.run(shell("true"))).exit_code == 0
            await sweep(engine, run_id)

    run_bounded(main)


def test_a_container_starts_in_all_of_its_networks(engine: Any) -> None:
    async def main() -> None:
        run_id = f"test-{uuid.uuid4().hex}"
        async with world(engine, run_id=run_id) as (provider, _):
            names = [f"keystone-{run_id}-{number}" for number in range(3)]
            made = [engine.networks.create(name, labels={"keystone.run": run_id}, internal=True) for name in names]
            for network in made:
                network.reload()
            argv = ("sh", "-c", "cat /proc/net/fib_trie")
            # By id or by name, as callers have them.
            plan = ContainerPlan(
                IMAGE, argv, 65532, "/", provider.engine.labels, network=names[0], networks=(names[1], made[2].id)
            )
            done = await provider.engine.execute(ContainerRun(engine, plan))
            for network in made:
                assert network.attrs["IPAM"]["Config"][0]["Subnet"].split("/")[0] in done.stdout.text()
            lost = dataclasses.replace(plan, networks=(names[1], "keystone-no-such-network"))
            with pytest.raises(SandboxError, match="keystone-no-such-network"):
                await provider.engine.execute(ContainerRun(engine, lost))
            assert engine.api.containers(all=True, filters={"label": f"keystone.run={run_id}"}) == []
            await sweep(engine, run_id)

    run_bounded(main)


def test_name_servers_are_those_that_are_named(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            sandbox = await fresh(provider.with_network("bridge", dns=("10.9.8.7", "10.9.8.6")))
            done = await sandbox.run(shell("sed -n 's/^nameserver //p' /etc/resolv.conf"))
            assert done.stdout.text().split() == ["10.9.8.7", "10.9.8.6"]

    run_bounded(main)


@MODES
def test_what_it_may_read_it_can_not_change(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            code = provider.engine.root / "code"
            code.mkdir()
            (code / "open").write_text("as it was")
            (code / "open").chmod(0o666)
            code.chmod(0o777)
            sandbox = await fresh(provider, readable=[code])
            await sandbox.run(shell(f"echo changed >{code}/open; rm {code}/open; touch {code}/new"))
            assert [path.name for path in code.iterdir()] == ["open"]
            assert (code / "open").read_text() == "as it was"
            done = await sandbox.run(shell(f"cat {code}/open"))
            assert done.stdout.text() == "as it was"

    run_bounded(main)


@MODES
def test_home_can_not_be_swapped_for_a_link(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (_, sandbox):
            done = await sandbox.run(
                shell("rmdir $HOME && ln -s /etc $HOME; mv $TMPDIR $TMPDIR-x; rmdir $PWD; ls -d $HOME")
            )
            assert done.exit_code == 0
            done = await sandbox.run(shell("test -d $HOME && ! test -L $HOME && touch $HOME/x $TMPDIR/y"))
            assert done.exit_code == 0

    run_bounded(main)
