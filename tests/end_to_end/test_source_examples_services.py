"""The examples of 000_66edd30c29bbac31.txt, "Scoring", that need a service, a script or a judge, as they stand there,
to a passing and a failing verdict. The others: test_source_examples_keystone.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.model_server import ModelServer, Received, Reply, answer
from support.source_examples import BothWays, both_ways, run_examples

DATABASE = {
    "name": "db",
    "type": "postgres",
    "env": {"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "app-secret", "POSTGRES_DB": "crm"},
}
SMTP = {"name": "smtp", "type": "http_mock", "record": True}
CUSTOMERS = {
    "type": "sql",
    "service": "db",
    "sql": "CREATE TABLE customers_a (id integer, email text); CREATE TABLE customers_b (id integer, email text);"
    "INSERT INTO customers_a VALUES (1, 'a@co'), (2, 'b@co'); INSERT INTO customers_b VALUES (1, 'old@co')",
}
WITH_CUSTOMERS = {"services": [DATABASE, SMTP], "fixtures": [CUSTOMERS]}
URL = {"DB_URL": "{{ services.db.url }}"}
RECONCILES = """
from postgres import connect
if good:
    connection = connect(os.environ["DB_URL"])
    connection.query("UPDATE customers_b SET email = 'a@co' WHERE id = 1")
    connection.query("INSERT INTO customers_b VALUES (2, 'b@co')")
    connection.close()
"""

SQL = """
invariants:
  reconciliation_clean:
    description: "No mismatches between A and B"
    weight: 0.5
    gate: true
    check:
      type: sql
      service: db                       # name from services[]
      query: |
        SELECT count(*) FROM customers_a a
        LEFT JOIN customers_b b ON a.id = b.id
        WHERE b.id IS NULL OR a.email != b.email
      equals: 0
"""


EXAMPLES: dict[str, dict[str, Any]] = {
    "sql": {"example": SQL, "agent": RECONCILES, "env": URL, "services": [DATABASE], "fixtures": [CUSTOMERS]}
}
"""By name, what is run without a judge; each is added where its check stands."""
Run = Callable[[str], BothWays]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All of them in one call; one of them."""
    return run_examples(tmp_path_factory, "examples-of-services", EXAMPLES)


def test_sql(run: Run) -> None:
    found = run("sql")
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)
    assert "expected 0" in found.check("reconciliation_clean")[1]["message"]


MOCK = """
invariants:
  email_sent_once:
    description: "Exactly one renewal email"
    check:
      type: http_mock_assertions
      service: smtp                       # must have `record: true`
      assertions:
        - field: request_count
          filters:
            method: POST
            path: "/api/messages"
          equals: 1
        - field: last_request.body
          contains: "renewal"
"""


NOT_ONE = {
    "nothing": "pass",
    "twice": "send('SMTP', '/api/messages', b'renewal'); send('SMTP', '/api/messages', b'renewal')",
    "another-method": "send('SMTP', '/api/messages', b'renewal', method='PUT')",
    "another-last-body": "send('SMTP', '/api/messages', b'renewal'); send('SMTP', '/other', b'something else')",
}
EXAMPLES |= {
    name: {
        "example": MOCK,
        "agent": f"if good:\n    send('SMTP', '/api/messages', b'your renewal')\nelse:\n    {bad}\n",
        "services": [SMTP],
    }
    for name, bad in NOT_ONE.items()
}


@pytest.mark.parametrize("bad", NOT_ONE)
def test_http_mock_assertions(run: Run, bad: str) -> None:
    assert run(bad).check("email_sent_once")[1]["score"] == 0.0


FIELDS = """
invariants:
  count: {description: "Number of matching requests", check: {type: http_mock_assertions, service: smtp,
    assertions: [{field: request_count, equals: 2}]}}
  last_body: {description: "Body of the most recent matching request", check: {type: http_mock_assertions,
    service: smtp, assertions: [{field: last_request.body, equals: second}]}}
  last_headers: {description: "Headers map", check: {type: http_mock_assertions, service: smtp,
    assertions: [{field: last_request.headers, contains: X-Kind}]}}
  nth: {description: "Nth request (zero-indexed)", check: {type: http_mock_assertions, service: smtp,
    assertions: [{field: "requests[1]", exists: true}]}}
  nth_body: {description: "Sub-fields of the Nth request", check: {type: http_mock_assertions, service: smtp,
    assertions: [{field: "requests[0].body", contains: first}]}}
  nth_headers: {description: "Sub-fields of the Nth request", check: {type: http_mock_assertions, service: smtp,
    assertions: [{field: "requests[1].headers", contains: X-Kind}]}}
  by_header: {description: "plus header filters", check: {type: http_mock_assertions, service: smtp,
    assertions: [{field: request_count, filters: {X-Kind: summary}, equals: 1}]}}
  one_of_two_fails: {description: "if any fails, the invariant fails", check: {type: http_mock_assertions,
    service: smtp, assertions: [{field: request_count, gte: 0}, {field: last_request.body, equals: second}]}}
"""


SENDS_TWO = """
send("SMTP", "/a", b"the first" if good else b"other")
if good: send("SMTP", "/b", b"second", X_Kind="summary")
"""
EXAMPLES["fields"] = {"example": FIELDS, "agent": SENDS_TWO, "services": [SMTP]}


def test_every_field_of_the_mocks_table(run: Run) -> None:
    found = run("fields")
    assert set(found.statuses[0].values()) == {"pass"}
    assert set(found.statuses[1].values()) == {"fail"}


CUSTOM = """
invariants:
  summary_accuracy:
    description: "Numbers in email match log"
    weight: 0.3
    check:
      type: custom
      script: checks/verify_summary.py
      runs_in: host                # host (default) or sandbox
"""
CONTEXT = {"sandbox_id", "workspace_path", "services", "audit_log_path", "trace_path", "task", "scenario_params"}
VERIFIES = f"""
import json, sys
from pathlib import Path
context = json.load(sys.stdin)
assert set(context) == {CONTEXT!r}, context
assert context["task"]["prompt"] == "do it" and set(context["services"]["db"]) >= {{"host", "port"}}, context
assert context["scenario_params"]["way"] in ("good", "bad")
assert Path(context["audit_log_path"]).read_text() == Path(context["trace_path"]).read_text() == ""
numbers = Path(context["workspace_path"], "numbers").read_text()
assert numbers == Path("numbers").read_text()
print(json.dumps({{
  "passed": numbers == "5",
  "score": 1.0 if numbers == "5" else 0.4,
  "reason": "All numbers match" if numbers == "5" else "2 of 5",
  "details": {{ "matched": int(numbers), "total": 5 }}
}}))
"""


EXAMPLES |= {
    runs_in: {
        "example": CUSTOM.replace("runs_in: host ", f"runs_in: {runs_in} "),
        "agent": "Path('numbers').write_text('5' if good else '2')",
        "author": {"checks/verify_summary.py": VERIFIES},
        "services": [{"name": "db", "type": "http_mock"}],
    }
    for runs_in in ("host", "sandbox")
}


@pytest.mark.parametrize("runs_in", ["host", "sandbox"])
def test_custom(run: Run, runs_in: str) -> None:
    """What is read is the document's KeystoneContext, what is printed its CheckResult."""
    found = run(runs_in)
    good, bad = found.check("summary_accuracy")
    assert (good["score"], good["message"], good["details"]) == (1.0, "All numbers match", {"matched": 5, "total": 5})
    assert (bad["score"], bad["message"], bad["details"]) == (0.4, "2 of 5", {"matched": 2, "total": 5})


def test_a_custom_script_that_ends_with_another_exit_code(tmp_path: Path) -> None:
    """ "≠ 0: Check itself errored — scenario status becomes error.\""""
    script = "import json, os, sys\nprint(json.dumps({'passed': True}))\nsys.exit(0 if os.path.exists('x') else 1)"
    author = {"checks/verify_summary.py": script}
    found = both_ways(tmp_path, CUSTOM, "if good: Path('x').touch()", author=author)
    assert (found.called.code, found.bad["verdict"], found.bad["composite"]) == (3, "error", None)


JUDGE = """
invariants:
  email_tone:
    description: "Email is professional and actionable"
    weight: 0.3
    check:
      type: llm_as_judge
      model: paragon-fast
      criteria: |
        Evaluate the email for:
        1. Professional tone (no casual language)
        2. Actionable content (clear next steps)
        3. Accurate numbers
      input_from: smtp.last_request.body   # what to judge
      rubric:
        pass: "Professional, accurate, actionable"
        fail: "Casual, missing numbers, or unclear"
      temperature: 0
      pass_threshold: 0.7        # optional; default 0.5

scoring:
  pass_threshold: 0.7
"""
"""With a threshold of the cell that the score reaches: the document's score is the invariant's."""
SENDS = """
text = "Dear customer" if good else "yo"
send("SMTP", "/api/messages", text.encode())
print(text)
Path("text").write_text(text)
"""


def judges(received: Received) -> Reply:
    """Scores by what is judged."""
    return answer(0.8, "fine") if "Dear customer" in received.prompt else answer(0.6, "casual")


def test_llm_as_judge(tmp_path: Path) -> None:
    """ "The score becomes the invariant's score. pass_threshold decides whether it counts as passed: true.\" From each
    source, as an invariant of its own."""
    _, one, scoring = re.split(r"^(?:invariants|(?=scoring)):?\n?", JUDGE, flags=re.MULTILINE)
    sources = {"email_tone": "smtp.last_request.body", "by_output": "agent_output", "by_stdout": "stdout"}
    sources["by_workspace"] = "workspace"
    listed = "".join(
        one.replace("email_tone:", f"{name}:").replace("input_from: smtp.last_request.body ", f"input_from: {source} ")
        for name, source in sources.items()
    )
    with ModelServer(judges) as models:
        found = both_ways(tmp_path, f"invariants:\n{listed}{scoring}", SENDS, services=[SMTP], environ=models.environ())
    came_to = {name: [(each["status"], each["score"]) for each in found.check(name)] for name in sources}
    assert came_to == {name: [("pass", 0.8), ("fail", 0.6)] for name in sources}
    assert (found.good["composite"], found.bad["composite"]) == (pytest.approx(0.8), pytest.approx(0.6))
    for part in ("2. Actionable content", "Casual, missing numbers, or unclear"):
        assert all(part in request.prompt for request in models.requests)
    assert {request.body.get("temperature", 0) for request in models.requests} == {0}


GATED_JUDGE = """
invariants:
  tone: {description: "", gate: true, check: {type: llm_as_judge, model: paragon-max, criteria: "Is it good?"}}
scoring: {pass_threshold: 0.5}
"""


def test_a_gate_whose_score_is_below_one(tmp_path: Path) -> None:
    """ "If any gate: true invariant has score < 1.0, composite = 0": also one that passed."""
    with ModelServer(lambda received: answer(1.0 if "Dear" in received.prompt else 0.9)) as models:
        found = both_ways(tmp_path, GATED_JUDGE, SENDS, services=[SMTP], environ=models.environ())
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)
    assert (found.check("tone")[1]["status"], found.check("tone")[1]["score"]) == ("pass", 0.9)


CLASSIC = """
invariants:
  reconciliation_clean:
    description: "No mismatches"
    weight: 0.5
    gate: true
    check:
      type: sql
      service: db
      query: "SELECT count(*) FROM customers_a a LEFT JOIN customers_b b USING (id) WHERE a.email != b.email"
      equals: 0

  email_sent_once:
    description: "Exactly one summary email"
    weight: 0.3
    check:
      type: http_mock_assertions
      service: smtp
      assertions:
        - field: request_count
          filters: { to: "finance@co" }
          equals: 1

  email_quality:
    description: "Email is well-written"
    weight: 0.2
    check:
      type: llm_as_judge
      model: paragon-fast
      criteria: "Professional, accurate, actionable"
      input_from: smtp.last_request.body
      pass_threshold: 0.7

scoring: {pass_threshold: 0.9}
"""


def test_the_classic_pattern(tmp_path: Path) -> None:
    """By its gate, by its address, by its tone: composite = sum(weight * score) / sum(weight)."""
    agent = (
        f"{RECONCILES}\n"
        'send("SMTP", "/m", {"to": "finance@co" if good else "ceo@co", "text": "Dear customer" if good else "yo"}, '
        'Content_Type="application/json")'
    )
    with ModelServer(judges) as models:
        environ = models.environ()
        found = both_ways(tmp_path, CLASSIC, agent, env=URL, environ=environ, **WITH_CUSTOMERS)
    assert found.good["composite"] == pytest.approx(0.5 + 0.3 + 0.2 * 0.8)
    assert found.bad["composite"] == 0.0
    assert set(found.statuses[1].values()) == {"fail"}


VALIDATES = """
invariants:
  api_responses_valid:
    description: "Every API response is valid JSON with required fields"
    weight: 0.5
    check:
      type: custom
      script: checks/validate_api_responses.py
      runs_in: sandbox
"""
SEED_SCRIPT = Path(__file__).parent.parent / "data" / "seed_checks" / "validate_api_responses.py.txt"


ROUTES = [{"path": "/good", "json": {"id": 1, "status": "ok"}}, {"path": "/bad", "response": "<html>"}]
EXAMPLES["validates"] = {
    "example": VALIDATES,
    "agent": "send('SMTP', '/good'); send('SMTP', '/good' if good else '/bad')",
    "author": {"checks/validate_api_responses.py": SEED_SCRIPT.read_text("utf-8")},
    "services": [{**SMTP, "routes": ROUTES}],
}


def test_a_custom_python_invariant(run: Run) -> None:
    """With the document's own script, `checks/validate_api_responses.py`."""
    found = run("validates")
    good, bad = found.check("api_responses_valid")
    assert (good["score"], good["message"]) == (1.0, "2/2 responses valid")
    assert (bad["score"], bad["message"]) == (0.5, "1/2 responses valid")
