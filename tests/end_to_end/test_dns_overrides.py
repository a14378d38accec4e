"""`network.dns_overrides`: programs in a cell reach a service under the name of another host, by HTTPS too, and its
certificate is one that they trust."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.audit import audit_lines
from support.command_line import Called, keystone
from support.images import PYTHON

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NODE = "fetch('https://api.example.com/a?by=node').then(one => one.text()).then(console.log)"
JAVA = """import java.net.*;
public class Asks {
    public static void main(String[] words) throws Exception {
        var asked = (HttpURLConnection) new URL("https://api.example.com/a?by=java").openConnection();
        System.out.println(asked.getResponseCode());
    }
}
"""
ASKS = f"""
set -e
curl -sS "https://api.example.com/a?by=curl"
curl -sS "http://other.example.com/b?by=plain"
python3 -c 'import urllib.request as one; print(one.urlopen("https://api.example.com/a?by=python").read())'
node -e "{NODE}"
gron "https://api.example.com/a?by=go"
git ls-remote https://api.example.com/repo.git
cat > Asks.java <<'END'
{JAVA}
END
java Asks.java
"""
SERVICES = [
    {
        "name": "api",
        "type": "http_mock",
        "record": True,
        "routes": [
            {"path": "/a", "json": {"who": "api"}},
            {
                "path": "/repo.git/info/refs",
                "response": "001e# service=git-upload-pack\n00000000",
                "headers": {"Content-Type": "application/x-git-upload-pack-advertisement"},
            },
        ],
    },
    {"name": "other", "type": "http_mock", "routes": [{"path": "/b", "response": "other\n"}]},
]
OVERRIDES = {"api.example.com": "api", "other.example.com": "other"}


def run(tmp_path: Path, command: str, **more: Any) -> Called:
    spec = {
        "version": 1,
        "id": "names",
        "task": {"prompt": "x"},
        "agent": {"type": "command", "command": command, "timeout": "3m"},
        "network": {"dns_overrides": OVERRIDES},
        "services": SERVICES,
        "invariants": {"ran": {"description": "x", "check": {"type": "file_absent", "path": "nothing"}}},
        **more,
    }
    spec["agent"] = {**spec["agent"], "must_exit_zero": True}
    (tmp_path / "keystone.yaml").write_text(json.dumps(spec))
    return keystone("run", "--output", "out", directory=tmp_path)


def urls(called: Called) -> list[str]:
    return [one["url"] for one in audit_lines(called.output, "http_call")]


def test_programs_of_every_kind_reach_a_mock_by_https(tmp_path: Path, image: Callable[[str], str]) -> None:
    packages = ["curl", "nodejs", "default-jre-headless", "gron"]  # the last is written in Go
    called = run(tmp_path, ASKS, base=image(PYTHON), setup={"packages": packages})
    assert called.code == 0, called.out + called.err
    found = urls(called)
    for program in ("curl", "python", "node", "java", "go"):
        assert f"https://api.example.com/a?by={program}" in found
    assert "http://other.example.com/b?by=plain" in found
    assert any(one.startswith("https://api.example.com/repo.git/info/refs") for one in found)


ASK = (
    "import os, ssl, time, urllib.request as one; print(time.time(), ssl.get_default_verify_paths().cafile);"
    "print(one.urlopen('https://api.example.com/a').read(), one.urlopen('http://api.example.com/a').status)"
)


@pytest.mark.parametrize(
    "more",
    [
        {"determinism": {"clock": "1999-12-31T23:59:59Z"}},
        {
            "determinism": {"clock": "2090-01-01T00:00:00Z"},
            "network": {"dns_overrides": OVERRIDES, "egress": {"default": "deny"}},
        },
        {"network": {"dns_overrides": OVERRIDES, "egress": {"default": "deny", "allow": ["example.org"]}}},
    ],
)
def test_at_a_given_time_and_in_a_closed_network(
    tmp_path: Path, image: Callable[[str], str], more: dict[str, Any]
) -> None:
    called = run(tmp_path, f'python3 -c "{ASK}"', base=image(PYTHON), **more)
    assert called.code == 0, called.out + called.err
    assert urls(called) == ["https://api.example.com/a", "http://api.example.com/a"]


def test_cells_side_by_side_have_their_own(tmp_path: Path, image: Callable[[str], str]) -> None:
    called = run(
        tmp_path,
        f'python3 -c "{ASK}"',
        base=image(PYTHON),
        parallelism={"replicas": 3, "max_concurrency": 3},
        invariants={
            "once": {
                "description": "no other cell's requests",
                "check": {
                    "type": "http_mock_assertions",
                    "service": "api",
                    "assertions": [{"field": "request_count", "equals": 2}],
                },
            }
        },
    )
    assert called.code == 0, called.out + called.err


def test_a_container_is_reached_by_the_name_too(tmp_path: Path, image: Callable[[str], str]) -> None:
    page = {"name": "page", "image": image(PYTHON), "command": "python3 -m http.server 80", "ports": [80]}
    ask = "import urllib.request as one; print(one.urlopen('http://www.example.com').status)"
    called = run(
        tmp_path,
        f'python3 -c "{ask}"',
        base=image(PYTHON),
        services=[page],
        network={"dns_overrides": {"www.example.com": "page"}},
    )
    assert called.code == 0, called.out + called.err


def test_a_program_that_does_not_trust_it_is_told_of(tmp_path: Path, image: Callable[[str], str]) -> None:
    called = run(tmp_path, f'env -u SSL_CERT_FILE python3 -c "{ASK}" || true', base=image(PYTHON))
    assert called.code == 0, called.out + called.err
    (cell,) = called.cells
    assert any("did not trust the certificate of the mock for api.example.com" in one for one in cell["notices"]), cell
