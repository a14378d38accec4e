"""Networks of a run on the real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers import ContainerWorld
from support.images import BASE

from keystone_action.engine import networks as module
from keystone_action.engine.calls import Refused
from keystone_action.engine.client import EngineClient
from keystone_action.engine.connection import EngineConnection
from keystone_action.engine.networks import ContainerNetwork, Networks, network_name
from keystone_action.errors import ServiceError

SCRIPT = """
import asyncio, json, os, sys
sys.path.insert(0, "/packages")
sys.path.insert(1, "/source")
from keystone_action.engine.connect import connect
from keystone_action.engine.networks import Networks

async def main():
    networks = Networks(connect(os.environ), sys.argv[1])
    async with networks.cell("from-inside") as network:
        print(json.dumps({"own": network.own_address, "host": network.host_address, "gateway": network.gateway}))

asyncio.run(main())
"""
FOREIGN = """
import asyncio, json, os, socket, sys
sys.path.insert(0, "/packages")
sys.path.insert(1, "/source")
from keystone_action.engine.connect import connect
from keystone_action.engine.networks import Networks

client = connect(os.environ)

def inside():
    return sys.argv[2] in client.inspect_container(socket.gethostname())["NetworkSettings"]["Networks"]

async def main():
    networks = Networks(client, sys.argv[1])
    seen = [inside()]
    async with networks.membership(sys.argv[2]):
        seen.append(inside())
        async with networks.membership(sys.argv[2]):
            seen.append(inside())
        seen.append(inside())
    print(json.dumps([*seen, inside()]))

asyncio.run(main())
"""


def open_network(containers: ContainerWorld, suffix: str = "cell", *, internal: bool = False) -> ContainerNetwork:
    async def opened() -> ContainerNetwork:
        return await containers.networks.open(suffix, internal=internal)

    return containers.portal.call(opened)


@pytest.mark.docker
def test_a_cells_network_is_named_labelled_and_removed_with_what_is_in_it(containers: ContainerWorld) -> None:
    with containers.portal.wrap_async_context_manager(containers.networks.cell("spec--r0")) as network:
        assert network.name == f"keystone-{containers.run_id}-spec--r0"
        [found] = containers.engine.networks.list(names=[network.name])
        assert found.attrs["Labels"] == {
            "keystone.run": containers.run_id,
            "keystone.kind": "network",
            "keystone.cell": "spec--r0",
        }
        assert network.host_address == network.gateway
        still = containers.engine.containers.run(
            BASE, ["sleep", "600"], network=network.name, detach=True, labels={"keystone.run": containers.run_id}
        )
    try:
        assert containers.left()["networks"] == []
        still.reload()
        assert still.status == "running"
    finally:
        still.remove(force=True, v=True)


@pytest.mark.docker
@pytest.mark.parametrize("internal", [True, False])
def test_a_network_is_internal_when_it_should_be(containers: ContainerWorld, internal: bool) -> None:
    network = open_network(containers, internal=internal)
    assert containers.engine.networks.get(network.id).attrs["Internal"] is internal
    assert network.internal is internal


@pytest.mark.docker
def test_names_resolve_in_the_network_that_a_container_joined_and_in_no_other(containers: ContainerWorld) -> None:
    first, second = open_network(containers, "first"), open_network(containers, "second")
    server = containers.engine.containers.run(
        BASE, ["sleep", "600"], detach=True, labels={"keystone.run": containers.run_id}
    )
    try:
        address = containers.portal.call(containers.networks.connect, first, str(server.id), "db")
        assert first.admits(address)
        assert not second.admits(address)
        assert containers.run(first, "getent hosts db")[1].split()[0] == address
        assert containers.run(second, "getent hosts db")[0] != 0
        containers.portal.call(containers.networks.disconnect, first, str(server.id))
        containers.portal.call(containers.networks.disconnect, first, str(server.id))
        assert containers.run(first, "getent hosts db")[0] != 0
    finally:
        server.remove(force=True, v=True)


@pytest.mark.docker
def test_the_same_name_twice_is_refused(containers: ContainerWorld) -> None:
    open_network(containers, "one")
    with pytest.raises(ServiceError, match="already exists"):
        open_network(containers, "one")


@pytest.mark.docker
def test_closing_twice_or_after_somebody_else_did_is_harmless(containers: ContainerWorld) -> None:
    network = open_network(containers)
    containers.engine.networks.get(network.id).remove()
    containers.portal.call(containers.networks.close, network)
    containers.portal.call(containers.networks.close, network)


@pytest.mark.docker
@pytest.mark.parametrize(
    "words",
    [
        "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network",
        "all predefined address pools have been fully subnetted",
    ],
)
def test_address_ranges_of_others_are_waited_for(
    containers: ContainerWorld, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """In the engine's own words, of old and new versions."""
    create, refusals = EngineClient.create_network, [words, words]

    def refuse(*arguments: object, **fields: object) -> object:
        if refusals:
            raise Refused(500, refusals.pop())
        return create(*arguments, **fields)

    monkeypatch.setattr(EngineClient, "create_network", refuse)
    monkeypatch.setattr(module, "ADDRESS_PAUSES", (0.01, 0.01, 60))
    assert open_network(containers).subnet.num_addresses > 1


@pytest.mark.docker
def test_no_address_range_left_is_said_with_ways_out(
    containers: ContainerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tests that want a network just now wait for it, so the ranges are taken for a moment only."""
    monkeypatch.setattr(module, "ADDRESS_PAUSES", ())
    opened = []

    def take_all() -> None:
        while len(opened) < 300:
            opened.append(open_network(containers, f"cell-{len(opened)}"))

    try:
        with pytest.raises(ServiceError) as failed:
            take_all()
    finally:
        for network in reversed(opened):
            containers.engine.networks.get(network.id).remove()
    assert "the container engine has no address range left; it has " in failed.value.message
    assert f"keystone-{containers.run_id}-cell-{len(opened)} can't be made" in failed.value.message
    for way in ("keystone clean", "max_concurrency", "default-address-pools"):
        assert way in failed.value.help


def in_a_container(containers: ContainerWorld, script: str, *arguments: str) -> Any:
    """What a script of ours printed, run beside the engine's other containers."""
    import docker as client_library

    binds = {
        "/var/run/docker.sock": {"bind": "/var/run/docker.sock", "mode": "rw"},
        str(Path(module.__file__).parents[2]): {"bind": "/source", "mode": "ro"},
        str(Path(client_library.__file__).parents[1]): {"bind": "/packages", "mode": "ro"},
    }
    output = containers.engine.containers.run(
        BASE,
        ["python3", "-c", script, containers.run_id, *arguments],
        volumes=binds,
        remove=True,
        labels={"keystone.run": containers.run_id},
    )
    return json.loads(output)


@pytest.mark.docker
def test_a_network_of_others_is_joined_while_we_need_it(containers: ContainerWorld) -> None:
    foreign = containers.engine.networks.create(
        f"foreign-{containers.run_id}", labels={"keystone.run": containers.run_id}
    )
    try:
        seen = in_a_container(containers, FOREIGN, foreign.name)
    finally:
        foreign.remove()
    assert seen == [False, True, True, True, False]


@pytest.mark.docker
def test_a_network_of_others_that_is_not_there_is_said(containers: ContainerWorld) -> None:
    async def join() -> None:
        async with containers.networks.membership("no-such-network-of-anybody"):
            pass

    with pytest.raises(ServiceError, match="no-such-network-of-anybody can't be joined"):
        containers.portal.call(join)


@pytest.mark.docker
def test_in_a_container_of_the_engine_our_own_container_joins(containers: ContainerWorld) -> None:
    """As an action does it: the socket is there, and siblings are reached in networks that we join."""
    seen = in_a_container(containers, SCRIPT)
    assert seen["own"] == seen["host"] != seen["gateway"]
    assert seen["own"].rsplit(".", 1)[0] == seen["gateway"].rsplit(".", 1)[0]


def test_an_engine_that_is_gone_is_a_sentence() -> None:
    import anyio

    client = EngineClient(EngineConnection("tcp://127.0.0.1:1", version="1.41"))

    async def opened() -> None:
        await Networks(client, "run").open("cell")

    with pytest.raises(ServiceError, match="the container engine does not answer") as failed:
        anyio.run(opened)
    assert "Traceback" not in failed.value.message
    assert "docker info" in failed.value.help


@given(st.text(max_size=80), st.text(max_size=80))
def test_network_names_are_what_an_engine_takes(run_id: str, suffix: str) -> None:
    name = network_name(run_id, suffix)
    assert len(name) <= 63
    assert name.isascii()
    assert all(letter.isalnum() or letter in "_.-" for letter in name)


def test_network_names_that_lost_something_still_differ() -> None:
    assert network_name("r", "a/b") != network_name("r", "a-b")
    assert network_name("r", "x" * 80) != network_name("r", "x" * 81)
