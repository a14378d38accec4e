"""`agent`: what is put to the test, and how it is started (spec.md 1.1)."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Discriminator, Field, Tag

from keystone_action.spec.models.base import (
    AuthorPath,
    Duration,
    PlainText,
    ShellCommand,
    StrictModel,
    Text,
    WorkspacePath,
)
from keystone_action.spec.models.shapes import TextOrList, TextOrMapping, by_type, text_like


class AgentOutput(StrictModel):
    """Where the agent's answer is, when it is not simply stdout: a file of the workspace, or an AgentResult document
    `{output, tool_calls, token_usage}` on stdout (`json: stdout`). Exactly one is set."""

    file: Annotated[str, WorkspacePath()] | None = None
    json_from: Literal["stdout"] | None = Field(default=None, alias="json")


TraceFormat = Literal["keystone", "claude", "codex", "gemini", "mini", "touchstone", "otel"]


class AgentTrace(StrictModel):
    """The transcript that an agent writes of itself: a file of the workspace, or its stdout. Exactly one of path and
    stdout is set."""

    format: TraceFormat
    path: Annotated[str, WorkspacePath()] | None = None
    stdout: Literal[True] | None = None


class AgentBase(StrictModel):
    """What all agents have. timeout in seconds; `dir` is the agent's own code, given to it read-only."""

    timeout: Duration = 600.0
    env: dict[str, Text] = Field(default_factory=dict)
    dir: Annotated[str, AuthorPath("directory", withheld=False)] | None = None
    trace: AgentTrace | None = None
    output: TextOrMapping[Literal["stdout"], AgentOutput] = "stdout"
    stdin: Literal["prompt"] | None = None
    user: str = "unprivileged"
    must_exit_zero: bool = False


class CommandAgent(AgentBase):
    """A command: a text runs through `sh -c`, a list is executed as it is."""

    type: Literal["command"]
    command: TextOrList[Annotated[str, Field(min_length=1), ShellCommand()], list[str]]


class CliAgent(AgentBase):
    """A program and its arguments, executed without a shell."""

    type: Literal["cli"]
    binary: Annotated[str, Field(min_length=1)]
    args: list[str] = Field(default_factory=list)


class PythonAgent(AgentBase):
    """`module:Class` (or `module:function`) found in `dir`; runs in the sandbox, never in our process."""

    type: Literal["python"]
    entrypoint: Annotated[str, text_like(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", "module:Class"), PlainText()]
    dir: Annotated[str, AuthorPath("directory", withheld=False)]


class NoneAgent(AgentBase):
    """No agent: the workspace is graded as it is."""

    type: Literal["none"]


PresetType = Literal["claude-code", "codex", "gemini", "mini-swe-agent", "opencode", "aider"]
PRESET_TYPES: tuple[PresetType, ...] = get_args(PresetType)


class PresetAgent(AgentBase):
    """A known coding agent, started by the data that we have of it. args are added to its own; binary replaces its
    program. version: installed at setup with `base` (`latest` = the newest), and else the one that has to be there."""

    type: PresetType
    model: Annotated[str, Field(min_length=1)] | None = None
    args: list[str] = Field(default_factory=list)
    binary: Annotated[str, Field(min_length=1)] | None = None
    version: Annotated[str, Field(min_length=1)] | None = None


BuiltInTool = Literal["bash", "read", "write", "edit"]
BUILT_IN_TOOLS: tuple[BuiltInTool, ...] = ("bash", "read", "write", "edit")


class AnthropicAgent(AgentBase):
    """The built-in tool loop with the anthropic SDK."""

    type: Literal["anthropic", "paragon"]
    model: str | None = None
    max_turns: Annotated[int, Field(ge=1)] = 50
    tools: list[BuiltInTool] = Field(default_factory=lambda: list(BUILT_IN_TOOLS))


class HttpAgent(AgentBase):
    """An agent that is a service: one request, whose answer holds the output at a JSON path."""

    type: Literal["http"]
    url: str
    method: str = "POST"
    headers: dict[str, Text] = Field(default_factory=dict)
    body: TextOrMapping[str, dict[str, object]] | None = None
    output_path: str | None = None


AGENT_TYPES = (
    "command",
    "cli",
    "python",
    "none",
    *PRESET_TYPES,
    "anthropic",
    "paragon",
    "http",
)
_PRESETS: dict[str, str] = dict.fromkeys(PRESET_TYPES, "preset")

Agent = Annotated[
    Annotated[CommandAgent, Tag("<command>")]
    | Annotated[CliAgent, Tag("<cli>")]
    | Annotated[PythonAgent, Tag("<python>")]
    | Annotated[NoneAgent, Tag("<none>")]
    | Annotated[PresetAgent, Tag("<preset>")]
    | Annotated[AnthropicAgent, Tag("<anthropic>")]
    | Annotated[HttpAgent, Tag("<http>")],
    Discriminator(by_type(AGENT_TYPES, merge={**_PRESETS, "paragon": "anthropic"})),
]
