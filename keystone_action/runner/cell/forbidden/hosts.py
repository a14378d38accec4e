"""`http_except`: what the agent tried to reach, by the egress proxy's decisions and the requests that mocks got."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from keystone_action.errors import HarnessError
from keystone_action.evidence.audit import AuditLine
from keystone_action.evidence.egress import FULL
from keystone_action.runner.cell.forbidden.findings import Findings
from keystone_action.scoring.results import ForbiddenResult
from keystone_action.spec.models.hosts import parse_allowed, parse_host

_SHOWN = 200
"""Characters of a URL."""


def judge_hosts(
    named: Sequence[str],
    lines: Iterable[AuditLine],
    *,
    services: Mapping[str, Collection[tuple[str, int | None]]],
    own: Collection[tuple[str, int | None]] = (),
    is_full: bool = False,
) -> ForbiddenResult:
    """lines: of the audit log, from the start of the agent to its end. services: the hosts and ports of each. own: our
    own addresses, which count for nobody. is_full: whether the proxy wrote down only the first attempts.

    Raises HarnessError where the rest is not known.
    """
    asked = {name: {(name, None), *services[name]} for name in named if name in services}
    meant = parse_allowed([entry for entry in named if entry not in services])
    excepted = {*own, *(place for places in asked.values() for place in places)}
    found = Findings("http_except")
    for line in lines:
        details = line.details
        if line.type == "http_call" and details["service"] not in asked:
            shown = _shortened(f"{details['method']} {details['url']}")
            found.add(f"{shown} (service {details['service']}) at {line.ts}, answered by the mock itself")
        elif line.type == "connect" and _is_attempt(details):
            host, port = details["host"], details["port"]
            if (host, port) in excepted or (host, None) in excepted or _is_meant(meant, host, port):
                continue
            what = (f"{host}:{port}" if port is not None else host) or "an address that could not be read"
            done = "let through by" if details["allowed"] else "refused by"
            found.add(f"{details['method'] or 'a request'} to {what} at {line.ts}, {done} the egress proxy")
    result = found.result()
    if is_full and not result.violated:
        raise HarnessError("forbidden.http_except: there were too many attempts to get out to write all of them down")
    return result


def _shortened(text: str) -> str:
    """With the mark of a cut, by which the half of a secret at its end is masked."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_attempt(details: Mapping[str, Any]) -> bool:
    """Whether a line of the proxy is about a request, not about the proxy itself."""
    return not details["reason"].startswith(FULL)


def _is_meant(meant: Iterable[Any], host: str, port: int | None) -> bool:
    with contextlib.suppress(ValueError):
        parsed = parse_host(host)
        return port is not None and any(entry.allows(parsed, port) for entry in meant)
    return False
