"""What a cell may do and what is watched: network, determinism, audit, forbidden, resources (spec.md 1.5 and 1.6)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from keystone_action.spec.models.base import (
    Duration,
    PlainText,
    RegexPattern,
    Size,
    StrictModel,
    WorkspacePath,
)
from keystone_action.spec.models.hosts import AllowedHost


def _allowed_host(text: str) -> str:
    AllowedHost.parse(text)
    return text


AllowedHostText = Annotated[str, AfterValidator(_allowed_host)]


class Egress(StrictModel):
    """Where the agent, and checks that execute what it left, may connect to."""

    default: Literal["allow", "deny"] = "allow"
    """`deny`: nowhere but to the services of the spec and what `allow` names. It needs `base`; the process sandbox,
    whose network is this machine's, refuses it. `allow`: anywhere.

    Example: `deny`
    """
    allow: list[AllowedHostText] = Field(default_factory=list)
    """Hosts that are allowed with `default: deny`: `host`, `*.example.com` or an address, with `:port` or without (80
    and 443). They are reached through a proxy, which writes each decision into the cell's audit log.

    Example: `[api.anthropic.com, "*.example.com:8443"]`
    """


class Network(StrictModel):
    """The network as the agent sees it."""

    egress: Egress = Field(default_factory=Egress.model_construct)
    """Where the agent may connect to.

    Example: `{default: deny, allow: [api.anthropic.com]}`
    """


class Determinism(StrictModel):
    """What is kept equal from run to run."""

    seed: Annotated[int, Field(ge=0, le=4294967295)] | None = None
    """The agent and the checks find this number as `KEYSTONE_SEED` and `PYTHONHASHSEED`, and expressions as
    `{{ cell.seed }}`. Without it the two variables are not set, and `{{ cell.seed }}` is a number of the cell's own
    that stays the same.

    Example: `7`
    """


class Audit(StrictModel):
    """What is written into the cell's `audit.jsonl` although no rule of `forbidden` asks for it. Requests to mocks and
    models, and attempts to get out of a closed network, are always there.
    """

    db_writes: bool = False
    """What the agent wrote into the databases of `services`: table, operation and rows.

    Example: `true`
    """
    http_calls: bool = False
    """Requests to mocks are always written down, whether this is `true` or `false`.

    Example: `true`
    """
    file_changes: bool = False
    """Each path of the workspace that the agent changed, those in `.git` too.

    Example: `true`
    """
    processes: bool = False
    """Each process of the agent that was seen, by 50 looks a second; one that lives shorter can be missed. Only the
    process sandbox can tell: with `base` it is refused.

    Example: `true`
    """


_Some = Annotated[str, Field(min_length=1)]


class Forbidden(StrictModel):
    """What the agent must not do. A rule that is broken makes the cell fail with the composite 0, even when all checks
    pass. A rule that can't be observed refuses the spec, or makes the cell an error; it is never taken as kept.
    """

    db_writes_outside: list[_Some] | None = None
    """The tables that the agent may write to: names, `schema.table` or globs; `[]` means none. It needs a database
    among the `services`.

    Example: `[orders, "audit.*"]`
    """
    http_except: list[_Some] | None = None
    """The services and hosts that the agent may ask over HTTP, hosts as in `network.egress.allow`; `[]` means none.
    Attempts count. It closes the network, so it needs `base`.

    Example: `[shop, api.anthropic.com]`
    """
    secrets_in_logs: Literal["deny"] | None = None
    """`deny`: no secret of the spec, and no real key of the gateway, may show in the agent's output, its changes, its
    requests to mocks and models, or rows that it wrote; plain or in a common encoding. Secrets of fewer than 8
    characters are not looked for.

    Example: `deny`
    """
    file_writes_outside: list[Annotated[_Some, WorkspacePath(glob=True)]] | None = None
    """The paths of the workspace that the agent may change: files, folders with all that is in them, or globs; `[]`
    means none.

    Example: `[report.txt, "out/**"]`
    """
    tools: list[str] | None = None
    """Tools that the agent must not call: names, or the kinds `read`, `write`, `execute`, `search`, `fetch` and
    `other`. Judged by what models asked for, so it switches the gateway on.

    Example: `[WebFetch, fetch]`
    """
    commands: list[Annotated[str, RegexPattern()]] | None = None
    r"""Regular expressions that no command may match which the agent asked a tool to run. Judged by what models asked
    for, so it switches the gateway on.

    Example: `['^git push\b']`
    """

    @property
    def rules(self) -> set[str]:
        """The names of those that there are."""
        return {name for name in type(self).model_fields if getattr(self, name) is not None}

    @property
    def needs_trace(self) -> bool:
        """Whether a rule is about what the agent asked tools to do."""
        return self.tools is not None or self.commands is not None

    @property
    def needs_writes(self) -> bool:
        """Whether a rule is about what the agent wrote into databases; secrets may stand in rows."""
        return self.db_writes_outside is not None or self.secrets_in_logs is not None

    @property
    def needs_changes(self) -> bool:
        """Whether a rule is about the files that the agent changed."""
        return self.file_writes_outside is not None or self.secrets_in_logs is not None


class Resources(StrictModel):
    """Limits of the sandbox. Containers: the engine enforces `cpu`, `memory` and `pids`; `disk` is watched. The
    process sandbox: `memory`, `pids` and `disk` are watched over all processes of a command, which is stopped at
    the limit.
    """

    cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Processor cores, also parts of one. The engine enforces it; the process sandbox can't, and the report says so.
    Without it, no limit.

    Example: `1.5`
    """
    memory: Size | None = None
    """Bytes of memory: a number, or a text with a unit (`Ki`, `Mi`, `Gi`, `K`, `M`, `G`). Without it, no limit.

    Example: `512Mi`
    """
    disk: Size | None = None
    """Bytes of workspace, `HOME` and `TMPDIR` together, with the units of `memory`. Watched in both sandboxes. Without
    it, no limit.

    Example: `2Gi`
    """
    pids: Annotated[int, Field(ge=1)] | None = None
    """Processes and threads at a time. Without it, 4096.

    Example: `256`
    """
    timeout: Duration = 900.0
    """How long the whole cell may take: services, setup, agent and checks. A cell that takes longer is an error.

    Example: `30m`
    """
    strict: bool = False
    """Whether limits must be enforced, not watched. The process sandbox, and `disk` in containers, refuse it.

    Example: `true`
    """
    readable: list[Annotated[str, Field(min_length=1), PlainText()]] = Field(default_factory=list)
    """Folders of this machine that agent and checks can read, such as where the agent's program is installed:
    absolute, from `~/`, or relative to the spec. Their programs are on the `PATH`. Never one that holds the
    checkout, results or credentials. Only for the process sandbox; with `base` it is refused.

    Example: `[/opt/node]`
    """
