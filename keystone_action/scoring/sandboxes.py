"""What isolated the agents of a run, from what isolated each. Pure."""

from __future__ import annotations

from collections.abc import Collection

from keystone_action.scoring.results import SandboxInfo


def weakest(sandboxes: Collection[SandboxInfo]) -> SandboxInfo:
    """What isolated every agent: of several machines, calls or sandboxes only what all of them had."""
    processes = [sandbox for sandbox in sandboxes if sandbox.kind == "process"]
    chosen = processes or list(sandboxes)
    if not chosen:
        return SandboxInfo()
    isolation = tuple(name for name in chosen[0].isolation if all(name in one.isolation for one in chosen))
    return SandboxInfo(
        kind=chosen[0].kind,
        isolation=isolation or ("none",),
        limits="watched" if any(sandbox.limits == "watched" for sandbox in chosen) else "enforced",
        not_enforced=tuple(dict.fromkeys(sentence for sandbox in chosen for sentence in sandbox.not_enforced)),
    )
