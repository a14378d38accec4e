"""Check types as a front door would hand them to the loader, without the room that evaluates them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from keystone_action.spec.models.fields import (
    AuthorPath,
    CheckModel,
    InputSource,
    RegexPattern,
    ServiceName,
    ShellCommand,
    TextOrList,
    WorkspacePath,
)

HEAD = """version: 1
id: sample
task: {prompt: do it}
agent: {type: none}
"""
CHECKS = "invariants: {there: {check: {type: file_exists, path: out.txt}}}\n"


class FileExists(CheckModel):
    type_name: ClassVar[str] = "file_exists"
    path: Annotated[str, WorkspacePath(glob=True)]


class CommandExit(CheckModel):
    type_name: ClassVar[str] = "command_exit"
    aliases: ClassVar[tuple[str, ...]] = ("command",)
    command: Annotated[TextOrList[str, list[str]], ShellCommand()]
    exit_code: int = Field(default=0, ge=0, le=255)

    @classmethod
    def upgrade(cls, document: dict[str, Any]) -> dict[str, Any]:
        names = {"cmd": "command", "expect_exit": "exit_code"}
        return {names.get(key, key): value for key, value in document.items()}


class FileContent(CheckModel):
    type_name: ClassVar[str] = "file_content"
    path: Annotated[str, WorkspacePath(glob=True)]
    pattern: Annotated[str, RegexPattern()] | list[Annotated[str, RegexPattern()]] | None = None


class Sql(CheckModel):
    type_name: ClassVar[str] = "sql"
    service: Annotated[str, ServiceName("database")]
    query: str
    equals: Any = None


class Mock(CheckModel):
    type_name: ClassVar[str] = "http_mock_assertions"
    service: Annotated[str, ServiceName("recording")]


class Custom(CheckModel):
    type_name: ClassVar[str] = "custom"
    script: Annotated[str, AuthorPath("file")]
    args: list[str] = Field(default_factory=list)


class Judge(CheckModel):
    type_name: ClassVar[str] = "llm_as_judge"
    criteria: str
    input_from: Annotated[str, InputSource()] = "agent_output"


TYPES: dict[str, type[CheckModel]] = {
    "file_exists": FileExists,
    "command_exit": CommandExit,
    "command": CommandExit,
    "file_content": FileContent,
    "sql": Sql,
    "http_mock_assertions": Mock,
    "custom": Custom,
    "llm_as_judge": Judge,
}
