"""`fixtures` and `secrets`: what is laid out for the agent before it starts (spec.md 1.3 and 1.4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from keystone_action.spec.models.base import AuthorPath, PlainText, ServiceName, StrictModel, WorkspacePath
from keystone_action.spec.models.shapes import by_type, text_like


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
    """SQL that is run in a database service before the agent starts, as the owner of the database. Give exactly one of
    `sql` and `file`.
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
    """A file with the statements, relative to the spec, in UTF-8.

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
    """The name by which `{{ secrets.NAME }}` reads it.

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
