"""The gateway of a cell in containers: reached from the cell's own network, and from no other."""

from __future__ import annotations

import pytest
from support.containers import ContainerWorld
from support.model_agents import says
from support.scripted_provider import provider

from keystone_action.gateway.cell import CellGateway, configure, open_gateway
from keystone_action.gateway.server import Gateways
from keystone_action.spec.models.gateway import Gateway

pytestmark = pytest.mark.docker

ASK = """
import json, sys, urllib.error, urllib.request
body = json.dumps({"model": "claude-opus-4-5", "messages": []}).encode()
try:
    request = urllib.request.Request(sys.argv[1], body, {"x-api-key": sys.argv[2]})
    print(urllib.request.urlopen(request, timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print("not reached")
"""


def asks(opened: CellGateway) -> str:
    address = opened.addresses["anthropic"]
    return f"python3 -c '{ASK}' {address.url}/v1/messages {address.key}"


@pytest.mark.parametrize("internal", [False, True])
def test_a_container_of_another_cell_is_not_answered_though_it_has_the_key(
    containers: ContainerWorld, internal: bool
) -> None:
    gateways = Gateways()
    gateways.start()
    try:
        with provider(says("done")) as behind:
            environ = {"ANTHROPIC_API_KEY": "sk-real-0123456789", "ANTHROPIC_BASE_URL": behind.url}
            configuration = configure(Gateway(), environ, denied_egress=internal)
            own = containers.portal.call(lambda: containers.networks.open("own", internal=internal))
            other = containers.portal.call(lambda: containers.networks.open("other", internal=False))
            opened = containers.portal.call(
                lambda: open_gateway(gateways, configuration, address=own.host_address, admits=own.admits)
            )
            assert containers.run(own, asks(opened)) == (0, "200\n")
            code, said = containers.run(other, asks(opened))
            assert (code, said) in [(0, "403\n"), (0, "not reached\n")]
            assert len(behind.asked) == 1
    finally:
        gateways.stop()
