"""A check type of a third party: a text file has at most so many words."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from keystone_action.files.paths import PathProblem, read_inside
from keystone_action.invariants.check import Check, CheckContext, Outcome, failed, passed
from keystone_action.spec.models.fields import WorkspacePath


class WordCount(Check):
    """At most `at_most` words in the file at `path`."""

    type_name: ClassVar[str] = "word_count"

    path: Annotated[str, WorkspacePath()]
    at_most: int = Field(ge=0)

    async def evaluate(self, context: CheckContext) -> Outcome:
        try:
            count = len(read_inside(context.evidence.workspace, self.path).split())
        except PathProblem as problem:
            return failed(f"{problem}.")
        if count > self.at_most:
            return failed(f"{self.path} has {count} words, expected at most {self.at_most}.", words=count)
        return passed(f"{self.path} has {count} words.", words=count)
