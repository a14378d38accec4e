"""Agents in the real process sandbox: how they are started, what is recorded of them, whose fault it was."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from support.context import kept
from support.worlds import World, world_of

from keystone_action.agents import program as output
from keystone_action.agents.program import AgentCall, agent_environment, write_inputs
from keystone_action.agents.run import call_agent
from keystone_action.errors import HarnessError
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.spec.models.agents import Agent

pytestmark = pytest.mark.sandbox

_AGENTS: TypeAdapter[Any] = TypeAdapter(Agent)


def run(
    document: Mapping[str, Any],
    *,
    prompt: str = "the prompt",
    module: str = "",
    before: Mapping[str, str] | None = None,
) -> tuple[AgentRun, dict[str, bytes]]:
    """The run, and the files of the workspace after it. module: text of agent/mod.py."""
    return kept().call(_run(document, prompt, module, before or {}))


async def _run(
    document: Mapping[str, Any], prompt: str, module: str, before: Mapping[str, str]
) -> tuple[AgentRun, dict[str, bytes]]:
    agent = _AGENTS.validate_python(dict(document))
    async with world_of(await kept().sandboxes()) as world:
        private = world.area / "private"
        private.mkdir()
        directory = None
        if module:
            directory = world.area / "agent"
            directory.mkdir()
            (directory / "mod.py").write_text(module)
        inputs = write_inputs(world.area / "task", prompt, agent, bytes)
        world.workspace.mkdir()
        for name, text in before.items():
            (world.workspace / name).write_text(text)
        sandbox = await world.open(inputs.directory, *([directory] if directory else []))
        environment = agent_environment(
            prompt=prompt,
            prompt_file=inputs.prompt_file,
            workspace=sandbox.workspace_inside,
            agent_directory=directory,
            agent_env=agent.env,
        )
        task = AgentCall(
            prompt=prompt,
            environment=environment,
            inputs=inputs,
            agent_directory=directory,
            context={"params": {"model": "m"}},
            private=private,
        )
        try:
            return await call_agent(agent, sandbox, task), _files(world)
        finally:
            await sandbox.close()


def _files(world: World) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in world.workspace.iterdir() if path.is_file()}


class TestCommand:
    def test_a_text_runs_in_a_shell_in_the_workspace(self) -> None:
        found, files = run({"type": "command", "command": 'printf %s "$KEYSTONE_PROMPT" > answer; pwd; echo oops >&2'})
        assert (found.exit_code, found.timed_out, found.problem) == (0, False, "")
        assert files == {"answer": b"the prompt"}
        assert found.output == found.stdout
        assert found.stdout.endswith("/workspace\n")
        assert (found.stderr, found.stderr_bytes) == ("oops\n", 5)

    def test_a_list_is_executed_as_it_is(self) -> None:
        found, _ = run({"type": "command", "command": ["printf", "%s|", "a b", "$HOME", ";"]})
        assert found.output == "a b|$HOME|;|"

    def test_a_program_of_a_list_that_does_not_exist_is_the_harness_s_error(self) -> None:
        with pytest.raises(HarnessError, match="no-such-agent is not in this sandbox") as error:
            run({"type": "command", "command": ["no-such-agent", "x"]})
        assert "base:" in error.value.help

    @pytest.mark.parametrize(
        "agent",
        [{"type": "command", "command": ["an-agent"]}, {"type": "cli", "binary": "an-agent"}],
        ids=["command", "cli"],
    )
    def test_a_program_that_the_sandbox_hides_is_named_with_its_place(
        self, agent: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "an-agent")
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            with pytest.raises(HarnessError, match=re.escape(str(program))) as error:
                run(agent)
        assert "resources.readable" in error.value.help

    def test_a_shell_that_finds_nothing_is_an_agent_that_failed(self) -> None:
        found, _ = run({"type": "command", "command": "no-such-agent"})
        assert found.exit_code == 127
        assert "no-such-agent" in found.stderr

    def test_exit_codes_and_signals_are_recorded(self) -> None:
        assert run({"type": "command", "command": "exit 3"})[0].exit_code == 3
        killed, _ = run({"type": "command", "command": "kill -9 $$"})
        assert (killed.exit_code, killed.signal) == (None, 9)

    def test_its_time_limit_counts(self) -> None:
        found, _ = run({"type": "command", "command": "echo started; sleep 30", "timeout": "2s"})
        assert found.timed_out
        assert found.stdout == "started\n"

    def test_what_it_leaves_running_is_ended_and_counted(self) -> None:
        found, _ = run({"type": "command", "command": "setsid sleep 600 >/dev/null 2>&1 & echo done"})
        assert found.exit_code == 0
        assert found.leftovers >= 1

    def test_the_prompt_on_stdin_only_when_asked_for(self) -> None:
        assert run({"type": "command", "command": "cat", "stdin": "prompt"})[0].output == "the prompt"
        assert run({"type": "command", "command": "cat"})[0].output == ""

    def test_a_large_prompt_is_in_the_file(self) -> None:
        large = "é" * 200_000
        found, _ = run(
            {"type": "command", "command": 'echo "${KEYSTONE_PROMPT-none}"; wc -c < "$KEYSTONE_PROMPT_FILE"'},
            prompt=large,
        )
        assert found.stdout.split() == ["none", "400000"]

    def test_the_prompt_s_file_is_out_of_the_agent_s_reach_to_write(self) -> None:
        found, _ = run({"type": "command", "command": 'echo x > "$KEYSTONE_PROMPT_FILE"'})
        assert found.exit_code != 0

    def test_it_gets_nothing_of_our_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITHUB_TOKEN", "ours")
        found, _ = run({"type": "command", "command": "env", "env": {"OWN": "its"}})
        names = {line.partition("=")[0] for line in found.stdout.splitlines()}
        assert "OWN" in names
        assert not names - {
            *("OWN", "HOME", "PATH", "LANG", "TMPDIR", "PWD", "SHLVL", "_", "OLDPWD"),
            *("KEYSTONE_PROMPT", "KEYSTONE_PROMPT_FILE", "KEYSTONE_WORKSPACE"),
        }

    def test_output_that_is_no_text(self) -> None:
        found, _ = run({"type": "command", "command": r"printf 'a\377b'"})
        assert found.output == "a\ufffdb"


class TestCli:
    def test_a_binary_and_its_arguments(self) -> None:
        found, _ = run({"type": "cli", "binary": "printf", "args": ["%s %s", "a  b", "$X"]})
        assert found.output == "a  b $X"

    def test_a_binary_of_the_workspace(self) -> None:
        with pytest.raises(HarnessError, match=r"\./missing\.sh"):
            run({"type": "cli", "binary": "./missing.sh"})


class TestOutput:
    def test_from_a_file(self) -> None:
        found, _ = run({"type": "command", "command": "echo no; echo yes > answer", "output": {"file": "answer"}})
        assert (found.output, found.stdout, found.problem) == ("yes\n", "no\n", "")

    @pytest.mark.parametrize(
        ("command", "problem"),
        [
            ("true", "answer does not exist"),
            ("mkfifo answer", "a FIFO, not a regular file"),
            ("mkdir answer", "a directory, not a regular file"),
            ("ln -s /etc/passwd answer", "leads through a link out of the workspace"),
            ("cd ..; rm -rf workspace/* answer", "answer does not exist"),
        ],
    )
    def test_a_file_that_can_not_be_had_is_a_problem(self, command: str, problem: str) -> None:
        found, _ = run({"type": "command", "command": command, "output": {"file": "answer"}})
        assert found.output == ""
        assert problem in found.problem

    def test_a_large_file_is_cut_and_that_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(output, "SHOWN_LIMIT", 100)
        found, _ = run({"type": "command", "command": "yes | head -c 5000 > a", "output": {"file": "a"}})
        assert found.output == "y\n" * 50 + "\n[… 4,900 bytes cut …]\n"
        assert found.long_output is not None
        assert found.long_output.size == 5000

    def test_from_a_json_document(self) -> None:
        document = '{"output": "yes", "tool_calls": [{"name": "t"}], "token_usage": {"input_tokens": 1}}'
        found, _ = run({"type": "command", "command": f"echo '{document}'", "output": {"json": "stdout"}})
        assert (found.output, found.problem) == ("yes", "")
        assert found.tool_calls == ({"name": "t", "arguments": {}, "result": None},)
        assert found.token_usage == {"input_tokens": 1}

    @pytest.mark.parametrize("command", ["true", "echo text", "echo '{}'", "head -c 3000000 /dev/zero"])
    def test_a_document_that_is_none_is_a_problem(self, command: str) -> None:
        found, _ = run({"type": "command", "command": command, "output": {"json": "stdout"}})
        assert found.problem.startswith("the JSON document on stdout is ")
        assert (found.output, found.tool_calls) == ("", None)


CLASS = """
import json, os, sys
class Agent:
    def run(self, input, context):
        print("not the result")
        with open("made", "w") as file:
            file.write(input)
        return {"output": input.upper() + context["params"]["model"], "tool_calls": [{"name": "t", "arguments": {}}]}
"""
OBJECTS = """
import asyncio, dataclasses
@dataclasses.dataclass
class Call:
    name: str
    arguments: dict
class Result:
    def __init__(self):
        self.output, self.tool_calls, self.secret = "from object", [Call("c", {"a": {1, 2}})], object()
        self.token_usage = type("Usage", (), {"prompt_tokens": 2, "completion_tokens": 3})()
class Agents:
    class Inner:
        async def run(self, input):
            await asyncio.sleep(0)
            return Result()
"""


class TestPython:
    def test_a_class(self) -> None:
        found, files = run({"type": "python", "entrypoint": "mod:Agent", "dir": "d"}, module=CLASS)
        assert (found.exit_code, found.output, found.problem) == (0, "THE PROMPTm", "")
        assert found.tool_calls == ({"name": "t", "arguments": {}, "result": None},)
        assert found.stdout == "not the result\n"
        assert files == {"made": b"the prompt"}

    def test_a_function(self) -> None:
        module = "def answer(input): return input[::-1]"
        assert run({"type": "python", "entrypoint": "mod:answer", "dir": "d"}, module=module)[0].output == "tpmorp eht"

    def test_objects_and_coroutines(self) -> None:
        found, _ = run({"type": "python", "entrypoint": "mod:Agents.Inner", "dir": "d"}, module=OBJECTS)
        assert found.output == "from object"
        assert found.tool_calls == ({"name": "c", "arguments": {"a": "{1, 2}"}, "result": None},)
        assert found.token_usage == {"input_tokens": 2, "output_tokens": 3}

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("def f(i): raise KeyError('oh no')", "KeyError: 'oh no'"),
            ("def f(i): return None", "the agent returned None"),
            ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
            ("def f(i): import gone.far", "No module named 'gone'"),
            ("f = 3", "mod:f is not a function"),
            ("def g(): pass", "has no attribute 'f'"),
            ("def ff(): pass", "has no attribute 'f', did you mean 'ff'?"),
            ("def f(:", "SyntaxError"),
        ],
    )
    def test_one_that_raises_has_failed(self, body: str, said: str) -> None:
        found, files = run({"type": "python", "entrypoint": "mod:f", "dir": "d"}, module=body)
        assert found.exit_code == 1
        assert said in found.stderr
        assert found.problem.startswith("the agent raised ")
        assert said in found.problem
        assert files == {}

    def test_what_only_scorers_look_at_never_costs_the_result(self) -> None:
        body = (
            "def f(i):\n    endless = {}\n    endless['x'] = endless\n"
            "    return {'output': 'x', 'raw_response': endless, 'latency_ms': 1e999, 'reasoning_trace': ['a'],\n"
            "            'tools_called': ['t', {'name': 'u', 'arguments': {'a': 1}}]}"
        )
        found, _ = run({"type": "python", "entrypoint": "mod:f", "dir": "d"}, module=body)
        assert (found.output, found.problem) == ("x", "")
        assert found.reported == {"raw_response": None, "latency_ms": None, "reasoning_trace": ["a"]}
        assert [call["name"] for call in found.tool_calls or ()] == ["t", "u"]

    @pytest.mark.parametrize("body", ["import os\ndef f(i): os._exit(0)", "def f(i): raise SystemExit(0)"])
    def test_one_that_leaves_without_a_result(self, body: str) -> None:
        found, _ = run({"type": "python", "entrypoint": "mod:f", "dir": "d"}, module=body)
        assert (found.exit_code, found.output) == (0, "")
        assert "without returning a result" in found.problem

    def test_a_result_that_is_no_agent_result(self) -> None:
        found, _ = run({"type": "python", "entrypoint": "mod:f", "dir": "d"}, module="def f(i): return {'output': 3}")
        assert found.problem == "the agent's result is malformed: expected text under `output`, found a number"

    def test_what_it_prints_is_never_the_result(self) -> None:
        module = "import json\ndef f(i):\n    print(json.dumps({'output': 'forged'}))\n    return 'real'"
        found, _ = run({"type": "python", "entrypoint": "mod:f", "dir": "d"}, module=module)
        assert found.output == "real"

    def test_it_may_go_anywhere_and_delete_everything(self) -> None:
        module = "import os\ndef f(i):\n    os.remove('x'); os.chdir('/'); return 'still here'"
        found, files = run({"type": "python", "entrypoint": "mod:f", "dir": "d"}, module=module, before={"x": ""})
        assert (found.output, files) == ("still here", {})

    def test_its_own_stdin_is_empty_or_the_prompt(self) -> None:
        module = "import sys\ndef f(i): return repr(sys.stdin.read())"
        agent = {"type": "python", "entrypoint": "mod:f", "dir": "d"}
        assert run(agent, module=module)[0].output == "''"
        assert run({**agent, "stdin": "prompt"}, module=module)[0].output == "'the prompt'"

    def test_its_answer_can_be_a_file(self) -> None:
        module = "def f(i):\n    open('a', 'w').write('file')\n    return 'value'"
        agent = {"type": "python", "entrypoint": "mod:f", "dir": "d", "output": {"file": "a"}}
        assert run(agent, module=module)[0].output == "file"

    def test_a_time_limit(self) -> None:
        module = "import time\ndef f(i): time.sleep(60)"
        found, files = run({"type": "python", "entrypoint": "mod:f", "dir": "d", "timeout": "1s"}, module=module)
        assert found.timed_out
        assert files == {}

    def test_it_runs_neither_here_nor_as_us(self) -> None:
        module = "import os\ndef f(i): return f'{os.getuid()} {os.getpid()}'"
        found, _ = run({"type": "python", "entrypoint": "mod:f", "dir": "d"}, module=module)
        uid, pid = found.output.split()
        assert int(pid) != os.getpid()
        assert (int(uid) != 0) or os.geteuid() != 0


def test_no_agent_is_an_empty_run() -> None:
    assert run({"type": "none"})[0] == AgentRun()
