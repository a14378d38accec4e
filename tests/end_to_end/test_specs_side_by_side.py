"""Specs of one folder that define their services alike and run at the same time: none is in the other's database."""

from __future__ import annotations

from pathlib import Path

from support.command_line import keystone

SPEC = """version: 1
id: spec-{0}
task: {{prompt: do it}}
services:
  - {{name: db, type: postgres, env: {{POSTGRES_USER: app, POSTGRES_PASSWORD: secret, POSTGRES_DB: app}}}}
fixtures:
  - {{type: sql, service: db, sql: "CREATE TABLE t (n text); INSERT INTO t VALUES ('{0}')"}}
agent: {{type: command, command: "echo {{{{ services.db.user }}}} of {{{{ services.db.database }}}}; sleep 2"}}
invariants:
  own: {{check: {{type: sql, service: db, query: "SELECT n FROM t", equals: {0}}}}}
"""


def test_a_cell_that_is_the_only_one_of_its_spec_has_the_names_of_env_for_itself(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.keystone.yaml").write_text(SPEC.format(name))
    called = keystone("run", ".", "--output", "out", "--max-concurrency", "2", directory=tmp_path)
    assert called.code == 0, called.err
    outputs = [cell["agent"]["output"] for spec in called.document["specs"] for cell in spec["cells"]]
    assert outputs == ["app of app\n"] * 2
