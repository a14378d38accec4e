"""`network.egress: deny`, looked at from inside: what the agent reaches by name, by address, by DNS, through the proxy
and at its gateway, in the action's container and on a laptop."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.action_job import ActionJob
from support.command_line import run_spec
from support.hostile import area
from support.images import POSTGRES, PYTHON
from support.probing import PROBES, Canary

if TYPE_CHECKING:
    from docker import DockerClient

__all__ = ["area"]

pytestmark = pytest.mark.docker

ALLOWED, FORBIDDEN = "allowed.example.com", "forbidden.example.com"
OVERRIDDEN = "api.example.org"
"""The cell's mock stands in for it, by HTTPS."""
ELSEWHERE = "pypi.org"
"""A name that this machine can look up where it has a network, which a sandbox must not find."""


@pytest.fixture
def canary() -> Iterator[Canary]:
    made = Canary()
    yield made
    made.close()


def site(says: str) -> list[str]:
    """A web server at port 80 whose every page says this."""
    return ["sh", "-c", f"mkdir /site && cd /site && echo {says} > index.html && exec python3 -m http.server 80"]


@pytest.fixture
def sites(job: ActionJob, image: Callable[[str], str]) -> dict[str, str]:
    """Two of the workflow's services, by name: their addresses."""
    for name in (ALLOWED, FORBIDDEN):
        job.service(name, image(PYTHON), site(f"this-is-{name}"))
    network = job.engine.networks.get(job.network)
    found = {}
    for one in network.containers:
        joined = one.attrs["NetworkSettings"]["Networks"][job.network]
        found |= dict.fromkeys(set(joined["Aliases"]) & {ALLOWED, FORBIDDEN}, joined["IPAddress"])
    return found


DATABASE = {"name": "db", "image": POSTGRES, "env": {"POSTGRES_PASSWORD": "secret"}}
IN_ITS_PLACE = {"name": "db", "image": PYTHON, "command": "python3 -m http.server 5432", "ports": [5432]}
"""A port is all that the probes need; one spec has a real database."""


def probing(
    script: str, *, allow: list[str], name: str = "probing", db: dict[str, Any] = IN_ITS_PLACE
) -> tuple[dict[str, Any], dict[str, str]]:
    """A spec whose agent prints the results of its probes, and its files."""
    document = {
        "version": 1,
        "id": name,
        "task": {"prompt": "do it"},
        "base": PYTHON,
        "agent": {
            "type": "command",
            "command": ["python3", "{{ agent.dir }}/agent.py"],
            "dir": name,
            "must_exit_zero": True,
            "timeout": "3m",
        },
        "services": [
            {"name": "api", "type": "http_mock", "record": True, "routes": [{"path": "/hello", "response": "hello"}]},
            db,
        ],
        "network": {"egress": {"default": "deny", "allow": allow}},
        "invariants": {
            "asked": {
                "check": {
                    "type": "http_mock_assertions",
                    "service": "api",
                    "assertions": [{"field": "request_count", "equals": 1}],
                }
            }
        },
    }
    return document, {f"{name}/agent.py": f"{PROBES}\n{script}"}


def services_and_gateways(canary: Canary) -> str:
    """Probes that mean the same wherever the run is."""
    return f"""
db = (os.environ["KEYSTONE_SERVICE_DB_HOST"], int(os.environ["KEYSTONE_SERVICE_DB_PORT"]))
connection = socket.create_connection(db, PATIENCE)
connection.close()
probes = {{
    "mock": lambda: by_http(os.environ["KEYSTONE_SERVICE_API_URL"] + "/hello"),
    "mock's name": lambda: by_name("api"),
    "names": {{name: partial(by_name, name) for name in ("{ELSEWHERE}", "x7f3.{ELSEWHERE}")}},
    "dns": {{one: partial(by_dns, one, "{ELSEWHERE}") for one in {{*name_servers(), "127.0.0.11", "1.1.1.1"}}}},
    "gateways": {{one: partial(by_address, one, {canary.port}) for one in {{*gateways(), "172.17.0.1"}}}},
    "tunnel to elsewhere": lambda: tunnel("{ELSEWHERE}:443"),
    "tunnel to metadata": lambda: tunnel("169.254.169.254:80"),
    "tunnel to loopback": lambda: tunnel("127.0.0.1:{canary.port}"),
    "tunnel to gateway": lambda: tunnel("172.17.0.1:{canary.port}"),
    "outside by address": lambda: by_address("1.1.1.1", 443),
}}
"""


def is_closed_in(seen: dict[str, Any]) -> None:
    """Declared services are reached; nothing else is, but for what the allow list names."""
    assert seen["mock"] == "200 hello"
    assert isinstance(seen["mock's name"], list)
    assert all(str(found).startswith("unknown") for found in seen["names"].values()), seen["names"]
    assert not any(isinstance(answers, int) and answers > 0 for answers in seen["dns"].values()), seen["dns"]
    assert seen["outside by address"].startswith("closed")
    for name, status in seen.items():
        if name.startswith("tunnel"):
            assert status.startswith("HTTP/1.1 403"), (name, status)


def test_in_the_actions_container(
    job: ActionJob, image: Callable[[str], str], sites: dict[str, str], canary: Canary
) -> None:
    """A spec with an allow list and one with an empty list, beside each other."""
    image(POSTGRES)
    script = f"""{services_and_gateways(canary)}
def by_https(url):
    import urllib.request
    return urllib.request.urlopen(url, timeout=PATIENCE).read().decode()
probes |= {{
    "allowed": lambda: by_http("http://{ALLOWED}/"),
    "allowed, tunnelled": lambda: tunnel("{ALLOWED}:80"),
    "allowed at another port": lambda: by_http("http://{ALLOWED}:8080/"),
    "allowed in another spelling": lambda: by_http("http://{ALLOWED.upper()}./"),
    "allowed by address": lambda: by_address("{sites[ALLOWED]}", 80),
    "allowed by address through the proxy": lambda: by_http("http://{sites[ALLOWED]}/"),
    "forbidden": lambda: by_http("http://{FORBIDDEN}/"),
    "tunnel to forbidden": lambda: tunnel("{FORBIDDEN}:80"),
    "tunnel to forbidden by address": lambda: tunnel("{sites[FORBIDDEN]}:80"),
    "forbidden without the proxy": lambda: by_http("http://{FORBIDDEN}/", proxy=""),
    "forbidden by address": lambda: by_address("{sites[FORBIDDEN]}", 80),
    "mock under another host's name": lambda: by_https("https://{OVERRIDDEN}/hello"),
}}
print(json.dumps(all_at_once(probes)))
"""
    empty, its_files = probing(with_an_empty_list(sites, canary), allow=[], name="empty")
    document, files = probing(script, allow=[ALLOWED], db=DATABASE)
    document["network"]["dns_overrides"] = {OVERRIDDEN: "api"}
    document["invariants"]["asked"]["check"]["assertions"][0]["equals"] = 2
    job.write(document, {**files, **its_files, "empty.keystone.yaml": json.dumps(empty)})
    job.inputs |= {"spec": ".", "max-concurrency": "2"}
    step = job.run()
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    printed = {one["id"]: json.loads(one["cells"][0]["agent"]["output"]) for one in job.document["specs"]}
    nothing_is_allowed(printed["empty"])
    seen = printed["probing"]
    is_closed_in({name: found for name, found in seen.items() if name != "allowed, tunnelled"})
    assert seen["mock under another host's name"] == "hello"
    assert seen["allowed"] == f"200 this-is-{ALLOWED}"
    assert seen["allowed, tunnelled"].startswith("HTTP/1.1 200")
    assert seen["allowed in another spelling"] == f"200 this-is-{ALLOWED}"
    assert seen["allowed at another port"] == "refused 403"
    assert seen["allowed by address"].startswith("closed")
    assert seen["allowed by address through the proxy"] == "refused 403"
    assert seen["forbidden"] == "refused 403"
    assert seen["forbidden without the proxy"].startswith("failed")
    assert seen["forbidden by address"].startswith("closed")
    assert all(found.startswith("closed") for found in seen["gateways"].values()), seen["gateways"]
    assert canary.seen == 0
    decisions_are_on_record(job)
    assert job.left() == []


def decisions_are_on_record(job: ActionJob) -> None:
    [path] = (job.runner.workspace / "keystone-results" / "cells").glob("probing*/audit.jsonl")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    details = [entry["details"] for entry in entries if entry["type"] == "connect"]
    decisions = {(one["host"], one["port"], one["allowed"]) for one in details}
    assert decisions >= {(ALLOWED, 80, True), (ALLOWED, 8080, False), (FORBIDDEN, 80, False)}


def with_an_empty_list(sites: dict[str, str], canary: Canary) -> str:
    return f"""{services_and_gateways(canary)}
probes |= {{"by name": lambda: by_http("http://{ALLOWED}/"), "by address": lambda: by_address("{sites[ALLOWED]}", 80)}}
seen = all_at_once(probes)
seen = {{name: found for name, found in seen.items() if not name.startswith("tunnel") or found != "no proxy"}}
print(json.dumps(seen))
"""


def nothing_is_allowed(seen: dict[str, Any]) -> None:
    is_closed_in(seen)
    assert seen["by name"].startswith(("refused 403", "failed"))
    assert seen["by address"].startswith("closed")


def test_the_process_sandbox_refuses_what_it_cannot_enforce(job: ActionJob) -> None:
    """Names that the agent may reach: no process of this machine is let through by name."""
    document, files = probing("", allow=[ALLOWED])
    del document["base"]
    job.write(document, files)
    step = job.run()
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (2, "error", []), step.raw_log
    assert "base" in step.issues[0].message


def test_the_process_sandbox_reaches_no_service_of_another_machine(job: ActionJob) -> None:
    """Inside the action's container, those of the cell have addresses of their own."""
    document, files = probing("print('started')", allow=[])
    del document["base"]
    job.write(document, files)
    step = job.run()
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (3, "error", []), step.raw_log
    assert "set base" in step.issues[0].message
    assert job.cell["agent"] is None
    assert job.left() == []


@pytest.fixture
def neighbours(engine: DockerClient, image: Callable[[str], str]) -> Iterator[dict[str, str]]:
    """Two web servers on the default bridge: addresses, as on a laptop with other containers."""
    started = [
        engine.containers.run(image(PYTHON), site(f"this-is-{name}"), detach=True) for name in (ALLOWED, FORBIDDEN)
    ]
    try:
        for one in started:
            one.reload()
        addresses = [one.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"] for one in started]
        yield dict(zip((ALLOWED, FORBIDDEN), addresses, strict=True))
    finally:
        for one in started:
            one.remove(force=True)


def test_on_a_laptop(area: Any, neighbours: dict[str, str], canary: Canary) -> None:
    script = f"""{services_and_gateways(canary)}
def by_https(url):
    import urllib.request
    return urllib.request.urlopen(url, timeout=PATIENCE).read().decode()
probes |= {{
    "allowed": lambda: by_http("http://{neighbours[ALLOWED]}/"),
    "allowed without the proxy": lambda: by_address("{neighbours[ALLOWED]}", 80),
    "forbidden": lambda: by_http("http://{neighbours[FORBIDDEN]}/"),
    "forbidden without the proxy": lambda: by_address("{neighbours[FORBIDDEN]}", 80),
}}
print(json.dumps(all_at_once(probes)))
"""
    document, files = probing(script, allow=[neighbours[ALLOWED]])
    for name, text in files.items():
        (area / name).parent.mkdir(exist_ok=True)
        (area / name).write_text(text)
    environ = {name: os.environ[name] for name in ("DOCKER_HOST",) if name in os.environ}
    called = run_spec(area, json.dumps(document), environ=environ)
    assert called.code == 0, called.out + called.err
    seen = json.loads(called.cells[0]["agent"]["output"])
    is_closed_in(seen)
    assert seen["allowed"] == f"200 this-is-{ALLOWED}"
    assert seen["allowed without the proxy"].startswith("closed")
    assert seen["forbidden"] == "refused 403"
    assert seen["forbidden without the proxy"].startswith("closed")
    # The bridge of an internal network keeps an address of the machine: closed, or said to be open.
    said = (called.output / "summary.md").read_text("utf-8")
    is_open = any(found.startswith("open") for found in seen["gateways"].values())
    assert is_open == bool(canary.seen)
    assert ("leaves ports of this machine open" in said) == is_open
