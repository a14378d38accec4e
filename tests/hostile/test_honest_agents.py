"""Agents that do in good faith what attacks do in bad: none of what holds those off gets in their way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.attacks import honest
from support.hostile import area, attack, statuses
from support.hostile_containers import attack_in_container

__all__ = ["area"]

MADE = {"type": "file_exists", "path": "made.txt"}
HELPERS = """
import errno, os, signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
helper = subprocess.Popen(["sh", "-c", "sleep 0.2; echo from a helper > helper.txt"])
workers = [subprocess.Popen([sys.executable, "-c", "print(sum(range(1000)))"]) for _ in range(6)]
os.kill(workers[0].pid, signal.SIGCONT)
thread = threading.Thread(target=lambda: open("thread.txt", "w").write("x"))
thread.start()
thread.join()
assert [one.wait() for one in workers] == [0] * 6
assert helper.wait() == 0
for place in (os.environ["HOME"], os.environ["TMPDIR"], "/dev/shm"):
    try:
        open(os.path.join(place, "cache"), "w").write("x" * 1000)
    except OSError as error:
        assert (place, error.errno in (errno.EACCES, errno.EROFS)) == ("/dev/shm", True), (place, error)
data = bytearray(32 << 20)
os.makedirs("a/b/c/d/e")
open("a/b/c/d/e/big", "wb").write(b"x" * (2 << 20))
open("made.txt", "w").write(open("helper.txt").read())
"""


@honest(
    "processes",
    "daemons rewrite the answer after the agent's end",
    "a process that outlives the agent keeps its output open",
    "signals every process of the machine",
    "ignores signals, closes its streams and sleeps",
    "leaves files, jobs and System V objects on the machine",
)
@honest("limits", "takes memory, processes, disk or depth without end")
def test_one_that_starts_helpers_and_waits_for_them(area: Path) -> None:
    called = attack(
        area,
        HELPERS,
        {"made": {"type": "file_content", "path": "made.txt", "contains": "from a helper"}},
        resources={"pids": 60, "memory": "512Mi", "disk": "64Mi"},
        agent={"must_exit_zero": True},
    )
    assert called.code == 0, called.out + called.err
    assert called.cells[0]["agent"]["note"] == ""


@honest("limits", "has code that a check runs take processes without end")
def test_code_that_a_check_runs_with_helpers_of_its_own(area: Path) -> None:
    script = "open('test.sh', 'w').write('for i in 1 2 3 4 5 6; do sleep 0.1 & done; wait')"
    called = attack(area, script, {"tests": {"type": "command_exit", "command": "sh test.sh"}}, resources={"pids": 30})
    assert called.code == 0, called.out + called.err


@honest(
    "output",
    "prints workflow commands, markup and control characters",
    "prints a line of 100 MB and no end",
    "returns a result document that is huge, deep or none",
)
def test_one_that_prints_a_report_with_markup_and_colours(area: Path) -> None:
    lines = [
        "# Report",
        "| a | b |",
        "|---|---|",
        "std::vector<int> & std::map",
        "\x1b[32mgreen\x1b[0m",
        "Grüße 🎉",
        "<b>",
    ]
    text = "\n".join([*lines, *(f"line {number}" for number in range(5000)), "the end"])
    script = f"import json\nprint(json.dumps({{'output': {text!r}, 'tool_calls': [{{'name': 'read'}}]}}))"
    checks = {
        "whole": {"type": "regex", "pattern": r"(?s)\A# Report.*std::vector<int> & .*Grüße .*the end\Z"},
        "tools": {"type": "tool_correctness", "expected": ["read"]},
    }
    called = attack(area, script, checks, agent={"output": {"json": "stdout"}})
    assert called.code == 0, called.out + called.err


@honest("secrets", "prints a secret in every encoding, cut in pieces")
def test_one_that_uses_its_secret_and_prints_what_is_none(area: Path) -> None:
    script = """
import os, urllib.request
request = urllib.request.Request(os.environ["KEYSTONE_SERVICE_API_URL"] + "/login")
request.add_header("Authorization", "Bearer " + os.environ["GIVEN"])
print(urllib.request.urlopen(request).read().decode(), "logged in with a token of", len(os.environ["GIVEN"]))
"""
    login = {"field": "request_count", "filters": {"Authorization": "Bearer t0ken-of-the-agent"}, "equals": 1}
    called = attack(
        area,
        script,
        {
            "logged_in": {"type": "http_mock_assertions", "service": "api", "assertions": [login]},
            "said": {"type": "regex", "pattern": "logged in with a token of 18"},
        },
        agent={"env": {"GIVEN": "{{ secrets.GIVEN }}"}},
        secrets=[{"name": "GIVEN", "from": "static://t0ken-of-the-agent"}],
        services=[{"name": "api", "type": "http_mock", "record": True}],
    )
    assert called.code == 0, called.out + called.err


@honest(
    "reading",
    "searches the machine for the checkout, for us and another cell",
    "searches for a secret of another spec",
    "looks for hidden files in a copy of the checkout and its history",
    "reads its environment",
)
def test_one_that_reads_what_it_was_given(area: Path) -> None:
    (area / "start" / "docs").mkdir(parents=True)
    (area / "start" / "docs" / "brief.md").write_text("the brief", "utf-8")
    (area / "task.txt").write_text("the task's file", "utf-8")
    script = """
import json, os, pathlib, sqlite3, ssl
assert pathlib.Path("docs/brief.md").read_text() == "the brief"
assert pathlib.Path("task.txt").read_text() == "the task's file"
assert pathlib.Path(os.environ["KEYSTONE_PROMPT_FILE"]).read_text() == os.environ["KEYSTONE_PROMPT"] == "do it"
assert "agent.py" in os.listdir(os.environ["KEYSTONE_AGENT_DIR"])
assert pathlib.Path("/etc/passwd").read_text()
assert os.environ["OWN"] == "value" and os.path.isdir(os.environ["HOME"]) and os.environ["PATH"]
open("made.txt", "w").write("x")
"""
    called = attack(
        area,
        script,
        {"made": MADE},
        workspace="start",
        task={"prompt": "do it", "files": ["task.txt"]},
        agent={"env": {"OWN": "value"}},
    )
    assert called.code == 0, called.out + called.err


@honest(
    "databases",
    "lies to our reader by rights, settings, locks and row security",
    "leaves a statement running that writes later",
    "leaves a database file that is none",
)
@honest("services", "reaches for the services of another cell")
def test_one_that_works_on_its_database(area: Path) -> None:
    script = """
import os, sqlite3, sys
sys.path.insert(0, os.environ["KEYSTONE_AGENT_DIR"])
from postgres import connect
database = connect(os.environ["KEYSTONE_SERVICE_DB_URL"])
database.query("BEGIN")
database.query("CREATE TABLE extra (id int)")
database.query("INSERT INTO t SELECT generate_series(4, 6)")
database.query("COMMIT")
with sqlite3.connect("own.sqlite") as file:
    file.execute("CREATE TABLE t (id int)")
    file.execute("INSERT INTO t VALUES (7)")
"""
    called = attack(
        area,
        script,
        {
            "rows": {"type": "sql", "service": "db", "query": "SELECT count(*) FROM t", "equals": 6},
            "file": {"type": "sql", "service": "own", "query": "SELECT id FROM t", "equals": 7},
        },
        services=[{"name": "db", "type": "postgres"}, {"name": "own", "type": "sqlite", "path": "own.sqlite"}],
        fixtures=[
            {"type": "sql", "service": "db", "sql": "CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2), (3)"}
        ],
        parallelism={"replicas": 2, "max_concurrency": 2},
    )
    assert called.code == 0, called.out + called.err


@honest("services", "sends requests to a mock after its end")
def test_one_that_sends_its_requests_in_time(area: Path) -> None:
    script = """
import os, urllib.request
for number in range(50):
    urllib.request.urlopen(f"{os.environ['KEYSTONE_SERVICE_API_URL']}/{number}", data=b"x").read()
"""
    counted = {"field": "request_count", "filters": {"method": "POST"}, "equals": 50}
    called = attack(
        area,
        script,
        {"all": {"type": "http_mock_assertions", "service": "api", "assertions": [counted]}},
        services=[{"name": "api", "type": "http_mock", "record": True}],
        parallelism={"replicas": 2, "max_concurrency": 2},
    )
    assert called.code == 0, called.out + called.err


@honest(
    "workspace",
    "puts a link, FIFO, socket or huge file at the path of a check",
    "leaves names, modes and links that break copies",
    "removes or closes its workspace",
    "plants programs and modules where ours could find them",
    "has code under test change evidence and outlive its check",
)
def test_one_that_leaves_links_programs_and_modules_of_its_own(area: Path) -> None:
    script = """
import os
os.makedirs("src/deep/er")
open("src/helper.py", "w").write("VALUE = 42\\n")
open("src/run.py", "w").write("import helper\\nprint(helper.VALUE)\\n")
os.symlink("run.py", "src/alias.py")
os.symlink("../src", "src/self")
open("tool.sh", "w").write("#!/bin/sh\\necho tool\\n")
os.chmod("tool.sh", 0o755)
open("with blank é.txt", "w").write("x")
open("made.txt", "w").write("x")
os.remove("old.txt")
os.rename("keep.txt", "kept.txt")
"""
    (area / "start").mkdir()
    for name in ("old.txt", "keep.txt"):
        (area / "start" / name).write_text(name, "utf-8")
    (area / "there.py").write_text(
        "import json, os, sys\nwhere = json.load(sys.stdin)['workspace_path']\n"
        "print(json.dumps({'passed': os.readlink(where + '/src/alias.py') == 'run.py'}))\n",
        "utf-8",
    )
    checks = {
        "linked": {"type": "file_content", "path": "src/alias.py", "contains": "helper"},
        "gone": {"type": "file_absent", "path": "old.txt"},
        "kept": {"type": "file_content", "path": "kept.txt", "pattern": "^keep.txt$"},
        "runs": {"type": "command_exit", "command": "./tool.sh && python3 src/run.py | grep 42"},
        "named": {"type": "file_exists", "path": "with blank é.txt"},
        "host": {"type": "custom", "script": "there.py"},
    }
    called = attack(area, script, checks, workspace="start")
    assert called.code == 0, called.out + called.err
    assert set(statuses(called).values()) == {"pass"}


@pytest.mark.docker
@pytest.mark.parametrize("mode", ["bind", "copy"])
@honest(
    "containers",
    "removes its own program",
    "leaves a workspace too large to be copied back",
    "changes its code while setup's image is cached",
    "leaves links, FIFOs and modes in HOME that engines refuse",
    "hides files in directories too deep to be counted",
    sandbox="docker",
)
def test_one_that_works_in_a_container(tmp_path, image, mode) -> None:
    image("python:3.12-slim")
    script = """
import os
os.makedirs(os.path.expanduser("~/.cache/tool"), exist_ok=True)
os.symlink("tool", os.path.expanduser("~/.cache/alias"))
os.makedirs("/".join("d" * 30))
open("big", "wb").write(b"x" * (4 << 20))
open("made.txt", "w").write(open("/opt/set-up").read())
"""
    called = attack_in_container(
        tmp_path,
        script,
        {"made": {"type": "file_content", "path": "made.txt", "contains": "ready"}},
        mode=mode,
        setup={"commands": ["echo ready > /opt/set-up"]},
    )
    assert called.code == 0, called.out + called.err
    assert json.dumps(called.document)
