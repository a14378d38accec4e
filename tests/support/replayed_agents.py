"""Known agents recorded in one place and replayed in another: another folder, commit, date and kernel, without a
provider and without a key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regex
from support.agent_clients import Client, installed
from support.command_line import ENVIRONMENT, Called
from support.model_agents import REAL_KEY, trace_events
from support.repositories import commit, git
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import Asked, provider

from keystone_action.agents.presets.preset import load_preset
from keystone_action.gateway.upstreams import VARIABLES

CONTEXT: Mapping[str, str] = {"claude-code": "CLAUDE.md", "codex": "AGENTS.md", "gemini": "GEMINI.md"}
"""The file of a project that an agent puts into its first request."""
_OLDER = """#!/bin/sh
# In the process sandbox the kernel that programs see is inherited; in a container it is not.
exec $KERNEL {program} "$@"
"""
_HERE = {"ZONE": "Etc/GMT+12", "KERNEL": ""}
_THERE = {"ZONE": "Pacific/Kiritimati", "KERNEL": "setarch --uname-2.6"}
"""Where it is recorded and where it is replayed: 26 hours lie between these zones, so the dates are never equal."""


@dataclass
class ProjectModel(ScriptedModel):
    """Its second turn names the workspace, which the first one asked for."""

    client: Client = field(kw_only=True)

    def __post_init__(self) -> None:
        looks = "cat hello.txt; echo; date; ls -l hello.txt; ls"
        commands = ("pwd", "?", looks, "cat nothing-there")
        self.turns = [*(self.client.runs(command) for command in commands), *self.client.ends]

    def answer(self, asked: Asked) -> Any:
        """See ScriptedModel."""
        if found := re.search(r"(/[^\"\\\s<]*/cells/[0-9a-f]+/workspace)\\+n", asked.body.decode()):
            turns = list(self.turns)
            turns[1] = self.client.runs(f"printf hello > '{found[1]}/hello.txt'")
            self.turns = turns
        return super().answer(asked)


@dataclass
class ParallelModel(ScriptedModel):
    """It asks for three commands at once, which end in any order."""

    client: Client = field(kw_only=True)

    def __post_init__(self) -> None:
        looks = ("cat README.md", "ls src", "cat src/a.py")
        at_once = [call for command in looks for call in self.client.runs(command).calls]
        self.turns = [Turn(calls=at_once), self.client.runs("printf hello > hello.txt"), *self.client.ends]


@dataclass
class LongOutputModel(ScriptedModel):
    """It has the agent print more than a model is shown, and look into the file in which the agent's program keeps
    it."""

    client: Client = field(kw_only=True)

    def __post_init__(self) -> None:
        commands = ("printf hello > hello.txt; seq 1 40000", "?")
        self.turns = [*(self.client.runs(command) for command in commands), *self.client.ends]

    def answer(self, asked: Asked) -> Any:
        """See ScriptedModel."""
        if found := re.search(r"(?:saved to|output see): (/[^\"\\\s]+)", asked.body.decode()):
            self.turns = [self.turns[0], self.client.runs(f"tail -n 4 '{found[1]}'"), *self.client.ends]
        return super().answer(asked)


@dataclass
class LongCommandModel(ScriptedModel):
    """It starts a command by Codex's tool, and asks for the rest of its output by the number that it was told."""

    client: Client = field(kw_only=True)

    def __post_init__(self) -> None:
        command = {"cmd": "sleep 2; printf hello > hello.txt; echo later", "yield_time_ms": 300}
        self.turns = [Turn(calls=[("exec_command", command)]), *self.client.ends]

    def answer(self, asked: Asked) -> Any:
        """See ScriptedModel."""
        if len(self.turns) == 2 and (found := re.search(r"with session ID (\d+)", asked.body.decode())):
            rest = {"session_id": int(found[1]), "chars": "", "yield_time_ms": 20_000}
            self.turns = [self.turns[0], Turn(calls=[("write_stdin", rest)]), *self.client.ends]
        return super().answer(asked)


TURNS = ("Say what stands in it.", "Now add a line.")
"""What is said to an agent after the prompt."""
_BLOCK = "hello.txt\n```\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n```\n"


@dataclass
class ConversationModel(ScriptedModel):
    """A conversation of three turns: it has a file written, looks into it, and has it written on. A client without
    tools is told what to write."""

    client: Client = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.client.command is None:
            self.offers_tools = False
            return
        commands = (("pwd", "printf 'hello\\n' > hello.txt"), ("cat hello.txt; date",), ("echo again >> hello.txt",))
        answers = ("Written.", "It says hello.", "Added.")
        self.turns = [
            turn
            for some, answer in zip(commands, answers, strict=True)
            for turn in (*(self.client.runs(one) for one in some), Turn(text=answer, read=1500, cached=1000, written=7))
        ]

    def answer(self, asked: Asked) -> Any:
        """See ScriptedModel. A client without tools asks for what it was told, and for messages of commits. One that
        forgot what was said before gets nothing done."""
        body = asked.body.decode()
        said = [text in body for text in ("Write hello.txt.", *TURNS)]
        if said != sorted(said, reverse=True):
            self.turns = [Turn(text="You forgot what I said.")]
        elif self.client.command is None:
            first, last = _BLOCK.format(old="", new="hello\n"), _BLOCK.format(old="hello\n", new="hello\nagain\n")
            says = (first, "It says so.", last)[sum(text in body for text in TURNS)]
            self.turns = [Turn(text="Write a line" if "one-line commit message" in body else says)]
        return super().answer(asked)


@dataclass(frozen=True)
class Project:
    """A repository with a spec, an agent's context and some code. base: an image; empty = the process sandbox."""

    folder: Path
    client: Client
    base: str = ""

    def write(self, **fields: Any) -> None:
        """Its first commit. fields: of the spec."""
        self.folder.mkdir(parents=True)
        git(self.folder, "init", "-q", "--initial-branch=main")
        files = {
            "keystone.yaml": json.dumps({**self._spec(), **fields}),
            ".gitignore": "out*\n",
            "README.md": "# A project\n",
            "src/a.py": "print(1)\n",
            CONTEXT.get(self.client.kind, "CONTEXT.md"): "Answer in prose.\n",
        }
        commit(self.folder, files, "first")

    def _spec(self) -> dict[str, Any]:
        client = self.client
        program = load_preset(client.kind).program
        agent = {"type": client.kind, "model": client.model, "timeout": "4m"}
        agent["env"] = {"TZ": "{{ env.ZONE }}"}
        spec: dict[str, Any] = {
            "version": 1,
            "id": "project",
            "task": {"prompt": "Write hello.txt."},
            "workspace": ".",
            "agent": agent,
            "invariants": {
                "written": {"check": {"type": "file_content", "path": "hello.txt", "pattern": "^hello$"}},
                "alone": {"check": {"type": "diff", "only": ["hello.txt"]}},
                "called": {"check": {"type": "trace", "require_tools": [{"kind": "execute"}], "max_tool_calls": 9}},
            },
        }
        if self.base:
            older = {"path": "older", "content": _OLDER.format(program=program), "mode": "0755"}
            spec |= {
                "base": self.base,
                "setup": {"files": [older], "commands": ["mv older /usr/local/bin/older"]},
                "network": {"egress": {"default": "deny"}},
            }
            agent["binary"] = "older"
            agent["env"]["KERNEL"] = "{{ env.KERNEL }}"
        else:
            place = installed(client.kind)
            agent["binary"] = str(place.program)
            spec["resources"] = {"readable": [str(place.folder)]}
        return spec

    def record(
        self,
        model: type[
            ProjectModel | ParallelModel | LongOutputModel | LongCommandModel | ConversationModel
        ] = ProjectModel,
    ) -> Called:
        """In front of a model that follows a script. The recording is committed."""
        key, base = VARIABLES[self.client.api]
        scripted = model((), client=self.client)
        with provider(scripted.answer) as behind:
            url = behind.url + ("/v1" if self.client.api == "openai" else "")
            called = self._run({**_HERE, key: REAL_KEY, base: url}, "--gateway", "record")
        assert called.code == 0, called.err + called.out
        commit(self.folder, {}, "a recording")
        return called

    def elsewhere(self, folder: Path, files: Mapping[str, str] | None = None) -> Project:
        """A clone with another commit: another file's text, and one more file; besides, these."""
        git(self.folder, "clone", "-q", str(self.folder), str(folder))
        commit(folder, {"README.md": "# Another text\n", "src/b.py": "print(2)\n", **(files or {})}, "second")
        return Project(folder, self.client, self.base)

    def replay(self, *words: str) -> Called:
        """There is no provider and no key."""
        return self._run(_THERE, "--gateway", "replay", *words)

    def change(self, **fields: Any) -> None:
        """Fields of its spec."""
        path = self.folder / "keystone.yaml"
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **fields}), "utf-8")

    def _run(self, environ: Mapping[str, str], *words: str) -> Called:
        number = len(list(self.folder.glob("out*")))
        temporary = self.folder.with_name(f"{self.folder.name}-tmp")
        temporary.mkdir(exist_ok=True)
        for folder in (temporary, *temporary.parents):
            if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 1:
                folder.chmod(folder.stat().st_mode | 0o111)
        output = self.folder / f"out-{number}"
        prefix = [] if self.base else str(environ["KERNEL"]).split()
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--output", str(output), *words],
            cwd=self.folder,
            env={**ENVIRONMENT, "TMPDIR": str(temporary), **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return Called(done.returncode, done.stdout, done.stderr, output)


def observed(kind: str, called: Called) -> dict[str, Any]:
    """All that must be equal: of what commands print, all but the folder and the time."""
    (cell,) = called.cells
    checks = [(one["name"], one["status"], one["score"]) for one in cell["invariants"]]
    diff = (called.output / "cells" / cell["id"] / "diff.patch").read_text("utf-8")
    events = [(event["type"], _comparable(kind, event["payload"])) for event in trace_events(called)]
    usage = {name: count for name, count in cell["usage"].items() if name != "spent_usd"}
    return {
        "verdict": cell["verdict"],
        "composite": cell["composite"],
        "checks": checks,
        "diff": diff,
        "usage": usage,
        "trace": events,
    }


def require_equal_turns(kind: str, first: Called, elsewhere: Project) -> None:
    """Replays of a conversation come to what was recorded: one, or as many as the variable says."""
    expected = observed(kind, first)
    assert expected["verdict"] == "pass"
    for _ in range(int(os.environ.get("KEYSTONE_TURN_REPLAYS", "1"))):
        again = elsewhere.replay()
        assert again.code == 0, again.err + again.out
        assert again.cells[0]["trace"]["replayed"] == "exact"
        assert observed(kind, again) == expected


def _comparable(kind: str, payload: Mapping[str, Any]) -> str:
    """An event. Ids that a provider made are others in each run."""
    told = {name: value for name, value in payload.items() if name != "tool_call_id"}
    return json.dumps({name: _without(kind, value) for name, value in told.items()}, sort_keys=True)


def _without(kind: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without(kind, one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without(kind, one) for one in value]
    if not isinstance(value, str):
        return value
    text = re.sub(r"/[^\s'\"]*/cells/[0-9a-f]+/workspace", "{workspace}", value)
    text = re.sub(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \S+ \d{4}", "{time}", text)
    text = re.sub(r"(?<=-rw-r--r-- 1) \S+ \S+ (\d+) \w{3} +\d+ \d\d:\d\d", r" {user} \1 {time}", text)
    text = re.sub(r"(?m)(?<=^Wall time: )\S+(?= seconds$)", "{duration}", text)
    for pattern in (one for patterns in load_preset(kind).varies.values() for one in patterns):
        text = regex.sub(pattern, "{varies}", text)
    return text
