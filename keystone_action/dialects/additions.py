"""What specs of other tools ask for that a Keystone spec has no field for."""

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
    """`setup.stub` of Touchstone: the body of every function of that name in a Python file of the workspace is
    replaced by `raise NotImplementedError`. where: `file:line:column` of the entry."""

    file: str
    function: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class OwnScorers:
    """Scorer classes of an AgenticAssure suite's author. directory: the folder of their modules, relative to the spec.
    modules: what is imported for them, in that order. places: the name of each scorer that the suite uses, of built-in
    ones too → where it is first named."""

    directory: str
    modules: tuple[str, ...]
    places: Mapping[str, Position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What a translated spec has besides its `Spec`; texts in the spec have no expressions but those of agents.

    dialect: `touchstone` or `agenticassure`. agents: by the cell's key, see `key_of`. key_parameters: names of
    parameters whose values are the key; empty = the scenario's id is. stubs: applied after fixtures. left_out: names
    and globs of names that are not copied into the workspace. only_gates: nothing gives credit, so no cell passes.
    retries: how often an agent that failed (raised, ended with another code than 0, took too long) is run again;
    None = the rule of Keystone specs, never. fail_fast: no further cell of this spec starts after one that did not
    pass. every_check: a cell passes exactly when every check that was not skipped does, whatever the composite, unless
    the call gives a threshold. own_scorers: None where a suite has none. agent_left_out: names that are not copied
    with the agent's own code. without_variable: what to do instead of setting a variable of the environment that this
    spec asks for, in its own words. roots: directories outside the repository, ours alone, that absolute paths of the
    author's may lead into: clones that were made while the spec was loaded.
    """

    dialect: str
    agents: Mapping[tuple[str, ...], Agent] = field(default_factory=dict)
    key_parameters: tuple[str, ...] = ()
    stubs: tuple[Stub, ...] = ()
    left_out: tuple[str, ...] = ()
    only_gates: bool = False
    retries: int | None = None
    fail_fast: bool = False
    every_check: bool = False
    own_scorers: OwnScorers | None = None
    agent_left_out: tuple[str, ...] = ()
    without_variable: str = ""
    roots: tuple[Path, ...] = ()

    def agent(self, scenario: str, params: Mapping[str, Any]) -> Agent | None:
        """The agent of a cell, None where it is the spec's."""
        names = self.key_parameters
        return self.agents.get(tuple(str(params.get(name)) for name in names) if names else (scenario,))
