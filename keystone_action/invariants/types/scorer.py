"""`scorer`: a scorer class of the author's decides (AgenticAssure's `register_scorer`; spec.md 5.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from keystone_action.evidence.agent_run import AgentRun
from keystone_action.invariants.check import Check, CheckContext, Outcome, Phase, broken, failed, passed
from keystone_action.invariants.own_scorers import NotAnswered, Scorers, ask_scorer
from keystone_action.spec.models.fields import AuthorPath, PlainText, text_like

_Module = Annotated[str, text_like(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", "a module, such as pkg.scorers"), PlainText()]


class Scorer(Check):
    """Asks a scorer class of yours, as AgenticAssure has them: one that is registered by `register_scorer` when its
    module is imported.

    It runs in a sandbox under the sandbox's python3, on a copy of what the agent left, and gets a Scenario and the
    AgentResult; where the package agenticassure is not installed, a small one of the same classes is. Its `passed`
    decides, its score is the credit. One that raises, or gives no score from 0 to 1, is in error; without a result of
    the agent it is not asked, and the check fails.
    """

    type_name: ClassVar[str] = "scorer"
    origin: ClassVar[str] = "AgenticAssure"
    phase: ClassVar[Phase] = "fresh_copy"
    default_timeout: ClassVar[float] = 60.0

    scorer: Annotated[str, Field(min_length=1), PlainText()]
    """The name that the scorer is registered under.

    Example: `polite`
    """
    modules: Annotated[list[_Module], Field(min_length=1)]
    """What is imported until the scorer is registered.

    Example: `[scorers]`
    """
    dir: Annotated[str, AuthorPath("directory", withheld=True)] | None = None
    """The folder of the modules, which the agent doesn't see. Left out, they are the agent's own: found in its `dir`.

    Example: `checks`
    """
    scenario: dict[str, Any] = Field(default_factory=dict)
    """Fields of the Scenario that the scorer gets, such as `expected_output` and `metadata`. `name` is the invariant's
    and `input` the task's prompt where they are left out.

    Example: `{expected_output: refund issued}`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        agent = context.evidence.agent
        if agent.problem:
            return failed(f"There is no output: {agent.problem}.")
        try:
            scorers = self._scorers(context)
            scenario = {"name": context.name, "input": context.evidence.task_prompt, **self.scenario}
            answer, log = await ask_scorer(
                await context.sandbox(),
                scorers,
                {"scorer": self.scorer, "scenario": scenario, "result": agent_result(agent)},
                environment=context.check_environment,
                timeout=context.timeout,
            )
        except NotAnswered as problem:
            return broken(f"the scorer {self.scorer}: {problem}", log=problem.log)
        if isinstance(answer.get("malformed"), str):
            return failed(f"The agent's result is malformed: {answer['malformed']}.", log=log)
        return _outcome(answer, log)

    def _scorers(self, context: CheckContext) -> Scorers:
        if self.dir is not None:
            try:
                return Scorers(self.modules, context.library, files=context.author_directory(self.dir))
            except OSError as error:
                raise NotAnswered(f"its folder {self.dir} can't be read: {error}") from None
        if context.agent_directory is None:
            raise NotAnswered("there is no `dir` with its modules, neither here nor for the agent")
        return Scorers(self.modules, context.library, directory=str(context.agent_directory))


def agent_result(agent: AgentRun) -> dict[str, Any]:
    """An agent's run as the fields of an AgentResult."""
    calls = [dict(call) for call in agent.tool_calls or ()]
    found: dict[str, Any] = {"output": agent.whole_output(), "tool_calls": calls}
    found["latency_ms"] = agent.duration_s * 1000
    found |= {name: value for name, value in agent.reported.items() if value is not None}
    usage: Mapping[str, Any] = agent.token_usage or {}
    if usage:
        tokens = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}
        found["token_usage"] = {name: count for name, count in tokens.items() if count is not None}
    return found


def _outcome(answer: Mapping[str, Any], log: str) -> Outcome:
    verdict, details = answer.get("passed") is True, answer.get("details")
    told = answer.get("explanation") or (details if isinstance(details, str) else "")
    message = str(told) or f"The scorer says passed: {str(verdict).lower()}."
    more = details if isinstance(details, dict) else {} if details is None else {"details": details}
    outcome = (passed if verdict else failed)(message, score=answer.get("score"), log=log)  # type: ignore[arg-type]
    return Outcome(outcome.status, outcome.score, outcome.message, more, outcome.log)
