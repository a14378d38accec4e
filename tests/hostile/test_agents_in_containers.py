"""An agent in a container that attacks: by files, by processes, by what it leaves; in both ways that files go in."""

from __future__ import annotations

import uuid

import pytest
from docker.errors import ImageNotFound
from support.attacks import honest, hostile
from support.hostile_containers import attack_in_container

pytestmark = pytest.mark.docker
MODES = pytest.mark.parametrize("mode", ["bind", "copy"])


@MODES
@hostile(
    "containers", "removes its own program", held_by="what the image had before it started counts", sandbox="docker"
)
def test_an_agent_that_removes_itself_has_run_and_is_graded(tmp_path, image, mode):
    """Its program was there; that it isn't any more is not an error of ours."""
    image("python:3.12-slim")
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "run.sh").write_text("#!/bin/sh\necho bad > bad\nrm run.sh\nexit 127\n")
    (tmp_path / "start" / "run.sh").chmod(0o755)
    called = attack_in_container(
        tmp_path,
        "",
        {"clean": {"type": "file_absent", "path": "bad"}},
        mode=mode,
        workspace="start",
        agent={"command": ["./run.sh"]},
    )
    assert called.code == 1, called.out + called.err
    assert called.cells[0]["agent"]["exit_code"] == 127


@hostile(
    "containers",
    "leaves a workspace too large to be copied back",
    held_by="what is lost counts as its failure",
    sandbox="docker",
)
def test_a_workspace_that_can_not_come_back_is_not_graded_as_it_was_before(tmp_path, image):
    """What it was before would pass."""
    image("python:3.12-slim")
    called = attack_in_container(
        tmp_path,
        "import os\nopen('bad', 'w')\nopen('a', 'w').truncate(6 << 40)",
        {"clean": {"type": "file_absent", "path": "bad"}, "runs": {"type": "command_exit", "command": "true"}},
        mode="copy",
    )
    assert called.code == 1, called.out + called.err
    (cell,) = called.cells
    assert cell["verdict"] == "fail"
    assert cell["composite"] == 0
    assert "larger than" in called.out + str(cell)


@hostile(
    "containers",
    "changes its code while setup's image is cached",
    held_by="the cache's key holds all that setup can see",
    sandbox="docker",
)
def test_what_setup_made_of_other_code_of_the_agent_s_is_not_found_again(tmp_path, image, engine):
    """`pip install ../agent` would have the agent of before pass for the one of today; and a long prompt is only in
    its file."""
    image("python:3.12-slim")
    before = {tag for one in engine.images.list("keystone-setup") for tag in one.tags}
    copy = f"echo {uuid.uuid4()} > /opt/new; cp ../agent/agent.py /opt/agent; cp $KEYSTONE_PROMPT_FILE /opt/prompt"
    try:
        for number, (script, prompt) in enumerate([("# one", "a"), ("# two", "a"), ("# two", "b")]):
            run = tmp_path / str(number)
            run.mkdir()
            called = attack_in_container(
                run,
                script,
                {
                    "made_of_these": {
                        "type": "command_exit",
                        "command": f"grep -q '{script}' /opt/agent && grep -q {prompt} /opt/prompt",
                    },
                },
                setup={"commands": [copy]},
                task={"prompt": prompt * 110_000},
            )
            assert called.code == 0, called.out + called.err
    finally:
        for tag in {tag for one in engine.images.list("keystone-setup") for tag in one.tags} - before:
            if copy.split()[1] in _file(engine, tag, "/opt/new"):
                engine.images.remove(tag, force=True)


SEND_TO_ALL = """
import os, socket
devices = [name for _, name in socket.if_nameindex()]
open("devices", "w").write(" ".join(devices))
if "eth0" in devices:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        sender.sendto(b"the secret", ("255.255.255.255", 9999))
open("sent", "w")
"""
DENY = {"egress": {"default": "deny"}}


@hostile(
    "containers",
    "sends datagrams to the engine's machine although egress is denied",
    held_by="no network at all where nothing is to be reached",
    sandbox="docker",
)
def test_a_cell_that_may_reach_nothing_has_no_network(tmp_path, image):
    image("python:3.12-slim")
    checks = {"none": {"type": "file_content", "path": "devices", "not_contains": "eth"}}
    called = attack_in_container(tmp_path, SEND_TO_ALL, checks, network=DENY)
    assert called.code == 0, called.out + called.err
    assert "egress: deny l" not in (called.output / "summary.md").read_text("utf-8")


@honest("containers", "sends datagrams to the engine's machine although egress is denied", sandbox="docker")
def test_a_cell_with_a_service_has_a_network_and_its_hole_is_told(tmp_path, image):
    image("python:3.12-slim")
    checks = {"one": {"type": "file_content", "path": "devices", "contains": "eth0"}}
    mock = {"name": "api", "type": "http_mock", "routes": [{"path": "/", "response": "hello"}]}
    called = attack_in_container(tmp_path, SEND_TO_ALL, checks, network=DENY, services=[mock])
    assert called.code == 0, called.out + called.err
    assert "egress: deny l" in (called.output / "summary.md").read_text("utf-8")


def _file(engine, image, path):
    try:
        command = ["sh", "-c", f"cat {path} 2>/dev/null || true"]
        return engine.containers.run(image, command, entrypoint=[], remove=True).decode()
    except ImageNotFound:
        return ""  # somebody else's, removed meanwhile
