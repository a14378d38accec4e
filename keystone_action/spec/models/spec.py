"""The spec file, format `version: 1`, as frozen models: attribute names are the field names of spec.md 1.

Names that Python or pydantic reserve have an underscore or another word (`from_`, `json_from`, `json_body`).
Durations are seconds, sizes are bytes. Rules that need more than one field are in `spec.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from keystone_action.spec.models.agents import Agent, AgentBase, PresetAgent
from keystone_action.spec.models.base import (
    AuthorPath,
    CheckModel,
    Duration,
    PlainText,
    ShellCommand,
    StrictModel,
    Text,
    WorkspacePath,
)
from keystone_action.spec.models.experiment import Dataset, Parallelism, Parameters, Scoring
from keystone_action.spec.models.fixtures import Fixture, Secret
from keystone_action.spec.models.gateway import Gateway
from keystone_action.spec.models.policies import Audit, Determinism, Egress, Forbidden, Network, Resources
from keystone_action.spec.models.services import ImageName, Service
from keystone_action.spec.models.shapes import TextOrMapping, text_like

Id = Annotated[
    str,
    text_like(r"^[a-z0-9]+(-[a-z0-9]+)*$", "kebab-case: a-z, 0-9 and single dashes", max_length=128),
    PlainText(),
]
InvariantName = Annotated[
    str,
    text_like(r"^[A-Za-z0-9_][A-Za-z0-9_-]*$", "letters, digits, '_' and '-'", max_length=128),
    PlainText(),
]
ScenarioId = Annotated[
    str,
    text_like(r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", "letters, digits, '.', '_' and '-'", max_length=128),
    PlainText(),
]
Tag = Annotated[str, Field(min_length=1), PlainText()]


class PromptFile(StrictModel):
    """`prompt: {file: path}`; what the file holds is never interpolated."""

    file: Annotated[str, AuthorPath("file", withheld=False)]


class Task(StrictModel):
    """What the agent is asked. files are copied into the workspace under their own relative path."""

    prompt: TextOrMapping[str, PromptFile]
    system: str | None = None
    files: list[Annotated[str, AuthorPath("any", withheld=False)]] = Field(default_factory=list)


def _file_mode(value: Any) -> Any:
    # 0755 is the number 755 in YAML 1.2: taken as decimal it would be a mode nobody meant.
    if isinstance(value, str) and 3 <= len(value) <= 4 and set(value) <= set("01234567"):
        return int(value, 8)
    raise PydanticCustomError(
        "file_mode", "expected {expected}", {"expected": 'octal digits in quotes, like "0755"', "found": repr(value)}
    )


class SetupFile(StrictModel):
    """A file written before the agent starts. Exactly one of content and from_ (`from:`) is set."""

    path: Annotated[str, Field(min_length=1), WorkspacePath()]
    content: str | None = None
    from_: Annotated[str, AuthorPath("any", withheld=False)] | None = Field(default=None, alias="from")
    mode: Annotated[int, BeforeValidator(_file_mode), WithJsonSchema({"type": "string"})] | None = None


class Setup(StrictModel):
    """What is done in the workspace before the agent starts; env reaches agent and checks."""

    packages: list[str] = Field(default_factory=list)
    commands: list[Annotated[str, Field(min_length=1), ShellCommand()]] = Field(default_factory=list)
    files: list[SetupFile] = Field(default_factory=list)
    env: dict[str, Text] = Field(default_factory=dict)


def _check_model(value: Any, info: ValidationInfo) -> Any:
    """Validate a check by its own type. The types come with the validation's context, since this room knows none."""
    if isinstance(value, CheckModel):
        return value
    context = info.context if isinstance(info.context, Mapping) else {}
    return context["resolve_check"](value)


Check = Annotated[CheckModel, BeforeValidator(_check_model)]


def _default_weight(invariant: dict[str, Any]) -> float:
    """1, unless it is a gate whose check type has its own; a field that is wrong is not among these."""
    check = invariant.get("check")
    return check.gate_weight if invariant.get("gate") and isinstance(check, CheckModel) else 1.0


_ONE: dict[str, Any] = {"default": 1.0}


class Invariant(StrictModel):
    """A named, weighted check. on_skip None = `error` for gates, `ignore` otherwise. timeout in seconds, None = the
    check type's own. weight comes last, since its default is up to the others."""

    description: str = ""
    gate: Annotated[bool | Literal["passed"], Field(union_mode="left_to_right")] = False
    on_skip: Literal["error", "ignore"] | None = None
    timeout: Duration | None = None
    check: Check
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False, default_factory=_default_weight, json_schema_extra=_ONE)]


class ScenarioItem(StrictModel):
    """One entry of `scenarios`. `prompt` replaces the task's; `input` is what `{{ record.input }}` gives, and the
    prompt where the task's prompt does not use the record."""

    id: ScenarioId | None = None
    prompt: str | None = None
    input: Annotated[Any, PlainText(literal=True)] = None
    expected: Annotated[Any, PlainText(literal=True)] = None
    metadata: dict[str, Annotated[Any, PlainText(literal=True)]] = Field(default_factory=dict)
    params: Parameters = Field(default_factory=dict)
    invariants: dict[InvariantName, Invariant] = Field(default_factory=dict)
    tags: list[Tag] = Field(default_factory=list)


def _one(value: Any) -> Any:
    # True == 1 in Python, and pydantic's Literal agrees.
    if isinstance(value, bool) or value != 1:
        raise PydanticCustomError("version", "expected {expected}", {"expected": "1", "found": repr(value)})
    return value


def _some(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    # In a suite of another tool every scenario brings its own.
    translated = isinstance(info.context, Mapping) and info.context.get("translated")
    if value or translated:
        return value
    raise PydanticCustomError("too_short", "expected at least one", {"min_length": 1})


class Spec(StrictModel):
    """A whole spec file."""

    version: Annotated[Literal[1], BeforeValidator(_one)]
    id: Id
    description: str = ""
    extends: str | None = None
    tags: list[Tag] = Field(default_factory=list)
    task: Task
    workspace: Annotated[str, AuthorPath("directory", withheld=False)] | None = None
    base: ImageName | None = None
    agent: Agent
    gateway: TextOrMapping[Literal["off"], Gateway] | None = None
    setup: Setup = Field(default_factory=Setup.model_construct)
    resources: Resources = Field(default_factory=Resources.model_construct)
    services: list[Service] = Field(default_factory=list)
    fixtures: list[Fixture] = Field(default_factory=list)
    secrets: list[Secret] = Field(default_factory=list)
    network: Network = Field(default_factory=Network.model_construct)
    determinism: Determinism = Field(default_factory=Determinism.model_construct)
    audit: Audit = Field(default_factory=Audit.model_construct)
    forbidden: Forbidden = Field(default_factory=Forbidden.model_construct)
    parallelism: Parallelism = Field(default_factory=Parallelism.model_construct)
    dataset: Dataset | None = None
    scenarios: list[ScenarioItem] | None = None
    invariants: Annotated[
        dict[InvariantName, Invariant], AfterValidator(_some), Field(json_schema_extra={"minProperties": 1})
    ]
    scoring: Scoring = Field(default_factory=Scoring.model_construct)

    @property
    def model_gateway(self) -> Gateway | None:
        """The gateway that this spec asks for (spec.md 1.10); None where it asks for none, or switches it off. Options
        of the call can ask for one besides."""
        return self.gateway_for(self.agent)

    def gateway_for(self, agent: AgentBase) -> Gateway | None:
        """The same for cells with another agent: cases of other tools can have several."""
        if isinstance(self.gateway, Gateway):
            return self.gateway
        needed = isinstance(agent, PresetAgent) or self.forbidden.needs_trace
        return Gateway() if needed and self.gateway is None else None

    @property
    def egress(self) -> Egress:
        """Where the agent may connect to. `forbidden.http_except` closes the network, so that all that leaves it passes
        the proxy and is seen: where `network.egress` is open, what the rule names is let through."""
        stated = self.network.egress
        if self.forbidden.http_except is None or stated.default == "deny":
            return stated
        services = {service.name for service in self.services}
        hosts = [entry for entry in self.forbidden.http_except if entry not in services]
        return Egress(default="deny", allow=[*stated.allow, *hosts])

    @property
    def watches_files(self) -> bool:
        """Whether every change of a file is wanted, one in `.git` too."""
        return self.forbidden.file_writes_outside is not None or self.audit.file_changes

    @property
    def watches_writes(self) -> bool:
        """Whether what an agent writes into databases is wanted: by a rule, which switches that on (spec.md 1.6), or by
        `audit`."""
        return self.forbidden.needs_writes or self.audit.db_writes
