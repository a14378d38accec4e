"""An AgenticAssure suite → the tree of a Keystone spec (spec.md 1.9, 5.5).

Every scenario brings its own invariants, one for each of its scorers, and its own agent, which differs from the others'
in its time limit alone.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from yaml.nodes import MappingNode, Node

from keystone_action.dialects.agenticassure import fields as known
from keystone_action.dialects.agenticassure.adapter import (
    NOT_CODE,
    WAYS_OUT,
    Adapter,
    find_adapter,
    named_adapter,
    registers_scorers,
)
from keystone_action.dialects.agenticassure.fields import SuiteFields
from keystone_action.dialects.agenticassure.scorers import (
    BUILT_IN,
    ScenarioText,
    check_of,
    check_scenario,
    invariant_name,
)
from keystone_action.dialects.nodes import FileFindings, build_node, items_of, pairs_of
from keystone_action.errors import UsageError
from keystone_action.spec.loading.diagnostics import SourcePosition, show_value
from keystone_action.spec.loading.loaded_spec import OwnScorers, RunRules, safe_id
from keystone_action.spec.loading.spec_source import Translation
from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.agents import Agent, PythonAgent

if TYPE_CHECKING:
    from pathlib import Path

    from keystone_action.spec.loading.spec_source import TranslationSource

DEFAULT_SCORER, DEFAULT_TIMEOUT = "passfail", 30.0
_CELL_SECONDS, _AROUND_SECONDS = 900.0, 300.0
"""A cell gets the usual quarter of an hour, or its agent's time and this long for all around it."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The fields of `suite`, checked. values has those that are there; so has config."""

    values: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def timeout(self) -> float:
        """Seconds that a scenario gets which sets none."""
        return float(self.config.get("default_timeout", DEFAULT_TIMEOUT))

    @property
    def scorers(self) -> list[str]:
        """Of scenarios that name none."""
        usual = [str(self.values["scorer"])] if "scorer" in self.values else [DEFAULT_SCORER]
        found: list[str] = self.config.get("default_scorers", usual)
        return found


def translate_suite(source: TranslationSource, specs_below: Callable[[Path], tuple[Path, ...]]) -> Translation:
    """The suite as a Keystone spec. specs_below: finds all suites and specs in a directory. Raises SpecError with
    everything that is wrong with the suite."""
    return _Translating(source, specs_below).run()


class _Translating:
    def __init__(self, source: TranslationSource, specs_below: Callable[[Path], tuple[Path, ...]]) -> None:
        self.source, self.specs_below = source, specs_below
        self.document, self.data = source.merged.document, source.merged.data
        self.findings = FileFindings(problems=list(source.merged.problems))
        self.fields = SuiteFields(self.document, self.findings)
        self.root = pairs_of(self.document.node)

    def run(self) -> Translation:
        self.fields.mapping(self.data, (), known.ROOT, required=("scenarios",), what="the file")
        suite = self._suite()
        scenarios = self._scenarios()
        named = self._name_scenarios(scenarios)
        for scenario in scenarios:
            check_scenario(scenario, self._scorers(scenario, suite), self.fields)
        adapter = self._adapter(suite)
        self.findings.stop_if_any()
        assert adapter is not None
        return self._translation(suite, named, adapter)

    def _suite(self) -> Suite:
        if "suite" not in self.data:
            return Suite({}, {})
        values = self.fields.mapping(self.data["suite"], ("suite",), known.SUITE, required=("name",), what="suite")
        for key, instead in (("adapter", "agenticassure.yaml"), ("scorer", "suite.config.default_scorers")):
            if key in values:
                message = f"'{key}' is in AgenticAssure's documents, and its own command refuses it"
                self.fields.warning(("suite", key), message, key=True, help=f"it is read; {instead} works with both")
        config = values.get("config", {})
        at = ("suite", "config")
        return Suite(values, self.fields.mapping(config, at, known.CONFIG, what="config"))

    def _scenarios(self) -> list[ScenarioText]:
        listed = self.data.get("scenarios")
        if not isinstance(listed, list):
            if "scenarios" in self.data:
                self.fields.wrong(("scenarios",), "scenarios", known.LIST, listed)
            return []
        if not listed:
            self.fields.problem(("scenarios",), "no scenarios", expected="at least one", key=True)
        nodes = items_of(self.root["scenarios"][1])
        found = []
        for index, (value, node) in enumerate(zip(listed, nodes, strict=True)):
            path = ("scenarios", index)
            required = ("name", "input")
            fields = self.fields.mapping(value, path, known.SCENARIO, required=required, what="a scenario")
            found.append(ScenarioText(fields, node, path))
        return found

    def _name_scenarios(self, scenarios: Sequence[ScenarioText]) -> dict[str, ScenarioText]:
        """By ids: the name as far as an id can be one, numbered where an earlier one has it."""
        written = {str(scenario.values.get("name")) for scenario in scenarios}
        found: dict[str, ScenarioText] = {}
        for index, scenario in enumerate(scenarios):
            name = str(scenario.values.get("name", ""))
            plain = safe_id(name) or f"scenario-{index + 1}"
            identity, number = plain, 2
            while identity in found or (identity != plain and identity in written):
                suffix = f"-{number}"
                identity, number = plain[: 128 - len(suffix)] + suffix, number + 1
            if identity != plain:
                message = f"another scenario is named {show_value(name)}, or almost so"
                self.fields.warning((*scenario.path, "name"), message, help=f"this one is {identity} in results")
            found[identity] = scenario
        return found

    def _scorers(self, scenario: ScenarioText, suite: Suite) -> list[str]:
        """The scenario's own, else the suite's; each once."""
        own = "scorers" in scenario.values
        names = scenario.values["scorers"] if own else suite.scorers
        at = (*scenario.path, "scorers") if own else ("suite", "config", "default_scorers")
        once = list(dict.fromkeys(names))
        if not names:
            self.fields.problem(at, "no scorers", expected="at least one", help="without any, no scenario could pass")
        elif len(once) < len(names):
            self.fields.warning(at, "a scorer is there twice; it is used once")
        return once

    def _adapter(self, suite: Suite) -> Adapter | None:
        of_suite = suite.values.get("adapter")
        at = ("suite", "adapter") if of_suite is not None and self.source.agent is None else ("scenarios",)
        before = len(self.findings.problems)
        named = named_adapter(self.source, of_suite, self.findings)
        if named is None:
            if len(self.findings.problems) == before:
                self.fields.problem(at, "nothing says which agent this suite is for", help=WAYS_OUT, key=True)
            return None
        try:
            adapter = find_adapter(named, self.source)
        except UsageError as error:
            self.fields.problem(at, error.message, help=error.help, key=True)
            return None
        if "{{" in self._directory(adapter):
            self.fields.problem(at, f"the adapter's folder has '{{{{' in its name: {adapter.directory}", key=True)
        return adapter

    def _directory(self, adapter: Adapter) -> str:
        return os.path.relpath(adapter.directory, self.source.path.parent.resolve())

    def _translation(self, suite: Suite, named: Mapping[str, ScenarioText], adapter: Adapter) -> Translation:
        agents = {identity: self._agent(scenario, suite, adapter) for identity, scenario in named.items()}
        at = self.root["scenarios"][0]
        longest = max(agent.timeout for agent in agents.values())
        suite_nodes = {key: value for key, (_, value) in pairs_of(self.root.get("suite", (at, at))[1]).items()}
        fail_fast = bool(suite.config.get("fail_fast", False))
        document: dict[str, Any] = {
            "version": 1,
            "id": _suite_id(suite.values.get("name"), self.source.path.stem),
            **{key: suite_nodes[key] for key in ("description", "tags") if key in suite_nodes},
            "task": {"prompt": ""},
            "agent": agents[next(iter(agents))].model_dump(mode="json", exclude_unset=True),
            "resources": {"timeout": max(_CELL_SECONDS, longest + _AROUND_SECONDS)},
            "scenarios": [self._scenario(identity, one, suite, adapter) for identity, one in named.items()],
            "invariants": {},
        }
        if adapter.env:
            document["secrets"] = list(dict.fromkeys(adapter.env))
        if fail_fast:
            document["parallelism"] = {"max_concurrency": 1}
        node = build_node(document, at)
        assert isinstance(node, MappingNode)
        by_key: dict[tuple[str, ...], Agent] = {(identity,): agent for identity, agent in agents.items()}
        rules = RunRules(
            has_expressions=False,
            names_keys=False,
            id_from_name=True,
            agents=by_key,
            agent_gets_context=False,
            agent_retries=int(suite.config.get("retries", 0)),
            fail_fast=fail_fast,
            every_check_decides=True,
            agent_left_out=NOT_CODE,
            advice_on_missing_variable=f"take it off `env` in {adapter.files[0]}" if adapter.env else "",
            own_scorers=self._own_scorers(named, suite, adapter),
        )
        warnings = tuple(self.findings.warnings)
        # All of them would be copied with the adapter, and what they expect is not for agents.
        return Translation(node, rules, warnings, adapter.files, hidden=self.specs_below(adapter.directory))

    def _agent(self, scenario: ScenarioText, suite: Suite, adapter: Adapter) -> PythonAgent:
        return PythonAgent(
            type="python",
            entrypoint=adapter.entrypoint,
            dir=self._directory(adapter),
            timeout=self._timeout(scenario, suite),
            env={variable: f"{{{{ secrets.{variable} }}}}" for variable in dict.fromkeys(adapter.env)},
            must_exit_zero=True,
        )

    def _timeout(self, scenario: ScenarioText, suite: Suite) -> float:
        return float(scenario.values.get("timeout_seconds", suite.timeout))

    def _scenario(self, identity: str, scenario: ScenarioText, suite: Suite, adapter: Adapter) -> Node:
        nodes = scenario.nodes
        optional = {"expected": "expected_output", "metadata": "metadata", "tags": "tags"}
        item: dict[str, Any] = {"id": identity, "input": nodes["input"]}
        item |= {key: nodes[original] for key, original in optional.items() if original in nodes}
        return build_node({**item, "invariants": self._invariants(identity, scenario, suite, adapter)}, nodes["name"])

    def _invariants(self, identity: str, scenario: ScenarioText, suite: Suite, adapter: Adapter) -> Node:
        """One for each scorer; each stands where the scorer is named, or the scenario where it isn't."""
        nodes = scenario.nodes
        places = {node.value: node for node in items_of(nodes.get("scorers"))}
        given = {
            "id": identity,
            "scorers": self._scorers(scenario, suite),
            "timeout_seconds": self._timeout(scenario, suite),
        }
        custom = {"modules": list(adapter.modules), "scenario": {**given, **nodes}}
        found: dict[str, tuple[Node, Node]] = {}
        for scorer in self._scorers(scenario, suite):
            at = places.get(scorer, nodes["name"])
            # No description: reports join what scenarios have under one name, and theirs differ.
            invariant = {"check": check_of(scorer, scenario, custom)}
            name = invariant_name(scorer, found)
            found[name] = (build_node(name, at), build_node(invariant, at))
        node = build_node({}, nodes["name"])
        node.value = list(found.values())
        return node

    def _own_scorers(self, named: Mapping[str, ScenarioText], suite: Suite, adapter: Adapter) -> OwnScorers | None:
        """What has to be imported to know whether all scorers are there and are what they seem."""
        places: dict[str, SourcePosition] = {}
        usual: KeyPath = (
            ("suite", "config", "default_scorers") if "default_scorers" in suite.config else ("suite", "scorer")
        )
        for scenario in named.values():
            at = (*scenario.path, "scorers") if "scorers" in scenario.values else usual
            for index, scorer in enumerate(self._scorers(scenario, suite)):
                places.setdefault(scorer, self.document.position((*at, index)))
        if set(places) <= set(BUILT_IN) and not registers_scorers(adapter.directory):
            return None
        return OwnScorers(self._directory(adapter), adapter.modules, places)


def _suite_id(name: str | None, stem: str) -> str:
    """The suite's name, else the file's, in kebab-case."""
    for text in (name or "", stem):
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
        slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:128].strip("-")
        if slug:
            return slug
    return "suite"
