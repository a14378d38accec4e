"""`services`: what the agent works against (spec.md 1.2)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from keystone_action.spec.globs import compile_path
from keystone_action.spec.models.fields import (
    AuthorPath,
    Duration,
    PlainText,
    ShellCommand,
    StrictModel,
    Template,
    Text,
    TextOrList,
    WorkspacePath,
    by_type,
    text_like,
)
from keystone_action.spec.models.mcp import McpPrompt, McpResource, McpTool

Name = Annotated[
    str,
    text_like(r"^[a-z0-9]+([-_][a-z0-9]+)*$", "a-z, 0-9 and single dashes or underscores", max_length=63),
    PlainText(),
]
OWN_NAMES = frozenset(
    {
        "sandbox",
        "localhost",
        *(f"ip6-{name}" for name in ("localhost", "loopback", "localnet", "mcastprefix", "allnodes", "allrouters")),
    }
)
"""Names that stand in the hosts file of every container of ours: its own, and those that engines write there. What is
called so is never reached: a container means itself by them."""
_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_IMAGE = (
    r"^(?:(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)(?::[0-9]+)?/)?"
    rf"{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@[A-Za-z0-9+._-]+:[0-9a-fA-F]{{32,}})?$"
    # Of an expression only the engine can judge what becomes of it.
    r"|\{\{"
)
ImageName = Annotated[str, text_like(_IMAGE, "the name of an image, such as python:3.12-slim")]
StatusCode = Annotated[int, Field(ge=200, le=599)]
TemplateText = Annotated[str, Template()]

_POSTGRES_IMAGES = frozenset({"postgres", "postgresql", "postgis", "pgvector"})
_MYSQL_IMAGES = frozenset({"mysql", "mariadb"})
_DATABASE_URL = re.compile(r"(postgres|postgresql|mysql|mariadb|sqlite)(\+\w+)?:")


def repository_of(image: str) -> str:
    """The last part of an image's name: `postgres` of `registry:5000/library/postgres:16@sha256:…`."""
    return image.split("@", 1)[0].rsplit("/", 1)[-1].split(":", 1)[0]


class ServiceBase(StrictModel):
    """What all services have."""

    name: Name
    """The name of the service in expressions, checks and fixtures; containers reach it under this name too. Not
    `sandbox`, `localhost` or `ip6-localhost`: by these a container means itself.

    Example: `db`
    """
    ready_timeout: Duration = 60.0
    """How long the service may take until it is ready. Past it, the cell is an error. A SQLite file is ready at once.

    Example: `2m`
    """

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
    """A server of its own that is started for the run."""

    image: ImageName | None = None
    """The container image, which needs a Docker engine. Without an engine, images of PostgreSQL are replaced by the
    embedded server, and the report says so.

    Example: `postgres:16`
    """
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables of the server. Databases take their user, password and name from the variables of their
    official images, such as `POSTGRES_USER`, `POSTGRES_PASSWORD` and `POSTGRES_DB`.

    Example: `{POSTGRES_USER: app, POSTGRES_DB: crm}`
    """
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(default_factory=list)
    """Ports that the server listens on. It is ready when all of them accept connections; the first one is
    `{{ services.NAME.port }}`. The embedded PostgreSQL takes none.

    Example: `[8000]`
    """
    command: TextOrList[str, list[str]] | None = None
    """What the container runs in place of the image's own command, read as `docker run` reads it. The embedded
    PostgreSQL takes none.

    Example: `python3 -m http.server 8000`
    Example: `[sh, -c, "cd /srv && exec python3 -m http.server 8000"]`
    """
    wait_for: Annotated[str, ShellCommand()] | None = None
    """A command that is run inside the container by `/bin/sh -c`, again and again; the service is ready when it ends
    with 0. The embedded PostgreSQL takes none.

    Example: `test -f /tmp/ready`
    """
    isolation: Literal["auto", "database", "container"] = "auto"
    """How cells are kept apart. `container`: a server for each cell. `database`: one server, with a database and a
    user for each cell (an image that is not a database is then shared by all). `auto`: with one cell at a time,
    exactly the user and database of `env`, reset between cells; with several, as `database`. The embedded
    PostgreSQL takes `auto` and `database`.

    Example: `database`
    """


class ContainerService(ServerBase):
    """A container image: what a service is that has no `type`. Images of PostgreSQL, MySQL and MariaDB are recognised
    and treated as databases.
    """

    type: Literal["container"] = "container"
    image: ImageName
    """The container image. It needs a Docker engine; without one, images of PostgreSQL are replaced by the embedded
    server, and the report says so.

    Example: `redis:7`
    """

    @property
    def kind(self) -> str:
        repository = repository_of(self.image)
        if repository in _POSTGRES_IMAGES:
            return "postgres"
        return "mysql" if repository in _MYSQL_IMAGES else "container"


class PostgresService(ServerBase):
    """PostgreSQL. Without `image` it is the embedded server, which needs no Docker engine."""

    type: Literal["postgres"]


class MysqlService(ServerBase):
    """MySQL or MariaDB in a container. Without `image` it is `mysql:9`, or, where there is no Docker engine, the
    MariaDB or MySQL that is installed on this machine, started for the run with a directory and a port of its own; the
    report says so.
    """

    type: Literal["mysql"]


class SqliteService(ServiceBase):
    """A SQLite database in a file of the workspace."""

    type: Literal["sqlite"]
    path: Annotated[str, Field(min_length=1), WorkspacePath()]
    """The database file in the workspace. The agent finds it there.

    Example: `data/shop.db`
    """


class ExternalService(ServiceBase):
    """Something that runs already, by its URL, such as a service container of the workflow. Keystone neither starts
    nor stops it, and does not reset it between cells.
    """

    type: Literal["external"]
    url: Annotated[str, Field(min_length=1)]
    """Its address. By the scheme (`postgresql`, `mysql`, …) Keystone knows a database.

    Example: `postgresql://app:secret@localhost:5432/crm`
    """

    @property
    def is_database(self) -> bool:
        """By the scheme of its URL; one that is an expression may be anything."""
        return "{{" in self.url or _DATABASE_URL.match(self.url) is not None


class MockResponse(StrictModel):
    """What a mock answers. Give at most one of `response`, `json` and `file`; without any the body is empty."""

    status: StatusCode = 200
    """The status of the response, from 200 to 599.

    Example: `404`
    """
    headers: dict[str, Annotated[Text, Template()]] = Field(default_factory=dict)
    """Headers of the response. Their values may use `{{ request.… }}`.

    Example: `{Content-Type: text/csv}`
    """
    response: TemplateText | None = None
    """The body as a text, which may use `{{ request.path }}`, `{{ request.params.NAME }}`, `{{ request.query.NAME }}`
    and `{{ request.json.… }}`.

    Example: `"hello {{ request.params.name }}"`
    """
    json_body: Annotated[Any, Template()] = Field(default=None, alias="json")
    """The body as JSON: any value. Texts in it may use `{{ request.… }}`.

    Example: `{id: 7, state: paid}`
    """
    file: Annotated[str, AuthorPath("file", withheld=False)] | None = None
    """The body is what this file holds, relative to the spec. It is sent as it is.

    Example: `response.bin`
    """
    delay: Duration | None = None
    """How long the mock waits before it answers.

    Example: `250ms`
    """
    fault: Literal["reset", "empty", "garbage"] | None = None
    """In place of an answer. `reset`: the connection is reset. `empty`: it is closed without a byte. `garbage`: bytes
    that are not HTTP.

    Example: `reset`
    """


class RouteMatch(StrictModel):
    """What a request must have for a route to answer it, besides method and path. All that is given must hold."""

    headers: dict[str, Text] = Field(default_factory=dict)
    """Headers by name, in any case, with exactly these values.

    Example: `{Authorization: Bearer abc}`
    """
    query: dict[str, TextOrList[Text, list[Text]]] = Field(default_factory=dict)
    """Parameters of the query by name: the value, or a list of values where a name is repeated.

    Example: `{page: 2, tag: [a, b]}`
    """
    body: str | None = None
    """A text that is somewhere in the body.

    Example: `customer_id`
    """


def _readable_path(text: str) -> str:
    try:
        compile_path(text)
    except ValueError as error:
        raise PydanticCustomError("path_pattern", "{message}", {"message": str(error)}) from None
    return text


class MockRoute(MockResponse):
    """One route of a mock. A request is answered by the first route that matches it and is not used up."""

    method: str | None = None
    """The method, in upper or lower case. Without it, any. A route for `GET` answers `HEAD` too.

    Example: `POST`
    """
    path: Annotated[
        str, text_like(r"^(/|\*)", "a path that begins with / or *"), AfterValidator(_readable_path), PlainText()
    ]
    """The path, percent-decoded. `{name}` is a part of a segment that `request.params` hands out, `*` is anything
    within one segment, `**` is any number of segments.

    Example: `/orders/{id}`
    Example: `/api/**`
    """
    match: RouteMatch = Field(default_factory=RouteMatch.model_construct)
    """What else a request must have.

    Example: `{query: {page: 2}}`
    """
    times: Annotated[int, Field(ge=1)] | None = None
    """How many requests it answers; after that it is as if the route were not there. Without it, any number.

    Example: `1`
    """
    sequence: list[MockResponse] = Field(default_factory=list)
    """Responses that are given one after the other; the last one from then on. It takes the place of the route's own
    response.

    Example: `[{status: 503}, {json: {ok: true}}]`
    """


class HttpMockService(ServiceBase):
    """A server that answers by routes and, with `record`, writes down every request. Each cell sees only its own
    requests.
    """

    type: Literal["http_mock"]
    record: bool = False
    """Whether requests are kept for checks: `http_mock_assertions` and `input_from: NAME.last_request.body` need it.

    Example: `true`
    """
    default_response: StatusCode | None = None
    """The status where no route answers, from 200 to 599; the body is `{}`. Without it: 200 when there are no routes,
    else 404.

    Example: `503`
    """
    routes: list[MockRoute] = Field(default_factory=list)
    """The routes, in the order in which they are tried.

    Example: `[{method: GET, path: "/orders/{id}", json: {state: paid}}]`
    """

    @property
    def default_status(self) -> int:
        """`default_response` with its default."""
        return self.default_response if self.default_response is not None else (404 if self.routes else 200)


class McpMockService(ServiceBase):
    """A server of the Model Context Protocol (MCP) that answers calls of its tools as it is told and, with `record`,
    writes down every call. Known agents that have an MCP client find it in their settings; others get
    `{{ services.NAME.url }}` (streamable HTTP) or `{{ services.NAME.command }}` (a program that they start).
    """

    type: Literal["mcp_mock"]
    record: bool = True
    """Whether calls are kept for `mcp_assertions`.

    Example: `false`
    """
    tools: list[McpTool] = Field(default_factory=list)
    """The tools, in the order in which clients see them.

    Example: `[{name: get_order, json: {state: paid}}]`
    """
    resources: list[McpResource] = Field(default_factory=list)
    """Texts that clients can read.

    Example: `[{uri: "docs://policy", name: policy, text: Refund within 30 days.}]`
    """
    prompts: list[McpPrompt] = Field(default_factory=list)
    """Prompts that clients can ask for.

    Example: `[{name: refund, text: Refund the order.}]`
    """


_AnyService = (
    Annotated[ContainerService, Tag("<container>")]
    | Annotated[PostgresService, Tag("<postgres>")]
    | Annotated[MysqlService, Tag("<mysql>")]
    | Annotated[SqliteService, Tag("<sqlite>")]
    | Annotated[HttpMockService, Tag("<http_mock>")]
    | Annotated[McpMockService, Tag("<mcp_mock>")]
    | Annotated[ExternalService, Tag("<external>")]
)
SERVICE_TYPES = tuple(tag.tag.strip("<>") for _, tag in map(get_args, get_args(_AnyService)))
"""What `type` may be."""
Service = Annotated[_AnyService, Discriminator(by_type(SERVICE_TYPES, default="container"))]
