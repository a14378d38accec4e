"""Which names the expressions of a spec may use, checked where they can be known: when the spec is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keystone_action.spec.expressions import ExpressionError, Leaf, Reference, references
from keystone_action.spec.limits import HIDDEN_VARIABLES
from keystone_action.spec.loading.diagnostics import listing, nearest
from keystone_action.spec.loading.loaded_spec import RECORD, RunRules, Scenario
from keystone_action.spec.loading.problems import Problem, item_of
from keystone_action.spec.models.agents import HTTP_DATA
from keystone_action.spec.models.fields import PlainText, ServiceName, ShellCommand, Template
from keystone_action.spec.models.services import Service
from keystone_action.spec.models.spec import Spec

CELL = ("id", "replica", "seed")
TASK = ("prompt", "system")
ADDRESS = ("host", "port", "url", "user", "password", "database")
HTTP_ADDRESS = ("host", "port", "url")
MCP_ADDRESS = (*HTTP_ADDRESS, "command")
_SECTIONS = frozenset(
    {"task", "agent", "gateway", "services", "setup", "fixtures", "invariants", "scenarios", "secrets"}
)
_ROOTS = ("params", "services", "secrets", "task", "record", "workspace", "agent", "cell")
MODEL_ADDRESS = ("url", "key")
_FROM_DATA = ("record", "task")


@dataclass(frozen=True)
class Scope:
    """What a spec declares, and how it is run."""

    spec: Spec
    scenarios: Sequence[Scenario]
    given_parameters: frozenset[str]
    service_names: frozenset[str]
    damaged: frozenset[str]
    """Sections with errors of their own, so that the names in them are not known."""
    rules: RunRules

    @property
    def declared_parameters(self) -> frozenset[str]:
        """Names of the matrix and of `include`."""
        parallelism = self.spec.parallelism
        return frozenset({*parallelism.matrix, *(name for entry in parallelism.include for name in entry)})

    @property
    def shared_parameters(self) -> frozenset[str]:
        """Names that cells have in every scenario: those declared, and those of the call."""
        return self.declared_parameters | self.given_parameters


def check_text(leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    """What is wrong with the expressions of one text."""
    if "{{" not in leaf.value or not scope.rules.has_expressions:
        return
    plain = leaf.marker(PlainText)
    if plain is not None and plain.literal:
        return
    if plain is not None or leaf.marker(ServiceName) is not None:
        yield Problem(leaf.path, "expressions don't work in names and values like this one", found=_cut(leaf.value))
        return
    if _is_description(leaf):
        return
    if leaf.path[0] not in _SECTIONS:
        where = "task, agent, gateway, services, setup, fixtures and checks"
        yield Problem(leaf.path, "expressions don't work here", expected=f"them in {where} only")
        return
    template = leaf.marker(Template)
    # What a request to an agent is filled with is known by name all the same.
    later = template.later if template and leaf.path[0] != "agent" else ()
    try:
        found = list(references(leaf.value, later))
    except ExpressionError as error:
        yield Problem(leaf.path, error.message, offset=error.index)
        return
    for reference in found:
        yield from _check_reference(reference, leaf, scope)


def parameters_used(leaf: Leaf) -> Iterator[str]:
    """The parameters that a text uses; none when it can't be read."""
    template = leaf.marker(Template)
    if "{{" not in leaf.value or leaf.marker(PlainText) is not None:
        return
    try:
        for reference in references(leaf.value, template.later if template else ()):
            if reference.parts[0] == "params" and len(reference.parts) > 1:
                yield reference.parts[1]
    except ExpressionError:
        return


def _is_description(leaf: Leaf) -> bool:
    return leaf.path[-1] == "description" and "check" not in leaf.path


def _check_reference(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    root = reference.parts[0]
    if leaf.marker(ShellCommand) is not None and root in _FROM_DATA:
        yield Problem(
            leaf.path,
            f"'{reference.name}' in a command that a shell reads",
            help="use $KEYSTONE_PROMPT, or write the command as a list",
            offset=reference.index,
        )
        return
    allowed = _roots_of(leaf, scope)
    if root not in allowed:
        yield _unknown(leaf, reference, 0, allowed, why=_why_not(root, leaf))
        return
    yield from _CHECKS[root](reference, leaf, scope)


def _roots_of(leaf: Leaf, scope: Scope) -> tuple[str, ...]:
    if leaf.path[0] == "secrets":
        return ("env",)
    if leaf.path[0] == "gateway":
        return ("secrets",)
    roots: tuple[str, ...] = _ROOTS
    if leaf.path[0] == "agent" and (scope.spec.model_gateway is not None or "gateway" in scope.damaged):
        roots = (*roots, "gateway")
    if leaf.path[0] == "agent" and leaf.marker(Template) is not None:
        roots = (*roots, *HTTP_DATA)
    if leaf.path[0] == "task" or leaf.path[-1] == "prompt":
        roots = tuple(root for root in roots if root != "task")
    if scope.spec.dataset is None and scope.spec.scenarios is None and not scope.damaged & {"dataset", "scenarios"}:
        roots = tuple(root for root in roots if root != "record")
    return (*roots, "env") if leaf.path[:2] == ("agent", "env") else roots


def _why_not(root: str, leaf: Leaf) -> str:
    if root == "env":
        return "the host's environment is for agent.env and secrets only"
    if root == "gateway":
        return "the gateway's addresses are for the agent, and there are some with `gateway: {}` only"
    if leaf.path[0] == "gateway":
        return "the gateway knows secrets only"
    if root == "record":
        return "there are records with `dataset` or `scenarios` only"
    if root == "task" and leaf.path[0] == "task":
        return "the task can't refer to itself"
    return ""


def _unknown(leaf: Leaf, reference: Reference, depth: int, known: Iterable[str], *, why: str = "") -> Problem:
    """A problem for the name whose part at `depth` is none of the known ones."""
    words = sorted(known)
    prefix = "".join(f"{part}." for part in reference.parts[:depth])
    part = reference.parts[depth] if depth < len(reference.parts) else ""
    close = nearest(part, words)
    shown = [prefix + word for word in words[:12]] + (["…"] if len(words) > 12 else [])
    return Problem(
        leaf.path,
        f"unknown name '{reference.name}'",
        expected="" if why else f"one of {listing(shown)}" if shown else "",
        suggestion=prefix + close if close and not why else "",
        help=why or ("" if words else f"nothing is declared below '{prefix.rstrip('.')}'"),
        offset=reference.index,
    )


def _of(names: tuple[str, ...]) -> Any:
    """A check for `root.<one of names>` and no more."""

    def check(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:  # noqa: ARG001
        if len(reference.parts) != 2 or reference.parts[1] not in names:
            yield _unknown(leaf, reference, 1, names)

    return check


def _check_params(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    if scope.damaged & {"parallelism", "scenarios", "dataset"}:
        return
    name = reference.parts[1] if len(reference.parts) > 1 else ""
    shared = scope.shared_parameters
    if name in shared:
        return
    lacking = [one for one in _scenarios_of(leaf, scope) if name not in one.params]
    if lacking:
        known = shared.union(*(one.params for one in lacking))
        problem = _unknown(leaf, reference, 1, known)
        if len(lacking) < len(scope.scenarios):
            why = f"the scenario '{lacking[0].id}' has no such parameter"
        elif known:
            why = ""
        else:
            why = "declare it in parallelism.matrix, or give it with --param"
        yield problem if not why else _unknown(leaf, reference, 1, known, why=why)


def _check_services(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    name = reference.parts[1] if len(reference.parts) > 1 else ""
    if name not in scope.service_names:
        if "services" not in scope.damaged:
            yield _unknown(leaf, reference, 1, scope.service_names)
        return
    service = next((one for one in scope.spec.services if one.name == name), None)
    if leaf.path[0] == "services" and service is not None and not _is_known_to(leaf, service, scope):
        yield Problem(
            leaf.path,
            f"the address of service {name} is not known when this one is started",
            help="only containers can use addresses, those of mocks, databases and the containers before them",
            offset=reference.index,
        )
        return
    attributes: tuple[str, ...] = (*ADDRESS, *MCP_ADDRESS)  # of a service that can't be read, and so may be any
    if service is not None:
        attributes = {"http_mock": HTTP_ADDRESS, "mcp_mock": MCP_ADDRESS}.get(service.kind, ADDRESS)
    if len(reference.parts) != 3 or reference.parts[2] not in attributes:
        yield _unknown(leaf, reference, 2, attributes)


def _is_known_to(leaf: Leaf, service: Service, scope: Scope) -> bool:
    """Whether a service is ready before the one that this text is of: containers come last, in the spec's order."""
    services = scope.spec.services
    index = leaf.path[1]
    if not isinstance(index, int) or index >= len(services) or services[index].kind != "container":
        return False
    return service.kind != "container" or services.index(service) < index


def _check_secrets(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    known = [secret.name for secret in scope.spec.secrets]
    if (len(reference.parts) != 2 or reference.parts[1] not in known) and "secrets" not in scope.damaged:
        yield _unknown(leaf, reference, 1, known)


def _check_gateway(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    gateway = scope.spec.model_gateway
    if gateway is None or "gateway" in scope.damaged:
        return
    name = reference.parts[1] if len(reference.parts) > 1 else ""
    if name not in gateway.provider_names:
        yield _unknown(leaf, reference, 1, gateway.provider_names)
    elif len(reference.parts) != 3 or reference.parts[2] not in MODEL_ADDRESS:
        yield _unknown(leaf, reference, 2, MODEL_ADDRESS)


def _check_task(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    if len(reference.parts) != 2 or reference.parts[1] not in TASK:
        yield _unknown(leaf, reference, 1, TASK)
    elif reference.parts[1] == "system" and scope.spec.task.system is None and "task" not in scope.damaged:
        yield Problem(leaf.path, "'task.system' is not set", offset=reference.index)


def _check_alone(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:  # noqa: ARG001
    """A name with nothing below it."""
    if len(reference.parts) != 1:
        root = reference.parts[0]
        yield Problem(leaf.path, f"unknown name '{reference.name}'", suggestion=root, offset=reference.index)


def _check_agent(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    if reference.parts != ("agent", "dir"):
        yield _unknown(leaf, reference, 1, ("dir",))
    elif scope.spec.agent.dir is None and "agent" not in scope.damaged:
        yield Problem(leaf.path, "'agent.dir' is not set", offset=reference.index)


def _check_env(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:  # noqa: ARG001
    name = reference.parts[1] if len(reference.parts) == 2 else ""
    if not name:
        yield Problem(leaf.path, f"'{reference.name}' is not a variable", expected="env.NAME", offset=reference.index)
    elif name.upper().startswith(HIDDEN_VARIABLES):
        advice = f"variables that begin with {listing(HIDDEN_VARIABLES)} are never handed on"
        yield Problem(leaf.path, f"'{reference.name}' can't be used", help=advice, offset=reference.index)


def _check_record(reference: Reference, leaf: Leaf, scope: Scope) -> Iterator[Problem]:
    parts = reference.parts
    if len(parts) < 2 or parts[1] not in RECORD:
        yield _unknown(leaf, reference, 1, RECORD)
        return
    if scope.damaged & {"dataset", "scenarios"}:
        return
    scenarios = _scenarios_of(leaf, scope)
    lacking = [one for one in scenarios if parts[1] in ("input", "expected") and parts[1] not in one.fields]
    if lacking:
        yield _unknown(leaf, reference, 1, lacking[0].fields, why=_why_lacking(parts[1], lacking, scenarios))
        return
    for scenario in scenarios:
        value: Any = scenario.record
        for depth, part in enumerate(parts[1:], start=1):
            following = item_of(value, int(part) if isinstance(value, list) and part.isdecimal() else part)
            if following is None:
                known = [str(key) for key in value] if isinstance(value, Mapping) else []
                why = f"{_shown(scenario)} has no such field" + (f", only {listing(known)}" if known else "")
                yield _unknown(leaf, reference, depth, known, why=why)
                return
            value = following[0]


def _shown(scenario: Scenario) -> str:
    where = scenario.where.rpartition("/")[2]
    return f"the record '{scenario.id}'{f' ({where})' if where else ''}"


def _why_lacking(field: str, lacking: Sequence[Scenario], scenarios: Sequence[Scenario]) -> str:
    """Which records have no such field, and what the first of them has."""
    first, there = lacking[0], [one for one in lacking[0].fields if one != field]
    which = f"{_shown(first)} has no {field}"
    if len(lacking) > 1:
        which += f", nor {'has any other' if len(lacking) == len(scenarios) else f'have {len(lacking) - 1:,} more'}"
    close = nearest(field, there)
    meant = f"; did you mean '{close}' to be called {field}?" if close else ""
    return f"{which}; there are {listing(there)}{meant}" if there else which


def _scenarios_of(leaf: Leaf, scope: Scope) -> Sequence[Scenario]:
    """The scenarios that a text is for: the one it stands in, or all."""
    if leaf.path[0] == "scenarios" and isinstance(leaf.path[1], int) and leaf.path[1] < len(scope.scenarios):
        return (scope.scenarios[leaf.path[1]],)
    return scope.scenarios


_CHECKS: Mapping[str, Any] = {
    "params": _check_params,
    "services": _check_services,
    "secrets": _check_secrets,
    "task": _check_task,
    "record": _check_record,
    "workspace": _check_alone,
    "turn": _check_alone,
    "conversation": _check_alone,
    "agent": _check_agent,
    "cell": _of(CELL),
    "env": _check_env,
    "gateway": _check_gateway,
}


def _cut(text: str) -> str:
    return f"'{text if len(text) <= 60 else text[:59] + '…'}'"
