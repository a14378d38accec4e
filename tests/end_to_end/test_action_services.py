"""Services of the workflow itself (`services:` of a job), which the runner has started in a network of its own and the
spec names as `external`, by their aliases."""

from __future__ import annotations

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
database.query("INSERT INTO visits VALUES (42)")
database.close()
"""


def workflow_services(job: ActionJob, image: Callable[[str], str]) -> None:
    page = "mkdir /site && cd /site && echo from-the-workflow > index.html && exec python3 -m http.server 8000"
    job.service("web", image(PYTHON), ["sh", "-c", page])
    variables = {"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "secret", "POSTGRES_DB": "shop"}
    job.service("database", image(POSTGRES), [], environment=variables)


def spec(**more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "id": "workflow-services",
        "task": {"prompt": "do it"},
        "agent": {
            "type": "command",
            "command": ["python3", "{{ agent.dir }}/agent.py"],
            "dir": "agent",
            "must_exit_zero": True,
        },
        "services": [
            {"name": "api", "type": "external", "url": "http://web:8000"},
            {"name": "db", "type": "external", "url": "postgresql://app:secret@database:5432/shop"},
        ],
        "fixtures": [
            {"type": "sql", "service": "db", "sql": "DROP TABLE IF EXISTS visits; CREATE TABLE visits (n int)"}
        ],
        "invariants": {
            "visited": {"check": {"type": "sql", "service": "db", "query": "SELECT n FROM visits", "equals": 42}}
        },
        **more,
    }


@pytest.mark.parametrize(
    "where",
    [
        pytest.param({}, id="process sandbox"),
        pytest.param({"base": PYTHON}, id="container"),
        pytest.param({"base": PYTHON, "network": {"egress": {"default": "deny"}}}, id="container without a way out"),
    ],
)
def test_an_agent_reaches_them_by_what_it_is_told(
    job: ActionJob, image: Callable[[str], str], where: dict[str, Any]
) -> None:
    workflow_services(job, image)
    files = {"agent/agent.py": AGENT, "agent/postgres.py": POSTGRES_CLIENT.read_text("utf-8")}
    job.write(spec(**where), files)
    step = job.run()
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    assert job.cell["agent"]["output"] == "from-the-workflow\n"
    assert job.statuses == {"visited": "pass"}
    assert job.left() == []
