"""What makes many cells of one spec: parallelism, datasets, inline scenarios; and how they are scored (spec.md 1.8)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from keystone_action.spec.models.base import AuthorPath, PlainText, StrictModel
from keystone_action.spec.models.shapes import TextOrMapping, text_like

ParameterName = Annotated[
    str, text_like(r"^[A-Za-z_][A-Za-z0-9_-]*$", "letters, digits, '_' and '-', a letter first"), PlainText()
]
Parameters = dict[ParameterName, Annotated[Any, PlainText()]]


class Parallelism(StrictModel):
    """Like GitHub's own matrix. replicas: repetitions of each scenario with each parameter set. max_concurrency:
    cells at a time, None = as many as there are cores."""

    replicas: Annotated[int, Field(ge=1, le=100_000)] = 1
    matrix: dict[ParameterName, Annotated[list[Annotated[Any, PlainText()]], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    exclude: list[Parameters] = Field(default_factory=list)
    include: list[Parameters] = Field(default_factory=list)
    max_concurrency: Annotated[int, Field(ge=1)] | None = None


class Dataset(StrictModel):
    """Records `{id, input, expected, metadata, tags}` of a JSONL, CSV, JSON or YAML file; each is a scenario.
    limit: the first so many of those that match; filter_tags: records that have at least one of these tags."""

    path: Annotated[str, AuthorPath("file")]
    limit: Annotated[int, Field(ge=1)] | None = None
    filter_tags: list[Annotated[str, PlainText()]] = Field(default_factory=list)


class AtLeast(StrictModel):
    """`{at_least: k}`: so many replicas of a group must pass."""

    at_least: Annotated[int, Field(ge=1)]


class Scoring(StrictModel):
    """How scores become a verdict. retry_errors: how often a cell whose verdict is `error` is run again."""

    pass_threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    replica_aggregation: TextOrMapping[Literal["all", "any", "majority", "mean"], AtLeast] = "all"
    retry_errors: Annotated[int, Field(ge=0, le=100)] = 0
    fail_on_skipped: bool = False
