"""What a cell may do and what is watched: network, determinism, audit, forbidden, resources (spec.md 1.5 and 1.6).

`network.egress.allow` names hosts as `host`, `*.example.com` or an address, each with `:port` or without. What is
compared is always a name in its one spelling (lower case, no dot at the end, IDNA in its ASCII form) or an address as a
number, never text that a client chose.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from keystone_action.spec.globs import label_pattern
from keystone_action.spec.models.fields import (
    Duration,
    PlainText,
    RegexPattern,
    ServiceName,
    Size,
    StrictModel,
    WorkspacePath,
)
from keystone_action.spec.models.services import OWN_NAMES

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

WEB_PORTS = (80, 443)
"""What an entry without a port allows."""
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
"""Names that a resolver may take for an address (`127.1`, `0x7f000001`): no name ends in a number."""
_GLOB = re.compile(r"(?:\*\.)?[a-z0-9_*-]+(?:\.[a-z0-9_*-]+)*")
_PORT = re.compile(r"[0-9]{1,5}")
_LONGEST = 253


def parse_host(text: str) -> str | IPAddress:
    """A name in its one spelling, or an address (IPv6 with or without brackets). Raises ValueError with a sentence."""
    if text.startswith("[") and text.endswith("]"):
        return _address(text[1:-1], ipaddress.IPv6Address)
    if ":" in text:
        return _address(text, ipaddress.IPv6Address)
    name = _ascii(text)
    if _NUMBER.fullmatch(name):
        return _address(name, ipaddress.IPv4Address)
    if len(name) > _LONGEST or _NAME.fullmatch(name) is None:
        raise ValueError(f"{text!r} is not a host name")
    return name


def parse_port(text: str) -> int:
    """1 to 65535. Raises ValueError with a sentence."""
    # int() would take digits of other scripts, signs, blanks and underscores.
    if _PORT.fullmatch(text) is None or not 1 <= int(text) <= 65535:
        raise ValueError(f"{text!r} is not a port")
    return int(text)


def split_port(text: str) -> tuple[str, str | None]:
    """`host:port` and `[address]:port` taken apart; None when there is no port. A bare IPv6 address has none."""
    if text.startswith("["):
        address, bracket, rest = text.partition("]")
        return (address + bracket, rest[1:]) if rest.startswith(":") else (text, None)
    host, colon, port = text.rpartition(":")
    return (host, port) if colon and ":" not in host else (text, None)


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry of `allow`."""

    text: str
    """As the author wrote it."""
    kind: Literal["name", "glob", "address"]
    host: str | IPAddress
    port: int | None = None
    """None = WEB_PORTS."""

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """Raises ValueError with a sentence that says what was expected."""
        _refuse_other_things(text)
        host, port_text = split_port(text)
        port = None if port_text is None else parse_port(port_text)
        if "*" in host:
            return cls(text, "glob", _glob(host), port)
        parsed = parse_host(host)
        return cls(text, "name" if isinstance(parsed, str) else "address", parsed, port)

    def allows(self, host: str | IPAddress, port: int) -> bool:
        """Whether a host, as `parse_host` gives it, is meant at this port. An address only by its own entry."""
        return self.names(host) and (port in WEB_PORTS if self.port is None else port == self.port)

    def names(self, host: str | IPAddress) -> bool:
        """Whether this host is meant, at any port."""
        if self.kind == "glob":
            return isinstance(host, str) and _is_meant(str(self.host), host)
        return self.host == host


def parse_allowed(entries: Sequence[str]) -> tuple[AllowedHost, ...]:
    """Raises ValueError for the first that is not a host."""
    return tuple(AllowedHost.parse(entry) for entry in entries)


def _refuse_other_things(text: str) -> None:
    expected = "expected a host like api.example.com, *.example.com or api.example.com:8443"
    if "://" in text:
        raise ValueError(f"{expected}, found a URL: {text!r}")
    if "/" in text:
        raise ValueError(f"{expected}, found {text!r}; neither paths nor ranges of addresses can be allowed")
    if "@" in text or not text or text != text.strip():
        raise ValueError(f"{expected}, found {text!r}")


def _ascii(text: str) -> str:
    name = text.removesuffix(".")
    if name.isascii():
        return name.lower()
    import idna

    try:
        return idna.encode(name, uts46=True).decode("ascii").lower()
    except idna.IDNAError as error:
        raise ValueError(f"{text!r} is not a host name: {error}") from None


def _address(text: str, kind: type[IPAddress]) -> IPAddress:
    try:
        found = kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an address") from None
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            raise ValueError(f"{text!r} is an address of one link only")
        return found.ipv4_mapped or found
    return found


def _glob(text: str) -> str:
    # A label that is not all ASCII has no ASCII form in pieces: the rest of the name has.
    head, dot, rest = text.partition(".")
    name = f"{head}.{_ascii(rest)}" if dot and head == "*" and "*" not in rest else text.lower().removesuffix(".")
    if name != "*" and (len(name) > _LONGEST or _GLOB.fullmatch(name) is None):
        raise ValueError(f"{text!r} is not a pattern of host names")
    return name


@lru_cache(maxsize=256)
def _labels(glob: str) -> tuple[re.Pattern[str], ...]:
    return tuple(label_pattern(label) for label in glob.split("."))


def _is_meant(glob: str, name: str) -> bool:
    """`*.` at the front stands for any names below, any other `*` for a part of one label, `*` alone for every name."""
    if glob == "*":
        return bool(name)
    below = glob.startswith("*.")
    patterns, labels = _labels(glob.removeprefix("*.")), name.split(".")
    above = len(labels) - len(patterns)
    if (above < 1 or "" in labels[:above]) if below else above:
        return False
    return all(pattern.match(label) for pattern, label in zip(patterns, labels[above:], strict=True))


def _allowed_host(text: str) -> str:
    AllowedHost.parse(text)
    return text


AllowedHostText = Annotated[str, AfterValidator(_allowed_host)]


class Egress(StrictModel):
    """Where the agent, and checks that execute what it left, may connect to."""

    default: Literal["allow", "deny"] = "allow"
    """`deny`: nowhere but to the services of the spec and what `allow` names. Without `base` a network namespace keeps
    it, or rules for ports; where this machine has neither, the run is refused. `allow`: anywhere.

    Example: `deny`
    """
    allow: list[AllowedHostText] = Field(default_factory=list)
    """Hosts that are allowed with `default: deny`: `host`, `*.example.com` or an address, with `:port` or without (80
    and 443). They are reached through a proxy, which writes each decision into the cell's audit log. It needs `base`.

    Example: `[api.anthropic.com, "*.example.com:8443"]`
    """


def _overridden_host(text: str) -> str:
    if not isinstance(parsed := parse_host(text), str) or "*" in text:
        raise ValueError(f"{text!r} is an address; expected the name of a host like api.example.com")
    if parsed != text:
        raise ValueError(f"{text!r} has another spelling; write {parsed!r}")
    if text in OWN_NAMES or text.endswith(".localhost"):
        raise ValueError(f"{text!r} means the container itself")
    return text


class Network(StrictModel):
    """The network as the agent sees it."""

    egress: Egress = Field(default_factory=Egress.model_construct)
    """Where the agent may connect to.

    Example: `{default: deny, allow: [api.anthropic.com]}`
    """
    dns_overrides: dict[
        Annotated[str, AfterValidator(_overridden_host)], Annotated[str, PlainText(), ServiceName()]
    ] = Field(default_factory=dict)
    """Names of other hosts, and the services that stand in for them in the cell's network. An `http_mock` answers
    under such a name by HTTP on port 80 and by HTTPS on port 443, with a certificate that programs in the cell trust;
    another service is reached at its own ports. It needs `base`.

    Example: `{api.example.com: shop}`
    """


_FIRST_YEAR, _YEAR_AFTER = 1970, 2200
_INSTANT = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)$"
"""As editors know it: what it means is seen when a spec is loaded."""


def _parse_instant(value: Any) -> datetime:
    """From a text with date, time and zone. Raises PydanticCustomError."""
    expected = "a date and time with its zone like 2026-01-01T00:00:00Z"
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) and re.match(_INSTANT, value) else None
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise PydanticCustomError("instant", "expected {expected}", {"expected": expected, "found": repr(value)})
    if not _FIRST_YEAR <= (parsed - parsed.utcoffset()).year < _YEAR_AFTER:  # type: ignore[operator]
        expected = f"a time from {_FIRST_YEAR} on and before {_YEAR_AFTER}, by UTC"
        raise PydanticCustomError("instant", "expected {expected}", {"expected": expected, "found": repr(value)})
    return parsed


Instant = Annotated[
    datetime,
    BeforeValidator(_parse_instant),
    PlainSerializer(lambda value: value.isoformat(), return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)$"}
    ),
]
"""A moment."""


class Determinism(StrictModel):
    """What is kept equal from run to run."""

    clock: Instant | None = None
    """The moment at which the agent starts, by its own clock: a date and time with its zone, from 1970 on. The agent
    and the checks that execute see it, and time goes on from there; `setup` and our own processes see the machine's
    time. It is done by libfaketime, which static programs and those of Go escape.

    Example: `"2026-01-01T00:00:00Z"`
    """
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
    """Each process of the agent that was seen: by 50 looks a second in the process sandbox, by some five in a
    container. One that lives shorter can be missed.

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
