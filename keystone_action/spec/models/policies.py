"""What a cell may do and what is watched: network, determinism, audit, forbidden, resources (spec.md 1.5 and 1.6)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from keystone_action.spec.models.base import (
    Duration,
    PlainText,
    RegexPattern,
    ServiceName,
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
    """Where the agent may connect to: hosts or globs of hosts."""

    default: Literal["allow", "deny"] = "allow"
    allow: list[AllowedHostText] = Field(default_factory=list)


class Network(StrictModel):
    """The network as the agent sees it. dns_overrides: host → name of a service."""

    egress: Egress = Field(default_factory=Egress.model_construct)
    dns_overrides: dict[str, Annotated[str, ServiceName()]] = Field(default_factory=dict)


class Determinism(StrictModel):
    """clock: an ISO-8601 instant at which the cell's time starts. seed: KEYSTONE_SEED and PYTHONHASHSEED."""

    clock: str | None = None
    seed: Annotated[int, Field(ge=0, le=4294967295)] | None = None


class Audit(StrictModel):
    """What is written down although nothing in `forbidden` needs it."""

    db_writes: bool = False
    http_calls: bool = False
    file_changes: bool = False
    processes: bool = False


_Some = Annotated[str, Field(min_length=1)]


class Forbidden(StrictModel):
    """A violation forces the composite to 0. None = no such rule; an empty list = nothing is allowed outside it.
    db_writes_outside: tables, `schema.table`, globs. http_except: services, and hosts as `network.egress.allow` has
    them. file_writes_outside: files, folders with all in them, globs."""

    db_writes_outside: list[_Some] | None = None
    http_except: list[_Some] | None = None
    secrets_in_logs: Literal["deny"] | None = None
    file_writes_outside: list[Annotated[_Some, WorkspacePath(glob=True)]] | None = None
    tools: list[str] | None = None
    commands: list[Annotated[str, RegexPattern()]] | None = None

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
    """Limits of the sandbox; None = not limited, of pids 4096. cpu in cores, memory and disk in bytes, pids in
    processes and threads; timeout bounds the whole cell, in seconds. strict: limits must be enforced, not watched.
    readable: folders of this machine that the process sandbox shows read-only, such as where the agent's program is
    installed; relative to the spec, or from `~/`."""

    cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory: Size | None = None
    disk: Size | None = None
    pids: Annotated[int, Field(ge=1)] | None = None
    timeout: Duration = 900.0
    strict: bool = False
    readable: list[Annotated[str, Field(min_length=1), PlainText()]] = Field(default_factory=list)
