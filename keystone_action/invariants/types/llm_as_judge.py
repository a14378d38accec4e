"""`llm_as_judge` (alias `model_judge`): models score what the agent left, by criteria of the author."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, skipped
from keystone_action.invariants.judged_material import (
    BadSource,
    InputFrom,
    Material,
    NothingToJudge,
    NoTrace,
    collect_material,
)
from keystone_action.judge.judgement import (
    JudgeCost,
    JudgeFailed,
    Judgement,
    JudgeRequest,
    JudgeUnavailable,
    is_alias,
    parse_model,
)
from keystone_action.judge.prompt import has_input
from keystone_action.spec.models.fields import AuthorPath, StrictModel, Template, TextOrMapping

_TOLERANCE = 1e-9


def _model_name(name: str) -> str:
    if not is_alias(name) and "{{" not in name:  # an expression is known only when the cell starts
        try:
            parse_model(name)
        except ValueError as problem:
            raise PydanticCustomError("model_name", "{problem}", {"problem": str(problem)}) from None
    return name


def _has_input(template: str) -> str:
    if not has_input(template):
        raise PydanticCustomError("prompt_template", "expected {input} where the judged text goes, found none")
    return template


_Model = Annotated[str, Field(min_length=1), AfterValidator(_model_name)]
_NonEmpty = Annotated[str, Field(min_length=1)]


class TextFile(StrictModel):
    """`{file: path}`: a text of the author's, never interpolated and never seen by the agent."""

    file: Annotated[str, Field(min_length=1), AuthorPath("file")]
    """The file that holds the text, relative to the spec.

    Example: `criteria.md`
    """


class Rubric(StrictModel):
    """What passing and failing work look like, as the judge is told."""

    pass_: _NonEmpty | None = Field(default=None, alias="pass")
    """What passing work looks like.

    Example: `Names the cause, and no other.`
    """
    fail: _NonEmpty | None = None
    """What failing work looks like.

    Example: `Names no cause.`
    """


class LlmAsJudge(Check):
    """Asks a model, or a jury of several, to score what the agent left by your criteria.

    The score, from 0 to 1, becomes the check's score. It passes at `pass_threshold` or above; what the model says about
    passing does not count. What is judged is fenced, and the judge is told not to trust it. An answer without a number
    from 0 to 1 is asked for again, then the check is an error. An input that isn't there, or is blank, fails without
    asking.

    Keys are read from our own environment, which no sandbox ever sees: `ANTHROPIC_API_KEY`, `OPENAI_API_KEY`; the
    addresses too, `ANTHROPIC_BASE_URL` and `OPENAI_BASE_URL`. Without a key the check is skipped, and the report says
    so at its top.
    """

    type_name: ClassVar[str] = "llm_as_judge"
    aliases: ClassVar[tuple[str, ...]] = ("model_judge",)
    origin: ClassVar[str] = "Keystone"
    default_timeout: ClassVar[float] = 120.0
    skips_without_secrets: ClassVar[bool] = True

    criteria: TextOrMapping[_NonEmpty, TextFile]
    """What the work is scored by, in your words.

    Example: `The summary names the cause of the outage.`
    Example: `{file: criteria.md}`
    """
    model: _Model = "judge-fast"
    """The judge. `judge-fast` and `judge-strong` (`paragon-fast` and `paragon-max` are the same) are what the inputs
    of these names, or `KEYSTONE_JUDGE_FAST` and `KEYSTONE_JUDGE_STRONG`, say; `provider:model` names any other, the
    provider being `anthropic` or `openai` (any compatible server).

    Example: `judge-strong`
    """
    models: Annotated[list[_Model], Field(min_length=1)] | None = None
    """A jury instead of one judge: the mean of their scores counts.

    Example: `[judge-fast, "openai:gpt-5"]`
    """
    input_from: InputFrom = "agent_output"
    """What is judged: `agent_output`, `conversation` (what was said and answered in each turn), `stdout`, `workspace`
    (changed files first, at most 200 kB), `diff`, `trace`, `file:<path>` of the workspace, or `<service>.<field>` of a
    mock that records, such as `mail.last_request.body`.

    Example: `diff`
    """
    rubric: Rubric | None = None
    """Shown to the judge beside the criteria.

    Example: `{pass: Names the cause., fail: Names none.}`
    """
    prompt_template: (
        Annotated[str, AfterValidator(_has_input), Template(later=("criteria", "input", "rubric", "task"))] | None
    ) = None
    r"""Replaces the user prompt. `{criteria}`, `{input}`, `{task}` and `{rubric}` (or `{{ … }}`) are filled in, the
    input fenced as always; how to answer stays in the system prompt.

    Example: `"Judge by: {criteria}\n\n{input}"`
    """
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    """The temperature that the judge is asked with, from 0 to 2. Models that take none are not told.

    Example: `0.2`
    """
    pass_threshold: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    """The lowest score that passes the check; as `model_judge`: 0.8.

    Example: `0.8`
    """
    samples: int = Field(default=1, ge=1, le=100)
    """Answers asked of each model; their mean counts.

    Example: `3`
    """

    @classmethod
    def upgrade(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Touchstone's `model_judge`: `rubric` is the path of a file with the criteria, and 0.8 passes."""
        if document.get("type") != "model_judge":
            return document
        upgraded = dict(document)
        if isinstance(upgraded.get("rubric"), str) and "criteria" not in upgraded:
            upgraded["criteria"] = {"file": upgraded.pop("rubric")}
        upgraded.setdefault("pass_threshold", 0.8)
        return upgraded

    @model_validator(mode="after")
    def _one_way_to_name_models(self) -> Self:
        if self.models is not None and "model" in self.model_fields_set:
            raise PydanticCustomError("models", "expected model or models, found both")
        return self

    @property
    def judges(self) -> tuple[str, ...]:
        return tuple(self.models or [self.model])

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        try:
            await context.judge.require(self.judges)  # without a key: skip, before anything is read
            material = await anyio.to_thread.run_sync(collect_material, context.evidence, self.input_from)
            judgement = await context.judge.judge(self._request(context, material))
        except NothingToJudge as problem:
            return failed(f"{problem}.")
        except NoTrace:
            return skipped("There is no trace of this agent to judge.")
        except BadSource as problem:
            return broken(f"{problem}.")
        except JudgeUnavailable as problem:
            return skipped(f"Not judged: {problem}.")
        except JudgeFailed as problem:
            outcome = broken(f"The judge failed: {problem}.")
            return _with_cost(outcome, problem.usage)
        return self._outcome(judgement, material)

    def _request(self, context: CheckContext, material: Material) -> JudgeRequest:
        criteria = self.criteria
        if isinstance(criteria, TextFile):
            criteria = context.author_file(criteria.file).decode("utf-8", "replace")
        rubric = self.rubric.model_dump(by_alias=True, exclude_none=True) if self.rubric else {}
        return JudgeRequest(
            criteria=criteria,
            judged=material.text,
            judged_size=material.size,
            # A workspace's are in its text.
            remarks=material.notes if self.input_from != "workspace" else (),
            task=context.evidence.task_prompt,
            models=self.judges,
            rubric=rubric,
            template=self.prompt_template,
            temperature=self.temperature,
            samples=self.samples,
            timeout=context.timeout,
        )

    def _outcome(self, judgement: Judgement, material: Material) -> Outcome:
        holds = judgement.score >= self.pass_threshold - _TOLERANCE
        notes = [*judgement.notes, *material.notes]
        message = f"The judge gave {judgement.score:.2f}; {self.pass_threshold:.2f} or more passes."
        message = " ".join([message, judgement.reason, *(f"({note})" for note in notes)]).strip()
        outcome = (passed if holds else failed)(
            message,
            score=judgement.score,
            log=material.text,
            pass_threshold=self.pass_threshold,
            input_from=self.input_from,
            opinions=[dataclasses.asdict(opinion) for opinion in judgement.opinions],
            notes=notes,
            cost_known=judgement.usage.cost_usd is not None,
        )
        return _with_cost(outcome, judgement.usage)


def _with_cost(outcome: Outcome, cost: JudgeCost) -> Outcome:
    return dataclasses.replace(outcome, judge_usage=cost.amounts, unpriced=cost.unpriced)
