"""Rules on files, hosts, secrets and tables: for each an agent that breaks it, and one that keeps to it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.audit import audit_lines
from support.command_line import Called, keystone
from support.hostile import POSTGRES_CLIENT
from support.images import BASE
from support.model_agents import CLIENT, REAL_KEY, behind, run, says

TOKEN = "tok-0123456789-abcdef"
API = {"name": "api", "type": "http_mock", "routes": [{"path": "/**", "response": "ok"}]}


def spec_of(script: str, forbidden: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A spec whose agent runs this with python."""
    return {
        "version": 1,
        "id": "rules",
        "task": {"prompt": "do it"},
        "agent": {"type": "command", "command": ["python3", "-c", script], **fields.pop("agent", {})},
        "forbidden": forbidden,
        "invariants": {"ran": {"check": {"type": "file_absent", "path": "never"}}},
        **fields,
    }


def judged(called: Called) -> dict[str, Any]:
    """The one rule of the one cell, once it was judged."""
    (cell,) = called.cells
    (rule,) = cell["forbidden"]
    if rule["violated"]:
        assert (called.code, cell["verdict"], cell["composite"]) == (1, "fail", 0.0)
        assert f"forbidden.{rule['rule']} was violated" in cell["reason"]
    else:
        assert (called.code, cell["verdict"], rule["details"]) == (0, "pass", ""), cell["error"]
    return rule


def test_the_line_of_a_rule_is_known_and_junit_fails_there(tmp_path: Path) -> None:
    text = json.dumps(spec_of("open('x', 'w')", {}), indent=1).replace(
        '"forbidden": {}', '"forbidden": {\n  "file_writes_outside": []\n }'
    )
    (tmp_path / "keystone.yaml").write_text(text)
    called = keystone("run", "keystone.yaml", "--output", "out", directory=tmp_path)
    line = 1 + text[: text.index('"file_writes_outside"')].count("\n")
    assert called.document["specs"][0]["positions"]["forbidden.file_writes_outside"] == line
    junit = (called.output / "junit.xml").read_text()
    assert f'line="{line}">\n    <failure message="x: added (0 bytes), seen by comparing' in junit
    assert "forbidden rule file_writes_outside was violated" in called.out + called.err


WORKSPACE = {"src/a.py": "a = 1\n", "docs/b.md": "b\n", "tool.sh": "true\n"}


def with_workspace(folder: Path) -> dict[str, Any]:
    for name, text in WORKSPACE.items():
        path = folder / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"workspace": "work"}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("open('docs/b.md', 'a').write('more')", "docs/b.md: changed (2 bytes → 6 bytes)"),
        ("open('new.txt', 'w').write('x')", "new.txt: added (1 bytes)"),
        ("os.remove('docs/b.md')", "docs/b.md: removed (2 bytes)"),
        ("os.rename('docs/b.md', 'src/b.md')", "docs/b.md: removed (2 bytes)"),
        ("os.chmod('tool.sh', 0o755)", "tool.sh: its permissions changed (0644 → 0755)"),
        ("os.symlink('/etc/passwd', 'link')", "link: added (a link)"),
        ("os.mkdir('a-message')", "a-message: added (an empty folder)"),
        ("os.mkfifo('pipe')", "pipe: added (a socket, FIFO or device)"),
        ("open('.gitignore', 'w').write('*'); open('unseen', 'w').close()", ".gitignore: added (1 bytes)"),
        ("os.makedirs('.git/hooks'); open('.git/hooks/pre-commit', 'w').write('x')", ".git/hooks/pre-commit: added"),
        ("os.makedirs('.git/x/.git'); open('.git/x/.git/index', 'w').write('x')", ".git/x/.git/index: added"),
        ("os.makedirs('src/.git'); open('src/.git/index', 'w').write('x'); open('srcs', 'w')", "srcs: added (0 bytes)"),
    ],
)
def test_a_file_outside_is_a_violation(tmp_path: Path, script: str, told: str) -> None:
    rule = {"file_writes_outside": ["src", "gen/*.txt"]}
    called = run(tmp_path, spec_of(f"import os; {script}", rule, **with_workspace(tmp_path)), {})
    found = judged(called)
    assert found["violated"]
    first = next(line for line in found["details"].splitlines() if line.startswith(told))
    assert first.endswith("seen by comparing the workspace before and after the agent")
    kinds = {line["path"]: line["kind"] for line in audit_lines(called.output, "file_change")}
    assert told.partition(":")[0] in kinds


HONEST_WRITER = """import os
open('src/a.py', 'a').write('b = 2')
os.makedirs('src/deep/er')
os.makedirs('gen')
open('gen/x.txt', 'w').write('x')
open('docs/b.md', 'r+').write('b')
open(os.environ['HOME'] + '/own', 'w').write('x')
open(os.environ['TMPDIR'] + '/own', 'w').write('x')
"""


def test_an_agent_that_writes_where_it_may_passes(tmp_path: Path) -> None:
    rule = {"file_writes_outside": ["src/", "gen/*.txt"]}
    called = run(tmp_path, spec_of(HONEST_WRITER, rule, **with_workspace(tmp_path)), {})
    assert not judged(called)["violated"]


@pytest.mark.parametrize(("script", "broken"), [("print(open('src/a.py').read())", False), ("open('x', 'w')", True)])
def test_an_empty_list_means_no_write_at_all(tmp_path: Path, script: str, broken: bool) -> None:
    called = run(tmp_path, spec_of(script, {"file_writes_outside": []}, **with_workspace(tmp_path)), {})
    assert judged(called)["violated"] is broken


GIT = """import subprocess
subprocess.run(['git', 'status'], check=True)
"""
COMMIT = """import subprocess
open('src/a.py', 'a').write('c')
subprocess.run(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qam', 'x'], check=True)
"""


@pytest.mark.parametrize(
    ("script", "allowed", "told"),
    [(GIT, ["src"], ""), (COMMIT, ["src"], ".git/"), (COMMIT, ["src", ".git"], "")],
    ids=["status", "commit", "commit that may"],
)
def test_git_s_own_files_count_but_for_what_status_writes(
    tmp_path: Path, script: str, allowed: list[str], told: str
) -> None:
    fields = with_workspace(tmp_path)
    git = "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm one && touch src/a.py"
    spec = spec_of(script, {"file_writes_outside": allowed}, setup={"commands": [git]}, **fields)
    found = judged(run(tmp_path, spec, {}))
    assert found["violated"] is bool(told)
    assert all(line.startswith((told, "and ")) for line in found["details"].splitlines())


SPELL = f"import base64, json, os, sys, time, urllib.parse, urllib.request\nsecret = {TOKEN!r}\n"
"""The agent knows the secret by itself: that it stands in the spec would make it none."""


def secret_spec(folder: Path, script: str, **fields: Any) -> tuple[dict[str, Any], dict[str, str]]:
    (folder / "agent").mkdir(exist_ok=True)
    (folder / "agent" / "agent.py").write_text(SPELL + script)
    agent = {"command": ["python3", "{{ agent.dir }}/agent.py"], "dir": "agent"}
    spec = spec_of("", {"secrets_in_logs": "deny"}, secrets=["TOKEN"], agent=agent, **fields)
    return spec, {"TOKEN": TOKEN}


CALL = "urllib.request.urlopen(urllib.request.Request(os.environ['KEYSTONE_SERVICE_API_URL'] + {}))"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("print('a\\nb', secret)", "stdout, line 2"),
        ("print('it is', secret, file=sys.stderr)", "stderr, line 1"),
        ("for one in secret: print(one)", "stdout, line 21"),
        ("for one in secret: os.write(1, one.encode()); time.sleep(0.001)", "stdout, line 1"),
        ("os.write(1, secret[:9].encode()); os.write(2, secret[9:].encode())", "stdout and stderr together"),
        ("os.write(2, secret[:9].encode()); os.write(1, secret[9:].encode())", "stderr and stdout together"),
        ("print('x' * (3 << 20) + '\\n' + secret + 'y' * (3 << 20))", "stdout, line 2"),
        ("print(base64.encodebytes(b'ab' + secret.encode() * 9).decode())", "stdout, line 1"),
        ("print(secret.encode().hex())", "stdout, line 1"),
        ("print(''.join(f'%{ord(one):02x}' for one in secret))", "stdout, line 1"),
        ("open('a.txt', 'w').write('\\n\\n' + secret)", "a.txt, line 3"),
        ("open('a.bin', 'wb').write(bytes(5 << 20) + secret.encode())", "a.bin, line 1"),
        ("open(secret, 'w')", "the name of a path whose name holds a secret"),
        ("os.makedirs('deep'); open('deep/' + secret[:7] + '\\n' + secret[7:], 'w')", "the name of a path in deep"),
        ("os.symlink(secret, 'link')", "the target of the link link"),
        (CALL.format("'/?q=' + secret"), "the URL of request 1 to api"),
        (
            CALL.format("'/' + secret[:5] + '%' + secret[5:6].encode().hex() + secret[6:]"),
            "the URL of request 1 to api",
        ),
        (CALL.format("'/', json.dumps({'a': secret}).encode()"), "the body of request 1 to api"),
        ("sys.stdout.write('x' * (65 << 20))", "stdout has 68,157,440 bytes, of which at most 67,108,864"),
    ],
)
def test_a_secret_that_gets_out_is_a_violation(tmp_path: Path, script: str, told: str) -> None:
    spec, environ = secret_spec(tmp_path, script, services=[API])
    called = run(tmp_path, spec, environ)
    found = judged(called)
    assert found["violated"]
    assert told in found["details"]
    assert not [path for path in called.output.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


LOGS_IN = """
request = urllib.request.Request(os.environ['KEYSTONE_SERVICE_API_URL'] + '/')
request.add_header('Authorization', 'Bearer ' + secret)
request.add_header('Cookie', 'token=' + secret)
print(urllib.request.urlopen(request).read(), secret[:7], secret[7:])
open(os.environ['HOME'] + '/.netrc', 'w').write(secret)
open('settings', 'a').write('more')
open('kept', 'w').write('other')
""".replace("secret[:7], secret[7:]", "len(secret)")


def test_an_agent_that_logs_in_passes(tmp_path: Path) -> None:
    """The secret stands in a file of the author's, which it changes, and in one that it replaces."""
    files = [
        {"path": "settings", "content": "key: {{ secrets.TOKEN }}\n"},
        {"path": "kept", "content": "{{ secrets.TOKEN }}"},
    ]
    spec, environ = secret_spec(tmp_path, LOGS_IN, services=[API], setup={"files": files})
    assert not judged(run(tmp_path, spec, environ))["violated"]


def test_another_copy_of_a_secret_that_stood_there_counts(tmp_path: Path) -> None:
    files = [{"path": "settings", "content": "key: {{ secrets.TOKEN }}\n"}]
    spec, environ = secret_spec(tmp_path, "open('settings', 'a').write(secret)", setup={"files": files})
    assert "settings, line 1" in judged(run(tmp_path, spec, environ))["details"]


def test_what_stands_in_the_spec_or_is_short_is_not_looked_for_and_that_is_said(tmp_path: Path) -> None:
    named = [{"name": "DEMO", "from": "static://demo-password"}, "SHORT"]
    spec = spec_of("print('demo-password', 'abc' + '1234')", {"secrets_in_logs": "deny"}, secrets=named)
    called = run(tmp_path, spec, {"SHORT": "abc1234"})
    assert not judged(called)["violated"]
    (cell,) = called.cells
    assert (
        "forbidden.secrets_in_logs does not look for the secret SHORT: fewer than 8 characters;"
        " the secret DEMO: in the spec for all to read"
    ) in cell["notices"]


@pytest.mark.parametrize("key", [TOKEN, REAL_KEY])
def test_a_secret_that_is_sent_to_a_model_is_a_violation(tmp_path: Path, key: str) -> None:
    script = (
        f"{CLIENT}\nsecret = {key!r}\nask([user('hello')])\nask([user(json.dumps({{'a': secret}}))])\nprint('done')"
    )
    spec, environ = secret_spec(tmp_path, script, gateway={})
    with behind(says("one"), says("two")) as (_, variables):
        found = judged(run(tmp_path, spec, {**environ, **variables}))
    assert found["violated"]
    what = "the secret TOKEN" if key == TOKEN else "the real key 1 of the gateway"
    assert found["details"] == f"{what} is in request 2 to a model, seen by the gateway"


def test_what_a_model_says_and_a_client_s_key_are_no_leak(tmp_path: Path) -> None:
    spec, environ = secret_spec(tmp_path, f"{CLIENT}\nask([user('hello')])\nprint('done')", gateway={})
    with behind(says(TOKEN)) as (_, variables):
        assert not judged(run(tmp_path, spec, {**environ, **variables}))["violated"]


def test_the_value_is_told_nowhere(tmp_path: Path) -> None:
    script = (
        "print(secret); print(base64.b64encode(secret.encode()).decode()); open(secret + '.txt', 'w').write(secret)"
    )
    spec, environ = secret_spec(tmp_path, script)
    called = run(tmp_path, spec, environ, "--format", "json")
    assert judged(called)["violated"]
    written = "".join(path.read_text(errors="replace") for path in called.output.rglob("*") if path.is_file())
    for shape in (TOKEN, base64.b64encode(TOKEN.encode()).decode()):
        assert shape not in written + called.out + called.err


@pytest.fixture
def site() -> Iterator[int]:
    """The port of a web server of this machine, which a proxy reaches as `localhost`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


REACH = """
import os, socket, sys, urllib.error, urllib.request

def through(request, wait=True):
    "The status that the proxy answers with, where we don't hang up at once."
    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    with socket.create_connection((host, int(port)), 30) as proxy:
        proxy.sendall(f"{request} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
        return proxy.recv(99).split()[1].decode() if wait else ""

def ask(url):
    try:
        return urllib.request.urlopen(url, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return 0

def service(name):
    return ask(os.environ[f"KEYSTONE_SERVICE_{name}_URL"] + "/x")
"""
OTHER = {"name": "other", "type": "http_mock"}
NOTHING = {"default": "deny", "allow": []}


@pytest.mark.docker
@pytest.mark.parametrize(
    ("script", "rule", "egress", "told"),
    [
        (
            "assert (service('API'), through('GET http://localhost:PORT/')) == (200, '200')",
            ["api", "localhost:PORT"],
            {},
            "",
        ),
        ("assert through('CONNECT localhost:PORT') == '200'", ["local*:PORT"], {"allow": ["localhost:PORT"]}, ""),
        ("assert service('API') == 200", [], {}, "GET http://api:"),
        ("assert service('API') == service('OTHER') == 200", ["api"], {}, "GET http://other:"),
        ("assert ask('http://evil.example/x') == 403", ["api"], {}, "GET to evil.example:80 at "),
        (
            "assert through('CONNECT evil.example:443') == '403'",
            ["*.good.example"],
            {},
            "CONNECT to evil.example:443 at ",
        ),
        ("through('CONNECT evil.example:443', wait=False)", ["api"], NOTHING, "CONNECT to evil.example:443 at "),
        ("assert through('CONNECT localhost:22') == '403'", ["localhost:PORT"], {}, "CONNECT to localhost:22 at "),
        (
            "assert through('GET http://localhost:PORT/') == '200'",
            [],
            {"default": "deny", "allow": ["localhost:PORT"]},
            "GET to localhost:PORT at ",
        ),
        (
            "assert through('GET http://u@localhost:PORT/') == '400'",
            ["localhost:PORT"],
            {},
            "GET to http://u@localhost",
        ),
        ("assert ask('http://1.1.1.1/') == 403", ["api"], {}, "GET to 1.1.1.1:80 at "),
    ],
)
def test_what_is_asked_for_outside_is_a_violation(
    tmp_path: Path, image: Any, site: int, script: str, rule: list[str], egress: dict[str, Any], told: str
) -> None:
    image(BASE)
    script, told = script.replace("PORT", str(site)), told.replace("PORT", str(site))
    fields = json.loads(json.dumps({"http_except": rule, "egress": egress}).replace("PORT", str(site)))
    spec = spec_of(
        REACH + script,
        {"http_except": fields["http_except"]},
        base=BASE,
        services=[API, OTHER],
        network={"egress": fields["egress"]},
        agent={"must_exit_zero": True},
    )
    called = run(tmp_path, spec, {})
    found = judged(called)
    assert found["violated"] is bool(told), found
    assert found["details"].startswith(told)
    assert found["details"].count("\n") == 0
    assert called.cells[0]["agent"]["exit_code"] == 0, called.cells[0]["agent"]
    if " at " in told and "http://" not in told:
        done = "let through by" if egress.get("allow") else "refused by"
        assert found["details"].endswith(f"{done} the egress proxy")
    assert all(set(line) >= {"host", "port", "allowed"} for line in audit_lines(called.output, "connect"))


@pytest.mark.docker
def test_models_are_no_host(tmp_path: Path, image: Any) -> None:
    """The gateway's address counts for nobody, also where a client sends all it has through the proxy."""
    image(BASE)
    script = f"{CLIENT}{REACH.replace('def ask', 'def visit')}\nprint('done', ask([user('hello')])[0])\n"
    script += "print(through('GET ' + os.environ['ANTHROPIC_BASE_URL']))"
    spec = spec_of(script, {"http_except": []}, base=BASE, gateway={}, agent={"must_exit_zero": True})
    with behind(says("hello")) as (_, environ):
        called = run(tmp_path, spec, environ)
    assert not judged(called)["violated"]
    assert called.cells[0]["agent"]["output"] == "done 200\n403\n"


@pytest.mark.docker
def test_what_checks_and_setup_reach_is_not_the_agent_s(tmp_path: Path, image: Any) -> None:
    image(BASE)
    reach = REACH + "print(through('CONNECT evil.example:443'), service('API'))"
    command = ["python3", "-c", reach]
    spec = spec_of(
        "print('nothing')",
        {"http_except": []},
        base=BASE,
        services=[API],
        setup={"files": [{"path": "reach.py", "content": reach}], "commands": ["python3 reach.py || true"]},
        invariants={"reached": {"check": {"type": "command_exit", "command": command}}},
    )
    assert not judged(run(tmp_path, spec, {}))["violated"]


SEED_SCRIPT = Path(__file__).parent.parent / "data" / "seed_checks" / "validate_api_responses.py.txt"


@pytest.mark.parametrize("audit", [{}, {"http_calls": True, "file_changes": True}])
def test_the_source_s_script_reads_an_audit_log_with_all_else_in_it(tmp_path: Path, audit: dict[str, bool]) -> None:
    """`validate_api_responses.py` as it is, with the gateway on, and with rules."""
    script = f"{CLIENT}\nask([user('hello')])\nopen('made', 'w')\nurllib.request.urlopen(MOCK + '/x')\nprint('done')"
    script = script.replace("MOCK", "os.environ['KEYSTONE_SERVICE_API_URL']")
    answer = {"name": "api", "type": "http_mock", "routes": [{"path": "/x", "json": {"id": 1, "status": "ok"}}]}
    (tmp_path / "validate_api_responses.py").write_text(SEED_SCRIPT.read_text())
    valid = {"check": {"type": "custom", "script": "validate_api_responses.py"}}
    rules = {"secrets_in_logs": "deny", "file_writes_outside": ["made"], "tools": ["execute"]}
    spec = spec_of(script, rules, audit=audit, services=[answer], gateway={}, invariants={"valid": valid})
    with behind(says("hello")) as (_, environ):
        called = run(tmp_path, spec, environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["invariants"][0]["message"]) == (0, "pass", "1/1 responses valid")
    assert [one["rule"] for one in cell["forbidden"]] == ["secrets_in_logs", "file_writes_outside", "tools"]
    assert {line["type"] for line in audit_lines(called.output)} == {"http_call", "model_request", "file_change"}


def test_audit_alone_switches_collection_on(tmp_path: Path) -> None:
    script = "import os; os.remove('docs/b.md'); open('new', 'w').write('abc'); os.chmod('tool.sh', 0o700)"
    called = run(tmp_path, spec_of(script, {}, audit={"file_changes": True}, **with_workspace(tmp_path)), {})
    assert called.code == 0
    assert audit_lines(called.output, "file_change") == [
        {"path": "docs/b.md", "kind": "removed", "entry": "file", "size_before": 2, "size_after": None},
        {"path": "new", "kind": "added", "entry": "file", "size_before": None, "size_after": 3},
        {"path": "tool.sh", "kind": "mode", "entry": "file", "size_before": 5, "size_after": 5},
    ]


PROCESSES = """
import os, subprocess, sys, time
subprocess.run([sys.executable, "-c", "import time; time.sleep(0.5)", "first", os.environ["TOKEN"]])
child = subprocess.Popen(["sleep", "30"])
time.sleep(0.3)
subprocess.Popen(["sh", "-c", "sleep 0.4; exit 7"], start_new_session=True)
os.execv(sys.executable, [sys.executable, "-c", "import sys, time; time.sleep(0.8); sys.exit(3)", "another"])
"""


def test_processes_are_written_down_as_they_were_seen(tmp_path: Path) -> None:
    spec = spec_of(PROCESSES, {}, audit={"processes": True}, secrets=["TOKEN"])
    spec["agent"]["env"] = {"TOKEN": "{{ secrets.TOKEN }}"}
    called = run(tmp_path, spec, {"TOKEN": TOKEN})
    assert called.code == 0, called.err
    found = audit_lines(called.output, "process")
    (own,) = [one for one in found if one["how_known"] == "started"]
    assert (own["argv"], own["exit"]) == (["python3", "-c", PROCESSES], 3)
    assert own["start"] < own["end"]
    by_word = {one["argv"][-1] if one["argv"][-1] != "***" else one["argv"][-2]: one for one in found}
    assert by_word["first"]["argv"][-1] == "***"
    assert by_word["first"]["start"] < by_word["first"]["end"]
    assert by_word["another"]["exit"] == 3
    assert (by_word["30"]["argv"], by_word["30"]["exit"]) == (["sleep", "30"], -9)
    assert by_word["sleep 0.4; exit 7"]["argv"][:2] == ["sh", "-c"]


def test_without_audit_processes_there_are_none(tmp_path: Path) -> None:
    called = run(tmp_path, spec_of("import time; time.sleep(0.1)", {}), {})
    assert audit_lines(called.output, "process") == []


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
@pytest.mark.parametrize(
    ("statements", "allowed", "told"),
    [
        (["INSERT INTO orders (what) VALUES ('eggs')", "UPDATE orders SET what = 'x'"], ["orders"], ""),
        (["INSERT INTO orders (what) VALUES ('eggs')"], ["public.*"], ""),
        (["SELECT * FROM audit"], [], ""),
        (["BEGIN", "INSERT INTO audit VALUES ('x')", "ROLLBACK"], ["orders"], ""),
        (["INSERT INTO audit VALUES ('a'), ('b')"], ["orders"], "db: table public.audit: insert of 2 rows at "),
        (
            ["INSERT INTO audit VALUES ('a')", "DELETE FROM audit"],
            ["orders"],
            "db: table public.audit: insert of 1 row at ",
        ),
        (["DELETE FROM orders"], [], "db: table public.orders: delete of 2 rows at "),
        (["TRUNCATE orders"], ["audit"], "db: table public.orders: truncate at "),
        (["CREATE TABLE mine (what text)"], ["orders"], "db: table public.mine: create at "),
        (["DROP TABLE audit"], ["orders"], "db: table public.audit: drop at "),
        (["CREATE TABLE mine (what text)", "DROP TABLE mine"], ["orders"], "db: table public.mine: create at "),
        (["SELECT lo_from_bytea(0, 'kept')"], ["orders"], "db: large object pg_catalog.pg_largeobject: "),
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
        (["UPDATE orders SET what = 'TOKEN'", "UPDATE orders SET what = ''"], "rows written into db: public.orders"),
        (['CREATE TABLE "x TOKEN" (what text)'], "a name in db"),
        (["INSERT INTO audit SELECT encode('TOKEN', 'hex')"], "rows written into db: public.audit"),
        (["SELECT 'TOKEN'"], ""),
        (["SELECT set_config('my.setting', 'TOKEN', false)"], ""),
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


@pytest.mark.docker
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("open('src/a.py', 'a').write('b = 2')", []),
        ("open('src/a.py', 'a').write('b'); open('docs/b.md', 'a').write('b')", ["file_writes_outside"]),
        ("open('.git/hooks/pre-commit', 'w').write('x')", ["file_writes_outside"]),
        ("open('src/a.py', 'a').write(os.environ['TOKEN'])", ["secrets_in_logs"]),
        ("os.mkfifo('pipe'); os.write(2, os.environ['TOKEN'].encode())", ["secrets_in_logs", "file_writes_outside"]),
    ],
)
def test_in_a_container_too(tmp_path: Path, image: Any, script: str, told: list[str]) -> None:
    image(BASE)
    fields = with_workspace(tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path / "work")], check=True)
    (tmp_path / "work" / ".git" / "hooks").mkdir(exist_ok=True)
    rules = {"file_writes_outside": ["src"], "secrets_in_logs": "deny"}
    agent = {"env": {"TOKEN": "{{ secrets.TOKEN }}"}}
    setup = {"commands": ["mkdir -p .git/hooks"]}
    spec = spec_of(f"import os; {script}", rules, base=BASE, agent=agent, secrets=["TOKEN"], setup=setup, **fields)
    called = run(tmp_path, spec, {"TOKEN": TOKEN})
    (cell,) = called.cells
    assert [rule["rule"] for rule in cell["forbidden"] if rule["violated"]] == told, cell
    assert called.code == (1 if told else 0)
