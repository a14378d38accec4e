"""The tool loop: an agent of our own, on the models of any provider.

It asks the model, does what the model calls for in the sandbox, and tells the model what came of it, until an answer
comes without a call. The loop runs here, its tools in the sandbox; the model is asked through the cell's gateway with
the key that every agent gets, so that budgets, recordings, traces and rules hold as for any other agent.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from keystone_action.agents.loop_models import CallOutcome, ModelAnswer, ModelFailed, open_model
from keystone_action.agents.loop_tools import AgentAtLimit, LoopTools
from keystone_action.agents.program import ANSWER, STDOUT, keep_whole, with_file
from keystone_action.errors import HarnessError
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.sandbox.protocol import ShortageError, stopping_at
from keystone_action.spec.models.agents import AgentOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keystone_action.agents.loop_models import LoopModel, Messages, RequestedCall
    from keystone_action.agents.program import AgentCall
    from keystone_action.sandbox.protocol import Sandbox
    from keystone_action.spec.models.agents import LoopAgent
    from keystone_action.system.command import Completed

_TOO_LATE = "the agent's time limit came first"
_CUT = CallOutcome(
    "this call was not made: your answer was cut at its limit of tokens; ask for less at once", is_error=True
)
_SHOWN = 2000
"""Characters of each part that the log has: of what the model said, of a call, of a result."""
_MOST_PROCESSES = 10_000


async def run_loop(agent: LoopAgent, sandbox: Sandbox, task: AgentCall) -> AgentRun:
    """Run it for one prompt: on the conversation of the turn before, where there was one.

    A model that refuses, an answer that is cut, a conversation that no longer fits and a request that is refused are an
    agent that failed. Raises HarnessError: a gateway without a provider for it, a broken sandbox.
    """
    if agent.api not in task.gateways:
        known = ", ".join(task.gateways) or "none"
        raise HarnessError(
            f"the agent type '{agent.type}' needs the provider {agent.api}; gateway.providers has {known}"
        )
    place = f"Your working directory is {sandbox.workspace_inside}."
    system = f"{task.system}\n\n{place}" if task.system else place
    loop = _Loop(sandbox, task, agent)
    model = await open_model(agent.api, task.gateways[agent.api], agent.model, system, loop.tools.forms)
    try:
        return await loop.run(model)
    finally:
        await model.close()


class _Loop:
    """One turn. It owns the conversation, the log, and what is known of how the agent ends."""

    def __init__(self, sandbox: Sandbox, task: AgentCall, agent: LoopAgent) -> None:
        self._sandbox, self._task, self._agent = sandbox, task, agent
        self._over = asyncio.Event()
        self.tools = LoopTools(
            agent.tools,
            sandbox,
            task.environment,
            lists_processes=task.lists_processes,
            ended=self._process_ended,
            stop=self._over,
        )
        before = task.earlier[-1].session if task.earlier else None
        self._messages: Messages = [*before] if isinstance(before, tuple) else []
        self._messages.append({"role": "user", "content": task.prompt})
        self._log: list[str] = []
        self._said, self._heard = "", bool(task.earlier)
        self._processes: list[Mapping[str, object]] = []
        self._left_out = self._leftovers = 0

    async def run(self, model: LoopModel) -> AgentRun:
        """To its end, its time limit, or the end of its budget."""
        task, started = self._task, time.monotonic()
        clock = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._agent.timeout) as limit:

                async def end() -> None:
                    limit.reschedule(clock.time())

                async with stopping_at(task.stop, end):
                    run = await self._work(model)
        except TimeoutError:
            if not limit.expired():
                raise
            was_stopped = task.stop is not None and task.stop.is_set()
            run = AgentRun(exit_code=1) if was_stopped else AgentRun(timed_out=True)
        if not self._heard:
            run = replace(run, unanswered=True, problem=f"no model answered: {run.problem or _TOO_LATE}")
        return await anyio.to_thread.run_sync(self._finish, run, time.monotonic() - started)

    async def _work(self, model: LoopModel) -> AgentRun:
        """Ask and do. How it ended, without what it said."""
        try:
            for _ in range(self._agent.max_turns):
                answer = await model.ask(self._messages)
                self._hear(answer)
                if answer.end in ("refused", "full"):
                    return _failed(answer)
                if answer.end == "paused":
                    continue
                if not answer.calls:
                    return _failed(answer) if answer.end == "cut" else AgentRun(exit_code=0)
                results = [(call.id, await self._do(call, answer)) for call in answer.calls]
                self._messages += model.results(results)
        except ModelFailed as failed:
            self._log.append(f"[{failed}]")
            return AgentRun(exit_code=1, problem=_TOO_LONG if failed.is_full else str(failed), stderr=f"{failed}\n")
        except AgentAtLimit as reached:
            return AgentRun(limit=str(reached))
        except ShortageError as short:
            return AgentRun(exit_code=1, shortage=short.message)
        most = self._agent.max_turns
        return AgentRun(limit=f"max_turns: the model answered {most:,} times, {most:,} allowed")

    def _hear(self, answer: ModelAnswer) -> None:
        self._heard = True
        if answer.message is not None:
            self._messages.append(answer.message)
        if answer.text or not answer.calls:
            self._said = answer.text
        if answer.text:
            self._log.append(_short(answer.text))

    async def _do(self, call: RequestedCall, answer: ModelAnswer) -> CallOutcome:
        """Raises AgentAtLimit, HarnessError."""
        given = "(not a JSON object)" if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
        self._log.append(f"> {_short(call.name)} {_short(given)}")
        result = _CUT if answer.end == "cut" else await self._use_tool(call)
        self._log.append(_short(result.text))
        return result

    async def _use_tool(self, call: RequestedCall) -> CallOutcome:
        """Where the agent's time ends before the call, its processes end as those of any agent: what is known of them
        is kept."""
        using = asyncio.ensure_future(self.tools.call(call))
        try:
            return await asyncio.shield(using)
        except asyncio.CancelledError:
            self._over.set()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([using])
            raise

    def _process_ended(self, done: Completed) -> None:
        room = _MOST_PROCESSES - len(self._processes)
        self._processes += done.processes[:room]
        self._left_out += done.processes_left_out + max(0, len(done.processes) - room)
        self._leftovers += done.leftovers

    def _finish(self, run: AgentRun, seconds: float) -> AgentRun:
        """The run with all that was said and printed. Blocks."""
        private, output = self._task.private, self._agent.output
        log = "".join(f"{one.encode('utf-8', 'replace').decode()}\n" for one in self._log)
        stdout, long_stdout = keep_whole(log, private and private / STDOUT)
        said = self._said.encode("utf-8", "replace").decode()
        answer, long_answer = keep_whole(said, private and private / ANSWER)
        run = replace(
            run,
            duration_s=seconds,
            output=answer,
            long_output=long_answer,
            stdout=stdout,
            long_stdout=long_stdout,
            stdout_bytes=len(log.encode()),
            stderr_bytes=len(run.stderr.encode()),
            leftovers=self._leftovers,
            processes=tuple(self._processes),
            processes_left_out=self._left_out,
            session=tuple(self._messages),
        )
        if isinstance(output, AgentOutput) and output.file is not None:
            return with_file(run, self._sandbox.workspace, output.file, private)
        return run


_TOO_LONG = "the conversation is longer than the model can read"


def _failed(answer: ModelAnswer) -> AgentRun:
    if answer.end == "refused":
        # What it said stands as its answer: a spec may ask for just that.
        return AgentRun(exit_code=1, advice="the model refused to answer", stderr="the model refused to answer\n")
    why = _TOO_LONG if answer.end == "full" else "the model's last answer was cut at its limit of tokens"
    return AgentRun(exit_code=1, problem=why, stderr=f"{why}\n")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} [… {len(text) - _SHOWN:,} characters cut …]"
