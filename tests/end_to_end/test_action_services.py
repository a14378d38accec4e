"""Services of the workflow itself (`services:` of a job), which the runner has started in a network of its own and the
spec names as `external`, by their aliases."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.action_job import ActionJob
from support.hostile import POSTGRES_CLIENT
from support.images import POSTGRES, PYTHON

pytestmark = pytest.mark.docker

AGENT = """
import os, time, urllib.request
from postgres import connect
print(urllib.request.urlopen(os.environ["KEYSTONE_SERVICE_API_URL"] + "/", timeout=10).read().decode().strip())
database = connect(os.environ["KEYSTONE_SERVICE_DB_URL"])
database.query(f"INSERT INTO {os.environ['TABLE']} VALUES (42)")
database.close()
"""
WHERE: dict[str, dict[str, Any]] = {
    "process": {},
    "container": {"base": PYTHON},
    "closed": {"base": PYTHON, "network": {"egress": {"default": "deny"}}},
}
"""In the process sandbox, in a container, in a container without a way out."""


def workflow_services(job: ActionJob, image: Callable[[str], str]) -> None:
    page = "mkdir /site && cd /site && echo from-the-workflow > index.html && exec python3 -m http.server 8000"
    job.service("web", image(PYTHON), ["sh", "-c", page])
    variables = {"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "secret", "POSTGRES_DB": "shop"}
    job.service("database", image(POSTGRES), [], environment=variables)


def spec(name: str) -> dict[str, Any]:
    """Each has a table of its own: the database is one for all."""
    table = f"visits_{name}"
    return {
        "version": 1,
        "id": name,
        "task": {"prompt": "do it"},
        "agent": {
            "type": "command",
            "command": ["python3", "{{ agent.dir }}/agent.py"],
            "dir": "agent",
            "env": {"TABLE": table},
            "must_exit_zero": True,
        },
        "services": [
            {"name": "api", "type": "external", "url": "http://web:8000"},
            {"name": "db", "type": "external", "url": "postgresql://app:secret@database:5432/shop"},
        ],
        "fixtures": [
            {"type": "sql", "service": "db", "sql": f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (n int)"}
        ],
        "invariants": {
            "visited": {"check": {"type": "sql", "service": "db", "query": f"SELECT n FROM {table}", "equals": 42}}
        },
        **WHERE[name],
    }


def test_an_agent_reaches_them_by_what_it_is_told(job: ActionJob, image: Callable[[str], str]) -> None:
    workflow_services(job, image)
    files = {"agent/agent.py": AGENT, "agent/postgres.py": POSTGRES_CLIENT.read_text("utf-8")}
    first, *others = WHERE
    job.write(spec(first), {**files, **{f"{name}.keystone.yaml": json.dumps(spec(name)) for name in others}})
    job.inputs["spec"] = "."
    step = job.run()
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    cells = {one["id"]: cell for one in job.document["specs"] for cell in one["cells"]}
    assert {name: cell["agent"]["output"] for name, cell in cells.items()} == dict.fromkeys(
        WHERE, "from-the-workflow\n"
    )
    found = {name: [(one["name"], one["status"]) for one in cell["invariants"]] for name, cell in cells.items()}
    assert found == {name: [("visited", "pass")] for name in WHERE}
    assert job.left() == []
