"""The spec file, format `version: 1`, as frozen models: attribute names are the field names of spec.md 1.

Names that Python or pydantic reserve have an underscore or another word (`from_`, `json_from`, `json_body`).
Durations are seconds, sizes are bytes. Rules that need more than one field are in `spec.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from keystone_action.spec.models.agents import Agent, AgentBase, LoopAgent, PresetAgent
from keystone_action.spec.models.experiment import Dataset, Parallelism, Parameters, Scoring
from keystone_action.spec.models.fields import (
    AuthorPath,
    CheckModel,
    Duration,
    PlainText,
    StrictModel,
    TextOrMapping,
    text_like,
)
from keystone_action.spec.models.gateway import Gateway
from keystone_action.spec.models.policies import Audit, Determinism, Egress, Forbidden, Network, Resources
from keystone_action.spec.models.services import ImageName, Service
from keystone_action.spec.models.task import Fixture, Secret, Setup, Task

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


class Invariant(StrictModel):
    """A named check with its weight."""

    description: str = ""
    """What the check is about, for people. The report shows it beside the name.

    Example: `The report names all customers.`
    """
    gate: Annotated[bool | Literal["passed"], Field(union_mode="left_to_right")] = False
    """`true`: a score below 1.0 makes the composite of the cell 0. `passed`: so does a check that did not pass.
    `false`: the check only adds to the composite by its weight.

    Example: `true`
    Example: `passed`
    """
    on_skip: Literal["error", "ignore"] | None = None
    """What a check that could not be applied means. `error`: the cell is an error. `ignore`: the check leaves the
    composite, and `scoring.fail_on_skipped` does not count it. Without it: `error` for a gate, while any other
    check leaves the composite.

    Example: `ignore`
    """
    timeout: Duration | None = None
    """How long the check may take. Without it, the check type's own limit, which its page names.

    Example: `2m`
    """
    check: Check
    """The check: its `type`, and the fields of that type.

    Example: `{type: file_exists, path: report.txt}`
    """
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False, default_factory=_default_weight)]
    """How much the check counts in the composite, 0 or more. With 0 it counts nothing, and as a gate it still decides.
    At least one check of a spec has more than 0. A gate of the type `implemented` has 0 where none is given.

    Example: `2`
    """


class ScenarioItem(StrictModel):
    """One task of several, with what is different about it."""

    id: ScenarioId | None = None
    """The name of the scenario in results. Without it, `scenario-1`, `scenario-2` and so on, by its place.

    Example: `refund-late`
    """
    prompt: str | None = None
    """Replaces the prompt of `task`.

    Example: `Refund order 7.`
    """
    input: Annotated[Any, PlainText(literal=True)] = None
    """What `{{ record.input }}` gives: any value. A text is the prompt as well, where the scenario has none of its own
    and that of `task` does not use `record`.

    Example: `Refund order 7.`
    """
    expected: Annotated[Any, PlainText(literal=True)] = None
    """What `{{ record.expected }}` gives: any value.

    Example: `refunded`
    """
    metadata: dict[str, Annotated[Any, PlainText(literal=True)]] = Field(default_factory=dict)
    """What `{{ record.metadata.NAME }}` gives.

    Example: `{customer: Ada}`
    """
    params: Parameters = Field(default_factory=dict)
    """Parameters of this scenario, read by `{{ params.NAME }}`. Those of the matrix win over them.

    Example: `{order: 7}`
    """
    invariants: dict[InvariantName, Invariant] = Field(default_factory=dict)
    """Checks of this scenario, in addition to those of the spec. Their names must be other ones.

    Example: `{refunded: {check: {type: file_exists, path: refund.txt}}}`
    """
    tags: list[Tag] = Field(default_factory=list)
    """Words that `--tag` can choose this scenario by.

    Example: `[refund]`
    """


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
    """A spec file. A key that is not listed here is an error. `version`, `id`, `task`, `agent` and `invariants` are
    required.
    """

    version: Annotated[Literal[1], BeforeValidator(_one)]
    """The version of the format.

    Example: `1`
    """
    id: Id
    """The name of the spec in results, recordings and comparisons with earlier runs: small letters, digits and single
    dashes, at most 128 characters. Change it, and earlier results are those of another spec.

    Example: `reconcile-customers`
    """
    description: str = ""
    """What the spec is about, for people. Reports show it.

    Example: `Reconciles two lists of customers.`
    """
    extends: str | None = None
    """A base spec, as a path relative to this file. Mappings are merged key by key; lists and single values replace
    those of the base. A cycle is an error.

    Example: `base.yaml`
    """
    tags: list[Tag] = Field(default_factory=list)
    """Words that `--tag` can choose the spec by.

    Example: `[nightly]`
    """
    task: Task
    """What the agent is asked to do.

    Example: `{prompt: "Write the total of prices.csv to total.txt.", files: [docs/brief.md]}`
    """
    workspace: Annotated[str, AuthorPath("directory", withheld=False)] | None = None
    """The folder that the agent starts from, relative to the spec: each cell gets a copy. It may be above the spec,
    but not outside the repository. The spec and files that are hidden from the agent are left out. Without it, an
    empty folder.

    Example: `example`
    """
    base: ImageName | None = None
    """A container image. With it, the agent and the checks that execute something run in containers of this image,
    which needs a Docker engine. Without it, they run in the process sandbox on this machine.

    Example: `python:3.12-slim`
    """
    agent: Agent
    """What is put to the test. `type` decides which other fields there are.

    Example: `{type: command, command: python3 agent.py, timeout: 5m}`
    """
    gateway: TextOrMapping[Literal["off"], Gateway] | None = None
    """The model gateway: a mapping, or `off` for an agent that must reach its models in another way. Without it, the
    gateway is on where something needs it: the agents that Keystone knows by name, `forbidden.tools` and
    `forbidden.commands`, and some options.

    Example: `{budget: {max_cost_usd: 0.5}}`
    Example: `off`
    """
    setup: Setup = Field(default_factory=Setup.model_construct)
    """What is done before the agent starts.

    Example: `{packages: [requests], commands: [make deps]}`
    """
    resources: Resources = Field(default_factory=Resources.model_construct)
    """Limits of the sandbox.

    Example: `{memory: 512Mi, timeout: 30m}`
    """
    services: list[Service] = Field(default_factory=list)
    """What the agent works against: databases, mocks of HTTP services, containers. They start before the agent.

    Example: `[{name: crm, type: postgres}, {name: shop, type: http_mock, record: true}]`
    """
    fixtures: list[Fixture] = Field(default_factory=list)
    """What is laid out before the agent starts, in this order, once for each cell. One that fails is an error.

    Example: `[{type: sql, service: db, file: schema.sql}]`
    """
    secrets: list[Secret] = Field(default_factory=list)
    """Values that nobody may see: names of environment variables, or mappings. They are masked in everything that
    Keystone writes; those of fewer than 4 characters can't be.

    Example: `[API_TOKEN, {name: DB_PASSWORD, from: generated}]`
    """
    network: Network = Field(default_factory=Network.model_construct)
    """The network as the agent sees it.

    Example: `{egress: {default: deny}}`
    """
    determinism: Determinism = Field(default_factory=Determinism.model_construct)
    """What is kept equal from run to run.

    Example: `{seed: 7}`
    """
    audit: Audit = Field(default_factory=Audit.model_construct)
    """What is written down about the agent although no rule asks for it.

    Example: `{file_changes: true}`
    """
    forbidden: Forbidden = Field(default_factory=Forbidden.model_construct)
    """What the agent must not do, even with a full score.

    Example: `{file_writes_outside: [report.txt], secrets_in_logs: deny}`
    """
    parallelism: Parallelism = Field(default_factory=Parallelism.model_construct)
    """Repetitions, a matrix of parameters, and how many cells run at the same time.

    Example: `{replicas: 5, max_concurrency: 4}`
    """
    dataset: Dataset | None = None
    """A file of records; each record is a scenario. Not beside `scenarios`.

    Example: `{path: cases.jsonl}`
    """
    scenarios: list[ScenarioItem] | None = None
    """Several tasks that share the rest of the spec. Not beside `dataset`. Without either, the spec is one scenario.

    Example: `[{id: a, prompt: Refund order 7.}, {id: b, prompt: Refund order 8.}]`
    """
    invariants: Annotated[
        dict[InvariantName, Invariant], AfterValidator(_some), Field(json_schema_extra={"minProperties": 1})
    ]
    """The checks, each under its name: letters, digits, `_` and `-`. At least one.

    Example: `{total_is_right: {check: {type: file_content, path: total.txt, contains: "42"}}}`
    """
    scoring: Scoring = Field(default_factory=Scoring.model_construct)
    """How the scores of checks become a verdict.

    Example: `{pass_threshold: 0.85, replica_aggregation: majority}`
    """

    @property
    def model_gateway(self) -> Gateway | None:
        """The gateway that this spec asks for (spec.md 1.10); None where it asks for none, or switches it off. Options
        of the call can ask for one besides."""
        return self.gateway_for(self.agent)

    def gateway_for(self, agent: AgentBase) -> Gateway | None:
        """The same for cells with another agent: cases of other tools can have several."""
        if isinstance(self.gateway, Gateway):
            return self.gateway
        needed = isinstance(agent, PresetAgent | LoopAgent) or self.forbidden.needs_trace
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
