"""Each of the eight check types of 000_66edd30c29bbac31.txt, through the real command: pass, fail, error.

One call runs a spec for each verdict, which has all checks that come to it; another has those that ask a service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.command_line import Called, keystone, run_spec
from support.model_server import ModelServer, Received, Reply, answer, says

SERVICES = """
services:
  - {name: db, type: postgres, env: {POSTGRES_USER: app, POSTGRES_PASSWORD: secret, POSTGRES_DB: app}}
  - {name: api, type: http_mock, record: true}
fixtures:
  - {type: sql, service: db, sql: "CREATE TABLE t (n integer); INSERT INTO t VALUES (1), (2)"}
"""
AGENT = r"""
import json, os, pathlib, urllib.request
pathlib.Path("out.json").write_text('{"status": "success"}')
pathlib.Path("broken").symlink_to("nowhere")
print("the agent's answer")
if url := os.environ.get("KEYSTONE_SERVICE_API_URL"):
    body = json.dumps({"to": "finance@co", "text": "renewal"}).encode()
    request = urllib.request.Request(url + "/api/messages", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request).read()
"""
CUSTOM = """
import json, sys
context = json.load(sys.stdin)
{body}
"""

# By verdict, then by name. What the file checks can't read (`broken`) is the agent's doing: it fails, and no error.
CHECKS = {
    "pass": {
        "exit_of_zero": "{type: command_exit, command: 'test -f out.json'}",
        "exit_as_wanted": "{type: command_exit, command: 'exit 3', exit_code: 3}",
        "file_there": "{type: file_exists, path: out.json}",
        "file_not_there": "{type: file_absent, path: missing.json}",
        "content": '{type: file_content, path: out.json, contains: \'"status": "success"\', not_contains: error}',
    },
    "fail": {
        "another_exit": "{type: command_exit, command: 'echo told; exit 4'}",
        "file_missing": "{type: file_exists, path: missing.json}",
        "link_to_nothing": "{type: file_exists, path: broken}",
        "file_too_many": "{type: file_absent, path: out.json}",
        "other_content": "{type: file_content, path: out.json, pattern: '^.status.: failure'}",
        "content_of_a_link_to_nothing": "{type: file_content, path: broken, contains: x}",
    },
    "error": {
        "no_such_program": "{type: command_exit, command: 'no-such-program-here'}",
    },
}
SCRIPTS = {
    "pass": {"passed": 'print(json.dumps({"passed": context["task"]["prompt"] == "do it"}))'},
    "fail": {"not_passed": 'print(json.dumps({"passed": False, "reason": "numbers differ"}))'},
    "error": {
        "another_type": 'print(json.dumps({"passed": "yes"}))',
        "no_JSON": 'print("not json")',
        "exit_of_three": "sys.exit(3)",
    },
}
STARTED = {
    "pass": {"own_server": "python3 -m http.server --bind localhost {{ port }}"},
    "fail": {
        "server_of_what_it_left": "mkdir public; cd public; exec python3 -m http.server $PORT",
        "no_server": "true",
    },
    "error": {"unknown_server": "no-such-program-here"},
}
REPLIES = {"pass": answer(0.9, "good"), "fail": answer(0.2, "bad"), "error": says("I would rather not say")}
SCORES = {"pass": 0.9, "fail": 0.2, "error": None}


def document(identity: str, checks: dict[str, str], more: str = "") -> str:
    listed = "".join(f"  {name}: {{check: {text}}}\n" for name, text in checks.items())
    return (
        f'version: 1\nid: {identity}\ntask: {{prompt: "do it"}}\n'
        'agent: {type: command, command: [python3, "{{ agent.dir }}/agent.py"], dir: agent}\n'
        f"{more}invariants:\n{listed}scoring: {{pass_threshold: 0.5}}\n"
    )


def write_agent(directory: Path) -> None:
    (directory / "agent").mkdir()
    (directory / "agent" / "agent.py").write_text(AGENT)


def graded(called: Called) -> dict[str, dict[str, dict[str, Any]]]:
    """The checks of each spec, by their names."""
    assert not called.has_traceback
    return {
        one["id"]: {entry["name"]: entry for cell in one["cells"] for entry in cell["invariants"]}
        for one in called.document["specs"]
    }


def checks_of(verdict: str, directory: Path) -> dict[str, str]:
    """All that come to this verdict, with the scripts that they run."""
    found = dict(CHECKS[verdict])
    for name, body in SCRIPTS[verdict].items():
        script = f"{name}.py"
        (directory / script).write_text(CUSTOM.format(body=body))
        for place in ("host", "sandbox"):
            found[f"script_{name}_{place}"] = f"{{type: custom, script: {script}, runs_in: {place}}}"
    request = "request: {url: /out.json}, expect: {status: 200, json: {status: success}}"
    for name, start in STARTED[verdict].items():
        found[name] = f"{{type: http, start: '{start}', {request}}}"
    found["judge"] = f"{{type: llm_as_judge, criteria: 'Is it good? ({verdict})'}}"
    return found


def test_each_type_comes_to_each_verdict(tmp_path):
    write_agent(tmp_path)
    expected = {verdict: checks_of(verdict, tmp_path) for verdict in REPLIES}
    for verdict, checks in expected.items():
        (tmp_path / f"{verdict}.yaml").write_text(document(verdict, checks))

    def reply(received: Received) -> Reply:
        (verdict,) = [verdict for verdict in REPLIES if f"Is it good? ({verdict})" in received.prompt]
        return REPLIES[verdict]

    with ModelServer(reply) as models:
        specs = [f"{verdict}.yaml" for verdict in REPLIES]
        called = keystone("run", *specs, "--output", "out", directory=tmp_path, environ=models.environ())
    entries = graded(called)
    assert {one["id"]: one["verdict"] for one in called.document["specs"]} == {verdict: verdict for verdict in REPLIES}
    assert (called.code, called.document["verdict"]) == (3, "error"), called.err
    statuses = {verdict: {name: entry["status"] for name, entry in found.items()} for verdict, found in entries.items()}
    assert statuses == {verdict: dict.fromkeys(checks, verdict) for verdict, checks in expected.items()}, entries
    assert "told" in entries["fail"]["another_exit"]["message"]
    assert {verdict: found["judge"]["score"] for verdict, found in entries.items()} == SCORES
    assert models.requests
    assert all("the agent's answer" in request.prompt for request in models.requests)


ASKING = {
    "pass": {
        "rows": "{type: sql, service: db, query: 'SELECT count(*) FROM t', equals: 2}",
        "request": """{type: http_mock_assertions, service: api, assertions: [
                {field: request_count, filters: {method: POST, to: finance@co}, equals: 1},
                {field: last_request.body, contains: renewal}]}""",
    },
    "fail": {
        "other_rows": "{type: sql, service: db, query: 'SELECT count(*) FROM t', equals: 3}",
        "no_such_table": "{type: sql, service: db, query: 'SELECT count(*) FROM no_such_table', equals: 3}",
        "two_requests": "{type: http_mock_assertions, service: api, assertions: [{field: request_count, equals: 2}]}",
        "a_sixth_request": """{type: http_mock_assertions, service: api, assertions: [
                {field: 'requests[5].body', contains: x}]}""",
    },
    "error": {
        "no_statement": "{type: sql, service: db, query: 'SELEC 1', equals: 1}",
        "a_statement_that_writes": "{type: sql, service: db, query: 'DELETE FROM t', equals: 1}",
    },
}


def test_each_type_that_asks_a_service_comes_to_each_verdict(tmp_path):
    write_agent(tmp_path)
    checks = {name: text for listed in ASKING.values() for name, text in listed.items()}
    called = run_spec(tmp_path, document("services", checks, SERVICES.lstrip()))
    entries = graded(called)["services"]
    expected = {name: verdict for verdict, listed in ASKING.items() for name in listed}
    assert {name: entry["status"] for name, entry in entries.items()} == expected, entries
    assert (called.code, called.document["verdict"]) == (3, "error"), called.err
