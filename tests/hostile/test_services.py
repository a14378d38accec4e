"""An agent that tampers with databases and mocks: its own, after its end, and those of a cell beside it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.attacks import hostile
from support.barrier import MEET, Barrier
from support.hostile import AS_ROOT, area, attack, statuses

__all__ = ["area"]

DATABASE = [{"name": "db", "type": "postgres"}]
MOCK = [{"name": "api", "type": "http_mock", "record": True}]
CLIENT = """
import os, socket, sys, time
sys.path.insert(0, os.environ["KEYSTONE_AGENT_DIR"])
from postgres import connect
def open_database():
    return connect(os.environ["KEYSTONE_SERVICE_DB_URL"])
"""
THREE_ROWS = "CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2), (3)"
# Each would make `SELECT count(*) FROM t` say 0, fail, or hang, while there are three rows.
LIES = {
    "row-security": ["ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER TABLE t FORCE ROW LEVEL SECURITY"],
    "path-of-the-database": [
        "CREATE SCHEMA evil",
        "CREATE TABLE evil.t (id int)",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = evil', current_database()); END $$",
        "ALTER ROLE CURRENT_USER SET search_path = evil",
    ],
    "rights": [
        "REVOKE ALL ON t FROM PUBLIC, CURRENT_USER",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()); END $$",
    ],
    "settings": [
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 1', current_database()); END $$",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET row_security = off', current_database()); END $$",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET role = %I', current_database(), current_user); END $$",
    ],
    "no-connections": [
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 0', current_database()); END $$"
    ],
    "lock": ["BEGIN", "LOCK TABLE t IN ACCESS EXCLUSIVE MODE"],
    "uncommitted": ["BEGIN", "DELETE FROM t"],
    "stand-in": [
        "CREATE FUNCTION zero(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'",
        "CREATE AGGREGATE public.count(*) (SFUNC = zero, STYPE = bigint, INITCOND = '0')",
    ],
}


@pytest.fixture
def barrier() -> Iterator[Barrier]:
    made = Barrier(2)
    yield made
    made.close()


@hostile(
    "databases",
    "lies to our reader by rights, settings, locks and row security",
    held_by="a role and a session of our own",
)
def test_a_database_tells_the_truth_whatever_was_done_to_it(area: Path) -> None:
    script = f"""{CLIENT}
database = open_database()
for statement in {LIES!r}[os.environ["LIE"]]:
    try:
        database.query(statement)
    except RuntimeError as refused:
        print(refused)
time.sleep(0.05)
os._exit(0)
"""
    called = attack(
        area,
        script,
        {
            "empty": {"type": "sql", "service": "db", "query": "SELECT count(*) FROM t", "equals": 0},
            "rows": {"type": "sql", "service": "db", "query": "SELECT id FROM t ORDER BY id", "rows": [[1], [2], [3]]},
        },
        agent={"env": {"LIE": "{{ params.lie }}"}},
        services=DATABASE,
        fixtures=[{"type": "sql", "service": "db", "sql": THREE_ROWS}],
        parallelism={"matrix": {"lie": list(LIES)}, "max_concurrency": 2},
    )
    assert called.code == 1, called.out + called.err
    found = {cell["params"]["lie"]: {check["name"]: check for check in cell["invariants"]} for cell in called.cells}
    assert set(found) == set(LIES)
    for lie, checks in found.items():
        assert checks["empty"]["status"] == "fail", (lie, checks)
        if lie == "row-security":  # it hides nothing from us, but may from others, so it is told
            assert "the agent gave the table public.t row level security" in checks["rows"]["message"]
            continue
        assert checks["rows"]["status"] == "pass", (lie, checks)
        if lie != "stand-in":
            assert "found 3" in checks["empty"]["message"], (lie, checks)


@hostile("databases", "leaves a statement running that writes later", held_by="its sessions are ended before grading")
def test_a_statement_that_runs_on_after_the_agent_changes_nothing(area: Path) -> None:
    script = f"""{CLIENT}
database = open_database()
database._send(b"Q", b"DO $$ BEGIN PERFORM pg_sleep(1); INSERT INTO t VALUES (4); COMMIT; END $$\\0")
time.sleep(0.3)
os._exit(0)
"""
    (area / "wait.py").write_text("import time\ntime.sleep(1.5)\nprint('{\"passed\": true}')\n")
    called = attack(
        area,
        script,
        {
            "waits": {"type": "custom", "script": "wait.py"},
            "rows": {"type": "sql", "service": "db", "query": "SELECT count(*) FROM t", "equals": 3},
        },
        services=DATABASE,
        fixtures=[{"type": "sql", "service": "db", "sql": THREE_ROWS}],
    )
    assert called.code == 0, called.out + called.err + str(called.checks)


def test_a_table_that_is_gone_is_the_agents_failure_not_ours(area: Path) -> None:
    script = f"{CLIENT}\nopen_database().query('DROP SCHEMA public CASCADE')"
    called = attack(
        area,
        script,
        {"rows": {"type": "sql", "service": "db", "query": "SELECT count(*) FROM t", "equals": 3}},
        services=DATABASE,
        fixtures=[{"type": "sql", "service": "db", "sql": THREE_ROWS}],
    )
    assert called.code == 1, called.out + called.err
    assert statuses(called) == {"rows": "fail"}


@hostile("services", "reaches for the services of another cell", held_by="roles, tokens and ports of each cell's own")
def test_two_cells_at_once_can_not_reach_each_others_services(area: Path, barrier: Barrier) -> None:
    script = f"""{CLIENT}{MEET}
import urllib.error, urllib.request
mine = {{"mock": os.environ["KEYSTONE_SERVICE_API_URL"], "database": os.environ["KEYSTONE_SERVICE_DB_URL"],
        "workspace": os.getcwd()}}
(other,) = [one for one in meet(mine) if one != mine]
done = {{}}
urllib.request.urlopen(mine["mock"] + "/own").read()
for attempt in range(20):
    try:
        answer = urllib.request.urlopen(other["mock"] + "/stolen", data=b"x", timeout=5)
        done["mock"] = answer.status
    except OSError:
        pass
    try:  # a sender that is gone at once can't be asked who it was
        port = int(other["mock"].rsplit(":", 1)[1])
        line = socket.create_connection(("127.0.0.1", port))
        line.sendall(b"GET /stolen HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        line.close()
    except OSError:
        pass
own, theirs = mine["database"], other["database"]
try:
    connect(own.rsplit("/", 1)[0] + "/" + theirs.rsplit("/", 1)[1])
    done["database"] = "connected"
except Exception as refused:
    print(repr(refused), file=sys.stderr)
for action in (os.listdir, lambda path: open(path + "/planted.txt", "w"), lambda path: os.rename(path, path + "x")):
    try:
        action(other["workspace"])
        done["workspace"] = "reached"
    except OSError:
        pass
meet()
print(json.dumps(done))
"""
    stolen = {"field": "request_count", "filters": {"path": "/stolen"}, "equals": 0}
    own = {"field": "request_count", "filters": {"path": "/own"}, "equals": 1}
    called = attack(
        area,
        script,
        {
            "mine": {"type": "http_mock_assertions", "service": "api", "assertions": [own]},
            "stolen": {"type": "http_mock_assertions", "service": "api", "assertions": [stolen]},
            "planted": {"type": "file_absent", "path": "planted.txt"},
        },
        agent={"env": {"BARRIER": str(barrier.port)}},
        services=DATABASE + MOCK,
        parallelism={"replicas": 2, "max_concurrency": 2},
    )
    assert barrier.met == 2, [
        (called.output / "cells" / cell["id"] / "agent.stderr").read_text() for cell in called.cells
    ]
    if not AS_ROOT:
        # Without users of their own, cells are told apart by files and passwords only.
        assert {
            check["status"] for cell in called.cells for check in cell["invariants"] if check["name"] != "stolen"
        } == {"pass"}
        return
    assert called.code == 0, called.out + called.err
    for cell in called.cells:
        assert json.loads(cell["agent"]["output"]) == {}
        audit = (called.output / "cells" / cell["id"] / "audit.jsonl").read_text()
        assert "/stolen" not in audit
        assert "/own" in audit


@hostile("services", "sends requests to a mock after its end", held_by="the mock is sealed at the agent's end")
def test_a_mock_hears_nothing_after_the_agents_end_and_all_before_it(area: Path) -> None:
    script = """
import os, socket, time
address = ("127.0.0.1", int(os.environ["KEYSTONE_SERVICE_API_PORT"]))
def say(path):
    line = socket.create_connection(address)
    line.sendall(f"GET {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n".encode())
    return line
if not os.fork():
    os.setsid()
    while True:
        try:
            say("/late").recv(100)
        except OSError:
            pass
held = [socket.create_connection(address) for _ in range(200)]
for line in held:
    line.sendall(b"POST /held HTTP/1.1\\r\\nContent-Length: 1000\\r\\nX: ")
time.sleep(0.2)
last = [say("/last") for _ in range(5)]
os._exit(0)
"""
    (area / "still.py").write_text("""
import json, sys, time
path = json.load(sys.stdin)["audit_log_path"]
counts = []
for _ in range(2):
    text = open(path).read()
    counts.append((text.count("/late"), text.count("/last")))
    time.sleep(0.5)
print(json.dumps({"passed": counts[0] == counts[1] and counts[0][0] > 0, "reason": str(counts)}))
""")
    last = {"field": "request_count", "filters": {"path": "/last"}, "equals": 5}
    called = attack(
        area,
        script,
        {
            "still": {"type": "custom", "script": "still.py"},
            "all": {"type": "http_mock_assertions", "service": "api", "assertions": [last]},
        },
        services=MOCK,
    )
    assert called.code == 0, called.out + called.err + str(called.checks)


FILES = {
    "fifo": "os.mkfifo('data.db')",
    "garbage": "open('data.db', 'wb').write(os.urandom(4096))",
    "link": "os.symlink('/etc/passwd', 'data.db')",
    "directory": "os.mkdir('data.db')",
    "gone": "pass",
    "huge": "open('data.db', 'wb').truncate(10 << 30)",
}


@hostile("databases", "leaves a database file that is none", held_by="read in a process of its own")
def test_a_database_file_that_is_none_fails_and_hangs_nothing(area: Path) -> None:
    (area / "start").mkdir()
    sqlite3.connect(area / "start" / "data.db").execute("CREATE TABLE t (id)").connection.close()
    called = attack(
        area,
        f"import os\nos.unlink('data.db')\nexec({FILES!r}[os.environ['KIND']])",
        {"rows": {"type": "sql", "service": "db", "query": "SELECT count(*) FROM t", "equals": 0}},
        workspace="start",
        agent={"env": {"KIND": "{{ params.kind }}"}},
        services=[{"name": "db", "type": "sqlite", "path": "data.db"}],
        parallelism={"matrix": {"kind": list(FILES)}},
    )
    assert called.code == 1, called.out + called.err
    found = {cell["params"]["kind"]: [check["status"] for check in cell["invariants"]] for cell in called.cells}
    assert found == {kind: ["fail"] for kind in FILES}
    assert "root:" not in json.dumps(called.document)
