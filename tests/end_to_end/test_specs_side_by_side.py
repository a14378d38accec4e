"""Specs of one folder that define their services alike and run at the same time: none is in the other's database."""

from __future__ import annotations

import json
from pathlib import Path

from support.barrier import MEET, Barrier
from support.command_line import keystone

AGENT = f"""{MEET}
meet()
print("{{{{ services.db.user }}}} of {{{{ services.db.database }}}}")
"""
"""It says which database it has once the other one is in its own."""

SPEC = """version: 1
id: spec-{0}
task: {{prompt: do it}}
services:
  - {{name: db, type: postgres, env: {{POSTGRES_USER: app, POSTGRES_PASSWORD: secret, POSTGRES_DB: app}}}}
fixtures:
  - {{type: sql, service: db, sql: "CREATE TABLE t (n text); INSERT INTO t VALUES ('{0}')"}}
agent: {{type: command, command: [python3, -c, {1}], env: {{BARRIER: "{2}"}}, timeout: 60}}
invariants:
  own: {{check: {{type: sql, service: db, query: "SELECT n FROM t", equals: {0}}}}}
"""


def test_a_cell_that_is_the_only_one_of_its_spec_has_the_names_of_env_for_itself(tmp_path: Path) -> None:
    barrier = Barrier(2)
    for name in ("a", "b"):
        (tmp_path / f"{name}.keystone.yaml").write_text(SPEC.format(name, json.dumps(AGENT), barrier.port))
    called = keystone("run", ".", "--output", "out", "--max-concurrency", "2", directory=tmp_path)
    barrier.close()
    assert called.code == 0, called.err
    assert barrier.met == 1
    outputs = [cell["agent"]["output"] for spec in called.document["specs"] for cell in spec["cells"]]
    assert outputs == ["app of app\n"] * 2
