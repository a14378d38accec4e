"""What a user gets when containers go wrong: the right exit code, a sentence that says whose fault it was."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, keystone, run_spec, spec
from support.engine_proxy import EngineProxy
from support.images import EXITS_AT_ONCE, NO_SHELL, PYTHON

pytestmark = [pytest.mark.docker, pytest.mark.slow]

SERVICES = "[{name: api, type: http_mock, record: true}]"
PIDS = 64
# Bounded: it stops by itself at three times its limit.
FORKS = f"""
import os, sys, time
children, refused = [], 0
for _ in range({3 * PIDS}):
    try:
        child = os.fork()
    except OSError:
        refused += 1
        continue
    if child == 0:
        time.sleep(3)
        os._exit(0)
    children.append(child)
print(len(children), refused)
"""


def inside(image, **more: str) -> str:
    """A spec whose agent runs in a container."""
    return spec(**{"base": image(PYTHON), **more})


def left_of(engine, called) -> list[str]:
    """Names of what the run left on the engine."""
    return left(engine, called.document["run_id"])


def error_of(called, code: int = 3) -> str:
    assert called.code == code, called.out + called.err
    assert not called.has_traceback
    (cell,) = called.cells
    assert cell["verdict"] == "error"
    assert "internal error" not in cell["error"]
    return cell["error"]


def test_an_image_that_cannot_be_pulled(tmp_path, engine):
    called = run_spec(tmp_path, spec(base="127.0.0.1:9/nobody/nothing:1"))
    assert "127.0.0.1:9" in error_of(called)
    assert left_of(engine, called) == []


def test_a_base_without_a_shell(tmp_path, engine, image):
    called = run_spec(tmp_path, inside(lambda _: image(NO_SHELL)))
    assert "has no `sh`" in error_of(called)
    assert left_of(engine, called) == []


def test_a_service_that_exits_at_once(tmp_path, engine, image):
    called = run_spec(tmp_path, inside(image, services=f"[{{name: dead, image: '{image(EXITS_AT_ONCE)}'}}]"))
    error = error_of(called)
    assert "service dead" in error
    assert "exit code" in error
    assert left_of(engine, called) == []


def test_two_services_with_one_name(tmp_path):
    services = "[{name: one, image: 'redis:7'}, {name: one, image: 'redis:8'}]"
    called = run_spec(tmp_path, spec(services=services))
    assert called.code == 2
    assert "one" in called.err


def test_an_agent_that_forks_within_its_limit(tmp_path, engine, image):
    called = run_spec(tmp_path, inside(image, agent=agent_code(tmp_path, FORKS), resources=f"{{pids: {PIDS}}}"))
    assert called.code == 0, called.err
    made, refused = map(int, called.cells[0]["agent"]["output"].split())
    assert 0 < made < PIDS
    assert made + refused == 3 * PIDS
    assert left_of(engine, called) == []


def agent_code(tmp_path, code: str) -> str:
    """An agent that runs this Python."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(code)
    return "{type: command, command: [python3, '{{ agent.dir }}/agent.py'], dir: agent, must_exit_zero: true}"


def test_an_agent_that_uses_up_its_memory_is_said_to_have(tmp_path, image):
    agent = agent_code(tmp_path, "x = 'x' * (1 << 30)")
    called = run_spec(tmp_path, inside(image, agent=agent, resources="{memory: 64Mi}"))
    assert called.code == 1, called.out + called.err
    assert "memory" in called.cells[0]["agent"]["note"]


def test_an_agent_that_fills_its_disk_is_stopped_at_its_limit(tmp_path, image):
    agent = "{type: command, command: 'head -c 300000000 /dev/zero > big; sleep 20', must_exit_zero: true}"
    called = run_spec(tmp_path, inside(image, agent=agent, resources="{disk: 50Mi}"))
    assert called.code == 1, called.out + called.err
    assert "disk" in called.cells[0]["agent"]["note"]
    assert any("watched" in sentence for sentence in called.document["sandbox"]["not_enforced"])


def test_strict_limits_of_a_container_are_enforced_but_for_disk(tmp_path, image):
    strict = "{memory: 256Mi, pids: 100, cpu: 1, strict: true}"
    assert run_spec(tmp_path, inside(image, resources=strict)).code == 0
    called = run_spec(tmp_path, inside(image, resources="{disk: 1Gi, strict: true}"))
    assert called.code == 2
    assert "strict: true can't be kept for disk" in called.err


MANY = r"""
import os
os.mkdir("many")
os.mkdir("odd")
for number in range(50000):
    open(f"many/{number}", "w").close()
for name in (b"-rf", b"*", b" ", b"line\nbreak", b"\xff", b"\x1b[31m"):
    open(b"odd/" + name, "w").close()
os.symlink("/", "odd/root")
os.symlink("loop", "odd/loop")
os.mkfifo("odd/pipe")
"""


def test_fifty_thousand_files_links_and_odd_names(tmp_path, image):
    checks = (
        "invariants:\n  many: {check: {type: file_exists, path: many/49999}}\n"
        "  runs: {check: {type: command_exit, command: 'test \"$(ls many | wc -l)\" = 50000 && test -e odd/-rf'}}\n"
    )
    text = inside(image, agent=agent_code(tmp_path, MANY)).partition("invariants:")[0] + checks
    called = run_spec(tmp_path, text)
    assert called.code == 0, called.out + called.err
    assert {name: entry["status"] for name, entry in called.checks.items()} == {"many": "pass", "runs": "pass"}


def test_an_engine_over_tcp(tmp_path, engine, image):
    proxy = EngineProxy()
    try:
        called = run_spec(tmp_path, inside(image), environ={"DOCKER_HOST": proxy.address})
    finally:
        proxy.close()
    assert called.code == 0, called.err
    assert left_of(engine, called) == []


@pytest.mark.parametrize("silent", [False, True], ids=["gone", "silent"])
def test_an_engine_that_goes_away_is_the_harness_s_error_and_hangs_nobody(tmp_path, engine, image, silent):
    proxy = EngineProxy(tmp_path / "engine.sock")
    run = start(tmp_path, image, DOCKER_HOST=proxy.address)
    try:
        container = until_agent_runs(engine, run)
        proxy.silence() if silent else proxy.close()
        if silent:
            # Whoever waits for an answer waits; a signal ends it all the same.
            run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=120)
    finally:
        run.kill()
        proxy.close()
    assert run.returncode == (130 if silent else 3), out + err
    assert b"Traceback" not in err
    run_id = container.labels["keystone.run"]
    cleaned = keystone("clean", "--run", run_id, directory=tmp_path)
    assert cleaned.code == 0, cleaned.err
    assert left(engine, run_id) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_on_the_engine(tmp_path, engine, image, number):
    run = start(tmp_path, image)
    try:
        container = until_agent_runs(engine, run)
        run.send_signal(number)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130, out + err
    assert left(engine, container.labels["keystone.run"]) == []
    assert not any(tmp_path.glob("tmp/keystone-*"))


def test_what_a_kill_leaves_is_found_by_clean(tmp_path, engine, image):
    run = start(tmp_path, image)
    try:
        container = until_agent_runs(engine, run)
        run_id = container.labels["keystone.run"]
        spared = keystone("clean", directory=tmp_path, environ={"TMPDIR": str(tmp_path / "tmp")})
        assert spared.code == 0, spared.err
        assert left(engine, run_id) != []
    finally:
        run.kill()
        run.communicate(timeout=60)
    cleaned = keystone("clean", directory=tmp_path, environ={"TMPDIR": str(tmp_path / "tmp")})
    assert cleaned.code == 0, cleaned.err
    assert left(engine, run_id) == []
    assert not any((tmp_path / "tmp").glob("keystone-*"))


def test_two_runs_on_one_engine_do_not_meet(tmp_path, engine, image):
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        runs.append(start(tmp_path / name, image))
    try:
        ids = {until_agent_runs(engine, run).labels["keystone.run"] for run in runs}
        assert len(ids) == 2
        runs[0].send_signal(signal.SIGINT)
        runs[0].communicate(timeout=60)
        assert runs[1].poll() is None
        assert len(left(engine, *ids)) > 0
        runs[1].send_signal(signal.SIGINT)
        runs[1].communicate(timeout=60)
        assert left(engine, *ids) == []
    finally:
        for run in runs:
            run.kill()


def start(directory: Path, image, **environ: str) -> subprocess.Popen[bytes]:
    """A run whose agent waits to be ended."""
    (directory / "tmp").mkdir()
    mark = f"9{directory.stat().st_ino}"
    (directory / "keystone.yaml").write_text(
        inside(image, agent=f"{{type: command, command: [sleep, '{mark}']}}", services=SERVICES)
    )
    return subprocess.Popen(
        [sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"],
        cwd=directory,
        env={**ENVIRONMENT, "TMPDIR": str(directory / "tmp"), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def until_agent_runs(engine, run: subprocess.Popen[bytes]):
    """The container of the agent that `start` gave to this run."""
    mark = f"9{Path(f'/proc/{run.pid}/cwd').resolve().stat().st_ino}"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert run.poll() is None, run.communicate()
        filters = {"label": "keystone.kind=sandbox", "status": "running"}
        # Those of other tests may be gone between the list and the look.
        for one in engine.containers.list(filters=filters, ignore_removed=True):
            if mark in " ".join(one.attrs["Args"]):
                return one
        time.sleep(0.2)
    raise AssertionError("the agent never ran")


def left(engine, *run_ids: str) -> list[str]:
    """Names of what these runs have on the engine."""
    found = []
    for run_id in run_ids:
        label = {"label": f"keystone.run={run_id}"}
        found += [one.name for one in engine.containers.list(all=True, filters=label, ignore_removed=True)]
        found += [one.name for one in engine.networks.list(filters=label)]
        found += [one.name for one in engine.volumes.list(filters=label)]
    return found
