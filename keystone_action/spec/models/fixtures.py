"""`fixtures` and `secrets`: what is laid out for the agent before it starts (spec.md 1.3 and 1.4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from keystone_action.spec.models.base import AuthorPath, PlainText, ServiceName, StrictModel, WorkspacePath
from keystone_action.spec.models.shapes import by_type, text_like


class GitRepoFixture(StrictModel):
    """A clone. branch: branch, tag or commit; depth: how many commits, None = all; path in the workspace."""

    type: Literal["git_repo"]
    url: Annotated[str, Field(min_length=1)]
    branch: str | None = None
    depth: Annotated[int, Field(ge=1)] | None = None
    path: Annotated[str, WorkspacePath()] = "."


class SqlFixture(StrictModel):
    """A script for a database service. Exactly one of sql (the text) and file is set."""

    type: Literal["sql"]
    service: Annotated[str, ServiceName("database")]
    sql: str | None = None
    file: Annotated[str, AuthorPath("file", withheld=False)] | None = None


class DirectoryFixture(StrictModel):
    """A directory of the author's, copied to a path of the workspace."""

    type: Literal["directory"]
    from_: Annotated[str, AuthorPath("directory", withheld=False)] = Field(alias="from")
    to: Annotated[str, WorkspacePath()] = "."


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
    """One secret. source: `env` (the variable of the same name), `env:OTHER`, `file:path`, `command:…`.
    from_ (`from:`): `static://literal` or `generated`; at most one of the two is set. optional: an empty text when it
    can't be resolved, instead of an error."""

    name: SecretName
    source: Annotated[str, text_like(_SOURCE, "env, env:NAME, file:path or command:…")] | None = None
    from_: Annotated[str, text_like(_FROM, "generated or static://…")] | None = Field(default=None, alias="from")
    optional: bool = False


def _long_form(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Secret = Annotated[SecretEntry, BeforeValidator(_long_form)]
"""`NAME`, or the mapping."""
