"""Agents that are containers, or elsewhere: when they run, what is seen of them, and whose fault it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.command_line import Called, keystone
from support.images import PYTHON
from support.scripted_provider import document, provider

pytestmark = [pytest.mark.docker, pytest.mark.slow]

BASE = "keystone-test-base:bookworm"
PROGRAM = """
import json, os, time, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

def get(url):
    with urllib.request.urlopen(url, timeout=20) as found:
        return found.read().decode()

class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        data = json.dumps({"reply": self.reply()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def reply(self):
        %s

%s
HTTPServer(("0.0.0.0", 8000), Agent).serve_forever()
"""
ASKS = """
        messages = [{"role": "user", "content": "go"}]
        body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages})
        headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}
        url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
            return json.load(answer)["content"][0]["name"]
"""
ANSWER = {
    "type": "message",
    "model": "claude-opus-4-5",
    "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 10, "output_tokens": 2},
}
ENDS = """
import socket
with socket.create_server(("0.0.0.0", 8000)) as once:
    once.accept()
time.sleep(0.3)
os._exit(5)
"""
"""It listens until that was seen, and is still there when its first request is refused."""
ENDS_LATER = """
def finish(self):
    BaseHTTPRequestHandler.finish(self)
    if hasattr(self, "headers"):
        os._exit(3)

Agent.finish = finish
"""
"""It ends with its first answer; a connection without a request, as of a look at its port, is none."""
TALKS = """
def talk(self):
    asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    if asked["said"] == "fail":
        return self.send_error(500, "no more")
    self.send_response(200)
    self.send_header("Content-Type", "text/event-stream")
    self.end_headers()
    for event in ({"id": "c-1"}, {"reply": f"{asked['said']} in {asked['id']}"}, {"reply": "!"}):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")

Agent.do_POST = talk
"""
KEY = "sk-made-up-0123456789"
SHOP = {"name": "shop", "type": "http_mock", "record": True}
NOTHING = {"there": {"check": {"type": "file_absent", "path": "x"}}}


def bot(reply: str = 'return "fine"', start: str = "", **more: Any) -> dict[str, Any]:
    return {
        "name": "bot",
        "image": PYTHON,
        "ports": [8000],
        "env": {"SHOP": "{{ services.shop.url }}"},
        "command": ["python3", "-c", PROGRAM % (reply.strip("\n").strip(), start)],
        **more,
    }


def spec(name: str, service: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    agent = {"type": "http", "url": "{{ services.bot.url }}/", "body": {"said": "{{ turn }}"}, "output_path": "reply"}
    services = [SHOP, *([service] if service else [])]
    document = {"version": 1, "id": name, "task": {"prompt": "do it"}, "agent": agent, "services": services}
    return {**document, "invariants": NOTHING, **more}


def said(text: str) -> dict[str, Any]:
    return {"said": {"check": {"type": "exact", "expected": text}}}


GONE = """
import socket
try:
    socket.gethostbyname("bot")
except OSError:
    raise SystemExit(0)
raise SystemExit(1)
"""
ELSEWHERE = {"type": "http", "url": "http://denied.example.com/", "output_path": "reply"}
TALK = {
    "task": {"prompt": "begin", "turns": ["go on", "fail", "never said"]},
    "agent": {
        "type": "http",
        "url": "{{ services.bot.url }}/",
        "body": {"said": "{{ turn }}", "id": "{{ conversation }}"},
        "output_path": "reply",
        "conversation_path": "id",
    },
}
SPECS = (
    spec("talks", bot(start=TALKS), **TALK),
    spec("talks-in-image", bot(start=TALKS), base=BASE, **TALK),
    spec("talks-or-fails", bot(start=TALKS), **{**TALK, "agent": {**TALK["agent"], "must_exit_zero": True}}),
    spec("asks", bot(ASKS), gateway={}, invariants=said("Bash"), forbidden={"tools": ["Nothing"]}),
    spec("forbidden-tool", bot(ASKS), gateway={}, forbidden={"tools": ["Bash"]}, base=BASE),
    spec(
        "gone",
        bot(),
        base=BASE,
        invariants={
            **said("fine"),
            "gone": {"check": {"type": "command_exit", "command": ["python3", "-c", GONE]}},
        },
    ),
    spec("busy-at-start", bot(start='get(os.environ["SHOP"])'), base=BASE, forbidden={"http_except": []}),
    spec("quiet-at-start", bot(), base=BASE, forbidden={"http_except": []}),
    spec("crashes", bot("os._exit(7)")),
    spec("ends-at-once", bot(start=ENDS)),
    spec(
        "gone-later",
        bot(start=ENDS_LATER),
        base=BASE,
        task={"prompt": "do it", "turns": ["again"]},
    ),
    spec("greedy", bot("return 'x' * len(bytearray(os.urandom(1 << 20) * 1024))"), resources={"memory": "128Mi"}),
    spec(
        "leaks",
        bot('print(os.environ["WORD"], flush=True); return "fine"', env={"WORD": "{{ secrets.WORD }}"}),
        secrets=[{"name": "WORD", "from": "generated"}],
        forbidden={"secrets_in_logs": "deny"},
    ),
    spec(
        "leaks-and-floods",
        bot(
            'print(os.environ["WORD"]); [print("y" * 1000) for _ in range(12_000)]; return "fine"',
            env={"WORD": "{{ secrets.WORD }}", "PYTHONUNBUFFERED": "1"},
        ),
        secrets=[{"name": "WORD", "from": "generated"}],
        forbidden={"secrets_in_logs": "deny"},
    ),
    spec(
        "floods",
        bot('[print("y" * 1000) for _ in range(12_000)]; return "fine"'),
        invariants=said("fine"),
        forbidden={"secrets_in_logs": "deny"},
    ),
    spec(
        "trusts",
        bot("return get('https://api.example.com/who')"),
        base=BASE,
        network={"dns_overrides": {"api.example.com": "shop"}, "egress": {"default": "deny"}},
        invariants={
            **said("{}"),
            "asked": {
                "check": {
                    "type": "http_mock_assertions",
                    "service": "shop",
                    "assertions": [{"field": "last_request.path", "equals": "/who"}],
                }
            },
        },
    ),
    spec("never-listens", bot(start="time.sleep(600)", ready_timeout="3s")),
    spec("denied", None, agent=ELSEWHERE, base=BASE, network={"egress": {"default": "deny", "allow": ["example.org"]}}),
    spec(
        "unannounced",
        bot(),
        agent={**ELSEWHERE, "url": "http://{{ secrets.HOST }}:8000/"},
        base=BASE,
        secrets=[{"name": "HOST", "from": "static://bot"}],
    ),
    spec("unknown", None, agent={**ELSEWHERE, "url": "http://agent.invalid/"}, base=BASE),
)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory, image: Any) -> dict[str, dict[str, Any]]:
    image(PYTHON)
    image(BASE)

    def call(directory: Path) -> Called:
        for one in SPECS:
            (directory / f"{one['id']}.keystone.yaml").write_text(json.dumps(one))
        with provider(document(ANSWER)) as models:
            environ = {"ANTHROPIC_BASE_URL": models.url, "ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
            return keystone("run", ".", "--output", "out", directory=directory, environ=environ)

    called = called_once(tmp_path_factory, "http-agents", call)
    assert called.code == 3, called.out + called.err
    return {one["id"]: cell for one in called.document["specs"] for cell in one["cells"]}


def test_what_a_container_asks_models_passes_the_gateway(cells: dict[str, dict[str, Any]]) -> None:
    assert cells["asks"]["verdict"] == "pass", cells["asks"]
    assert cells["asks"]["trace"]["source"] == "gateway"


def test_rules_on_tools_hold_for_it(cells: dict[str, dict[str, Any]]) -> None:
    (rule,) = cells["forbidden-tool"]["forbidden"]
    assert (rule["rule"], rule["violated"], cells["forbidden-tool"]["verdict"]) == ("tools", True, "fail")


def test_it_is_gone_before_the_first_check(cells: dict[str, dict[str, Any]]) -> None:
    assert cells["gone"]["verdict"] == "pass", cells["gone"]


def test_what_it_does_as_it_starts_is_its_own_doing(cells: dict[str, dict[str, Any]]) -> None:
    verdicts = {name: cells[name]["verdict"] for name in ("busy-at-start", "quiet-at-start")}
    assert verdicts == {"busy-at-start": "fail", "quiet-at-start": "pass"}


def test_one_that_crashes_is_an_agent_that_failed(cells: dict[str, dict[str, Any]]) -> None:
    cell = cells["crashes"]
    assert (cell["verdict"], cell["agent"]["exit_code"]) == ("pass", 1)
    assert "exit code 7" in json.dumps(cell)


def test_one_that_is_gone_in_a_later_turn_is_an_agent_that_failed(cells: dict[str, dict[str, Any]]) -> None:
    cell = cells["gone-later"]
    assert (cell["verdict"], cell["agent"]["exit_code"], cell["agent"]["output"]) == ("pass", 1, "fine"), cell
    assert "the agent is gone" in json.dumps(cell)


@pytest.mark.parametrize(
    ("name", "verdict"), [("talks", "pass"), ("talks-in-image", "pass"), ("talks-or-fails", "fail")]
)
def test_a_turn_that_fails_ends_its_conversation(cells: dict[str, dict[str, Any]], name: str, verdict: str) -> None:
    """Grading goes on. Streams are joined, and the agent is told which conversation goes on."""
    cell = cells[name]
    assert (cell["verdict"], cell["agent"]["exit_code"]) == (verdict, 1), cell
    assert cell["agent"]["output"] == "begin in None!\ngo on in c-1!"
    assert "the agent answered 500" in cell["agent"]["note"]


def test_the_limits_of_resources_are_its_own(cells: dict[str, dict[str, Any]]) -> None:
    cell = cells["greedy"]
    assert (cell["verdict"], cell["agent"]["exit_code"]) == ("pass", 1)
    assert "out of memory" in json.dumps(cell)


def test_what_its_container_prints_is_the_agent_s(cells: dict[str, dict[str, Any]]) -> None:
    (rule,) = cells["leaks"]["forbidden"]
    assert (rule["rule"], rule["violated"]) == ("secrets_in_logs", True)
    assert "POST / HTTP/1.1" in cells["leaks"]["agent"]["stderr"]


def test_a_flood_hides_nothing_that_it_printed(cells: dict[str, dict[str, Any]]) -> None:
    (rule,) = cells["leaks-and-floods"]["forbidden"]
    assert (rule["rule"], rule["violated"]) == ("secrets_in_logs", True), cells["leaks-and-floods"]
    assert cells["floods"]["verdict"] == "pass", cells["floods"]


def test_its_container_trusts_a_mock_that_stands_in_for_a_host(cells: dict[str, dict[str, Any]]) -> None:
    assert cells["trusts"]["verdict"] == "pass", cells["trusts"]


def test_one_that_ends_before_it_is_asked_is_an_agent_that_failed(cells: dict[str, dict[str, Any]]) -> None:
    cell = cells["ends-at-once"]
    assert (cell["verdict"], cell["agent"]["exit_code"]) == ("pass", 1), cell
    assert "the agent is gone" in json.dumps(cell)
    assert "exit code 5" in json.dumps(cell)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("never-listens", "port 8000 does not accept connections"),
        ("denied", "The network policy denies denied.example.com:80"),
        ("unknown", "can't be resolved"),
        ("unannounced", "leads to the service bot, and does not say so"),
    ],
)
def test_what_is_nobody_s_fault_is_an_error(cells: dict[str, dict[str, Any]], name: str, why: str) -> None:
    assert cells[name]["verdict"] == "error"
    assert why in json.dumps(cells[name])
