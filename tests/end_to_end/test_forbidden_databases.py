"""Rules on what is written into databases: agents that keep to them, and others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.audit import audit_lines
from support.forbidden_rules import TOKEN, judged, spec_of
from support.hostile import POSTGRES_CLIENT
from support.model_agents import run
from support.squares import slow_case

DATABASE = {"name": "db", "type": "postgres"}
TABLES = """
CREATE TABLE orders (id serial PRIMARY KEY, what text);
CREATE TABLE audit (what text);
INSERT INTO orders (what) VALUES ('bread'), ('milk');
"""


def with_database(folder: Path, statements: list[str], forbidden: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A spec whose agent runs these statements, in which TOKEN stands for the secret."""
    (folder / "agent").mkdir()
    shutil.copy(POSTGRES_CLIENT, folder / "agent" / "postgres.py")
    script = f"""import os, postgres
connection = postgres.connect(os.environ["KEYSTONE_SERVICE_DB_URL"])
for statement in {statements!r}:
    connection.query(statement.replace("TOKEN", os.environ.get("TOKEN", "")))
connection.close()
"""
    (folder / "agent" / "agent.py").write_text(script)
    agent = {"command": ["python3", "{{ agent.dir }}/agent.py"], "dir": "agent", "must_exit_zero": True}
    agent |= fields.pop("agent", {})
    fixtures = [{"type": "sql", "service": "db", "sql": TABLES}]
    return spec_of("", forbidden, services=[DATABASE], fixtures=fixtures, agent=agent, **fields)


SURE = "seen in the server's own log of changes"
NET = "by comparison before and after the agent: net changes only"


@pytest.mark.database
@pytest.mark.parametrize(("allowed", "verdict"), [("orders", "fail"), ("*", "error")])
def test_a_table_that_can_not_be_watched_hides_no_violation(tmp_path: Path, allowed: str, verdict: str) -> None:
    unwatched = "CREATE TABLE computed (a int, b int GENERATED ALWAYS AS (a * 2) VIRTUAL)"
    statements = ["INSERT INTO audit VALUES ('a')", unwatched]
    called = run(tmp_path, with_database(tmp_path, statements, {"db_writes_outside": [allowed]}), {})
    cell = called.cells[0]
    assert cell["verdict"] == verdict, cell
    assert "can't watch the table public.computed" in cell["reason"]
    assert ("forbidden.db_writes_outside was violated: db: table public.audit" in cell["reason"]) is (verdict == "fail")


@pytest.mark.database
@pytest.mark.parametrize(
    ("statements", "allowed", "told"),
    [
        (["INSERT INTO orders (what) VALUES ('eggs')", "UPDATE orders SET what = 'x'"], ["orders"], ""),
        slow_case(["INSERT INTO orders (what) VALUES ('eggs')"], ["public.*"], ""),
        slow_case(["SELECT * FROM audit"], [], ""),
        slow_case(["BEGIN", "INSERT INTO audit VALUES ('x')", "ROLLBACK"], ["orders"], ""),
        (["INSERT INTO audit VALUES ('a'), ('b')"], ["orders"], "db: table public.audit: insert of 2 rows at "),
        slow_case(
            ["INSERT INTO audit VALUES ('a')", "DELETE FROM audit"],
            ["orders"],
            "db: table public.audit: insert of 1 row at ",
        ),
        slow_case(["DELETE FROM orders"], [], "db: table public.orders: delete of 2 rows at "),
        slow_case(["TRUNCATE orders"], ["audit"], "db: table public.orders: truncate at "),
        slow_case(["CREATE TABLE mine (what text)"], ["orders"], "db: table public.mine: create at "),
        slow_case(["DROP TABLE audit"], ["orders"], "db: table public.audit: drop at "),
        (["CREATE TABLE mine (what text)", "DROP TABLE mine"], ["orders"], "db: table public.mine: create at "),
        slow_case(["SELECT lo_from_bytea(0, 'kept')"], ["orders"], "db: large object pg_catalog.pg_largeobject: "),
    ],
)
def test_a_table_outside_is_a_violation(tmp_path: Path, statements: list[str], allowed: list[str], told: str) -> None:
    called = run(tmp_path, with_database(tmp_path, statements, {"db_writes_outside": allowed}), {})
    found = judged(called)
    assert found["violated"] is bool(told), found
    first = found["details"].splitlines()[:1]
    assert [line for line in first if not line.startswith(told)] == []
    assert all(line.endswith((SURE, NET)) for line in first)
    assert [one for one in called.cells[0]["notices"] if one.startswith("forbidden.db_writes_outside, db: of unlogged")]
    writes = audit_lines(called.output, "db_write")
    assert all(write["service"] == "db" for write in writes)
    if told:
        assert told.split(": ")[1].rsplit(maxsplit=1)[-1] in {write["table"] for write in writes}


@pytest.mark.database
@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (["INSERT INTO audit VALUES ('it is TOKEN')"], "rows written into db: public.audit"),
        slow_case(
            ["UPDATE orders SET what = 'TOKEN'", "UPDATE orders SET what = ''"], "rows written into db: public.orders"
        ),
        (['CREATE TABLE "x TOKEN" (what text)'], "a name in db"),
        slow_case(["INSERT INTO audit SELECT encode('TOKEN', 'hex')"], "rows written into db: public.audit"),
        slow_case(
            ["ALTER TABLE audit ADD note text DEFAULT 'TOKEN'"], "db: the definition of table column public.audit.note"
        ),
        (["COMMENT ON TABLE audit IS 'TOKEN'"], "db: the definition of table public.audit"),
        (['ALTER TABLE audit ADD "TOKEN" text'], "db: the definition of something"),
        slow_case(["ALTER TABLE audit ADD note text DEFAULT 'none'", "COMMENT ON TABLE audit IS 'a table'"], ""),
        (["SELECT 'TOKEN'"], ""),
        slow_case(["SELECT set_config('my.setting', 'TOKEN', false)"], ""),
    ],
)
def test_a_secret_in_sql_is_found_where_it_is_written(tmp_path: Path, statements: list[str], told: str) -> None:
    spec = with_database(
        tmp_path,
        statements,
        {"secrets_in_logs": "deny"},
        secrets=["TOKEN"],
        agent={"env": {"TOKEN": "{{ secrets.TOKEN }}"}},
    )
    called = run(tmp_path, spec, {"TOKEN": TOKEN})
    found = judged(called)
    assert found["violated"] is bool(told), found
    assert told in found["details"]
    assert not [path for path in called.output.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.database
def test_audit_db_writes_alone(tmp_path: Path) -> None:
    statements = ["INSERT INTO orders (what) VALUES ('eggs')", "DELETE FROM orders WHERE what = 'milk'"]
    called = run(tmp_path, with_database(tmp_path, statements, {}, audit={"db_writes": True}), {})
    assert called.code == 0, called.err
    logged = [line for line in audit_lines(called.output, "db_write") if line["how_known"] == "log"]
    assert logged == [
        {
            "service": "db",
            "table": "public.orders",
            "what": "table",
            "operation": operation,
            "rows": 1,
            "how_known": "log",
        }
        for operation in ("insert", "delete")
    ]
