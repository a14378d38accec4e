"""What spec.md says of agents and checks, for cells in containers: by the real command on a live engine. Agents that
come to the same exit code share one call, each with a spec of its own."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.called_once import called_once
from support.command_line import Called, keystone, run_spec, spec
from support.images import PYTHON

pytestmark = pytest.mark.docker

SHOW_LIMITS = (
    "cd /sys/fs/cgroup; cat pids.max pids/pids.max 2>/dev/null;"
    " cat memory.max memory/memory.limit_in_bytes 2>/dev/null; cat cpu.max cpu/cpu.cfs_quota_us 2>/dev/null"
)


@pytest.fixture
def inside(image):
    """A function that makes a spec whose agent runs in a container."""
    return lambda *words, **more: spec(*words, **{"base": image(PYTHON), **more})


def checks(text: str, **named: str) -> str:
    """The spec with these checks in place of its own."""
    entries = "".join(f"  {name}: {{check: {check}}}\n" for name, check in named.items())
    return text.partition("invariants:")[0] + f"invariants:\n{entries}"


def run_all(directory: Path, specs: dict[str, str], **environ: str) -> Called:
    """One call for several specs."""
    for name, text in specs.items():
        (directory / f"{name}.keystone.yaml").write_text(text.replace("id: small", f"id: {name}"), "utf-8")
    return keystone("run", ".", "--output", "out", directory=directory, environ=environ)


def cells_of(called: Called) -> dict[str, dict[str, Any]]:
    """The cell of each spec, by its name."""
    return {one["id"]: cell for one in called.document["specs"] for cell in one["cells"]}


ENVIRONMENT_AGENT = """
import json, os, pathlib
seen = {'env': dict(os.environ), 'cwd': os.getcwd(), 'dir': os.listdir(os.environ['KEYSTONE_AGENT_DIR'])}
try:
    (pathlib.Path(os.environ['KEYSTONE_AGENT_DIR']) / 'x').touch()
except OSError as error:
    seen['refused'] = type(error).__name__
print(json.dumps(seen))
"""
PYTHON_AGENT = """
import os, urllib.request
class Agent:
    def run(self, input, context):
        status = urllib.request.urlopen(context['services']['api']['url']).status
        open('asked', 'w').write(f"{os.uname().nodename} {status} {context['params']['n']}")
        return {'output': input.upper(), 'tool_calls': [{'name': 't'}], 'token_usage': {'input_tokens': 3}}
def broken(input, context):
    raise ValueError('mine')
"""


LONG = '/usr/bin/wc -c; printf %s "$KEYSTONE_PROMPT" | /usr/bin/wc -c; /usr/bin/wc -c < "$KEYSTONE_PROMPT_FILE"'
SHOW = "{type: command, command: [python3, '{{ agent.dir }}/agent.py'], dir: shows, env: {MINE: '{{ env.HOSTS }}'}}"
ANSWERS = {
    "file": ("'echo kept > a.txt; echo no', output: {file: a.txt}", "kept\n"),
    "link": ("'ln -s /etc/hostname a.txt; echo no', output: {file: a.txt}", ""),
    "json": ("'cat', stdin: prompt, output: {json: stdout}", "told"),
}


@pytest.fixture(scope="module")
def graded(
    tmp_path_factory: pytest.TempPathFactory, image: Callable[[str], str]
) -> tuple[Called, dict[str, dict[str, Any]]]:
    """Agents that are graded, one spec each: the call, and the cells by name."""
    called = called_once(tmp_path_factory, "graded-in-containers", lambda directory: grade(directory, image(PYTHON)))
    return called, cells_of(called)


def grade(directory: Path, image: str) -> Called:
    for path, text in {
        "shows/agent.py": ENVIRONMENT_AGENT,
        "code/mine.py": PYTHON_AGENT,
        "prompt.txt": "{{ x }}".ljust(102401, "."),
    }.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(text, "utf-8")
    agent = "{type: python, entrypoint: 'mine:Agent', dir: code}"
    more = {"services": "[{name: api, type: http_mock}]", "parallelism": "{matrix: {n: [5]}}", "base": image}
    base = {"base": image}
    limited = {"resources": "{cpu: 0.5, memory: 200Mi, pids: 50}", **base}
    long = f"{{type: command, command: '{LONG}', stdin: prompt, env: {{PATH: /nowhere}}}}"
    specs = {
        "shown": spec(SHOW, services="[{name: my-api, type: http_mock}]", setup="{env: {SET: up}}", **base),
        "python": spec(agent, "{type: file_content, path: asked, contains: sandbox 200 5}", **more),
        "python-raises": spec(agent.replace("Agent", "broken"), **more),
        "missing": spec("{type: command, command: no-such-program}", **base),
        "stopped": spec("{type: command, command: 'sleep 60', timeout: 2s}", **base),
        "long": spec(long, **base).replace('prompt: "do it"', "prompt: {file: prompt.txt}"),
        "limits": checks(
            spec(f"{{type: command, command: '{SHOW_LIMITS}'}}", **limited),
            same=f"{{type: command_exit, command: '({SHOW_LIMITS}) | grep -qx {200 << 20}'}}",
        ),
    }
    for name, (how, _) in ANSWERS.items():
        text = spec(f"{{type: command, command: {how}}}", **base)
        specs[name] = text.replace('"do it"', '\'{"output": "told"}\'')
    return run_all(directory, specs, HOSTS="value", OTHER="secret", GITHUB_TOKEN="secret")


def test_an_agent_is_graded(graded) -> None:
    """5.1: exit 0. What the agents of the other tests left is what their checks look for."""
    called, cells = graded
    assert called.code == 0, called.out + called.err
    assert {name: cell["verdict"] for name, cell in cells.items()} == dict.fromkeys(cells, "pass")


def test_the_agent_s_environment(engine, graded) -> None:
    """1.1: "The agent sees: cwd = the workspace, `KEYSTONE_PROMPT`, `KEYSTONE_PROMPT_FILE`, `KEYSTONE_WORKSPACE`,
    `KEYSTONE_SERVICE_<NAME>_{HOST,PORT,URL}` (upper case, dashes as `_`), its `env`, a minimal `PATH/HOME/LANG/TMPDIR`,
    and nothing else." An image's own ENV is part of the image, and the engine names the host."""
    _, cells = graded
    seen = json.loads(cells["shown"]["agent"]["output"])
    own = {entry.partition("=")[0] for entry in engine.images.get(PYTHON).attrs["Config"]["Env"]}
    ours = {f"KEYSTONE_{name}" for name in ("PROMPT", "PROMPT_FILE", "WORKSPACE", "AGENT_DIR")}
    service = {f"KEYSTONE_SERVICE_MY_API_{name}" for name in ("HOST", "PORT", "URL")}
    assert set(seen["env"]) - own == {"HOME", "LANG", "TMPDIR", "HOSTNAME", "SET", "MINE", *ours, *service} - own
    assert (seen["env"]["MINE"], seen["env"]["KEYSTONE_SERVICE_MY_API_HOST"]) == ("value", "my-api")
    assert seen["cwd"] == seen["env"]["KEYSTONE_WORKSPACE"]
    assert (seen["dir"], "refused" in seen) == (["agent.py"], True)


def test_a_python_agent(graded) -> None:
    """1.1: "`python` | `entrypoint: "module:Class"` found in `dir`, instance with `run(input, context)`"; 5.1: "A
    `python` agent that raises … is an agent that failed: recorded and graded"."""
    called, cells = graded
    assert cells["python"]["agent"]["output"] == "DO IT"
    assert called.document["usage"]["input_tokens"] == 3
    (stderr,) = (called.output / "cells").glob("python-raises*/agent.stderr")
    assert "ValueError: mine" in stderr.read_text("utf-8")


def test_a_failed_agent_is_recorded_and_graded(graded) -> None:
    """5.1: "`sh -c` ending 127, is an agent that failed: recorded and graded"; 1.1: "A non-zero exit or a timeout is
    recorded and shown; grading goes on"."""
    _, cells = graded
    recorded = {name: cells[name]["agent"] for name in ("missing", "stopped")}
    assert {name: (one["exit_code"], one["timed_out"]) for name, one in recorded.items()} == {
        "missing": (127, False),
        "stopped": (None, True),
    }


def test_a_long_prompt_is_on_stdin_and_in_its_file(graded) -> None:
    """1.1: "`stdin: prompt`"; 5.2: "A prompt above 100 KiB is only in `KEYSTONE_PROMPT_FILE`". A spec's PATH is for
    what the command starts, not for us."""
    assert graded[1]["long"]["agent"]["output"].split() == ["102401", "0", "102401"]


def test_where_the_answer_is(graded) -> None:
    """1.1: "`output` [stdout] (`stdout`, `{file: path}` or `{json: stdout}`"; 5.2: "an escape at run time (a link) is
    refused"."""
    found = {name: graded[1][name]["agent"]["output"] for name in ANSWERS}
    assert found == {name: answer for name, (_, answer) in ANSWERS.items()}


def test_limits_are_the_engine_s(graded) -> None:
    """1: "`resources` | limits of the sandbox"; for agent and checks."""
    called, cells = graded
    assert cells["limits"]["agent"]["output"].split()[:3] == ["50", str(200 << 20), "50000"]
    assert called.document["sandbox"]["limits"] == "enforced"


ERRORS = {
    "cli": (
        {"agent": "{type: cli, binary: no-such-program}"},
        "no-such-program is not in this sandbox; install no-such-program by setup.packages",
    ),
    "list": (
        {"agent": "{type: command, command: [no-such-program], stdin: prompt}"},
        "no-such-program is not in this sandbox; install no-such-program by setup.packages",
    ),
    "late": (
        {"agent": "{type: command, command: 'sleep 600'}", "resources": "{timeout: 8s}"},
        "longer than resources.timeout (8 s)",
    ),
    "commands": ({"setup": '{commands: ["true", "echo why >&2; exit 9"]}'}, "exit code 9"),
    "packages": (
        {"setup": "{packages: [no-such-package-of-anyone], env: {PIP_NO_INDEX: '1'}}"},
        "no-such-package",
    ),
}


def test_what_never_gets_as_far_as_grading_is_an_error(tmp_path: Path, engine, inside) -> None:
    """5.1: "Exit 3: … a binary of a list or `cli` agent that doesn't exist"; "Exit 3 (`error`): a service, fixture or
    setup that fails"; 1: "`timeout` [15m] bounds the whole cell"; "`must_exit_zero` broken (composite 0, the checks
    still run and are shown)" is not an error beside them; and nothing stays on the engine."""
    broken = inside("{type: command, command: no-such-program, must_exit_zero: true}")
    specs = {name: inside(**more) for name, (more, _) in ERRORS.items()}
    called = run_all(tmp_path, {**specs, "broken": broken})
    cells = cells_of(called)
    assert called.code == 3, called.out + called.err
    failed = cells.pop("broken")
    assert (failed["verdict"], failed["agent"]["exit_code"], failed["composite"]) == ("fail", 127, 0.0)
    assert [one["status"] for one in failed["invariants"]] == ["pass"]
    assert {name: (cell["verdict"], cell["composite"]) for name, cell in cells.items()} == dict.fromkeys(
        ERRORS, ("error", None)
    )
    assert {name: cell["error"] for name, cell in cells.items() if ERRORS[name][1] not in cell["error"]} == {}
    assert "setup.commands[1]" in cells["commands"]["error"]
    assert "why" in cells["commands"]["error"], "its output is shown"
    label = {"label": f"keystone.run={called.document['run_id']}"}
    assert engine.containers.list(all=True, filters=label) == []


def test_checks_that_execute(tmp_path: Path, inside) -> None:
    """5.2: "`command_exit` and sandboxed `custom` share one copy"; "Every check's processes are gone before the next";
    observing checks come first "on the workspace as the agent left it"; 5.1: a command that times out is `fail`, a
    first word that was missing is `error: npm is not in this sandbox; set base: node:22`."""
    there = 'test "$PWD" = "$KEYSTONE_WORKSPACE" -a "$PWD" = "{{ workspace }}" && test -s "$KEYSTONE_PROMPT_FILE"'
    text = checks(
        inside("{type: command, command: 'mkfifo alive'}"),
        place=f"{{type: command_exit, command: '{there} && test $E = v && touch made', env: {{E: v}}}}",
        shared="{type: command_exit, command: 'test -e made; (sleep 900; touch late) & true'}",
        gone="{type: command_exit, command: '! grep -lsz ^sleep /proc/[0-9]*/cmdline'}",
        late="{type: command, cmd: 'echo begun; sleep 60', timeout_s: 2}",
        missing="{type: command_exit, command: 'npm test'}",
        unknown="{type: command_exit, command: [no-such-program]}",
        as_left="{type: file_absent, path: made}",
    )
    called = run_spec(tmp_path, text)
    assert called.code == 1, called.err  # whatever `missing` had come to
    found = {name: entry["status"] for name, entry in called.checks.items()}
    expected = {"place": "pass", "shared": "pass", "gone": "pass", "late": "fail", "missing": "error"}
    assert found == {**expected, "unknown": "fail", "as_left": "pass"}
    assert called.checks["missing"]["message"] == "npm is not in this sandbox; set base: node:22"
    assert "begun" in called.checks["late"]["message"]


def test_an_interrupted_run_goes_on_with_the_cells_that_are_missing(tmp_path: Path, inside) -> None:
    """2: `--resume DIR`, `--keep`; 3: "Results of an interrupted run are complete for every finished cell"."""
    text = inside("{type: command, command: 'date +%N > when; cat when'}", parallelism="{replicas: 2}")
    first = run_spec(tmp_path, text)
    journal = tmp_path / "out" / "journal.jsonl"
    lines = journal.read_text("utf-8").splitlines(keepends=True)
    (*identity, kept), _dropped = lines[:-1], lines[-1]
    journal.write_text("".join([*identity, kept]), "utf-8")
    answers = {cell["id"]: cell["agent"]["output"] for cell in first.cells}
    environ = {"TMPDIR": str(tmp_path)}
    resumed = keystone("run", "keystone.yaml", "--resume", "out", "--keep", directory=tmp_path, environ=environ)
    assert (resumed.code, resumed.document["counts"]["passed"]) == (0, 2), resumed.err
    again = {cell["id"]: cell["agent"]["output"] for cell in resumed.cells}
    finished = json.loads(kept)["id"]
    assert [name for name in again if again[name] == answers[name]] == [finished]
    assert len(list(tmp_path.glob("keystone-*/cells/*/workspace/when"))) == 1


@hostile("resume", "an image built anew", held_by="the run's identity", sandbox="docker")
@honest("resume", "an image built anew", sandbox="docker")
def test_another_image_of_the_same_name_is_another_run(tmp_path: Path, engine, image) -> None:
    """5.4: "images by their registry digest (a local one by its id for `--resume`, by its name for `merge`)". With the
    same image the same run goes on: the twin is in here."""
    name, base = f"keystone-test-identity:{secrets.token_hex(4)}", image(PYTHON)
    text = spec(base=name, parallelism="{replicas: 6}")  # so many that by their hashes both shards have some
    engine.images.get(base).tag(name)
    try:
        for number in (1, 2):
            shard = ("run", "keystone.yaml", "--shard", f"{number}/2", "--output", f"shards/{number}")
            (tmp_path / "keystone.yaml").write_text(text)
            assert keystone(*shard, directory=tmp_path).code == 0
            if number == 1:
                again = keystone("run", "keystone.yaml", "--shard", "1/2", "--resume", "shards/1", directory=tmp_path)
                assert again.code == 0, again.err
                engine.images.build(fileobj=io.BytesIO(f"FROM {base}\nLABEL other=1\n".encode()), tag=name)
        refused = keystone("run", "keystone.yaml", "--shard", "1/2", "--resume", "shards/1", directory=tmp_path)
        assert (refused.code, f"the image {name} of small was local sha256:" in refused.err) == (2, True), refused.err
        joined = keystone("merge", "shards", "--output", "out", directory=tmp_path)
        assert joined.code == 0, joined.err
    finally:
        engine.images.remove(name)
