"""`setup` in the process sandbox: once for the cells in which it would do the same, and for no others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import make_certificate
from support.command_line import ENVIRONMENT, Called, keystone
from support.setup_server import WHEEL, SetupServer, setup_server

SLOW = "sleep 1"
"""Quicker commands are run in each cell."""
STAMP = "head -c 8 /dev/urandom | od -An -tx1 > stamp"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SetupServer]:
    (tmp_path / "served").mkdir()
    with setup_server(tmp_path / "served") as server:
        yield server


def write(directory: Path, setup: dict[str, Any], **more: Any) -> None:
    """A spec of three replicas whose agent prints what `setup` left."""
    document: dict[str, Any] = {
        "version": 1,
        "id": "once",
        "task": {"prompt": "do it"},
        "setup": setup,
        "agent": {"type": "command", "command": "cat stamp; true"},
        "parallelism": {"replicas": 3},
        "invariants": {"any": {"check": {"type": "file_absent", "path": "x"}}},
        **more,
    }
    (directory / "keystone.yaml").write_text(json.dumps(document))


def run(directory: Path, *words: object, environ: dict[str, str] | None = None) -> Called:
    return keystone("run", "keystone.yaml", "--output", "out", *words, directory=directory, environ=environ)


def stamps(called: Called) -> list[str]:
    assert [cell["verdict"] for cell in called.cells] == ["pass"] * len(called.cells), called.out + called.err
    return [cell["agent"]["output"] for cell in called.cells]


def test_cells_that_run_at_once_wait_for_the_first(tmp_path: Path, server: SetupServer) -> None:
    write(tmp_path, {"commands": [server.ask("/ran"), STAMP, SLOW]})
    found = stamps(run(tmp_path, "--max-concurrency", "3"))
    assert len(set(found)) == 1
    assert len(found[0].split()) == 8
    assert server.count("/ran") == 1


def test_each_cell_runs_what_differs_from_cell_to_cell(tmp_path: Path, server: SetupServer) -> None:
    commands = [server.ask("/{{ params.x }}"), STAMP, SLOW]
    write(tmp_path, {"commands": commands}, parallelism={"replicas": 2, "matrix": {"x": ["a", "b"]}})
    found = stamps(run(tmp_path))
    assert (server.count("/a"), server.count("/b")) == (1, 1)
    assert (found[0], found[2]) == (found[1], found[3])
    assert found[0] != found[2]


@pytest.mark.parametrize(
    ("commands", "more"),
    [
        ([STAMP, "pwd > where", SLOW], {}),
        ([STAMP, "mkfifo pipe", SLOW], {}),
        ([STAMP, SLOW], {"services": [{"name": "shop", "type": "http_mock"}]}),
        ([STAMP], {}),
    ],
    ids=["names its folder", "leaves a pipe", "has services", "is quick"],
)
def test_each_cell_runs_what_can_not_be_another_cell_s(
    commands: list[str], more: dict[str, Any], tmp_path: Path, server: SetupServer
) -> None:
    write(tmp_path, {"commands": [server.ask("/ran"), *commands]}, **more)
    assert len(set(stamps(run(tmp_path)))) == 3
    assert server.count("/ran") == 3


def test_a_setup_that_fails_fails_each_cell_and_a_resumed_run_begins_anew(tmp_path: Path, server: SetupServer) -> None:
    server.broken.set()
    write(tmp_path, {"commands": [server.ask("/sometimes"), STAMP, SLOW]})
    called = run(tmp_path)
    assert called.code == 3
    assert server.count("/sometimes") == 3
    for cell in called.cells:
        assert cell["verdict"] == "error"
        assert cell["error"].startswith("setup.commands[0] (`python3 -c")
    server.broken.clear()
    resumed = keystone("run", "keystone.yaml", "--resume", "out", directory=tmp_path)
    assert len(set(stamps(resumed))) == 1
    assert server.count("/sometimes") == 4


def test_when_the_first_cell_is_cut_off_the_next_one_runs_it(tmp_path: Path, server: SetupServer) -> None:
    commands = [STAMP, server.ask("/hang"), SLOW]
    write(tmp_path, {"commands": commands}, resources={"timeout": "6s"}, scoring={"replica_aggregation": "any"})
    called = run(tmp_path, "--max-concurrency", "1")
    first, *others = called.cells
    assert first["error"] == "the cell took longer than resources.timeout (6 s); it was in: setup"
    assert [cell["verdict"] for cell in others] == ["pass"] * 2, called.out
    assert others[0]["agent"]["output"] == others[1]["agent"]["output"]
    assert server.count("/hang") == 2


def test_a_run_that_is_cancelled_while_cells_wait_is_resumed(tmp_path: Path, server: SetupServer) -> None:
    write(tmp_path, {"commands": [STAMP, server.ask("/hang"), SLOW]})
    words = ["run", "keystone.yaml", "--output", "out", "--max-concurrency", "3"]
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o711)
        environ = {**ENVIRONMENT, "TMPDIR": temporary}
        process = subprocess.Popen(
            [sys.executable, "-m", "keystone_action", *words],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        while not server.count("/hang"):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert b"once was cancelled: 0 cells had finished" in err
        assert list(Path(temporary).iterdir()) == []
    resumed = keystone("run", "keystone.yaml", "--resume", "out", directory=tmp_path)
    assert len(set(stamps(resumed))) == 1
    assert server.count("/hang") == 2


@pytest.mark.slow
def test_packages_that_can_not_be_installed_fail_each_cell(tmp_path: Path, server: SetupServer) -> None:
    write(tmp_path, {"packages": ["no-such-package"], "env": server.for_pip}, parallelism={"replicas": 2})
    called = run(tmp_path)
    assert called.code == 3
    assert [cell["error"].startswith("setup.packages: pip could not install") for cell in called.cells] == [True] * 2


@pytest.mark.slow
def test_setup_trusts_the_certificates_of_the_host_and_the_agent_hears_nothing_of_it(tmp_path: Path) -> None:
    """They lie below a closed folder, with a key beside them."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    bundle = make_certificate(home)
    named = {"PIP_CERT": str(bundle), "SSL_CERT_FILE": str(bundle), "CURL_CA_BUNDLE": str(home / "missing.pem")}
    with setup_server(tmp_path, bundle) as server:
        tells = 'env | grep -c -e PIP_CERT -e SSL_CERT -e CURL_CA; ls "$(cat named)"; tiny'
        setup = {
            "packages": ["tinything"],
            "commands": [server.ask("/ran"), 'test -z "$CURL_CA_BUNDLE"', 'echo "${SSL_CERT_FILE%/*}" > named'],
            "env": server.for_pip,
        }
        write(tmp_path, setup, agent={"type": "command", "command": tells}, parallelism={"replicas": 1})
        (output,) = stamps(run(tmp_path, environ=named))
        assert output.split() == ["0", "0", "tiny"]
        assert (server.count(f"/{WHEEL}"), server.count("/ran")) == (1, 1)
        other = tmp_path / "without"
        other.mkdir()
        write(other, {"commands": [server.ask("/ran")]}, parallelism={"replicas": 1})
        assert "CERTIFICATE_VERIFY_FAILED" in run(other).cells[0]["error"]
