"""Each of the eight check types of 000_66edd30c29bbac31.txt, through the real command: pass, fail, error."""

from __future__ import annotations

import pytest
from support.command_line import run_spec
from support.model_server import ModelServer, answer, says

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
body = json.dumps({"to": "finance@co", "text": "renewal"}).encode()
request = urllib.request.Request(os.environ["KEYSTONE_SERVICE_API_URL"] + "/api/messages", body,
                                 {"Content-Type": "application/json"})
urllib.request.urlopen(request).read()
"""
CUSTOM = """
import json, sys
context = json.load(sys.stdin)
{body}
"""


def check(tmp_path, text: str, *, services: bool = False, environ=None):
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(AGENT if services else AGENT.partition("body =")[0])
    document = (
        'version: 1\nid: check\ntask: {prompt: "do it"}\n'
        'agent: {type: command, command: [python3, "{{ agent.dir }}/agent.py"], dir: agent}\n'
        + (SERVICES if services else "")
        + f"invariants:\n  it: {{check: {text}}}\nscoring: {{pass_threshold: 0.5}}\n"
    )
    called = run_spec(tmp_path, document, environ=environ)
    assert not called.has_traceback
    entry = called.checks["it"]
    assert called.code == {"pass": 0, "fail": 1, "error": 3}[entry["status"]], called.err
    assert called.document["verdict"] == entry["status"]
    return entry


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("{type: command_exit, command: 'test -f out.json'}", "pass"),
        ("{type: command_exit, command: 'exit 3', exit_code: 3}", "pass"),
        ("{type: command_exit, command: 'echo told; exit 4'}", "fail"),
        ("{type: command_exit, command: 'no-such-program-here'}", "error"),
        ("{type: file_exists, path: out.json}", "pass"),
        ("{type: file_exists, path: missing.json}", "fail"),
        ("{type: file_exists, path: broken}", "fail"),
        ("{type: file_absent, path: missing.json}", "pass"),
        ("{type: file_absent, path: out.json}", "fail"),
        ('{type: file_content, path: out.json, contains: \'"status": "success"\', not_contains: error}', "pass"),
        ("{type: file_content, path: out.json, pattern: '^.status.: failure'}", "fail"),
    ],
)
def test_commands_and_files(tmp_path, text, status):
    entry = check(tmp_path, text)
    assert entry["status"] == status, entry
    if "told" in text:
        assert "told" in entry["message"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("{type: sql, service: db, query: 'SELECT count(*) FROM t', equals: 2}", "pass"),
        ("{type: sql, service: db, query: 'SELECT count(*) FROM t', equals: 3}", "fail"),
        ("{type: sql, service: db, query: 'SELECT count(*) FROM no_such_table', equals: 3}", "fail"),
        ("{type: sql, service: db, query: 'SELEC 1', equals: 1}", "error"),
        ("{type: sql, service: db, query: 'DELETE FROM t', equals: 1}", "error"),
        (
            """{type: http_mock_assertions, service: api, assertions: [
                {field: request_count, filters: {method: POST, to: finance@co}, equals: 1},
                {field: last_request.body, contains: renewal}]}""",
            "pass",
        ),
        ("{type: http_mock_assertions, service: api, assertions: [{field: request_count, equals: 2}]}", "fail"),
        ("{type: http_mock_assertions, service: api, assertions: [{field: 'requests[5].body', contains: x}]}", "fail"),
    ],
)
def test_services(tmp_path, text, status):
    entry = check(tmp_path, text, services=True)
    assert entry["status"] == status, entry


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('print(json.dumps({"passed": context["task"]["prompt"] == "do it"}))', "pass"),
        ('print(json.dumps({"passed": False, "reason": "numbers differ"}))', "fail"),
        ('print(json.dumps({"passed": "yes"}))', "error"),
        ('print("not json")', "error"),
        ("sys.exit(3)", "error"),
    ],
)
@pytest.mark.parametrize("runs_in", ["host", "sandbox"])
def test_custom(tmp_path, body, status, runs_in):
    (tmp_path / "check.py").write_text(CUSTOM.format(body=body))
    entry = check(tmp_path, f"{{type: custom, script: check.py, runs_in: {runs_in}}}")
    assert entry["status"] == status, entry


@pytest.mark.parametrize(
    ("reply", "status"),
    [(answer(0.9, "good"), "pass"), (answer(0.2, "bad"), "fail"), (says("I would rather not say"), "error")],
)
def test_llm_as_judge(tmp_path, reply, status):
    with ModelServer([reply]) as models:
        entry = check(tmp_path, "{type: llm_as_judge, criteria: 'Is it good?'}", environ=models.environ())
        assert "the agent's answer" in models.requests[0].prompt
    assert entry["status"] == status, entry
    assert entry["score"] == {"pass": 0.9, "fail": 0.2, "error": None}[status]


def test_files_have_no_error_of_their_own_but_a_broken_check_is_one(tmp_path):
    """What the file checks can't read is the agent's doing, so it fails; a path that leaves the workspace, too."""
    entry = check(tmp_path, "{type: file_content, path: broken, contains: x}")
    assert entry["status"] == "fail"


@pytest.mark.parametrize(
    ("start", "status"),
    [
        ("python3 -m http.server --bind localhost {{ port }}", "pass"),
        ("mkdir public; cd public; exec python3 -m http.server $PORT", "fail"),
        ("true", "fail"),
        ("no-such-program-here", "error"),
    ],
)
def test_http(tmp_path, start, status):
    """Our own; a server of what the agent left."""
    request = "request: {url: /out.json}, expect: {status: 200, json: {status: success}}"
    entry = check(tmp_path, f"{{type: http, start: '{start}', {request}}}")
    assert entry["status"] == status, entry
