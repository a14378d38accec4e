"""Parts of the contract that this version refuses rather than ignores; the only list of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from keystone_action.spec.loading.names import Scope
from keystone_action.spec.loading.problems import Problem
from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.services import ServerBase
from keystone_action.spec.models.spec import Spec

AGENT_TYPES = ("claude-code", "codex", "gemini", "anthropic", "paragon", "http")
NO_CONTAINER = ("ports", "command", "wait_for")
"""Fields of services that only a container heeds."""


def find_unsupported(scope: Scope) -> Iterator[Problem]:
    """Everything in a spec that this version does not have."""
    spec = scope.spec
    yield from _agent(spec)
    for index, service in enumerate(spec.services):
        yield from _service(service, ("services", index))
    yield from _policies(spec)


def _agent(spec: Spec) -> Iterator[Problem]:
    agent = spec.agent
    if agent.type in AGENT_TYPES:
        yield _not_yet(("agent", "type"), f"the agent type '{agent.type}'", "use command, cli, python or none")
    if agent.user != "unprivileged":
        yield _not_yet(("agent", "user"), f"the agent user '{agent.user}'", "only unprivileged is")


def _service(service: Any, path: KeyPath) -> Iterator[Problem]:
    if not isinstance(service, ServerBase) or service.kind != "postgres" or service.image is not None:
        return
    if service.isolation == "container":
        yield _not_yet((*path, "isolation"), "isolation: container of an embedded server", "use auto or database")
    for name in NO_CONTAINER:
        if getattr(service, name):
            yield _not_yet((*path, name), f"'{name}' of an embedded server", "leave it out", on_key=True)


def _policies(spec: Spec) -> Iterator[Problem]:
    if spec.network.dns_overrides:
        yield _not_yet(("network", "dns_overrides"), "network.dns_overrides", "leave it out", on_key=True)
    for name in sorted(_given_fields(spec.forbidden)):
        yield _not_yet(("forbidden", name), f"forbidden.{name}", "leave it out", on_key=True)
    if spec.determinism.clock is not None:
        yield _not_yet(("determinism", "clock"), "determinism.clock", "determinism.seed is supported", on_key=True)
    for name in sorted(_given_fields(spec.audit)):
        # Requests to mocks are collected always, and `audit.jsonl` has them.
        if name != "http_calls" and getattr(spec.audit, name):
            yield _not_yet(("audit", name), f"audit.{name}", "leave it out", on_key=True)


def _given_fields(model: BaseModel) -> set[str]:
    """The fields of a section that differ from what holds without them."""
    defaults = type(model)()
    return {name for name in model.model_fields_set if getattr(model, name) != getattr(defaults, name)}


def _not_yet(path: KeyPath, what: str, advice: str, *, on_key: bool = False) -> Problem:
    return Problem(path, f"{what} is not supported yet", help=advice, on_key=on_key)
