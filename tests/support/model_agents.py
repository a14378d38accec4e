"""Agents that ask models: scripts of a few lines, with a client that keeps to what the environment tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.command_line import Called, keystone
from support.scripted_provider import Says, ScriptedProvider, document, provider

REAL_KEY = "sk-ant-0123456789-real"
MODEL = "claude-opus-4-5"
CLIENT = '''
import json, os, sys, urllib.error, urllib.request

def ask(messages, tools=("Bash",), key=None, base=None, **more):
    """(status, document) of one request to the Messages API."""
    body = {"model": "claude-opus-4-5", "max_tokens": 100, "messages": messages, **more}
    if tools:
        body["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
    base = os.environ["ANTHROPIC_BASE_URL"] if base is None else base
    key = os.environ["ANTHROPIC_API_KEY"] if key is None else key
    headers = {"x-api-key": key, "content-type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(base + "/v1/messages", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")

def user(content):
    return {"role": "user", "content": content}

def result(call, text):
    return user([{"type": "tool_result", "tool_use_id": call, "content": text}])
'''


def calls(*called: tuple[str, str, dict[str, Any]], tokens: tuple[int, int] = (1000, 200)) -> Says:
    """An answer that asks for tools: id, name, input of each."""
    content = [{"type": "tool_use", "id": call, "name": name, "input": given} for call, name, given in called]
    return _message(content, "tool_use", tokens)


def says(text: str, tokens: tuple[int, int] = (10, 2)) -> Says:
    """An answer that ends the turn."""
    return _message([{"type": "text", "text": text}], "end_turn", tokens)


def fails(status: int) -> Says:
    """An error of the provider's own."""
    return document({"type": "error", "error": {"type": "overloaded_error", "message": "too busy"}}, status)


def _message(content: list[dict[str, Any]], stop: str, tokens: tuple[int, int]) -> Says:
    usage = {"input_tokens": tokens[0], "output_tokens": tokens[1]}
    return document({"type": "message", "model": MODEL, "content": content, "stop_reason": stop, "usage": usage})


def spec_of(script: str, **fields: Any) -> dict[str, Any]:
    """A spec whose agent runs this after CLIENT."""
    agent = {"type": "command", "command": ["python3", "-c", CLIENT + script], **fields.pop("agent", {})}
    return {
        "version": 1,
        "id": "models",
        "task": {"prompt": "do it"},
        "agent": agent,
        "gateway": {},
        "invariants": {"said": {"check": {"type": "regex", "pattern": "done"}}},
        **fields,
    }


@contextmanager
def behind(*answers: Says) -> Iterator[tuple[ScriptedProvider, dict[str, str]]]:
    """A provider, and what our own environment says of it."""
    with provider(*answers) as scripted:
        yield scripted, {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": scripted.url}


def run(folder: Path, spec: Mapping[str, Any], environ: dict[str, str], *words: str) -> Called:
    """`keystone run` on this spec."""
    (folder / "keystone.yaml").write_text(json.dumps(spec))
    return keystone("run", "keystone.yaml", "--output", "out", *words, directory=folder, environ=environ)


def trace_events(called: Called) -> list[dict[str, Any]]:
    """`trace.jsonl` of the only cell."""
    (path,) = called.output.glob("cells/*/trace.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
