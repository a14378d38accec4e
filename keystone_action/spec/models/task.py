"""`task` and `setup`: what the agent is asked to do, and what is done before it starts (spec.md 1)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from keystone_action.spec.models.base import AuthorPath, ShellCommand, StrictModel, Text, WorkspacePath
from keystone_action.spec.models.shapes import TextOrMapping


class PromptFile(StrictModel):
    """A prompt from a file."""

    file: Annotated[str, AuthorPath("file", withheld=False)]
    """The file that holds the prompt, relative to the spec. It must not be empty. `{{ }}` in it is plain text.

    Example: `prompt.md`
    """


class Task(StrictModel):
    """What the agent is asked to do."""

    prompt: TextOrMapping[str, PromptFile]
    """What the agent is asked to do: a text, which may hold expressions, or `{file: path}`. Not empty. Above 100 KiB
    it is only in the file that `KEYSTONE_PROMPT_FILE` names, not in `KEYSTONE_PROMPT`.

    Example: `"Write the total of prices.csv to total.txt."`
    Example: `{file: prompt.md}`
    """
    system: str | None = None
    """A text that expressions read as `{{ task.system }}`, for agents that take a system prompt.

    Example: `You are careful with money.`
    """
    files: list[Annotated[str, AuthorPath("any", withheld=False)]] = Field(default_factory=list)
    """Files and folders that are copied into the workspace under the path that they have here, relative to the spec.

    Example: `[docs/brief.md]`
    """


def _file_mode(value: Any) -> Any:
    # 0755 is the number 755 in YAML 1.2: taken as decimal it would be a mode nobody meant.
    if isinstance(value, str) and 3 <= len(value) <= 4 and set(value) <= set("01234567"):
        return int(value, 8)
    raise PydanticCustomError(
        "file_mode", "expected {expected}", {"expected": 'octal digits in quotes, like "0755"', "found": repr(value)}
    )


class SetupFile(StrictModel):
    """A file or folder that is put into the workspace. Give exactly one of `content` and `from`."""

    path: Annotated[str, Field(min_length=1), WorkspacePath()]
    """Where it goes in the workspace.

    Example: `config.ini`
    """
    content: str | None = None
    """What the file holds.

    Example: `"debug = true"`
    """
    from_: Annotated[str, AuthorPath("any", withheld=False)] | None = Field(default=None, alias="from")
    """The file or folder that is copied, relative to the spec.

    Example: `defaults.ini`
    """
    mode: Annotated[int, BeforeValidator(_file_mode), WithJsonSchema({"type": "string"})] | None = None
    """The permissions, as octal digits in quotes. Without it, `"0644"` for `content`, and those of the original for
    `from`.

    Example: `"0755"`
    """


class Setup(StrictModel):
    """What is done before the agent starts. In containers as root, in the process sandbox as the agent's user. When a
    part of it fails, the cell is an error.
    """

    packages: list[str] = Field(default_factory=list)
    """Packages to install. In containers by apt or apk where the image's package manager knows the name, else by pip.
    In the process sandbox Python packages by pip, into an environment of the cell's own; a system package needs
    `base`.

    Example: `[requests==2.32.3]`
    """
    commands: list[Annotated[str, Field(min_length=1), ShellCommand()]] = Field(default_factory=list)
    """Commands that are run in the workspace, one after the other, each by `sh -c`. One that ends with another exit
    code than 0 is an error.

    Example: `[make deps]`
    """
    files: list[SetupFile] = Field(default_factory=list)
    """Files that are put into the workspace before the commands.

    Example: `[{path: config.ini, content: "debug = true"}]`
    """
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables of the commands, the agent and the checks. `agent.env` wins over it.

    Example: `{TZ: UTC}`
    """
