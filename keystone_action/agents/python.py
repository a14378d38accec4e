"""`type: python`: `module:Class` or `module:function` of the author's `dir`, called in the sandbox.

`python_runner.py` does the calling there. What the call returns comes back through a file with a name that is made for
this run, so that nothing that the agent prints can be taken for it; the file is gone before the diff is made. An
exception is an agent that failed: its traceback is on stderr, its text is the run's `problem`, the exit code is 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path

from keystone_action.agents.program import AgentCall, record_run, require_found, run_to_end, with_document, with_output
from keystone_action.agents.result import RESULT_LIMIT
from keystone_action.errors import HarnessError
from keystone_action.evidence.model import AgentRun
from keystone_action.files.paths import PathMissing, PathProblem, open_inside, read_inside
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.spec.models.agents import AgentOutput, PythonAgent

PYTHON = "python3"
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")


async def run_python(agent: PythonAgent, sandbox: Sandbox, task: AgentCall) -> AgentRun:
    """Run it. The answer is what the call returned, unless `agent.output` names a file of the workspace.

    Raises HarnessError without a python3 in the sandbox, or without the agent's directory.
    """
    if task.agent_directory is None:
        raise HarnessError("a python agent needs `dir`, the directory that its module is in")
    result_name = f".keystone-result-{secrets.token_hex(8)}"
    call = {
        "entrypoint": agent.entrypoint,
        "directory": str(task.agent_directory),
        "input": task.prompt,
        "context": None if task.context is None else dict(task.context),
        "result": result_name,
        "stdin": agent.stdin == "prompt",
        "library": str(task.inputs.library),
    }
    stdin = json.dumps(call, default=str).encode()
    try:
        command = task.command(agent, (PYTHON, str(task.inputs.runner)), stdin)
        completed, shortage = await run_to_end(sandbox, command, task.stop)
        require_found(
            completed,
            PYTHON,
            sandbox,
            "a python agent runs under the sandbox's python3: install one, or set `base:` to an image",
        )
        run = replace(record_run(completed, task.private), shortage=shortage)
        if isinstance(agent.output, AgentOutput) and agent.output.file is not None:
            return with_output(run, completed, agent.output, sandbox.workspace, task.private)
        return _with_result(run, sandbox.workspace, result_name, task.private)
    finally:
        _remove(sandbox.workspace, result_name)


def _with_result(run: AgentRun, workspace: Path, name: str, private: Path | None) -> AgentRun:
    try:
        data = read_inside(workspace, name, limit=RESULT_LIMIT)
    except PathMissing:
        return replace(run, problem="the agent ended without returning a result; its stderr may say why")
    except PathProblem as problem:
        return replace(run, problem=f"the agent's result could not be read: {problem}")
    raised = _read_exception(data) if run.exit_code else None
    if raised is not None:
        return replace(run, problem=f"the agent raised {raised}")
    return with_document(run, data, "the agent's result", private)


def _read_exception(data: bytes) -> str | None:
    """The exception, when the runner wrote down one, and what to do where its name alone tells."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        document = json.loads(data)
        found, missing = document.get("raised"), document.get("missing")
        if not isinstance(found, str):
            return None
        absent = isinstance(missing, str) and _MODULE.fullmatch(missing)
        advice = (
            f"; install {missing} for the sandbox's python3, or put it into the agent's own folder" if absent else ""
        )
        return found.encode("utf-8", "replace").decode() + advice
    return None


def _remove(workspace: Path, name: str) -> None:
    with contextlib.suppress(PathProblem, OSError):
        directory = open_inside(workspace, ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)
