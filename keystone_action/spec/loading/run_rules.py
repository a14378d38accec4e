"""How a spec is run where the format of Keystone specs has no key for it: translations of other formats set this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keystone_action.spec.loading.diagnostics import Position
    from keystone_action.spec.models.agents import Agent


@dataclass(frozen=True, slots=True)
class Stub:
    """Every function of that name in a Python file of the workspace gets the body `raise NotImplementedError`.
    where: `file:line:column` of the entry."""

    file: str
    function: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class OwnScorers:
    """Scorer classes that a spec's author brings. directory: the folder of their modules, relative to the spec.
    modules: what is imported for them, in that order. places: the name of each scorer that the spec uses, built-in
    ones included → where it is first named."""

    directory: str
    modules: tuple[str, ...]
    places: Mapping[str, Position]


@dataclass(frozen=True, kw_only=True)
class RunRules:
    """The defaults are the rules of every Keystone spec, whose file can't change them.

    has_expressions: whether `{{ }}` in the spec's texts are expressions; those of agents always are.
    names_keys: whether the file is written in the keys of a Keystone spec, so that messages may name these.
    id_from_name: the id is made from a name that nobody promised to be unique; it is numbered where it is taken.
    agents: the agents of cells that do not run the spec's, by the values of the parameters `agent_parameters`; by the
    scenario's id when there are none of these.
    agent_gets_context: whether a `python` agent gets parameters and services beside its input.
    agent_retries: how often an agent that failed (raised, ended with another code than 0, took too long) runs again.
    stubs: functions that lose their body once the fixtures are there.
    workspace_left_out, agent_left_out: names and globs of names that are not copied into the workspace, or with the
    agent's own code.
    only_gates: nothing gives credit, so no cell passes.
    every_check_decides: a cell passes exactly when every check that was not skipped does. The composite decides
    nothing then, unless the call gives a threshold.
    fail_fast: no further cell of this spec starts after one that did not pass.
    own_scorers: scorer classes that are looked up before the first agent starts.
    without_variable: what to do instead of setting a variable of the environment that this spec asks for, in words.
    further_roots: directories outside the repository, ours alone, that absolute paths of the author's may lead into.
    """

    has_expressions: bool = True
    names_keys: bool = True
    id_from_name: bool = False
    agents: Mapping[tuple[str, ...], Agent] = field(default_factory=dict)
    agent_parameters: tuple[str, ...] = ()
    agent_gets_context: bool = True
    agent_retries: int = 0
    stubs: tuple[Stub, ...] = ()
    workspace_left_out: tuple[str, ...] = ()
    agent_left_out: tuple[str, ...] = ()
    only_gates: bool = False
    every_check_decides: bool = False
    fail_fast: bool = False
    own_scorers: OwnScorers | None = None
    without_variable: str = ""
    further_roots: tuple[Path, ...] = ()

    def agent_for(self, scenario: str, params: Mapping[str, Any]) -> Agent | None:
        """The agent of a cell; None where it is the spec's."""
        if not self.agents:
            return None
        names = self.agent_parameters
        return self.agents.get(tuple(str(params.get(name)) for name in names) if names else (scenario,))
