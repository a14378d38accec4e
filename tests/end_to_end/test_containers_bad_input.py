"""What a user gets when containers go wrong: the right exit code, a sentence that says whose fault it was."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.command_line import ENVIRONMENT, Called, keystone, run_spec, spec
from support.driver import PATIENT, write_driver
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


def agent_code(directory: Path, code: str, name: str = "agent") -> str:
    """An agent that runs this Python."""
    (directory / name).mkdir()
    (directory / name / "agent.py").write_text(code)
    return f"{{type: command, command: [python3, '{{{{ agent.dir }}}}/agent.py'], dir: {name}, must_exit_zero: true}}"


ERRORS = {
    "not-pulled": ("127.0.0.1:9",),
    "no-shell": ("has no `sh`",),
    "dead-service": ("service dead", "exit code"),
}
FILLS = "{type: command, command: 'head -c 300000000 /dev/zero > big; sleep 20', must_exit_zero: true}"


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory, image) -> Called:
    """One call with a spec for each of them."""
    made = called_once(tmp_path_factory, "bad-input-in-containers", lambda directory: run_all(directory, image))
    assert made.code == 3, made.out + made.err
    assert not made.has_traceback
    return made


def run_all(directory: Path, image) -> Called:
    forks, hungry = agent_code(directory, FORKS, "forks"), agent_code(directory, "x = 'x' * (1 << 30)", "hungry")
    specs = {
        "not-pulled": spec(base="127.0.0.1:9/nobody/nothing:1"),
        "no-shell": spec(base=image(NO_SHELL)),
        "dead-service": inside(image, services=f"[{{name: dead, image: '{image(EXITS_AT_ONCE)}'}}]"),
        "forks": inside(image, agent=forks, resources=f"{{pids: {PIDS}}}"),
        "hungry": inside(image, agent=hungry, resources="{memory: 64Mi}"),
        "fills": inside(image, agent=FILLS, resources="{disk: 50Mi}"),
        "strict": inside(image, resources="{memory: 256Mi, pids: 100, cpu: 1, strict: true}"),
    }
    for name, text in specs.items():
        (directory / f"{name}.keystone.yaml").write_text(text.replace("id: small", f"id: {name}"))
    return keystone("run", ".", "--output", "out", directory=directory)


def cell_of(called: Called, name: str) -> dict[str, Any]:
    """The only cell of this spec."""
    (cell,) = (cell for one in called.document["specs"] if one["id"] == name for cell in one["cells"])
    return cell


def test_whose_fault_each_of_them_was(called: Called, engine):
    cells = {one["id"]: cell_of(called, one["id"]) for one in called.document["specs"]}
    errors = dict.fromkeys(ERRORS, "error")
    others = {"forks": "pass", "hungry": "fail", "fills": "fail", "strict": "pass"}
    assert {name: cell["verdict"] for name, cell in cells.items()} == {**errors, **others}
    assert left(engine, called.document["run_id"]) == []


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_not_the_agents_fault_is_said(called: Called, name: str):
    """An image that can't be pulled, one without a shell, a service that exits at once."""
    error = cell_of(called, name)["error"]
    assert [part for part in ERRORS[name] if part not in error] == []
    assert "internal error" not in error


def test_two_services_with_one_name(tmp_path):
    services = "[{name: one, image: 'redis:7'}, {name: one, image: 'redis:8'}]"
    called = run_spec(tmp_path, spec(services=services))
    assert called.code == 2
    assert "one" in called.err


def test_an_agent_that_forks_within_its_limit(called: Called):
    made, refused = map(int, cell_of(called, "forks")["agent"]["output"].split())
    assert 0 < made < PIDS
    assert made + refused == 3 * PIDS


def test_an_agent_that_uses_up_its_memory_is_said_to_have(called: Called):
    assert "memory" in cell_of(called, "hungry")["agent"]["note"]


def test_an_agent_that_fills_its_disk_is_stopped_at_its_limit(called: Called):
    assert "disk" in cell_of(called, "fills")["agent"]["note"]
    assert any("watched" in sentence for sentence in called.document["sandbox"]["not_enforced"])


def test_a_strict_limit_of_disk_is_refused_for_containers(tmp_path, image):
    """That the others are kept shows above."""
    called = run_spec(tmp_path, inside(image, resources="{disk: 1Gi, strict: true}"))
    assert called.code == 2
    assert "strict: true can't be kept for disk" in called.err


MANY = r"""
import os
os.mkdir("many")
os.mkdir("odd")
for number in range(3000):
    open(f"many/{number}", "w").close()
for name in (b"-rf", b"*", b" ", b"line\nbreak", b"\xff", b"\x1b[31m"):
    open(b"odd/" + name, "w").close()
os.symlink("/", "odd/root")
os.symlink("loop", "odd/loop")
os.mkfifo("odd/pipe")
"""


def test_thousands_of_files_links_and_odd_names(tmp_path, image):
    """How many there may be is what tests/sandbox/test_docker_hostile.py is about."""
    checks = (
        "invariants:\n  many: {check: {type: file_exists, path: many/2999}}\n"
        "  runs: {check: {type: command_exit, command: 'test \"$(ls many | wc -l)\" = 3000 && test -e odd/-rf'}}\n"
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
    assert left(engine, called.document["run_id"]) == []


@pytest.mark.parametrize("silent", [False, True], ids=["gone", "silent"])
def test_an_engine_that_goes_away_is_the_harness_s_error_and_hangs_nobody(tmp_path, engine, image, silent):
    proxy = EngineProxy(tmp_path / "engine.sock")
    run = start(tmp_path, image, DOCKER_HOST=proxy.address)
    try:
        labels = until_agent_runs(engine, run)
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
    run_id = labels["keystone.run"]
    cleaned = keystone("clean", "--run", run_id, directory=tmp_path)
    assert cleaned.code == 0, cleaned.err
    assert left(engine, run_id) == []


def test_what_a_kill_leaves_is_found_by_clean(tmp_path, engine, image):
    run = start(tmp_path, image)
    try:
        run_id = until_agent_runs(engine, run)["keystone.run"]
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


def test_two_runs_on_one_engine_do_not_meet_and_leave_nothing_by_a_signal(tmp_path, engine, image):
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_driver(tmp_path / name, PATIENT)
        runs.append(start(tmp_path / name, image, "driver.py"))
    try:
        ids = [until_agent_runs(engine, run)["keystone.run"] for run in runs]
        assert len({*ids}) == 2
        end_by(runs[0], signal.SIGINT, tmp_path / "one")
        assert left(engine, ids[0]) == []
        assert runs[1].poll() is None
        assert left(engine, ids[1]) != []
        end_by(runs[1], signal.SIGTERM, tmp_path / "two")
        assert left(engine, ids[1]) == []
    finally:
        for run in runs:
            run.kill()


def end_by(run: subprocess.Popen[bytes], number: signal.Signals, directory: Path) -> None:
    """Its directory for temporary files is empty then."""
    run.send_signal(number)
    out, err = run.communicate(timeout=150)
    assert run.returncode == 130, out + err
    assert not any(directory.glob("tmp/keystone-*"))


def start(directory: Path, image, *program: str, **environ: str) -> subprocess.Popen[bytes]:
    """A run whose agent waits to be ended. program: what Python runs, where it is not the package."""
    (directory / "tmp").mkdir()
    mark = f"9{directory.stat().st_ino}"
    (directory / "keystone.yaml").write_text(
        inside(image, agent=f"{{type: command, command: [sleep, '{mark}']}}", services=SERVICES)
    )
    return subprocess.Popen(
        [sys.executable, *(program or ("-m", "keystone_action")), "run", "keystone.yaml", "--output", "out"],
        cwd=directory,
        env={**ENVIRONMENT, "TMPDIR": str(directory / "tmp"), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def until_agent_runs(engine, run: subprocess.Popen[bytes]) -> dict[str, str]:
    """The labels of the container of the agent that `start` gave to this run."""
    mark = f"9{Path(f'/proc/{run.pid}/cwd').resolve().stat().st_ino}"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert run.poll() is None, run.communicate()
        filters = {"label": "keystone.kind=sandbox", "status": "running"}
        for one in engine.api.containers(filters=filters):
            if mark in one["Command"]:
                return one["Labels"]
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
