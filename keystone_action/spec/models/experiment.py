"""What makes many cells of one spec: parallelism, datasets, inline scenarios; and how they are scored (spec.md 1.8)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from keystone_action.spec.models.fields import (
    AuthorPath,
    NumberOrMapping,
    PlainText,
    StrictModel,
    TextOrMapping,
    text_like,
)

ParameterName = Annotated[
    str, text_like(r"^[A-Za-z_][A-Za-z0-9_-]*$", "letters, digits, '_' and '-', a letter first"), PlainText()
]
Parameters = dict[ParameterName, Annotated[Any, PlainText()]]


class UntilDecided(StrictModel):
    """Replicas that stop when it is decided what their group comes to, so that no money is spent on the rest."""

    min: Annotated[int, Field(ge=1, le=100_000)]
    """How many replicas of a group run at least.

    Example: `3`
    """
    max: Annotated[int, Field(ge=1, le=100_000)]
    """How many run at most. A group that is not decided before is decided by what all of them came to.

    Example: `10`
    """
    confidence: Annotated[float, Field(ge=0.5, lt=1, allow_inf_nan=False)] = 0.95
    """How sure `majority` and `at_least` must be that the pass rate is on one side of what they ask for, from 0.5 to
    below 1. `docs/statistics.md` has the test, and how often it errs.

    Example: `0.9`
    """


class Parallelism(StrictModel):
    """What makes many cells of one scenario: repetitions and a matrix of parameters, which works like that of GitHub
    Actions.
    """

    replicas: NumberOrMapping[Annotated[int, Field(ge=1, le=100_000)], UntilDecided] = 1
    """How often each scenario is run with each parameter set. Models are not deterministic: one run says little.
    `scoring.replica_aggregation` decides what the replicas come to. A number of replicas always runs whole. `{min, max,
    confidence}` starts no further replica of a group once it is decided: `all` by the first failure, `any` by the first
    pass, `majority` and `{at_least: k}` when a test is sure of the side on which the pass rate is, or the rest can't
    change it; `mean` can't be decided early. `--replicas` and the input of that name replace it.

    Example: `5`
    Example: `{min: 3, max: 10}`
    """
    matrix: dict[ParameterName, Annotated[list[Annotated[Any, PlainText()]], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    """Parameters by name, each with a list of values. Every combination is run. A value is read by
    `{{ params.NAME }}`.

    Example: `{model: [claude-sonnet-4-5, gpt-5], style: [short, long]}`
    """
    exclude: list[Parameters] = Field(default_factory=list)
    """Combinations of the matrix that are not run. An entry names some parameters; each combination with these values
    is left out.

    Example: `[{model: gpt-5, style: long}]`
    """
    include: list[Parameters] = Field(default_factory=list)
    """Further combinations, or further parameters for some of the combinations, as in GitHub Actions: an entry that
    fits a combination without changing its values adds to it, any other entry is a combination of its own.

    Example: `[{model: gpt-5, effort: high}]`
    """
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    """How many cells run at the same time. Without it, as many as this machine has processor cores.
    `--max-concurrency` and the input of that name replace it.

    Example: `4`
    """


class Dataset(StrictModel):
    """A file of records `{id, input, expected, metadata, tags}`; each record is a scenario. A record's fields are read
    by `{{ record.input }}` and so on. The agent can't see the file.
    """

    path: Annotated[str, AuthorPath("file")]
    """The file, relative to the spec. Its name ends in `.jsonl`, `.ndjson`, `.csv` (columns separated by commas),
    `.json`, `.yaml` or `.yml`. A record that is malformed, or lacks a field that the spec uses, refuses the spec, with
    its line.

    Example: `cases.jsonl`
    """
    limit: Annotated[int, Field(ge=1)] | None = None
    """At most so many records: the first ones of those that `filter_tags` leaves.

    Example: `20`
    """
    filter_tags: list[Annotated[str, PlainText()]] = Field(default_factory=list)
    """Only records that have at least one of these tags. An empty list means all records.

    Example: `[refund]`
    """


class AtLeast(StrictModel):
    """A number of replicas."""

    at_least: Annotated[int, Field(ge=1)]
    """How many replicas of a group must pass, the others may fail. At most as many as `parallelism.replicas`.

    Example: `4`
    """


class ShareOfScenarios(StrictModel):
    """A share of the scenarios of a spec."""

    at_least: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    """The share that must pass, above 0 and at most 1. It is taken as it is written: 0.9 of 10 scenarios is 9.

    Example: `0.9`
    """


class Scoring(StrictModel):
    """How the scores of checks become a verdict. A cell's composite is Σ(weight · score) / Σ(weight) over the checks
    that were not skipped; it is 0 when a gate fails or a forbidden rule is broken.
    """

    pass_threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    """The lowest composite that passes a cell, from 0 to 1. `--threshold` and the input `threshold` replace it.

    Example: `0.85`
    """
    replica_aggregation: TextOrMapping[Literal["all", "any", "majority", "mean"], AtLeast] = "all"
    """What the replicas of one scenario with one parameter set come to. `all`: every one passes. `any`: at least one
    does. `majority`: more than half do. `mean`: the mean of their composites reaches the threshold. `{at_least:
    k}`: k of them pass. Replicas that disagree although the rule is met make the verdict `flaky`, which does not
    fail the step.

    Example: `majority`
    Example: `{at_least: 4}`
    """
    scenarios: TextOrMapping[Literal["all"], ShareOfScenarios] = "all"
    """How many scenarios of the spec must pass. `all`: every one. `{at_least: rate}`: this share of them, the others
    may fail. A scenario passes when its groups do, one for each parameter set; a flaky one counts as passed. A scenario
    in error keeps the spec in `error` as long as it could still decide.

    Example: `{at_least: 0.9}`
    """
    retry_errors: Annotated[int, Field(ge=0, le=100)] = 0
    """How often a cell is run again that broke before its agent's run was complete, from 0 to 100: a service, fixture,
    setup or provider that failed. Once at most where the agent had begun its work; never for a cell that failed, and
    never since a check broke.

    Example: `2`
    """
    fail_on_skipped: bool = False
    """Whether a cell fails when one of its checks was skipped (a judge without a key, say). Checks with `on_skip:
    ignore` are left out of this.

    Example: `true`
    """
