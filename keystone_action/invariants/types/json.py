"""`json`: a document that the agent left, by its schema and by values at paths."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import Evidence
from keystone_action.files.paths import PathProblem, display_path, read_inside
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, skipped
from keystone_action.invariants.json_values import SIZE_LIMIT, Values, parse_strict, read_document, wrong_values
from keystone_action.invariants.judged_material import BadSource, InputFrom, NothingToJudge, NoTrace, gather_material
from keystone_action.invariants.own_process import NotFinished, ask_program
from keystone_action.spec.models.fields import AuthorPath, TextOrMapping, WorkspacePath
from keystone_action.spec.models.json_schema import check_schema, misspelt_keyword

_PROGRAM = Path(__file__).parent.parent / "schema_program.py"


_Schema = TextOrMapping[
    Annotated[str, Field(min_length=1), AuthorPath("file")], Annotated[dict[str, Any], AfterValidator(check_schema)]
]


class Json(Check):
    """Passes when a JSON document that the agent left fits a schema and has the expected values.

    Give `path` or `input_from`, and what must hold: `schema`, `values` or both; with neither it is enough that the
    document is JSON. A byte order mark in front of it is passed over. Values keep their types: numbers compare by value
    and never with text. What is missing, no UTF-8, no JSON, has a key twice, is above 8 MiB or nested deeper than 100
    levels fails. Score 1 when all holds, else 0.
    """

    type_name: ClassVar[str] = "json"
    default_timeout: ClassVar[float] = 30.0
    late_fails: ClassVar[bool] = True

    path: Annotated[str, Field(min_length=1), WorkspacePath()] | None = None
    """The document's file, relative to the workspace.

    Example: `report.json`
    """
    input_from: InputFrom | None = None
    """The document instead: `agent_output`, `stdout`, `file:<path>` of the workspace, or `<service>.<field>` of a mock
    that records, such as `shop.last_request.body`.

    Example: `agent_output`
    """
    schema_: _Schema | None = Field(default=None, alias="schema")
    """A JSON Schema, or the path of a file that holds one. Its draft is the one that it names, else 2020-12; `format`
    is not an assertion, and references to other documents are not followed.

    Example: `report.schema.json`
    Example: `{type: object, required: [total]}`
    """
    values: Values = Field(default_factory=dict)
    """What must be at which path: `a.b[0]`, or `$` for the whole document. A mapping of nothing but operators asks for
    these; any other value is to be equalled.

    Example: `{total: 42, "customers[0].name": {contains: Ada}}`
    """

    @classmethod
    def upgrade(cls, document: dict[str, Any]) -> dict[str, Any]:
        """`schema: {file: path}` is `schema: path`: as a schema it would hold for everything."""
        schema = document.get("schema")
        if isinstance(schema, dict) and schema.keys() == {"file"}:
            return {**document, "schema": schema["file"]}
        return document

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.path is None) == (self.input_from is None):
            found = "neither" if self.path is None else "both"
            raise PydanticCustomError("source", "expected path or input_from, found {found}", {"found": found})
        return self

    @property
    def _source(self) -> str:
        return display_path(self.path) if self.path is not None else str(self.input_from)

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        deadline = time.monotonic() + context.timeout
        try:
            schema = self._read_schema(context)
        except ValueError as problem:
            return broken(f"the schema {self.schema_} is not JSON: {problem}.")
        except _BadSchema as problem:
            return broken(f"the schema {self.schema_} can't be used: {problem}.")
        try:
            text = await anyio.to_thread.run_sync(self._text, context.evidence, abandon_on_cancel=True)
            document = await anyio.to_thread.run_sync(read_document, text, abandon_on_cancel=True)
            problems = [] if schema is None else await self._misfits(schema, text, deadline)
            problems += await anyio.to_thread.run_sync(
                lambda: list(wrong_values(self.values, document, deadline)), abandon_on_cancel=True
            )
        except (PathProblem, NothingToJudge) as problem:
            return failed(f"{problem}.")
        except NoTrace:
            return skipped("There is no trace of this agent to read.")
        except BadSource as problem:
            return broken(f"{problem}.")
        except _BadSchema as problem:
            return broken(f"the schema can't be used: {problem}.")
        except (ValueError, NotFinished) as problem:
            return failed(f"{self._source} can't be used as JSON: {problem}.")
        if problems:
            return failed("\n".join(f"{self._source}: {one}." for one in problems), problems=problems)
        return passed(f"{self._source} is as expected.")

    def _read_schema(self, context: CheckContext) -> Any:
        if isinstance(self.schema_, str):
            schema = parse_strict(context.author_file(self.schema_).decode("utf-8"))
            if misspelt := misspelt_keyword(schema):
                raise _BadSchema(misspelt)
            return schema
        return self.schema_

    def _text(self, evidence: Evidence) -> str:
        """Raises PathProblem, ValueError, and as `gather`."""
        path = self.path
        if self.input_from is not None and self.input_from.startswith("file:"):
            path = self.input_from.removeprefix("file:")
        if path is not None:
            return read_inside(evidence.workspace, path, limit=SIZE_LIMIT).decode("utf-8")
        return gather_material(evidence, str(self.input_from)).text

    async def _misfits(self, schema: Any, text: str, deadline: float) -> list[str]:
        question = {"schema": schema, "text": text}
        answer = await ask_program(_PROGRAM, question, timeout=max(deadline - time.monotonic(), 0.001))
        if "schema" in answer:
            raise _BadSchema(answer["schema"])
        return [f"{_place(steps)} does not fit the schema: {message}" for steps, message in answer["problems"]]


class _BadSchema(Exception):  # noqa: N818 - an outcome: the check is in error
    """The author's schema is not valid, or refers to what isn't in it; a sentence without its full stop."""


def _place(steps: list[str | int]) -> str:
    shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return display_path(shown.removeprefix(".")) or "the document"
