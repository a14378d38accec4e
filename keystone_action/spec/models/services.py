"""`services`: what the agent works against (spec.md 1.2)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from keystone_action.spec.models.base import (
    AuthorPath,
    Duration,
    PlainText,
    ShellCommand,
    StrictModel,
    Template,
    Text,
    WorkspacePath,
)
from keystone_action.spec.models.shapes import TextOrList, by_type, text_like
from keystone_action.spec.path_patterns import compile_path

Name = Annotated[
    str,
    text_like(r"^[a-z0-9]+([-_][a-z0-9]+)*$", "a-z, 0-9 and single dashes or underscores", max_length=63),
    PlainText(),
]
_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_IMAGE = (
    r"^(?:(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)(?::[0-9]+)?/)?"
    rf"{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@[A-Za-z0-9+._-]+:[0-9a-fA-F]{{32,}})?$"
    # Of an expression only the engine can judge what becomes of it.
    r"|\{\{"
)
ImageName = Annotated[str, text_like(_IMAGE, "the name of an image, such as python:3.12-slim")]
Status = Annotated[int, Field(ge=100, le=599)]
TemplateText = Annotated[str, Template()]

_POSTGRES_IMAGES = frozenset({"postgres", "postgresql", "postgis", "pgvector"})
_MYSQL_IMAGES = frozenset({"mysql", "mariadb"})
_DATABASE_URL = re.compile(r"(postgres|postgresql|mysql|mariadb|sqlite)(\+\w+)?:")


def repository_of(image: str) -> str:
    """The last part of an image's name: `postgres` of `registry:5000/library/postgres:16@sha256:…`."""
    return image.split("@", 1)[0].rsplit("/", 1)[-1].split(":", 1)[0]


class ServiceBase(StrictModel):
    """What all services have. name: letters in lower case, digits, `-` and `_`. ready_timeout in seconds."""

    name: Name
    ready_timeout: Duration = 60.0

    if TYPE_CHECKING:
        type: str

    @property
    def kind(self) -> str:
        """What it is, by `type` or else by `image`."""
        return self.type

    @property
    def is_database(self) -> bool:
        """Whether it answers sql."""
        return self.kind in ("postgres", "mysql", "sqlite")


class ServerBase(ServiceBase):
    """A service that is a server of its own, started for the run."""

    image: ImageName | None = None
    env: dict[str, Text] = Field(default_factory=dict)
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(default_factory=list)
    command: TextOrList[str, list[str]] | None = None
    wait_for: Annotated[str, ShellCommand()] | None = None
    isolation: Literal["auto", "database", "container"] = "auto"


class ContainerService(ServerBase):
    """An image. Those of PostgreSQL, MySQL and MariaDB are recognised: their kind is the database's."""

    type: Literal["container"] = "container"
    image: ImageName

    @property
    def kind(self) -> str:
        repository = repository_of(self.image)
        if repository in _POSTGRES_IMAGES:
            return "postgres"
        return "mysql" if repository in _MYSQL_IMAGES else "container"


class PostgresService(ServerBase):
    """PostgreSQL; without an image always the embedded server."""

    type: Literal["postgres"]


class MysqlService(ServerBase):
    """MySQL or MariaDB."""

    type: Literal["mysql"]


class SqliteService(ServiceBase):
    """A database file of the workspace."""

    type: Literal["sqlite"]
    path: Annotated[str, Field(min_length=1), WorkspacePath()]


class ExternalService(ServiceBase):
    """Something that runs already, by its URL."""

    type: Literal["external"]
    url: Annotated[str, Field(min_length=1)]

    @property
    def is_database(self) -> bool:
        """By the scheme of its URL; one that is an expression may be anything."""
        return "{{" in self.url or _DATABASE_URL.match(self.url) is not None


class MockResponse(StrictModel):
    """What a mock answers: at most one of response (text), json_body (`json:`, any value) and file. delay in seconds.
    `"json_body" in model_fields_set` tells `json: null` from no json. response, json and headers are templates that
    may use `{{ request.… }}`."""

    status: Status = 200
    headers: dict[str, Annotated[Text, Template()]] = Field(default_factory=dict)
    response: TemplateText | None = None
    json_body: Annotated[Any, Template()] = Field(default=None, alias="json")
    file: Annotated[str, AuthorPath("file", withheld=False)] | None = None
    delay: Duration | None = None
    fault: Literal["reset", "empty", "garbage"] | None = None


class RouteMatch(StrictModel):
    """What a request must have for a route to answer it: these headers and query values (literal; a list when a name
    is repeated), and this text in its body."""

    headers: dict[str, Text] = Field(default_factory=dict)
    query: dict[str, TextOrList[Text, list[Text]]] = Field(default_factory=dict)
    body: str | None = None


def _readable_path(text: str) -> str:
    try:
        compile_path(text)
    except ValueError as error:
        raise PydanticCustomError("path_pattern", "{message}", {"message": str(error)}) from None
    return text


class Route(MockResponse):
    """One route of a mock. method None = any. path: literal, `{param}`, `*` (one segment) and `**` (any number).
    times: how often it answers before it is as if it weren't there. sequence: answered one after the other, the last
    one from then on; excludes an answer of the route's own."""

    method: str | None = None
    path: Annotated[
        str, text_like(r"^(/|\*)", "a path that begins with / or *"), AfterValidator(_readable_path), PlainText()
    ]
    match: RouteMatch = Field(default_factory=RouteMatch.model_construct)
    times: Annotated[int, Field(ge=1)] | None = None
    sequence: list[MockResponse] = Field(default_factory=list)


class HttpMockService(ServiceBase):
    """A server that answers by routes and, with `record`, writes down every request. default_response is the status
    where no route answers: 200 without routes, else 404."""

    type: Literal["http_mock"]
    record: bool = False
    default_response: Status | None = None
    routes: list[Route] = Field(default_factory=list)

    @property
    def default_status(self) -> int:
        """`default_response` with its default."""
        return self.default_response if self.default_response is not None else (404 if self.routes else 200)


_AnyService = (
    Annotated[ContainerService, Tag("<container>")]
    | Annotated[PostgresService, Tag("<postgres>")]
    | Annotated[MysqlService, Tag("<mysql>")]
    | Annotated[SqliteService, Tag("<sqlite>")]
    | Annotated[HttpMockService, Tag("<http_mock>")]
    | Annotated[ExternalService, Tag("<external>")]
)
SERVICE_TYPES = tuple(tag.tag.strip("<>") for _, tag in map(get_args, get_args(_AnyService)))
"""What `type` may be."""
Service = Annotated[_AnyService, Discriminator(by_type(SERVICE_TYPES, default="container"))]
