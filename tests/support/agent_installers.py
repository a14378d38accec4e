"""An image in which npm and pip are stand-ins that have the known agents: what they install asks its model once, shows
what it was given, and does the task of the first spec."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
from support.images import PYTHON

from keystone_action.agents.presets.preset import load_preset, preset_names

PROGRAM = r"""#!/usr/bin/env python3
# Stands in for an agent: asks its model once, shows what it was given, and does the task of the page.
import json, os, sys, urllib.request

if {"--version", "--help"} & set(sys.argv):
    sys.exit(print("1.0"))
api = "API"
paths = {
    "anthropic": ("ANTHROPIC_BASE_URL", "/v1/messages", "x-api-key"),
    "openai": ("OPENAI_BASE_URL", "/chat/completions", "authorization"),
    "gemini": ("GOOGLE_GEMINI_BASE_URL", "/v1beta/models/m:generateContent", "x-goog-api-key"),
}
base, path, header = paths[api]
key = os.environ[api.upper() + "_API_KEY"]
body = {"model": "m", "messages": [], "tools": [{}]}
headers = {header: "Bearer " + key if header == "authorization" else key, "content-type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ[base] + path, json.dumps(body).encode(), headers)).read()
print(sys.argv, dict(os.environ))
open("total.txt", "w").write("42.50\n")
"""
INSTALLER = """\
#!/bin/sh
# Stands in for npm and pip.
case "$*" in
CASES
*) exit 1 ;;
esac
sed "s/^api = .*/api = '$api'/" /opt/agent > "/usr/local/bin/$program" && chmod 755 "/usr/local/bin/$program"
"""


@pytest.fixture(scope="session")
def agent_installers(image: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    name, folder = f"keystone-test-installers:{os.getpid()}", tmp_path_factory.mktemp("image")
    cases = [
        f"'install {_after_install(one.install_command(one.seen))}') program={one.program} api={one.providers[0]} ;;"
        for one in map(load_preset, preset_names())
    ]
    (folder / "agent").write_text(PROGRAM)
    (folder / "installer").write_text(INSTALLER.replace("CASES", "\n".join(cases)))
    (folder / "installer").chmod(0o755)
    (folder / "Dockerfile").write_text(
        f"FROM {image(PYTHON)}\nCOPY agent /opt/agent\n"
        "COPY installer /usr/local/bin/npm\nCOPY installer /usr/local/bin/pip\n"
    )
    environ = {**os.environ, "DOCKER_BUILDKIT": "0"}  # the newer builder pulls a front end of its own
    build = ["docker", "build", "--force-rm", "--tag", name, str(folder)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    yield name
    subprocess.run(["docker", "image", "rm", "--force", name], capture_output=True, check=False)


def _after_install(command: str) -> str:
    """As the shell hands it on: without quotes."""
    return command.partition(" install ")[2].replace("'", "")
