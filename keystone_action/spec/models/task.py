"""What a cell begins with: `task`, `setup`, `fixtures` and `secrets` (spec.md 1, 1.3 and 1.4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from keystone_action.spec.models.fields import (
    AuthorPath,
    PlainText,
    ServiceName,
    ShellCommand,
    StrictModel,
    Text,
    TextOrMapping,
    WorkspacePath,
    by_type,
    text_like,
)


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
    turns: list[str] = Field(default_factory=list)
    """What is said to the agent after the prompt, one text a turn. It is run once for the prompt and once for each
    text, and goes on with its session. The texts may hold expressions. Refused for `none` and `mini-swe-agent`.

    Example: `[Now add a test for it., Explain what you did.]`
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


class GitRepoFixture(StrictModel):
    """A clone of a git repository. Keystone clones it, not the sandbox; it takes at most ten minutes."""

    type: Literal["git_repo"]
    url: Annotated[str, Field(min_length=1)]
    """The repository: a URL, or a path relative to the spec. Credentials in it are masked and not left in the clone.

    Example: `https://github.com/octocat/Hello-World.git`
    """
    branch: str | None = None
    """A branch, a tag or a commit. Without it, the repository's default branch.

    Example: `main`
    """
    depth: Annotated[int, Field(ge=1)] | None = None
    """How many commits of history are cloned. Without it, all of them.

    Example: `1`
    """
    path: Annotated[str, WorkspacePath()] = "."
    """Where in the workspace the clone goes: a path where nothing is yet, or an empty folder. Otherwise the cell is an
    error.

    Example: `repo`
    """


class SqlFixture(StrictModel):
    """SQL that is run in a database service before the agent starts, as the owner of the database: what `psql` and the
    clients of MySQL and MariaDB load, such as a dump. Give exactly one of `sql` and `file`.
    """

    type: Literal["sql"]
    service: Annotated[str, ServiceName("database")]
    """The name of the service, one of PostgreSQL, MySQL, MariaDB or SQLite, or an external database.

    Example: `db`
    """
    sql: str | None = None
    """The statements.

    Example: `CREATE TABLE customers (id integer, name text)`
    """
    file: Annotated[str, AuthorPath("file", withheld=False)] | None = None
    """A file with the statements, relative to the spec, of any size: a dump of `pg_dump --format=plain`, `mysqldump` or
    `mariadb-dump` of one database, too. Owners and rights of roles that are not there are passed over, and a notice
    counts them. Where it makes, drops or changes the database that the service's `env` names, or uses or connects to
    it, the cell's own is meant. Commands of the clients that run programs or open other files than scripts below the
    spec's folder are errors.

    Example: `schema.sql`
    """


class DirectoryFixture(StrictModel):
    """A folder of yours that is copied into the workspace."""

    type: Literal["directory"]
    from_: Annotated[str, AuthorPath("directory", withheld=False)] = Field(alias="from")
    """The folder, relative to the spec.

    Example: `seed`
    """
    to: Annotated[str, WorkspacePath()] = "."
    """Where in the workspace its content goes: a path where nothing is yet, or an empty folder. Otherwise the cell is
    an error.

    Example: `data`
    """


FIXTURE_TYPES = ("git_repo", "sql", "directory")
AnyFixture = GitRepoFixture | SqlFixture | DirectoryFixture

Fixture = Annotated[
    Annotated[GitRepoFixture, Tag("<git_repo>")]
    | Annotated[SqlFixture, Tag("<sql>")]
    | Annotated[DirectoryFixture, Tag("<directory>")],
    Discriminator(by_type(FIXTURE_TYPES)),
]


_SOURCE = r"^(env|env:[^\s]+|file:[\s\S]+|command:[\s\S]+)$"
_FROM = r"^(generated|static://[\s\S]*)$"
SecretName = Annotated[
    str, text_like(r"^[A-Za-z_][A-Za-z0-9_]*$", "letters, digits and '_', like a variable"), PlainText()
]


class SecretEntry(StrictModel):
    """One secret: its name and where its value comes from. Give at most one of `source` and `from`; with neither, the
    value is that of the environment variable of the same name.
    """

    name: SecretName
    """The name in `{{ secrets.NAME }}`.

    Example: `API_TOKEN`
    """
    source: Annotated[str, text_like(_SOURCE, "env, env:NAME, file:path or command:…")] | None = None
    """Where the value is. `env`: the environment variable of that name. `env:OTHER`: another variable; never one that
    begins with `GITHUB_`, `ACTIONS_` or `INPUT_`. `file:PATH`: a file, relative to the spec or from `~/`.
    `command:…`: what a command prints, run by `sh -c` on this machine in the spec's folder, for at most 60 s.

    Example: `env:STAGING_TOKEN`
    Example: `file:token.txt`
    """
    from_: Annotated[str, text_like(_FROM, "generated or static://…")] | None = Field(default=None, alias="from")
    """A value that no one has to set. `generated`: 64 random hexadecimal digits, new in each run. `static://TEXT`:
    this text, which everyone who reads the spec can read too.

    Example: `generated`
    Example: `static://not-a-real-key`
    """
    optional: bool = False
    """Whether the secret may be missing: it is then an empty text. Otherwise a secret that can't be resolved, or is
    empty, is an error that names it.

    Example: `true`
    """


def _long_form(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Secret = Annotated[SecretEntry, BeforeValidator(_long_form)]
"""`NAME`, or the mapping."""
