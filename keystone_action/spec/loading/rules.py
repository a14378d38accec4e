"""Rules of a spec that need more than one field (spec.md 5.1 and 5.2), and parts of the format that this version
refuses.

Breaking one is exit code 2 before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel

from keystone_action.spec.agent_service import agent_service, is_elsewhere, misuses_of
from keystone_action.spec.expressions import leaves
from keystone_action.spec.loading.diagnostics import nearest, show_value, slip_of
from keystone_action.spec.loading.names import Scope
from keystone_action.spec.loading.problems import Problem, not_yet
from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.agents import (
    WITHOUT_TURNS,
    AgentOutput,
    AgentTrace,
    HttpAgent,
    LoopAgent,
    PresetAgent,
)
from keystone_action.spec.models.experiment import AtLeast, UntilDecided
from keystone_action.spec.models.gateway import Gateway
from keystone_action.spec.models.mcp import McpAnswer, McpTool
from keystone_action.spec.models.policies import parse_allowed
from keystone_action.spec.models.services import (
    OWN_NAMES,
    HttpMockService,
    McpMockService,
    MockResponse,
    MockRoute,
    ServerBase,
)
from keystone_action.spec.models.task import SecretEntry, SetupFile, SqlFixture

EXACTLY_ONE: dict[type[BaseModel], dict[str, str]] = {
    AgentOutput: {"file": "file", "json_from": "json"},
    AgentTrace: {"path": "path", "stdout": "stdout"},
    SqlFixture: {"sql": "sql", "file": "file"},
    SetupFile: {"content": "content", "from_": "from"},
}
AT_MOST_ONE: dict[type[BaseModel], dict[str, str]] = {
    SecretEntry: {"source": "source", "from_": "from"},
    MockResponse: {"response": "response", "json_body": "json", "file": "file"},
    McpAnswer: {"result": "result", "json_body": "json", "template": "template"},
}
"""Fields that exclude each other, with their keys. Of those in EXACTLY_ONE one must be given."""
OF_PROGRAMS = ("env", "dir", "trace", "output", "stdin")
"""Fields of agents that mean nothing to one that is a service."""
_ONLY_IN_CONTAINERS = ("ports", "command", "wait_for")
"""Fields of services that only a container heeds."""
_HOST_MARKS = frozenset(".:*")
"""What tells the name of a host from a misspelt service."""


def check_rules(scope: Scope) -> Iterator[Problem]:
    """Everything that is wrong with a spec whose single fields are all valid."""
    for rule in _RULES:
        yield from rule(scope)


def _alternatives(scope: Scope) -> Iterator[Problem]:
    spec = scope.spec
    agent = spec.agent
    if isinstance(agent.output, AgentOutput):
        yield from _choose(agent.output, ("agent", "output"))
    if agent.trace is not None:
        yield from _choose(agent.trace, ("agent", "trace"))
    for index, entry in enumerate(spec.setup.files):
        yield from _choose(entry, ("setup", "files", index))
    for index, fixture in enumerate(spec.fixtures):
        yield from _choose(fixture, ("fixtures", index))
    for index, secret in enumerate(spec.secrets):
        yield from _choose(secret, ("secrets", index))
    for index, service in enumerate(spec.services):
        if isinstance(service, HttpMockService):
            for number, route in enumerate(service.routes):
                yield from _answers(route, MockResponse, ("services", index, "routes", number))
        elif isinstance(service, McpMockService):
            for number, tool in enumerate(service.tools):
                yield from _answers(tool, McpAnswer, ("services", index, "tools", number))


def _answers(route: MockRoute | McpTool, kind: type[BaseModel], path: KeyPath) -> Iterator[Problem]:
    """kind: of its answers."""
    yield from _choose(route, path)
    for index, response in enumerate(route.sequence):
        yield from _choose(response, (*path, "sequence", index))
    own = [key for name, key in AT_MOST_ONE[kind].items() if name in route.model_fields_set]
    if route.sequence and own:
        advice = "put it into the sequence"
        yield Problem((*path, own[0]), f"'{own[0]}' beside 'sequence'", help=advice, on_key=True)


def _choose(model: BaseModel, path: KeyPath) -> Iterator[Problem]:
    """That of fields which exclude each other one is set, or at most one."""
    exactly = EXACTLY_ONE.get(type(model))
    names = exactly or next((names for kind, names in AT_MOST_ONE.items() if isinstance(model, kind)), {})
    given = [key for name, key in names.items() if name in model.model_fields_set]
    words = " or ".join(f"'{key}'" for key in names.values())
    if len(given) > 1:
        yield Problem((*path, given[1]), f"'{given[1]}' beside '{given[0]}'", expected=f"one of {words}", on_key=True)
    elif exactly and not given:
        yield Problem(path, f"neither {words.replace(' or ', ' nor ')} is there", on_key=True)


def _unique(names: Iterable[tuple[KeyPath, str]], what: str, key: Callable[[str], str] = str) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for path, name in names:
        earlier = seen.get(key(name))
        if earlier is None:
            seen[key(name)] = name
        else:
            twice = f"the {what} {show_value(name)} is there twice"
            yield Problem(path, twice if earlier == name else f"the {what}s '{earlier}' and '{name}' are too alike")


def _service_names(scope: Scope) -> Iterator[Problem]:
    names = [(("services", index, "name"), one.name) for index, one in enumerate(scope.spec.services)]
    for path, name in names:
        if name in OWN_NAMES:
            advice = "give it another name; in a container this one means the container itself"
            yield Problem(path, f"a service called {show_value(name)} can't be reached", help=advice)
    # Both would be KEYSTONE_SERVICE_A_B_URL.
    yield from _unique(names, "service", lambda name: name.replace("-", "_"))


def _mcp_names(scope: Scope) -> Iterator[Problem]:
    for index, service in enumerate(scope.spec.services):
        if not isinstance(service, McpMockService):
            continue
        for key, entries, name in (
            ("tools", service.tools, "name"),
            ("resources", service.resources, "uri"),
            ("prompts", service.prompts, "name"),
        ):
            paths = (("services", index, key, number, name) for number in range(len(entries)))
            yield from _unique(zip(paths, (getattr(one, name) for one in entries), strict=True), key[:-1])


def _secret_names(scope: Scope) -> Iterator[Problem]:
    names = [(("secrets", index, "name"), one.name) for index, one in enumerate(scope.spec.secrets)]
    yield from _unique(names, "secret")


def _scenarios(scope: Scope) -> Iterator[Problem]:
    spec = scope.spec
    if spec.scenarios is None or "scenarios" in scope.damaged:
        return
    if spec.dataset is not None:
        yield Problem(("scenarios",), "'scenarios' beside 'dataset'", expected="one of the two", on_key=True)
    if not spec.scenarios:
        yield Problem(
            ("scenarios",), "no scenarios", help="there is nothing to run; leave the key out for one scenario"
        )
    ids = [((("scenarios", index, "id")), scenario.id) for index, scenario in enumerate(scope.scenarios)]
    yield from _unique(ids if spec.dataset is None else [], "scenario")
    for index, item in enumerate(spec.scenarios):
        for name in item.invariants:
            if name in spec.invariants:
                advice = "invariants of a scenario are added to the spec's; give it another name"
                path = ("scenarios", index, "invariants", name)
                yield Problem(path, f"the invariant '{name}' is there already", help=advice, on_key=True)
        if item.prompt is not None and not item.prompt.strip():
            yield Problem(("scenarios", index, "prompt"), "the prompt is empty", expected="what the agent is to do")


def _weights(scope: Scope) -> Iterator[Problem]:
    if scope.damaged & {"invariants", "scenarios"} or scope.rules.only_gates:
        return
    if any(invariant.weight > 0 for invariant in scope.spec.invariants.values()):
        return
    bad = next((one for one in scope.scenarios if not any(i.weight > 0 for i in one.invariants.values())), None)
    if bad is not None:
        where = f" for the scenario '{bad.id}'" if len(scope.scenarios) > 1 else ""
        message = f"every invariant has the weight 0{where}"
        yield Problem(("invariants",), message, expected="at least one weight above 0", on_key=True)


def _aggregation(scope: Scope) -> Iterator[Problem]:
    rule, asked = scope.spec.scoring.replica_aggregation, scope.spec.parallelism.replicas
    if "parallelism" in scope.damaged:
        return
    if isinstance(asked, UntilDecided) and asked.min > asked.max:
        path: KeyPath = ("parallelism", "replicas", "min")
        yield Problem(path, "min is above max", expected=f"at most {asked.max}", found=show_value(asked.min))
        return
    replicas = asked if isinstance(asked, int) else asked.max
    if isinstance(rule, AtLeast) and rule.at_least > replicas:
        path = ("scoring", "replica_aggregation", "at_least")
        yield Problem(path, f"at_least is above the {replicas} replicas", found=show_value(rule.at_least))
    if rule == "mean" and isinstance(asked, UntilDecided):
        message = "replicas can't stop when it is decided where `mean` is the rule: the mean may change with each"
        advice = "give a number of replicas, or another rule: all, any, majority, {at_least: k}"
        yield Problem(("parallelism", "replicas"), message, help=advice, on_key=True)


def _matrix(scope: Scope) -> Iterator[Problem]:
    parallelism = scope.spec.parallelism
    known = list(parallelism.matrix)
    for index, entry in enumerate(parallelism.exclude):
        path: KeyPath = ("parallelism", "exclude", index)
        for name in entry:
            if name not in known:
                yield Problem(
                    (*path, name), f"'{name}' is not in the matrix", suggestion=nearest(name, known), on_key=True
                )
        if not entry:
            yield Problem(path, "an empty entry would exclude everything", expected="names of the matrix")
    for index, entry in enumerate(parallelism.include):
        if not entry:
            yield Problem(("parallelism", "include", index), "an empty entry adds nothing", expected="names and values")
        for name in entry:
            meant = slip_of(name, known)
            is_used = any(f"params.{name}" in leaf.value for leaf in leaves(scope.spec)) if meant else False
            if meant and meant not in entry and not is_used:
                # As a parameter of its own it would fit every combination, and add to all of them.
                message = f"'{name}' is not in the matrix"
                yield Problem(("parallelism", "include", index, name), message, suggestion=meant, on_key=True)


def _task(scope: Scope) -> Iterator[Problem]:
    task = scope.spec.task
    prompted = bool(scope.scenarios) and all(one.prompt is not None for one in scope.scenarios)
    if isinstance(task.prompt, str) and not task.prompt.strip() and not prompted:
        yield Problem(("task", "prompt"), "the prompt is empty", expected="what the agent is to do")
    for index, name in enumerate(task.files):
        if ".." in name.split("/"):
            advice = "files keep their relative path in the workspace, which this one would leave"
            yield Problem(("task", "files", index), f"'..' in {show_value(name)}", help=advice)
    for index, text in enumerate(task.turns):
        if not text.strip():
            expected = "what is said to the agent in this turn"
            yield Problem(("task", "turns", index), "the turn is empty", expected=expected)
    agents = dict.fromkeys(agent.type for agent in (scope.spec.agent, *scope.rules.agents.values()))
    for kind in agents if task.turns and "agent" not in scope.damaged else ():
        if kind in WITHOUT_TURNS:
            message = f"the agent {kind} can't go on with a conversation"
            advice = "say all of it in the prompt, or take another agent"
            yield Problem(("task", "turns"), message, help=advice, on_key=True)


def _recordings_problem(folder: str | None) -> str:
    if folder is None:
        return ""
    parts = folder.split("/")
    if folder.startswith("/") or ".." in parts or set(parts) <= {"", "."}:
        return f"{show_value(folder)} is not a folder below the spec's"
    return f"an expression in {show_value(folder)}: a change could not be compared with it" if "{{" in folder else ""


def _gateway(scope: Scope) -> Iterator[Problem]:
    spec = scope.spec
    if isinstance(spec.gateway, Gateway):
        names = [(("gateway", "providers", index), name) for index, name in enumerate(spec.gateway.provider_names)]
        yield from _unique(names, "provider")
        if problem := _recordings_problem(spec.gateway.recordings):
            advice = "they are a folder beside the spec, such as recordings/my-spec"
            yield Problem(("gateway", "recordings"), problem, help=advice)
    if spec.gateway != "off":
        return
    if isinstance(spec.agent, PresetAgent | LoopAgent):
        advice = "leave `gateway` out, or start the program by `type: command`"
        yield Problem(("gateway",), f"the agent type '{spec.agent.type}' needs the gateway", help=advice, on_key=True)
    own_word = isinstance(spec.agent, HttpAgent) and spec.agent.tool_calls_path is not None
    if spec.forbidden.needs_trace and spec.agent.trace is None and not own_word:
        name = "tools" if spec.forbidden.tools is not None else "commands"
        advice = "leave `gateway` out, or declare agent.trace, whose word it is then"
        yield Problem(("gateway",), f"forbidden.{name} needs the gateway", help=advice, on_key=True)


def _http_agent(scope: Scope) -> Iterator[Problem]:
    spec, agent = scope.spec, scope.spec.agent
    if not isinstance(agent, HttpAgent):
        return
    for name in OF_PROGRAMS:
        if getattr(agent, name) != HttpAgent.model_fields[name].get_default(call_default_factory=True):
            message = f"an agent of the type http has no '{name}': it is asked by a request, not started"
            advice = "what it answers is its output; a container's variables are the `env` of its service"
            yield Problem(("agent", name), message, help=advice, on_key=True)
    if spec.determinism.clock is not None:
        message = "determinism.clock can't be given to an agent of the type http, whose processes are not ours"
        yield Problem(
            ("determinism", "clock"), message, help="leave it out, or start the agent by `command`", on_key=True
        )
    rules = spec.forbidden
    unseen: list[KeyPath] = [("audit", "processes")] if spec.audit.processes else []
    unseen += [("forbidden", "file_writes_outside")] if rules.file_writes_outside is not None else []
    for path in unseen:
        message = f"{path[0]}.{path[1]} can't be kept: nothing of an agent of the type http runs in the cell's sandbox"
        yield Problem(path, message, help="leave it out, or start the agent by `command`", on_key=True)
    if is_elsewhere(spec, agent) and "services" not in scope.damaged:
        own_word = spec.gateway == "off" and agent.tool_calls_path is not None
        blind = [name for name in ("tools", "commands") if getattr(rules, name) is not None and not own_word]
        blind += ["http_except"] if rules.http_except is not None else []
        for name in blind:
            message = f"forbidden.{name} can't be kept: nobody sees what an agent does that runs elsewhere"
            advice = "make it a container of `services`, and name it in agent.url as {{ services.NAME.url }}"
            yield Problem(("forbidden", name), message, help=advice, on_key=True)
        is_told = any(leaf.path[0] == "agent" and "gateway." in leaf.value for leaf in leaves(spec))
        if isinstance(spec.gateway, Gateway) and spec.gateway.budget.model_fields_set and not is_told:
            message = "gateway.budget can't be kept: an agent that runs elsewhere asks its models by itself"
            advice = "leave it out, or lead the agent to the gateway: {{ gateway.NAME.url }} in what it is sent"
            yield Problem(("gateway", "budget"), message, help=advice, on_key=True)
    if (service := agent_service(spec, agent, {})) is not None:
        yield from misuses_of(spec, service)


def _loop_agent(scope: Scope) -> Iterator[Problem]:
    """What Keystone's own tool loop can't do anything with."""
    agent, gateway = scope.spec.agent, scope.spec.gateway
    if not isinstance(agent, LoopAgent):
        return
    yield from _unique([(("agent", "tools", index), name) for index, name in enumerate(agent.tools)], "tool")
    given = [("agent", "trace", "stdout")] if agent.trace is not None and agent.trace.stdout is not None else []
    given += [("agent", "output", "json")] if isinstance(agent.output, AgentOutput) and agent.output.json_from else []
    for path in given:
        advice = "leave it out: the gateway has its trace, and its answer is what the model said last"
        yield Problem(path, f"agent.{path[1]}.{path[2]} means nothing for this agent", help=advice, on_key=True)
    if agent.stdin is not None:
        advice = "leave it out: the prompt is what the model is told first"
        yield Problem(("agent", "stdin"), "agent.stdin means nothing for this agent", help=advice, on_key=True)
    if not isinstance(gateway, Gateway):
        return
    if agent.api not in gateway.apis.values():
        message = f"the agent type '{agent.type}' needs a provider with the API {agent.api}"
        yield Problem(("gateway", "providers"), message, on_key=True)
    if gateway.models and "{{" not in agent.model and not any(fnmatchcase(agent.model, one) for one in gateway.models):
        message = f"gateway.models keeps the agent's model {show_value(agent.model)} out"
        yield Problem(("gateway", "models"), message, help="add it, or choose another agent.model", on_key=True)


def _forbidden_rules(scope: Scope) -> Iterator[Problem]:
    spec = scope.spec
    if spec.forbidden.http_except is not None:
        yield from _http_except(scope, spec.forbidden.http_except)
    is_without = "services" not in scope.damaged and not any(service.is_database for service in spec.services)
    if spec.forbidden.db_writes_outside is not None and is_without:
        message = "forbidden.db_writes_outside needs a database, and none of the services is one that can be watched"
        advice = "writes are seen in services of the types postgres, mysql, sqlite and external"
        yield Problem(("forbidden", "db_writes_outside"), message, help=advice, on_key=True)


def _dns_overrides(scope: Scope) -> Iterator[Problem]:
    overrides = scope.spec.network.dns_overrides
    if not overrides:
        return
    if scope.spec.base is None and "base" not in scope.damaged:
        message = "network.dns_overrides can't be kept by the process sandbox, whose names are this machine's"
        advice = "set base to run in a container, which has a network of its own, or give the agent the service's URL"
        yield Problem(("network", "dns_overrides"), message, help=advice, on_key=True)
    for host, name in overrides.items():
        service = next((one for one in scope.spec.services if one.name == name), None)
        if service is not None and not (service.kind in ("http_mock", "container") or getattr(service, "image", None)):
            message = f"the service '{name}' has no address in the cell's network"
            expected = "an http_mock, or a service with an image"
            yield Problem(("network", "dns_overrides", host), message, expected=expected, found=service.kind)


def _http_except(scope: Scope, names: Sequence[str]) -> Iterator[Problem]:
    if scope.spec.base is None and "base" not in scope.damaged:
        message = "forbidden.http_except can't be kept by the process sandbox, whose network is this machine's"
        advice = "set base to run in a container, which has a network of its own, or leave the rule out"
        yield Problem(("forbidden", "http_except"), message, help=advice, on_key=True)
    for index, name in enumerate(names):
        if name in scope.service_names:
            continue
        path: KeyPath = ("forbidden", "http_except", index)
        try:
            parse_allowed([name])
        except ValueError as error:
            yield Problem(path, f"http_except[{index}]: {error}")
            continue
        if _HOST_MARKS.isdisjoint(name) and name != "localhost":
            message = f"{show_value(name)} is neither a service nor a host"
            yield Problem(path, message, suggestion=nearest(name, sorted(scope.service_names)))


_RULES: Sequence[Callable[[Scope], Iterator[Problem]]] = (
    _alternatives,
    _service_names,
    _mcp_names,
    _secret_names,
    _scenarios,
    _weights,
    _aggregation,
    _matrix,
    _task,
    _gateway,
    _http_agent,
    _loop_agent,
    _forbidden_rules,
    _dns_overrides,
)


def service_names_of(data: Any) -> frozenset[str]:
    """The names of all services in the data of a spec, of those with errors too."""
    services = data.get("services") if isinstance(data, dict) else None
    entries = services if isinstance(services, list) else []
    return frozenset(
        entry["name"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    )


def find_unsupported(scope: Scope) -> Iterator[Problem]:
    """Parts of the contract that this version refuses in some specs; `problems` has those that it refuses in all."""
    spec = scope.spec
    if spec.agent.user != "unprivileged":
        yield not_yet(("agent", "user"), f"the agent user '{spec.agent.user}'", "only unprivileged is")
    for index, service in enumerate(spec.services):
        yield from _unsupported_service(service, ("services", index))


def _unsupported_service(service: Any, path: KeyPath) -> Iterator[Problem]:
    if not isinstance(service, ServerBase) or service.kind != "postgres" or service.image is not None:
        return
    if service.isolation == "container":
        yield not_yet((*path, "isolation"), "isolation: container of an embedded server", "use auto or database")
    for name in _ONLY_IN_CONTAINERS:
        if getattr(service, name):
            yield not_yet((*path, name), f"'{name}' of an embedded server", "leave it out", on_key=True)
