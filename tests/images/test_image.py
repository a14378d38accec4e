"""The image, built with the old builder and run with the runner's own command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.action_image import action_base, action_image
from support.attacks import honest
from support.container_step import PATIENCE, ContainerStep
from support.fake_runner import ID_TOKEN, RUNTIME_TOKEN, TOKEN, FakeRunner, StepResult

from keystone_action import __version__

__all__ = ["action_base", "action_image"]

pytestmark = pytest.mark.docker

HERE = Path(__file__).parent
OURS_AT_MOST = 290 * 10**6
"""Bytes that the image may add to its base."""

SLEEP = 1234567
"""Seconds that nothing else sleeps."""

LIBRARIES = """
import anthropic, docker, httptools, httpx, idna, jinja2, jiter, jsonschema, psutil, psycopg, pymysql
import bracex, regex, rich.console, rpds, yaml
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
oaep = padding.OAEP(padding.MGF1(SHA256()), SHA256(), None)
key = rsa.generate_private_key(65537, 2048)
assert key.decrypt(key.public_key().encrypt(b"secret", oaep), oaep) == b"secret"
assert yaml.load("[1, two]", yaml.CSafeLoader) == [1, "two"]
assert regex.findall(r"\\p{Lu}+", "aBC") == ["BC"]
assert httptools.parse_url(b"http://host/path").path == b"/path"
assert jiter.from_json(b"[1]") == [1]
assert psycopg.pq.__impl__ == "binary"
assert anthropic.Anthropic(api_key="none").messages and anthropic.types.Message
print("ok")
"""
"""Every library that is compiled for its platform does its work."""

GIT = """
set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.test
git init -q /tmp/origin; cd /tmp/origin
echo one > file; git add .; git commit -qm first
git clone -q file:///tmp/origin /tmp/clone; cd /tmp/clone
echo two >> file; git diff --numstat; git commit -qam second; git push -q origin HEAD:refs/heads/more
git -c protocol.file.allow=always submodule --quiet add file:///tmp/origin inner
git -C /tmp/origin show more:file
git gc -q; git fsck --no-progress
test -x "$(git --exec-path)/git-remote-https"
"""

SPEC = """\
version: 1
id: greet
task: { prompt: Write hello. }
agent:
  type: command
  command: COMMAND
invariants:
  written: { gate: true, check: { type: file_content, path: hello.txt, contains: hello } }
  graded: { check: { type: command_exit, command: "python3 -m pytest --version" } }
"""
DATABASE = """\
  rows: { check: { type: sql, service: db, query: "select n from t", equals: 42 } }
services:
  - { name: db, type: postgres }
fixtures:
  - { type: sql, service: db, sql: "create table t (n int); insert into t values (42)" }
"""
"""What follows in a spec with a database: its start takes as long as all the rest."""


def run(*command: str, timeout: float = 1200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def docker(*words: str) -> str:
    ran = run("docker", *words)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


Inside = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def inside(action_image: str) -> Iterator[Inside]:
    """Runs a script in a container of the image, which is one for all."""
    name = f"keystone-test-{uuid.uuid4().hex[:12]}"
    docker("run", "--detach", "--rm", "--name", name, "--entrypoint", "sleep", action_image, "infinity")
    yield lambda script: run("docker", "exec", name, "/bin/sh", "-c", script)
    run("docker", "rm", "--force", name)


def job(tmp_path: Path, command: str, *, database: bool = False) -> FakeRunner:
    runner = FakeRunner(tmp_path)
    spec = SPEC.replace("COMMAND", json.dumps(command)) + (DATABASE if database else "")
    (runner.workspace / "keystone.yaml").write_text(spec)
    return runner


def test_with_arguments_it_is_the_command(action_image: str) -> None:
    assert docker("run", "--rm", action_image, "--version") == f"keystone {__version__}"
    wrong = run("docker", "run", "--rm", action_image, "validate", "missing.yaml")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "missing.yaml" in wrong.stderr


@honest("host scripts", "a token of the job is read from process 1 of the action's container", sandbox="none")
def test_a_step_passes_with_a_database_leaves_its_results_to_the_owner_and_shows_its_agent_nothing_of_the_runner(
    action_image: str, tmp_path: Path
) -> None:
    folders = "/github/workspace /github/workflow /github/file_commands"
    agent = f"env; ls -la {folders}; cat /proc/*/environ; echo hello > hello.txt"
    runner = job(tmp_path, agent, database=True)
    if os.geteuid() == 0:
        os.chown(runner.workspace, 4321, 4321)
    owner = runner.workspace.stat().st_uid
    step = runner.container_step(action_image, env={"ANTHROPIC_API_KEY": "sk-ant-that-nobody-may-see"})
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    assert step.outputs["verdict"] == "pass"
    assert json.loads((runner.workspace / step.outputs["results-path"]).read_text())["verdict"] == "pass"
    made = list((runner.workspace / "keystone-results").rglob("*"))
    assert {path.lstat().st_uid for path in made} == {owner}
    assert "greet" in step.summary
    said = (next((runner.workspace / "keystone-results" / "cells").iterdir()) / "agent.stdout").read_text()
    assert "KEYSTONE_WORKSPACE=" in said
    for private in (TOKEN, RUNTIME_TOKEN, ID_TOKEN, "sk-ant-", "event.json", "set_output_", "GITHUB_"):
        assert private not in said


def test_a_command_is_told_its_turns_and_its_home_stays(action_image: str, tmp_path: Path) -> None:
    said = 'echo "$KEYSTONE_TURN $KEYSTONE_PROMPT $(cat "$KEYSTONE_PROMPT_FILE")" >> "$HOME/said"'
    runner = job(tmp_path, f'{said}; tail -n 1 "$HOME/said"; cp "$HOME/said" hello.txt')
    spec = runner.workspace / "keystone.yaml"
    turns = "{ prompt: Write hello., turns: [Once more., And hello again.] }"
    spec.write_text(spec.read_text().replace("{ prompt: Write hello. }", turns))
    step = runner.container_step(action_image)
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    (cell,) = json.loads((runner.workspace / step.outputs["results-path"]).read_text())["specs"][0]["cells"]
    assert cell["prompts"] == ["Write hello.", "Once more.", "And hello again."]
    told = [f"{turn} {text} {text}" for turn, text in enumerate(cell["prompts"], 1)]
    assert cell["agent"]["output"].splitlines() == told
    patch = (runner.workspace / "keystone-results" / "cells" / cell["id"] / "diff.patch").read_text()
    assert [line for line in patch.splitlines() if line.startswith("+") and "hello.txt" not in line] == [
        f"+{line}" for line in told
    ]


def test_a_step_fails_at_its_line(action_image: str, tmp_path: Path) -> None:
    step = job(tmp_path, "true").container_step(action_image)
    assert (step.exit_code, step.rejected, step.outputs["verdict"]) == (1, [], "fail")
    assert (step.issues[0].file, step.issues[0].line) == ("keystone.yaml", 8)


def test_a_hostile_path_and_home_do_not_matter(action_image: str, tmp_path: Path) -> None:
    hostile = {"PATH": "/nonsense", "HOME": "/does/not/exist"}
    step = job(tmp_path, "echo hello > hello.txt", database=True).container_step(action_image, env=hostile)
    assert (step.exit_code, step.outputs["verdict"]) == (0, "pass"), step.raw_log


def test_a_bad_call_is_exit_2(action_image: str, tmp_path: Path) -> None:
    step = FakeRunner(tmp_path).container_step(action_image, {"threshold": "85%"})
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (2, "error", [])
    assert "threshold" in step.issues[0].message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_run_ends_by_itself_and_leaves_its_results(
    action_image: str, tmp_path: Path, number: signal.Signals
) -> None:
    runner = job(tmp_path, "sleep 300")
    name = f"keystone-test-{uuid.uuid4().hex[:12]}"
    mounted = ("-v", f"{runner.workspace}:/data", "-w", "/data")
    docker("run", "--name", name, "--detach", *mounted, action_image, "run", "keystone.yaml", "--output", "out")
    try:
        deadline = time.monotonic() + 60
        while "sleep 300" not in docker("top", name) and time.monotonic() < deadline:
            time.sleep(0.1)
        docker("kill", "--signal", number.name, name)
        assert run("docker", "wait", name, timeout=60).stdout.strip() == "130"
    finally:
        run("docker", "rm", "--force", name)
    assert json.loads((runner.workspace / "out" / "results.json").read_text())["verdict"] == "error"


BEFORE_THE_FIRST_LINE = """
import os, time
if (os.getpid() == 1) == FIRST:
    open("/data/reached", "w").close()
    while not os.path.exists("/data/go"):
        time.sleep(0.05)
"""


@pytest.mark.parametrize("first", [True, False], ids=["as-process-1", "below-the-init"])
@pytest.mark.parametrize("post", [False, True], ids=["step", "post"])
def test_a_signal_is_not_lost_while_the_interpreter_starts(
    action_image: str, inside: Inside, tmp_path: Path, *, post: bool, first: bool
) -> None:
    packages = inside("/opt/keystone/bin/python -c 'import site; print(site.getsitepackages()[0])'")
    (tmp_path / "before.py").write_text(BEFORE_THE_FIRST_LINE.replace("FIRST", str(first)))
    (tmp_path / "before.pth").write_text("import os; exec(open('/data/before.py').read())\n")
    name = f"keystone-test-{uuid.uuid4().hex[:12]}"
    mounted = ("-v", f"{tmp_path}:/data", "-v", f"{tmp_path}/before.pth:{packages.stdout.strip()}/before.pth:ro")
    program = ("--entrypoint", "/opt/keystone/post_entrypoint.py") if post else ()
    words = () if post else ("run", "keystone.yaml")
    docker("run", "--name", name, "--detach", *mounted, *program, action_image, *words)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "reached").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        docker("kill", "--signal", "TERM", name)
        (tmp_path / "go").touch()
        assert run("docker", "wait", name, timeout=60).stdout.strip() == "130"
        assert run("docker", "logs", name).stderr == "keystone: cancelled\n"
    finally:
        run("docker", "rm", "--force", name)


@pytest.fixture
def long_step(
    request: pytest.FixtureRequest, action_image: str, tmp_path: Path
) -> Iterator[tuple[FakeRunner, ContainerStep]]:
    """A step without an engine whose agent sleeps; with a database where the test's parameter says so."""
    runner = job(tmp_path, f"sleep {SLEEP}", database=getattr(request, "param", False))
    if os.geteuid() == 0:
        runner.owner = 4321
        runner.own()
    step = runner.start_container(action_image)
    try:
        step.until(lambda: f"sleep {SLEEP}" in run("docker", "top", step.name).stdout, "the agent slept")
        yield runner, step
    finally:
        step.abandon()


def is_cancelled(runner: FakeRunner, ended: StepResult) -> None:
    assert (ended.exit_code, ended.rejected) == (130, []), ended.raw_log
    assert ended.outputs["verdict"] == "error"
    assert "cancelled" in ended.summary.lower()
    assert (runner.workspace / ended.outputs["results-path"]).is_file()
    assert runner.foreign() == []
    assert not list(runner.temp.glob(f"keystone-{runner.saved_state()['run']}*"))


@pytest.mark.parametrize("long_step", [True], ids=["database"], indirect=True)
def test_a_step_is_cancelled_by_the_runners_first_signal(long_step: tuple[FakeRunner, ContainerStep]) -> None:
    runner, step = long_step
    is_cancelled(runner, step.cancel())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_step_ends_by_a_signal_to_its_container(
    long_step: tuple[FakeRunner, ContainerStep], number: signal.Signals
) -> None:
    runner, step = long_step
    docker("kill", "--signal", number.name, step.name)
    is_cancelled(runner, step.wait(PATIENCE))


@pytest.mark.parametrize("long_step", [True], ids=["database"], indirect=True)
def test_the_post_step_after_a_kill(action_image: str, long_step: tuple[FakeRunner, ContainerStep]) -> None:
    runner, step = long_step
    (runner.temp / f"keystone-{runner.saved_state()['run']}-abcd1234").mkdir()
    assert step.kill().exit_code == 128 + signal.SIGKILL
    hostile = {"PATH": "/nonsense", "HOME": "/does/not/exist"}
    after = runner.post_step(action_image, runner.saved_state(), env=hostile)
    assert (after.exit_code, after.rejected, after.issues) == (0, [], []), after.raw_log
    assert "folder" in after.text
    assert not list(runner.temp.glob(f"keystone-{runner.saved_state()['run']}*"))
    assert runner.foreign() == []
    again = runner.post_step(action_image, runner.saved_state())
    assert (again.exit_code, again.raw_log) == (0, "")


def test_the_post_step_without_a_state(action_image: str, tmp_path: Path) -> None:
    after = FakeRunner(tmp_path).post_step(action_image, {})
    assert (after.exit_code, after.raw_log) == (0, "")


def test_what_is_in_it(inside: Inside) -> None:
    assert inside("python3 -m pytest --version").stdout.startswith("pytest ")
    assert inside("python3 -c 'import keystone_action'").returncode != 0
    assert inside("git init -q /tmp/r && chown -R 4321 /tmp/r && git -C /tmp/r status").returncode == 0
    assert inside("apt-get check").returncode == 0
    assert inside("find /opt/keystone/lib/keystone_action -name '*.pyc' | grep -q .").returncode == 0
    assert inside("/opt/keystone/bin/python -c 'import keystone_action.runner.run'").returncode == 0


@pytest.mark.parametrize(
    ("python", "module"), [("/opt/keystone/bin/python", "anthropic.types"), ("python3", "_pytest.terminal")]
)
def test_packages_have_their_byte_code_with_their_own_paths(inside: Inside, python: str, module: str) -> None:
    """Built elsewhere, it would name files that are not there in every traceback."""
    program = f"import {module} as m, os; print(m.__loader__.get_code(m.__name__).co_filename == m.__file__"
    ran = inside(f"{python} -I -c '{program}, os.path.exists(m.__cached__))'")
    assert ran.stdout == "True True\n", ran.stderr


def test_libraries_work(inside: Inside) -> None:
    ran = inside(f"/opt/keystone/bin/python -I -c '{LIBRARIES}'")
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr


def test_git_and_the_perl_that_it_brings_work(inside: Inside) -> None:
    ran = inside(GIT)
    assert (ran.returncode, ran.stdout) == (0, "1\t0\tfile\none\ntwo\n"), ran.stderr
    assert inside("perl -MJSON::PP -e 'print 1'").stdout == "1"
    packages = "dpkg-query -W -f '${Package} ' git 'perl*'"
    missing = f"{packages} | xargs dpkg --verify | grep -vE '/usr/share/(doc|locale|man)/'"
    assert inside(missing).stdout == ""


def test_the_runners_folders_are_closed_to_other_users(action_image: str, tmp_path: Path) -> None:
    mounts = FakeRunner(tmp_path).mounts
    options = [word for host, target in mounts for word in ("-v", f"{host}:{target}")]
    folders = ["/github", *(target for _, target in mounts)]
    listing = f'for folder in {" ".join(folders)}; do ls "$folder" > /dev/null 2>&1 && echo "$folder"; done; true'
    shown = ["run", "--rm", *options, "--entrypoint", "/bin/sh"]
    assert docker(*shown, action_image, "-c", listing).split() == folders
    assert docker(*shown, "--user", "4321", action_image, "-c", listing).split() == []


def test_it_adds_little_to_its_base(action_base: str, action_image: str) -> None:
    sizes = [int(docker("image", "inspect", "--format", "{{.Size}}", tag)) for tag in (action_image, action_base)]
    assert sizes[0] - sizes[1] <= OURS_AT_MOST
