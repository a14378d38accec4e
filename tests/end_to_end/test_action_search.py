"""What an agent finds that looks for the engine's socket, the runner's folders, the step's environment, the checkout
and the hidden tests: in a container of its own, and in the process sandbox of the image."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.action_job import ActionJob
from support.searching import EVERYWHERE, MARK, SEARCH

pytestmark = pytest.mark.docker

RUNNERS_OWN = (
    "GITHUB_",
    "ACTIONS_",
    "INPUT_",
    "RUNNER_",
    "STATE_",
    "ANTHROPIC_",
    "OPENAI_",
    "DOCKER_",
    "KEYSTONE_JUDGE_",
)
LOOKING = r"""
import socket
def of_the_runner():
    "What is below /github and neither the cell's own nor on the way to it."
    named = ("KEYSTONE_WORKSPACE", "KEYSTONE_AGENT_DIR", "HOME", "TMPDIR")
    own = [os.environ[name] for name in named] + [os.path.dirname(os.environ["KEYSTONE_PROMPT_FILE"])]
    for folder, folders, files in os.walk("/github"):
        if any(os.path.commonpath([folder, place]) == place for place in own):
            folders[:] = []
            continue
        yield from (os.path.join(folder, name) for name in files)
        towards = {os.path.relpath(place, folder).split("/")[0] for place in own}
        yield from (os.path.join(folder, name) for name in folders if name not in towards)
def sockets():
    places = {"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"}
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        places.update(line.split()[7:8])
    for top in ("/run", "/var/run", "/tmp", "/var/tmp", "/github"):
        for folder, _, files in os.walk(top):
            places.update(os.path.join(folder, name) for name in files)
    for place in sorted(places):
        try:
            is_socket = stat.S_ISSOCK(os.stat(place).st_mode)
        except (OSError, ValueError):
            continue
        if is_socket:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(2)
                try:
                    probe.connect(place)
                    yield place, "open"
                except OSError as error:
                    yield place, error.strerror
"""


def hide(job: ActionJob) -> None:
    """A mark in everything that an agent has no business with."""
    runner = job.runner
    event = json.loads(runner.event_file.read_text())
    runner.event_file.write_text(json.dumps({**event, "canary": f"{MARK}event"}))
    for path, word in {
        runner.home / ".netrc": "home",
        runner.temp / "secret.txt": "temp",
        runner.file_commands / "set_output_of-an-earlier-step": "output",
        runner.workspace / ".git" / "config": "git-config",
        runner.workspace / "keystone-old" / "results.json": "earlier-results",
        runner.workspace / "secret.txt": "checkout",
    }.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{MARK}{word}")
    job.env |= {
        "ANTHROPIC_API_KEY": f"{MARK}judge-key",
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:9/{MARK}base-url",
        "MY_OWN": f"{MARK}step-environment",
        "GITHUB_TOKEN": f"{MARK}token",
    }
    job.inputs |= {"github-token": f"{MARK}token-input", "env": "MY_OWN"}


def search(job: ActionJob, **more: Any) -> dict[str, Any]:
    """What the agent found; the run around it has passed."""
    hide(job)
    places = [*EVERYWHERE, "/opt", "/var/lib", "/var/run", "/__w", str(job.runner.work), "/github/workspace"]
    script = f"""{SEARCH}{LOOKING}
with open("own.txt", "w") as file:
    file.write("CAN" + "ARY-own")
search([".", *{places!r}])
print(json.dumps({{
    "found": [one for one in sorted(found) if one[1] != "CAN" + "ARY-own"],
    "own": any(one[1] == "CAN" + "ARY-own" for one in found),
    "sockets": dict(sockets()),
    "names": sorted(os.environ),
    "github": sorted(of_the_runner()),
    "checkout_listed": [place for place in listed if place.startswith({str(job.runner.work)!r})],
    "uid": os.getuid(),
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))],
    "no_new_privileges": "NoNewPrivs:\\t1" in open("/proc/self/status").read(),
}}))
"""
    job.write(
        {
            "version": 1,
            "id": "searching",
            "description": f"{MARK}spec",
            "task": {"prompt": "do it"},
            "agent": {
                "type": "command",
                "command": ["python3", "{{ agent.dir }}/agent.py"],
                "dir": "agent",
                "timeout": "2m",
            },
            "invariants": {
                "hidden": {"check": {"type": "custom", "script": "checks/hidden.py"}},
                "executing": {"check": {"type": "command_exit", "command": "! env | grep -i -e canary -e GITHUB_"}},
            },
            **more,
        },
        {
            "agent/agent.py": script,
            "checks/hidden.py": f'# {MARK}hidden-test\nprint(\'{{"passed": true, "score": 1.0}}\')\n',
        },
    )
    step = job.run()
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    seen: dict[str, Any] = json.loads(job.cell["agent"]["output"])
    assert seen["own"], "the search finds what is there"
    return seen


def finds_nothing(seen: dict[str, Any]) -> None:
    assert seen["found"] == []
    assert [name for name in seen["names"] if name.startswith(RUNNERS_OWN)] == []
    assert "open" not in seen["sockets"].values()
    assert seen["github"] == []
    assert seen["checkout_listed"] == []
    assert seen["uid"] != 0
    assert seen["no_new_privileges"]


def test_in_a_container(job: ActionJob) -> None:
    seen = search(job, base="python:3.12-slim")
    finds_nothing(seen)
    assert seen["sockets"] == {}
    assert set(seen["capabilities"]) == {"0" * 16}
    assert job.document["sandbox"]["isolation"] == ["container"]


def test_in_the_process_sandbox_of_the_image(job: ActionJob) -> None:
    seen = search(job)
    finds_nothing(seen)
    assert "user" in job.document["sandbox"]["isolation"]
