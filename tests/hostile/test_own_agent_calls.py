"""Models that call the tools of Keystone's own agent for what is not theirs: the loop runs outside the sandbox, and
must do nothing there that a call asks for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import Called, keystone
from support.model_agents import REAL_KEY
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import Says, document, provider

pytestmark = pytest.mark.sandbox

HIDDEN = "the-hidden-answer-is-6174"
DONE = Turn(text="done")


def play(folder: Path, *turns: Turn, agent: Mapping[str, Any] | None = None, **fields: Any) -> tuple[Called, str]:
    """The run, and all that the model was asked."""
    model = ScriptedModel(turns, offers_tools=False)
    return _play(folder, model.answer, agent or {}, fields, model)


def _play(folder: Path, answer: Any, agent: Mapping[str, Any], fields: Any, model: ScriptedModel) -> tuple[Called, str]:
    (folder / "hidden").mkdir()
    (folder / "hidden" / "check.sh").write_text(f"#!/bin/sh\n# {HIDDEN}\ntest -f made.txt\n")
    spec = {
        "version": 1,
        "id": "own",
        "task": {"prompt": "do it"},
        "agent": {"type": "openai", "model": "gpt-5", "timeout": "60s", **agent},
        "invariants": {"made": {"check": {"type": "file_content", "path": "made.txt", "pattern": "m[ae]"}}},
        **fields,
    }
    (folder / "keystone.yaml").write_text(json.dumps(spec))
    with provider(answer) as behind:
        environ = {"OPENAI_API_KEY": REAL_KEY, "OPENAI_BASE_URL": f"{behind.url}/v1"}
        called = keystone("run", "--output", "out", directory=folder, environ=environ)
        asked = "\n".join(one.body.decode() for one in behind.asked)
    return called, asked


MADE = ("write", {"path": "made.txt", "content": "made"})


@hostile(
    "own agent", "calls its tools for our files, keys and processes", held_by="each call is a process of the sandbox"
)
def test_what_is_ours_is_in_no_result(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o777)
    victim.chmod(0o777)
    reads = ["/etc/shadow", tmp_path / "keystone.yaml", tmp_path / "hidden/check.sh", f"/proc/{os.getpid()}/environ",
             "../../../../private", "hidden/check.sh", "/proc/self/root/etc/shadow"]  # fmt: skip
    look = f"cat {tmp_path}/hidden/* /proc/[0-9]*/environ 2>/dev/null; env; find / -name check.sh 2>/dev/null"
    plant = f"ln -s {tmp_path}/hidden/check.sh link; ln -s {victim} way; ln -s /etc/shadow shadow"
    called, asked = play(
        tmp_path,
        Turn(calls=[("read", {"path": str(path)}) for path in reads]),
        Turn(calls=[("bash", {"command": look}), ("bash", {"command": plant})]),
        Turn(calls=[("read", {"path": "link"}), ("read", {"path": "shadow"})]),
        Turn(calls=[("write", {"path": f"{victim}/a", "content": "x"}), ("write", {"path": "way/b", "content": "x"})]),
        Turn(calls=[("edit", {"path": "link", "old_text": "test", "new_text": "true"}), MADE]),
        DONE,
    )
    assert called.code == 0, called.out + called.err
    results = [
        one["content"] for line in asked.splitlines() for one in json.loads(line)["messages"] if one["role"] == "tool"
    ]
    assert len(results) > 20
    said = "\n".join(results)
    assert HIDDEN not in said
    assert "root:" not in said
    assert REAL_KEY not in said
    assert list(victim.iterdir()) == []
    assert HIDDEN in (tmp_path / "hidden" / "check.sh").read_text()


@honest("own agent", "calls its tools for our files, keys and processes")
def test_its_own_files_are_read_written_and_linked(tmp_path: Path) -> None:
    called, asked = play(
        tmp_path,
        Turn(calls=[MADE, ("bash", {"command": "mkdir -p a && ln -s ../made.txt a/link && ln -s $HOME home"})]),
        Turn(
            calls=[
                ("edit", {"path": "a/link", "old_text": "made", "new_text": "mended"}),
                ("read", {"path": "made.txt"}),
            ]
        ),
        Turn(calls=[("write", {"path": "home/note", "content": "kept"}), ("bash", {"command": "cat ~/note"})]),
        DONE,
    )
    assert called.code == 0, called.out + called.err
    results = [one["content"] for one in json.loads(asked.splitlines()[-1])["messages"] if one["role"] == "tool"]
    assert results[2:] == ["a/link was changed", "mended", "home/note was written", "kept"]


def _raw(*calls: tuple[str, str]) -> Says:
    """A completion with calls of these names and arguments, as they are."""
    asked = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": asked}
    return document({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1}})


GARBAGE = [
    ("bash", '{"command": "echo '),
    ("bash", "[" * 20_000),
    ("bash", '{"command": "x\\u0000y"}'),
    ("read", '{"path": "\\ud800"}'),
    ("write", json.dumps({"path": "made.txt", "content": "x" * (10 << 20)})),
    ("write", json.dumps({"path": "x" * 1_000_000, "content": ""})),
    ("\x1b[2J::error::out", "{}"),
    ("", ""),
    ("write", json.dumps(MADE[1])),
]


@hostile(
    "own agent",
    "answers with garbage for calls, and with 10 MB of arguments",
    held_by="an error is such a call's result",
)
def test_garbage_for_calls_costs_the_loop_nothing(tmp_path: Path) -> None:
    model = ScriptedModel([DONE], offers_tools=False)
    first = [_raw(*GARBAGE)]

    def answer(asked: Any) -> Says:
        return first.pop() if first else model.answer(asked)

    called, asked = _play(tmp_path, answer, {}, {}, model)
    assert called.code == 0, called.out + called.err
    assert not called.has_traceback
    results = [one["content"] for one in json.loads(asked.splitlines()[-1])["messages"] if one["role"] == "tool"]
    assert len(results) == len(GARBAGE)
    assert results[-1] == "made.txt was written"
    assert max(map(len, results)) < 500
    (log,) = called.output.glob("cells/*/agent.stdout")
    assert log.stat().st_size < 50_000


@honest("own agent", "answers with garbage for calls, and with 10 MB of arguments")
def test_many_calls_and_a_large_file_are_no_trouble(tmp_path: Path) -> None:
    large = ("write", {"path": "large.txt", "content": "line\n" * 500_000})
    called, asked = play(tmp_path, Turn(calls=[large, *[MADE] * 20]), DONE)
    assert called.code == 0, called.out + called.err
    results = [one["content"] for one in json.loads(asked.splitlines()[-1])["messages"] if one["role"] == "tool"]
    assert results == ["large.txt was written", *["made.txt was written"] * 20]


LEAVES = "setsid sh -c 'while :; do date > made.txt; sleep 0.05; done' > /dev/null 2>&1 & sleep 0.3"
CLEARS = Turn(calls=[("bash", {"command": "rm -f made.txt; sleep 0.5"})])


@hostile("own agent", "leaves a process that goes on after its call", held_by="a call's processes end with it")
def test_a_process_that_a_call_left_writes_nothing_more(tmp_path: Path) -> None:
    called, _ = play(tmp_path, Turn(calls=[("bash", {"command": LEAVES})]), CLEARS, DONE)
    (cell,) = called.cells
    assert (cell["verdict"], cell["agent"]["exit_code"]) == ("fail", 0)
    assert "outlived it and were killed" in cell["agent"]["note"]


@honest("own agent", "leaves a process that goes on after its call")
def test_a_process_in_the_background_works_for_its_own_call(tmp_path: Path) -> None:
    command = "(sleep 0.2; echo made > made.txt) & wait"
    called, _ = play(tmp_path, Turn(calls=[("bash", {"command": command})]), DONE)
    assert called.code == 0, called.out + called.err
    assert called.cells[0]["agent"]["note"] == ""
